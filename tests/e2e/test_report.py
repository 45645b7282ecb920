"""`sickbay report` on the examples: a page that holds what the other commands answer, and files that are never lost."""

from __future__ import annotations

import json

import pytest
from cli import EXAMPLE_NAMES, log_of, misused, ok, refused, rows
from report_logs import HOSTILE, hostile
from report_models import Seen

from projections.engine import Store

LEDGER_KINDS = {"verdict_changed", "drift_found", "drift_cleared", "duplicate_refused", "duplicate_withdrawn"}
GPU_3 = "dra:gpu.nvidia.com/gpu-a1/gpu-3"


@pytest.fixture(scope="module")
def pages(stores, tmp_path_factory):
    """The page of each example, as text."""
    folder = tmp_path_factory.mktemp("pages")
    for name in EXAMPLE_NAMES:
        ok("report", "--db", stores[name], "-o", folder / f"{name}.html")
    return {name: (folder / f"{name}.html").read_text(encoding="utf-8") for name in EXAMPLE_NAMES}


@pytest.mark.parametrize("example", EXAMPLE_NAMES)
def test_a_page_holds_every_episode_decision_and_incident(pages, stores, example):
    """What `audit` lists stands in the page, by its id, and each decision has its mark."""
    found = Seen(pages[example])
    assert [] == found.unbalanced
    for row in rows("audit", "episodes", db=stores[example]):
        assert row["episode_id"] in found.text
    decided = rows("audit", "transitions", db=stores[example])
    incidents = rows("audit", "node-incidents", db=stores[example])
    marks = [mark["aria-label"].partition(" ")[0] for mark in found.all("a", class_="m")]
    assert len(decided) + 2 * len(incidents) == sum(kind not in LEDGER_KINDS for kind in marks)
    told = [json.loads(data)["kind"] for data in log_of(stores[example])]
    for kind in LEDGER_KINDS - {"verdict_changed"}:
        assert told.count(kind) == marks.count(kind)
    holds = rows("audit", "ledger-holds", db=stores[example])
    assert marks.count("verdict_changed") >= len({row["node"] for row in holds})
    for row in decided:
        assert row["event_id"] in found.text
        assert row["reason"] in found.text
        assert row["policy"] in found.text


def test_a_page_shows_the_evidence_that_explain_shows(pages, stores):
    """What the card said of itself, and the ids of the facts."""
    found = Seen(pages["one-card"])
    assert '"XID 48: double bit ECC error, 1 since boot"' in found.text
    explained = ok("explain", "last", "--db", stores["one-card"], "-o", "csv").csv_rows()
    ids = {event_id for row in explained for event_id in row["evidence_event_ids"].split()}
    assert ids
    assert all(event_id in found.text for event_id in ids)


def test_the_summary_says_what_was_written(stores, tmp_path):
    """As one JSON object; the page is where it says, with as many bytes."""
    path = tmp_path / "incident.html"
    asked = ("report", "--db", stores["one-card"], "--file", path, "--title", "gpu-3 lost")
    (summary,) = ok(*asked, "--output", "json").json_lines()
    assert (str(path), path.stat().st_size, "gpu-3 lost") == (
        summary["page"],
        summary["bytes"],
        summary["title"],
    )
    assert "<title>gpu-3 lost</title>" in path.read_text(encoding="utf-8")


def test_the_same_store_gives_the_same_bytes(stores, tmp_path):
    first, second = tmp_path / "1.html", tmp_path / "2.html"
    for path in (first, second):
        ok("report", "--db", stores["flapping"], "-o", path)
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("example", EXAMPLE_NAMES)
def test_a_page_holds_what_the_ledger_says(pages, stores, example):
    """Every hold, difference and refused duplicate of the views, and every node that has balances."""
    found = Seen(pages[example])
    for view, columns in (
        ("ledger-balances", ("node", "resource")),
        ("ledger-holds", ("node", "reason")),
        ("ledger-drift", ("namespace", "claim", "cause", "detail")),
        ("ledger-duplicates", ("entry_key", "contender")),
    ):
        for row in rows("audit", view, db=stores[example]):
            assert all(row[column] in found.text for column in columns), row


