"""The ledger's commands on a PostgreSQL store: every answer, request and export is that of SQLite, byte for byte."""

from __future__ import annotations

import pytest
from cli import example, ok, replay, rows, verified
from postgresql import server

GATE = ("--at", "2026-07-01T08:51:00Z", "--actor", "ann", "--reason", "driver upgrade")


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """The fourth example in both."""
    url, path = server().empty(), tmp_path_factory.mktemp("ledger") / "double-count.db"
    for db in (url, path):
        replay(example("double-count"), db=db)
    yield url, path
    server().drop(url)


@pytest.mark.parametrize(
    "question",
    [
        ("ledger",),
        ("ledger", "mix-1", "--entries", "--journal"),
        ("ledger", "mix-1", "--as-of", "2026-07-01T08:25:10Z", "--known-at", "120"),
        ("audit", "ledger-holds", "--known-at", "0:120,4:20"),
        ("promotion", "--as-of", "2026-07-01T08:35:00Z"),
    ],
    ids=" ".join,
)
def test_questions_answer_alike(stores, question):
    url, path = stores
    answered = rows(*question, db=url)
    assert answered
    assert answered == rows(*question, db=path)


def test_an_export_of_one_is_equal_to_the_other(stores, tmp_path):
    """The logs are the same, so the files are."""
    files = [tmp_path / "one.jsonl", tmp_path / "other.jsonl"]
    for db, file in zip(stores, files, strict=True):
        ok("export", "ledger", "--file", file, "--db", db)
    assert files[0].read_bytes() == files[1].read_bytes()
    for db, file in zip(stores, reversed(files), strict=True):
        done = ok("import", file, "--check", "--db", db, "-o", "json")
        assert ("", "") == (done.out, done.err)


def test_a_gate_is_closed_alike(stores):
    """The same verdicts, the same status, and afterwards the same rows."""
    closed = [ok("gate", "close", "cluster", *GATE, "--db", db, "-o", "json") for db in stores]
    assert closed[0].out == closed[1].out
    assert {"hold"} == {row["verdict"] for row in closed[0].json_lines()}
    url, path = stores
    assert rows("gate", "status", db=url) == rows("gate", "status", db=path)
    assert verified(url) == verified(path)
