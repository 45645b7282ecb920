"""What a driver or a person wrote cannot forge a line, run in a spreadsheet, or hide (faults X2, X6)."""

from __future__ import annotations

import json
import re

import pytest
from cli import ok, replay, rows
from cli_recordings import frame, pod, write

#: Clears the screen, forges a line, sets the title, turns the text around, hides and joins, in C1 and as tags.
HOSTILE = "\x1b[2Jok\n2026-07-01T08:00:00.000Z  all is well\r\x1b]0;owned\x07\u202egnp.exe\u2066\u200b\x9b31m\u2028\U000e0041[red]"
UNSAFE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)
FORMULAS = ("=cmd|' /C calc'!A0", "+1+1", "-1-1", "@SUM(1)", "\t=1", "\r=1")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A store in which messages, ids and requests are hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    lines = [
        frame("08:00:00", "ADDED", pod("first", "GPU-1", "Healthy", 1)),
        frame("08:01:00", "MODIFIED", pod("first", "GPU-1", "Unhealthy", 2, message=HOSTILE)),
        frame("08:01:30", "ADDED", pod("second", HOSTILE, "Unhealthy", 3, message="=1+1", node="node-2")),
        frame("08:02:00", "SIDEWAYS" + HOSTILE, {}),
        '{"at": "2026-07-01T08:03:00Z", "resource": '
        + json.dumps("gadgets" + HOSTILE)
        + ', "type": "ADDED", "object": {}}',
    ]
    store = folder / "store.db"
    replay(write(folder / "recording.jsonl", lines), db=store, code=3)
    for number, formula in enumerate(FORMULAS):
        ok(
            *(
                "hold",
                "plugin:nvidia.com/gpu/GPU-1",
                "--at",
                f"2026-07-01T08:1{number}:00Z",
                "--until",
                "2026-07-01T12:00:00Z",
            ),
            *(f"--reason={formula}{HOSTILE}", f"--actor={formula}", "--db", store),
        )
    return store


def questions(store):
    devices = [row["device_id"] for row in rows("audit", "devices", db=store)]
    assert 2 == len(devices)
    yield ("episodes",)
    yield from (("timeline", device) for device in devices if "\x00" not in device)
    yield from (("explain", row["episode_id"]) for row in rows("episodes", db=store))
    yield from (
        ("audit", view) for view in ("devices", "episodes", "transitions", "requests", "parked", "inventory")
    )


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_no_answer_carries_a_character_that_acts(hostile, form):
    """No control, bidirectional or invisible character reaches a terminal, and no message makes a line of its own."""
    for question in questions(hostile):
        out = ok(*question, "--db", hostile, "-o", form).out
        assert None is UNSAFE.search(out), f"{question}: {UNSAFE.search(out)}"
        assert not any(line.startswith("2026-07-01T08:00:00.000Z  all") for line in out.splitlines())


def test_a_message_is_shown_and_no_markup(hostile):
    """What is escaped is still there to be read, and brackets are no colours."""
    told = ok("timeline", "plugin:nvidia.com/gpu/GPU-1", "--db", hostile, "-o", "csv").out
    assert r"\x1b[2Jok\n2026-07-01T08:00:00.000Z" in told
    assert "[red]" in "".join(ok("explain", "last", "--db", hostile).out.split())


def test_json_means_what_was_written(hostile):
    """Escapes are of the form only: a program reads the very text."""
    reasons = [row["reason"] for row in rows("audit", "requests", db=hostile)]
    assert [formula + HOSTILE for formula in FORMULAS] == reasons


def test_a_cell_that_a_spreadsheet_would_run_is_quoted(hostile):
    """No CSV cell begins as a formula does."""
    found = ok("audit", "requests", "--db", hostile, "-o", "csv").csv_rows()
    assert ["'"] * len(FORMULAS) == [row["reason"][0] for row in found]
    assert [*FORMULAS[:4]] == [row["actor"].removeprefix("'") for row in found][:4]
    for question in questions(hostile):
        for row in ok(*question, "--db", hostile, "-o", "csv").csv_rows():
            assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in row.values())


def test_an_error_and_a_note_cannot_paint_lines_either(hostile, tmp_path):
    """What the user or a file named is escaped on standard error too."""
    for arguments in (("timeline", f"dra:{HOSTILE}"), ("explain", HOSTILE), ("audit", HOSTILE)):
        done = ok(*arguments, "--db", hostile, code=2)
        assert (1, None) == (len(done.err.splitlines()), UNSAFE.search(done.err))
    named = tmp_path / "x\x1b[2J\n.jsonl"
    done = ok("replay", named, "--db", tmp_path / "none.db", code=2)
    assert (1, None) == (len(done.err.splitlines()), UNSAFE.search(done.err))
    lines = [
        frame("08:00:00", "ADDED", pod("first", "GPU-1", "Healthy", 1)),
        frame("08:00:01", "ADDED", {}, "g" + HOSTILE),
    ]
    done = ok("replay", write(tmp_path / "recording.jsonl", lines), "--db", tmp_path / "store.db")
    assert "passed over: 1 x resource g" in done.err
    assert (1, None) == (len(done.err.splitlines()), UNSAFE.search(done.err))
