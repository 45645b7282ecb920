"""Input that cannot be used: one line that names the place and the remedy, an exit code, and everything readable processed."""

from __future__ import annotations

import gzip
import json
from hashlib import sha256
from pathlib import Path

import pytest
from cli import example, log_of, misused, ok, refused, replay, rows, verified
from cli_recordings import faulty, frame, plain, pod, write

from ingest.recording_text import UNIT_BYTES_DEFAULT

DEVICE = "plugin:nvidia.com/gpu/GPU-1"


def parked(db):
    return [(row["place"], row["reason"]) for row in rows("audit", "parked", db=db)]


def opened(db):
    return [row["device_id"] for row in rows("episodes", db=db)]


@pytest.fixture
def db(tmp_path):
    return tmp_path / "store.db"


@pytest.mark.parametrize("form", ["gzip", "zstd"])
def test_a_file_that_was_cut_short_is_read_up_to_the_cut(tmp_path, db, form):
    """The readable part is processed, the cut is parked with its byte, and the exit code says so."""
    whole = gzip.compress(plain("one-card")) if form == "gzip" else Path(example("one-card")).read_bytes()
    recording = tmp_path / "cut"
    recording.write_bytes(whole[: len(whole) // 2])
    summary = replay(recording, db=db, code=3)
    assert (1, 1) == (summary["episodes"], summary["parked"])
    ((place, reason),) = parked(db)
    assert f"{recording}:byte {len(whole) // 2}" == place
    assert f"the {form} data is cut short" in reason
    verified(db)
    done = ok("replay", recording, "--db", db, code=3)
    assert f"parked: 1 that could not be used; `sickbay audit parked --db {db}` shows them\n" in done.err
    assert 1 == len(parked(db))


def random_bytes():
    return b"".join(sha256(str(number).encode()).digest() for number in range(3_000))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (random_bytes(), "no JSON object begins any line"),
        (b"kind: Pod\nmetadata: {}\n", "no JSON object begins any line"),
        ('{"at": 1}'.encode("utf-16"), "save it as UTF-8"),
        (b'{"foo": 1}\n', "no usable frame"),
    ],
    ids=["empty", "blank", "binary", "yaml", "utf-16", "other json"],
)
def test_a_file_that_is_no_recording_is_refused(tmp_path, db, content, problem):
    """The file is named with what is expected, whatever it holds."""
    recording = tmp_path / "recording"
    recording.write_bytes(content)
    told = refused("replay", recording, "--db", db, code=2)
    assert problem in told
    assert str(recording) in told


def test_a_wrong_path_leaves_no_store_behind(tmp_path, db):
    """A store is pinned to its recording; a slip must not pin one to nothing."""
    assert "no such file; give the path of a recording" in refused(
        "replay", tmp_path / "missing", "--db", db, code=2
    )
    assert "no such file" in refused("replay", example("one-card"), tmp_path / "missing", "--db", db, code=2)
    (tmp_path / "empty").touch()
    assert "is empty" in refused("replay", tmp_path / "empty", "--db", db, code=2)
    assert not db.exists()
    assert "is a directory" in misused("replay", tmp_path, "--db", db)


def test_what_is_wrong_with_an_unusable_recording_is_said(tmp_path, db):
    """The first reason stands in the error, and all of them in the audit."""
    recording = write(
        tmp_path / "bad.jsonl", [frame("08:00:00", "WEIRD", {}), frame("08:00:01", "WEIRD", {})]
    )
    told = refused("replay", recording, "--db", db, code=2)
    assert f"the first of 2 that could not be used is {recording}:1: type 'WEIRD' is none of" in told
    assert [f"{recording}:1", f"{recording}:2"] == [place for place, _ in parked(db)]


