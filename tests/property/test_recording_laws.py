"""Laws of reading recordings: where chunks end is no matter, what is broken stays alone, what is written comes back."""

from __future__ import annotations

import gzip
import heapq
import json

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingest.frames import RESOURCES
from ingest.recording import RecordingWriter, open_recording, read_recordings
from ingest.recording_documents import DocumentCutter
from ingest.recording_text import Document, Item, ListEnd
from sickbay.errors import RecordingError
from sickbay.timestamps import LAST_MS, format_time_ms

PACKED = {"plain": bytes, "gzip": gzip.compress, "zstd": zstandard.compress}

# quotes, backslashes, brackets and characters of two to four bytes are what a cutter can trip over
awkward = st.text(st.sampled_from('"\\{}[]:,\n\r\t\0 aé€🔥\u2028\x7f'), max_size=12) | st.text(
    st.characters(codec="utf-8"), max_size=8
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | awkward,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(awkward, inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(awkward, values, max_size=5)
frames = st.tuples(
    st.integers(0, LAST_MS),
    st.sampled_from(RESOURCES),
    st.sampled_from(["ADDED", "MODIFIED", "DELETED"]),
    objects,
)
relaxed = settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


def unexpected(parked):
    pytest.fail(f"parked: {parked}")


def line(frame):
    at_ms, resource, type_, item = frame
    document = {"object": item, "type": type_, "resource": resource, "at": format_time_ms(at_ms)}
    return json.dumps(document, ensure_ascii=False).encode()


def essence(frame):
    return (frame.at_ms, frame.resource, frame.type, frame.object)


def read(path, content, **options):
    path.write_bytes(content)
    parked = []
    with open_recording(path, on_parked=parked.append, **options) as recording:
        return list(recording), parked


@pytest.fixture
def path(tmp_path):
    return tmp_path / "recording"


@relaxed
@given(
    st.lists(frames, min_size=1, max_size=6),
    st.integers(1, 7),
    st.sampled_from(sorted(PACKED)),
    st.booleans(),
)
def test_where_chunks_end_is_no_matter(path, wanted, chunk_bytes, form, ended):
    """A chunk may end inside a character, an escape or a line end, packed or not: the frames are what was written."""
    content = b"\n".join(map(line, wanted)) + b"\n" * ended
    found, parked = read(path, PACKED[form](content), chunk_bytes=chunk_bytes)
    assert [] == parked
    assert wanted == [essence(frame) for frame in found]


@relaxed
@given(
    st.lists(objects, min_size=1, max_size=4),
    st.sampled_from([None, 0, 1, 4]),
    st.sampled_from([b"", b"\n", b" \r\n\t"]),
    st.integers(1, 40),
    st.booleans(),
)
def test_documents_are_cut_where_json_says(documents, indent, between, chunk_bytes, ascii_only):
    """However they are printed and wherever chunks end, each document comes out byte for byte, at its line."""
    texts = [
        json.dumps({**one, "items": 1}, indent=indent, ensure_ascii=ascii_only).encode() for one in documents
    ]
    content = between.join(texts)
    cutter = DocumentCutter(1 << 20)
    units = []
    for start in range(0, len(content), chunk_bytes):
        units += cutter.feed(content[start : start + chunk_bytes])
    units += cutter.finish()
    starts = [len(between.join([*texts[:index], b""])) for index in range(len(texts))]
    lines = [content[:start].count(b"\n") + 1 for start in starts]
    assert list(map(Document, lines, texts)) == units


@relaxed
@given(
    objects,
    st.lists(objects, max_size=5),
    objects,
    st.sampled_from([None, 0, 1, 4]),
    st.integers(1, 40),
)
def test_items_are_cut_out_of_their_list(before, items, after, indent, chunk_bytes):
    """Wherever ``items`` stands in the document, each item comes out alone, and the rest is the document without them."""
    before.pop("items", None)
    after = {name: value for name, value in after.items() if name != "items" and name not in before}
    content = json.dumps({**before, "items": items, **after}, indent=indent, ensure_ascii=False).encode()
    cutter = DocumentCutter(1 << 20)
    units = []
    for start in range(0, len(content), chunk_bytes):
        units += cutter.feed(content[start : start + chunk_bytes])
    units += cutter.finish()
    assert items == [json.loads(unit.data) for unit in units[:-1]]
    assert [Item] * len(items) + [ListEnd] == [type(unit) for unit in units]
    assert ({**before, "items": [], **after}, True) == (json.loads(units[-1].data), units[-1].whole)


@relaxed
@given(
    st.lists(st.tuples(frames, st.binary(max_size=40)), min_size=2, max_size=6),
    st.sampled_from([3, 256 * 1024]),
)
def test_garbage_between_lines_loses_no_line(path, pairs, chunk_bytes):
    """Whatever bytes stand in a line of their own: every frame around them is read, and each line of garbage is counted."""
    content = b"".join(line(frame) + b"\n" + garbage.replace(b"\n", b"") + b"\n" for frame, garbage in pairs)
    found, parked = read(path, content, chunk_bytes=chunk_bytes)
    assert [frame for frame, _ in pairs] == [essence(frame) for frame in found]
    assert sum(bool(garbage.replace(b"\n", b"").strip()) for _, garbage in pairs) == len(parked)


@relaxed
@given(
    st.binary(max_size=200),
    st.sampled_from(sorted(PACKED)),
    st.sampled_from([b"", b"{\n ", b'{"items":[', b'{"at":"']),
)
def test_no_bytes_crash_the_reader(path, garbage, form, start):
    """Any file gives frames, parked pieces, or one RecordingError that names it."""
    error, parked = "", []
    try:
        _, parked = read(path, PACKED[form](start + garbage), chunk_bytes=13)
    except RecordingError as caught:
        error = str(caught)
    assert error == "" or str(path) in error
    assert all(one.reason.isprintable() and one.raw.isprintable() for one in parked)


@relaxed
@given(st.lists(objects, min_size=1, max_size=4), st.data())
def test_a_stream_cut_anywhere_gives_a_beginning_and_one_parked(path, bodies, data):
    """A watch stream that stops inside a document: all before it is read, the rest is parked once."""
    events = [{"type": "ADDED", "object": {"kind": "Pod", "body": body}} for body in bodies]
    texts = [json.dumps(event, indent=4, ensure_ascii=False).encode() + b"\n" for event in events]
    last = len(texts[-1]) - 1
    cut = data.draw(st.integers(1, last - 1))
    found, parked = read(path, b"".join(texts[:-1]) + texts[-1][:cut])
    assert [event["object"] for event in events[:-1]] == [frame.object for frame in found]
    assert 1 == len(parked)


@relaxed
@given(st.lists(frames, min_size=1, max_size=6), st.sampled_from(["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"]))
def test_what_is_written_comes_back(tmp_path, wanted, name):
    """Writer and reader are inverse, packed or not."""
    with RecordingWriter(tmp_path / name) as writer:
        for frame in wanted:
            writer.write(*frame)
    with open_recording(tmp_path / name, on_parked=unexpected) as recording:
        assert wanted == [essence(frame) for frame in recording]


@relaxed
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8), min_size=1, max_size=4))
def test_a_merge_keeps_each_file_in_order(tmp_path, files):
    """The merge is the stable merge by the running maximum of each file's times, and loses nothing."""
    paths = []
    expected = []
    for index, times in enumerate(files):
        paths.append(tmp_path / f"{index}")
        item = {"file": index}
        paths[-1].write_bytes(b"\n".join(line((at_ms, "pods", "ADDED", item)) for at_ms in times))
        latest = [max(times[: position + 1]) for position in range(len(times))]
        expected.append(
            [
                (late, index, position, at_ms)
                for position, (late, at_ms) in enumerate(zip(latest, times, strict=True))
            ]
        )
    found = [
        (frame.object["file"], int(frame.place.rsplit(":", 1)[1]) - 1, frame.at_ms)
        for frame in read_recordings(paths, on_parked=unexpected)
    ]
    assert [entry[1:] for entry in heapq.merge(*expected)] == found