def test_the_fourth_example_has_something_in_each_part_of_the_ledger(pages, stores):
    """So the test above is about rows that are there."""
    for view in ("ledger-balances", "ledger-holds", "ledger-drift", "ledger-duplicates"):
        assert rows("audit", view, db=stores["double-count"])
    assert Seen(pages["double-count"]).all("svg", class_="hold")


def test_a_page_can_go_to_standard_output(stores, pages):
    """In a pipe there is the page and nothing else."""
    assert pages["one-card"] == ok("report", "--db", stores["one-card"], "-o", "-").out
    alone = ok("report", "--db", stores["one-card"], "-o", "-", env={"PYTHONIOENCODING": "ascii"})
    assert pages["one-card"] == alone.out


def test_a_page_of_a_part_says_so(stores, tmp_path):
    """One device up to half an hour: its episode is open, and nothing of the others is there."""
    path = tmp_path / "part.html"
    ok(
        *("report", "--db", stores["one-card"], "-o", path, "--device", GPU_3),
        *("--from", "2026-07-01T08:00:00Z", "--until", "2026-07-01T08:10:00Z"),
    )
    found = Seen(path.read_text(encoding="utf-8"))
    assert "open, quarantined" in found.text
    assert GPU_3 in found.text
    assert "gpu-a2" not in found.text


def test_a_file_that_is_there_is_not_written_over(stores, tmp_path):
    """Not without --force, and with it the old page is replaced whole."""
    path = tmp_path / "incident.html"
    path.write_text("mine")
    problem = refused("report", "--db", stores["one-card"], "-o", path, code=2)
    assert f"{path}: there is a file already; give another --file, or --force to write over it" == problem
    assert "mine" == path.read_text()
    ok("report", "--db", stores["one-card"], "-o", path, "--force")
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [path] == list(tmp_path.iterdir())


def test_the_file_is_named_by_itself_when_nobody_names_it(stores, tmp_path):
    ok("report", "--db", stores["one-card"], cwd=tmp_path)
    assert [tmp_path / "incident.html"] == list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_an_error_that_says_so(stores, tmp_path):
    path = tmp_path / "none" / "incident.html"
    assert str(path) in refused("report", "--db", stores["one-card"], "-o", path, code=1)


@pytest.mark.parametrize("form", ["json", "table", "csv"])
def test_a_form_is_not_taken_for_a_file(stores, form):
    """-o is the file here, and --output the form."""
    assert f"-o {form}: -o names the page here; write --output {form}" in misused(
        "report", "--db", stores["one-card"], "-o", form
    )


def test_a_name_that_the_store_does_not_know_writes_nothing(stores, tmp_path):
    path = tmp_path / "incident.html"
    problem = refused("report", "--db", stores["one-card"], "-o", path, "--node", "gpu-z9", code=2)
    assert "the store knows no node 'gpu-z9'" in problem
    assert not path.exists()


def test_hostile_words_stay_words(tmp_path):
    """Ids, messages and reasons with markup, turned text, escapes and U+0000 are in the page, and are text."""
    log = hostile()
    with Store.open(tmp_path / "store.db", create=True, partitions=log.partitions) as store:
        store.write(log.records)
    ok(
        "report",
        "--db",
        tmp_path / "store.db",
        "-o",
        tmp_path / "page.html",
        "--title",
        HOSTILE.replace("\0", ""),
    )
    found = Seen((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert [] == found.unbalanced
    assert (1, 0) == (len(found.all("script")), len(found.all("img")))
    assert '</script><img src=x onerror="alert(1)"><!--\\u202egnp.exe\\x1b[2J' in found.text
