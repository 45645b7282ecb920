"""Several recordings as one, with progress."""

from __future__ import annotations

import gzip
import json

import pytest

from ingest.recording import Ignored, read_recordings
from sickbay.codec import encode, wrap_fact
from sickbay.errors import RecordingError
from sickbay.facts import NodeGone

JULY_MS = 1_782_864_000_000  # 2026-07-01T00:00:00Z


def unexpected(parked):
    pytest.fail(f"parked: {parked}")


def pod(name):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "uid": f"uid-{name}"}}


def lines(*frames):
    """``(second, name)`` each."""
    return b"".join(
        json.dumps(
            {
                "at": f"2026-07-01T00:00:{second:02d}Z",
                "resource": "pods",
                "type": "ADDED",
                "object": pod(name),
            }
        ).encode()
        + b"\n"
        for second, name in frames
    )


def names(frames):
    return [frame.object["metadata"]["name"] for frame in frames]


@pytest.fixture
def write(tmp_path):
    def write_file(name, content):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write_file


def test_files_are_merged_by_time_and_equal_times_by_file(write):
    """The order of the arguments decides between equal times."""
    first = write("first", lines((1, "a1"), (3, "a3"), (5, "a5")))
    second = write("second", gzip.compress(lines((1, "b1"), (2, "b2"), (5, "b5"))))
    assert ["a1", "b1", "b2", "a3", "a5", "b5"] == names(
        read_recordings([first, second], on_parked=unexpected)
    )
    assert ["b1", "a1", "b2", "a3", "b5", "a5"] == names(
        read_recordings([second, first], on_parked=unexpected)
    )


def test_a_time_that_goes_back_keeps_its_place_in_its_file(write):
    """A file is never put in another order; such a frame keeps its own time, and goes with the one before it."""
    first = write("first", lines((5, "a5"), (1, "a1"), (7, "a7")))
    second = write("second", lines((2, "b2"), (6, "b6")))
    frames = list(read_recordings([first, second], on_parked=unexpected))
    assert ["b2", "a5", "a1", "b6", "a7"] == names(frames)
    assert [2, 5, 1, 6, 7] == [(frame.at_ms - JULY_MS) // 1000 for frame in frames]


def test_every_format_can_be_merged(write):
    """A list, a recording and a dump of facts stand on one time line."""
    item = pod("l4")
    item["metadata"]["managedFields"] = [{"time": "2026-07-01T00:00:04Z"}]
    listed = write("list", json.dumps({"kind": "List", "items": [item]}, indent=4).encode())
    own = write("own", lines((3, "o3"), (5, "o5")))
    gone = NodeGone(node="n", observed_at_ms=JULY_MS + 4500, node_uid="u")
    dump = write("dump", encode(wrap_fact(gone)) + b"\n")
    frames = list(read_recordings([own, dump, listed], on_parked=unexpected))
    assert [3000, 4000, 4500, 5000] == [frame.at_ms - JULY_MS for frame in frames]
    assert gone == frames[2].fact


def test_the_merge_is_lazy(write):
    """The first frame comes before the files are read to their end."""
    content = lines(*[(1, f"p{number}") for number in range(2000)])
    paths = [write("first", content), write("second", content)]
    progress = []
    frames = read_recordings(
        paths, on_parked=unexpected, on_progress=lambda *now: progress.append(now), chunk_bytes=1000
    )
    assert "p0" == names([next(frames)])[0]
    assert progress[-1][0] < len(content) // 10
    assert 3999 == sum(1 for _ in frames)


def test_progress_goes_to_the_size_of_all_files_as_stored(write):
    """Compressed bytes are counted, over all files."""
    first, second = write("first", gzip.compress(lines((1, "a")))), write("second", lines((2, "b"), (3, "c")))
    total = first.stat().st_size + second.stat().st_size
    progress = []
    list(
        read_recordings(
            [first, second],
            on_parked=unexpected,
            on_progress=lambda *now: progress.append(now),
            chunk_bytes=16,
        )
    )
    assert {total} == {size for _, size in progress}
    counts = [count for count, _ in progress]
    assert sorted(counts) == counts
    assert total == counts[-1]
    assert len(counts) > 2


def test_parked_and_ignored_are_those_of_all_files(write):
    """One callback and one counter."""
    first = write("first", lines((1, "a")) + b"broken\n")
    second = write(
        "second", lines((1, "b")).replace(b'"pods"', b'"services"') + lines((2, "c")) + b"{broken\n"
    )
    parked, ignored = [], Ignored()
    assert ["a", "c"] == names(read_recordings([first, second], on_parked=parked.append, ignored=ignored))
    assert {f"{first}:2", f"{second}:3"} == {one.place for one in parked}
    assert {"resource services": 1} == dict(ignored)


def test_one_file_that_cannot_be_opened_stops_all_before_the_first_frame(write, tmp_path):
    """Half a merge would be another story."""
    first = write("first", lines((1, "a")))
    with pytest.raises(RecordingError, match="no such file"):
        next(read_recordings([first, tmp_path / "nowhere"], on_parked=unexpected))
    with pytest.raises(RecordingError, match="is empty"):
        next(read_recordings([first, write("empty", b"")], on_parked=unexpected))


def test_standard_input_is_given_once():
    """It cannot be read twice."""
    with pytest.raises(RecordingError, match="given twice"):
        next(read_recordings(["-", "-"], on_parked=unexpected))


def test_no_files_are_no_frames():
    """An empty list of paths is an empty recording."""
    assert [] == list(read_recordings([], on_parked=unexpected))