def huge():
    item = pod("huge", "GPU-9", "Healthy", 5)
    item["metadata"]["annotations"] = {"note": "x" * 10_000_000}
    return frame("08:01:00", "ADDED", item)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("garbage", "not readable as JSON"),
        ("[1, 2]", "list instead of a JSON object"),
        ('{"foo": 1}', "a JSON object of no format that is read"),
        ("[" * 100_000, "nested too deeply"),
        (
            '{"at": "2026-07-01T08:01:00Z", "resource": "pods", "type": "ADDED", "object": {"x": NaN}}',
            "not readable as JSON",
        ),
        (
            b'{"at": "2026-07-01T08:01:00Z", "resource": "pods", "type": "ADDED", "object": "\xff\xfe"}',
            "Invalid UTF-8",
        ),
        ('{"at": "yesterday", "resource": "pods", "type": "ADDED", "object": {}}', "no RFC 3339 time"),
        (frame("08:01:00", "SIDEWAYS", {}), "type 'SIDEWAYS' is none of"),
        (frame("08:01:00", "ADDED", {"metadata": {}}), "metadata"),
        (frame("08:01:00", "ADDED", None), "object is missing"),
        (frame("08:01:00", "ADDED", pod("long", "G" * 4096, "Unhealthy", 5)), "a device id has 1 to 1024"),
    ],
    ids=[
        "garbage",
        "array",
        "unknown",
        "deep",
        "NaN",
        "UTF-8",
        "time",
        "type",
        "empty object",
        "no object",
        "long id",
    ],
)
def test_a_bad_line_is_parked_and_the_rest_goes_on(tmp_path, db, line, reason):
    """The line is named and counted, the lines around it are decided on, and the exit code is 3."""
    recording = faulty(tmp_path / "recording.jsonl", line)
    assert 1 == replay(recording, db=db, code=3)["parked"]
    ((place, told),) = parked(db)
    assert f"{recording}:2" == place
    assert reason in told
    assert [DEVICE] == opened(db)
    verified(db)


def test_a_large_object_is_read(tmp_path, db):
    """Ten megabytes are a large Pod and no mistake."""
    assert 0 == replay(faulty(tmp_path / "recording.jsonl", huge()), db=db)["parked"]
    assert [DEVICE] == opened(db)


@pytest.mark.slow
def test_a_line_beyond_the_limit_is_parked(tmp_path, db):
    """A longer line than any object needs is not held in memory; what is kept of it is little."""
    line = b'{"at": "' + b"9" * UNIT_BYTES_DEFAULT
    replay(faulty(tmp_path / "recording.jsonl", line), db=db, code=3)
    ((_, reason),) = parked(db)
    assert f"longer than the limit of {UNIT_BYTES_DEFAULT} bytes" in reason
    assert [DEVICE] == opened(db)


def test_a_nul_in_an_id_is_kept_and_shown(tmp_path, db):
    """Every answer about such a device can be printed, and the store verifies."""
    line = frame("08:01:00", "ADDED", pod("nul", "GPU-\x00-2", "Unhealthy", 5))
    replay(faulty(tmp_path / "recording.jsonl", line), db=db)
    assert [DEVICE, "plugin:nvidia.com/gpu/GPU-\u2400-2"] == sorted(opened(db))
    assert any(b"GPU-\\u0000-2" in event for event in log_of(db))
    assert "GPU-\u2400-2" in ok("episodes", "--db", db).out
    verified(db)


@pytest.mark.parametrize("quantity", ["NaN", "Infinity", "1e999999", "-8", "", "8 cards"])
def test_a_quantity_that_is_none_condemns_nothing(tmp_path, db, quantity):
    """A node whose amounts cannot be read is no dead node, and its card is judged by what the Pod says."""
    item = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node-1", "uid": "uid-node", "resourceVersion": "7"},
        "status": {
            "capacity": {"nvidia.com/gpu": "8"},
            "allocatable": {"nvidia.com/gpu": quantity, "cpu": quantity},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    recording = faulty(tmp_path / "recording.jsonl", frame("08:01:00", "ADDED", item, resource="nodes"))
    ok("replay", recording, "--db", db)
    assert [DEVICE] == opened(db)
    assert [] == rows("audit", "node-incidents", db=db)
    verified(db)


# --- dumps ---


def changed(event, **fields):
    return json.dumps(json.loads(event) | fields)


def test_an_event_that_this_build_cannot_read_is_parked(stores, tmp_path, db):
    """A newer shape and an unknown kind are never guessed at; the other facts of the dump are decided on."""
    facts = [event for event in log_of(stores["one-card"]) if b'"causation_id":""' in event]
    newer = changed(facts[5], schema_version=99)
    other = changed(facts[6], kind="device_teleported")
    recording = write(tmp_path / "dump.jsonl", [*facts[:20], newer, other, *facts[20:]])
    assert 2 == replay(recording, db=db, code=3)["parked"]
    assert [
        (
            f"{recording}:21",
            f"{json.loads(facts[5])['kind']} has schema version 99, this build reads up to 1",
        ),
        (f"{recording}:22", "event kind 'device_teleported' is unknown to this build"),
    ] == [(place, reason.split("; ")[0]) for place, reason in parked(db)]
    assert 1 == len(opened(db))


# --- policies ---


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"version: [\n", "not YAML"),
        (b"\xff\xfe\x00", "save it as UTF-8"),
        (b"- a\n- b\n", "expected a mapping of policy fields"),
        (b"quarantin: {}\n", "unknown field `quarantin`"),
        (b"quarantine: {min_hold_ms: soon}\n", "$.quarantine.min_hold_ms"),
        (b"quarantine: {min_hold_ms: 1}\n", "at least one second"),
        (b"quarantine: {min_hold_ms: 1.5}\n", "$.quarantine.min_hold_ms"),
        (b"version: a\nunknown: {window_ms: 99000000000}\n", "window_ms"),
        (b"!!python/object/apply:os.system ['true']\n", "not YAML"),
    ],
)
def test_a_policy_that_cannot_be_used_is_refused(tmp_path, db, text, problem):
    """The file and the field are named on one line, before a store is made."""
    policy = tmp_path / "policy.yaml"
    policy.write_bytes(text)
    told = refused("replay", example("one-card"), "--policy", policy, "--db", db, code=2)
    assert problem in told
    assert told.startswith(f"{policy}: ")
    assert not db.exists()


def test_a_policy_that_cannot_be_read_is_refused(tmp_path, db):
    """A missing file and a folder are named with what to give."""
    told = refused("replay", example("one-card"), "--policy", tmp_path / "none.yaml", "--db", db, code=2)
    assert "cannot be read (No such file or directory); give the path of a policy document" in told
    assert "is a directory" in misused("replay", example("one-card"), "--policy", tmp_path, "--db", db)


# --- usage ---


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("nothing",), "No such command 'nothing'"),
        (("replay",), "Missing argument 'FILES...'"),
        (("replay", "x", "--workers", "99"), "'--workers': 99 is not in the range"),
        (("replay", "x", "--step-ms", "0"), "'--step-ms': 0 is not in the range"),
        (("replay", "x", "--until", "2026-07-01"), "is no RFC 3339 time; write it with its offset"),
        (("episodes", "--as-of", "yesterday"), "is no RFC 3339 time"),
        (("episodes", "-o", "xml"), "'xml' is not one of"),
        (("audit", "devices", "--where", "node"), "write COLUMN=VALUE"),
        (("timeline",), "Missing argument 'DEVICE'"),
    ],
)
def test_a_wrong_command_line_shows_the_usage(arguments, problem):
    """Wrong usage is exit code 2, with the usage of the command."""
    assert problem in misused(*arguments)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("audit", "nothing"), "there is no audit view 'nothing'; there are alerts,"),
        (("audit", "devices", "--where", "colour=red"), "has no column 'colour'; it has node,"),
        (
            ("timeline", "dra:none"),
            "the log never names the device 'dra:none'; `sickbay audit devices` lists them",
        ),
        (("explain", "ffffffff"), "no episode begins with 'ffffffff'; `sickbay episodes` lists them"),
        (("explain", "last", "--as-of", "2026-07-01T08:00:00Z"), "had not begun then"),
    ],
)
def test_a_question_about_nothing_is_answered_with_what_there_is(stores, arguments, problem):
    """What does not exist is exit code 2, with the way to what does."""
    assert problem in refused(*arguments, "--db", stores["one-card"], code=2)


def test_an_empty_store_has_no_last_episode(stores):
    """`last` of none is said."""
    assert "the store holds no episode" == refused("explain", "last", "--db", stores["node-level"], code=2)


def test_standard_input_is_read_once(db):
    """Given twice, or closed, it is refused, and no store is made of it."""
    assert "given twice" in refused("replay", "-", "-", "--db", db, code=2)
