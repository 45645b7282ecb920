"""The own format, compression, and everything that can be wrong with a file."""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc
import zlib

import pytest
import zstandard

from ingest.frames import FactFrame, Frame
from ingest.recording import open_recording
from sickbay.codec import encode, wrap_decision, wrap_fact
from sickbay.decisions import NodeIncidentClosed
from sickbay.errors import RecordingError
from sickbay.facts import NodeGone, Tick

JULY_MS = 1_782_864_000_000  # 2026-07-01T00:00:00Z

GONE = NodeGone(node="node-g1", observed_at_ms=JULY_MS, rv=7, node_uid="u-n")
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "dra-2",
        "namespace": "ml",
        "uid": "a0000067-5a5a-4b4b-8c8c-000000000067",
        "resourceVersion": "9000",
        "creationTimestamp": "2026-07-01T00:00:00Z",
    },
    "spec": {"nodeName": "node-g1", "containers": [{"name": "main", "image": "registry.example/img:1"}]},
    "status": {
        "phase": "Running",
        "containerStatuses": [
            {
                "name": "main",
                "allocatedResourcesStatus": [
                    {
                        "name": "claim:gpu",
                        "resources": [
                            {
                                "resourceID": "fabric.example.com/rack-7.example.com/leaf-a/link-0",
                                "health": "Unhealthy",
                                "message": "Überhitzung 🔥",
                            }
                        ],
                    }
                ],
            }
        ],
    },
}
LEASE = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": "node-g1", "namespace": "kube-node-lease", "uid": "u-l", "resourceVersion": "500"},
    "spec": {
        "holderIdentity": "node-g1",
        "leaseDurationSeconds": 40,
        "renewTime": "2026-07-01T00:00:10.123456Z",
    },
}


def line(second=0, resource="pods", type_="MODIFIED", item=POD, **more):
    frame = {
        "at": f"2026-07-01T00:00:{second:02d}Z",
        "resource": resource,
        "type": type_,
        "object": item,
        **more,
    }
    return json.dumps(frame, ensure_ascii=False).encode()


def unexpected(parked):
    pytest.fail(f"parked: {parked}")


def read(path, content=None, **options):
    """Return (frames, parked) of a file, after writing ``content`` to it."""
    if content is not None:
        path.write_bytes(content)
    parked = []
    with open_recording(path, on_parked=parked.append, **options) as recording:
        frames = list(recording)
    assert len(parked) == recording.parked
    return frames, parked


class Pipe(io.RawIOBase):
    """Gives one piece for each read, as a pipe does, and fails when asked for more than it was told to give."""

    def __init__(self, pieces):
        self.pieces = list(pieces)

    def readable(self):
        return True

    def readinto(self, buffer):
        piece = self.pieces.pop(0) if self.pieces else b""
        buffer[: len(piece)] = piece
        return len(piece)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "recording"


# --- the own format ---------------------------------------------------------------------------------------------------


def test_each_line_is_one_frame(path):
    """A frame has its time, resource, type, the raw object and its place."""
    content = b"\n".join(
        [
            line(0, type_="LIST", item={"kind": "PodList", "items": [POD]}),
            line(1, "leases", "ADDED", LEASE),
            b'{"at":"2026-07-01T00:00:02.5Z","type":"TICK"}',
            line(3, type_="BOOKMARK", item={"kind": "Pod", "metadata": {"resourceVersion": "9"}}),
            line(4, type_="ERROR", item={"kind": "Status", "code": 410}),
            line(5, type_="DELETED"),
        ]
    )
    frames, parked = read(path, content)
    assert [] == parked
    assert [
        Frame(
            at_ms=JULY_MS,
            resource="pods",
            type="LIST",
            object={"kind": "PodList", "items": [POD]},
            place=f"{path}:1",
        ),
        Frame(at_ms=JULY_MS + 1000, resource="leases", type="ADDED", object=LEASE, place=f"{path}:2"),
        Frame(at_ms=JULY_MS + 2500, resource="", type="TICK", object=None, place=f"{path}:3"),
    ] == frames[:3]
    assert ["BOOKMARK", "ERROR", "DELETED"] == [frame.type for frame in frames[3:]]


def test_blank_lines_carriage_returns_and_a_byte_order_mark_are_no_matter(path):
    """Files that went through Windows or an editor read the same."""
    frames, parked = read(path, b"\xef\xbb\xbf" + line(0) + b"\r\n\r\n\n  \n" + line(1) + b"\r\n")
    assert [] == parked
    assert [f"{path}:1", f"{path}:5"] == [frame.place for frame in frames]


def test_fields_of_a_later_version_are_passed_over(path):
    """A newer recorder may add fields; the frame is the same."""
    frames, parked = read(path, line(0, cluster="prod", future={"deep": [1]}))
    assert ([POD], []) == ([frame.object for frame in frames], parked)


def test_other_resources_are_counted_and_passed_over(path):
    """A recording of more than what is read is no error."""
    path.write_bytes(line(0, "configmaps") + b"\n" + line(1))
    with open_recording(path, on_parked=unexpected) as recording:
        assert ["pods"] == [frame.resource for frame in recording]
    assert {"resource configmaps": 1} == dict(recording.ignored)


def test_the_counts_of_what_is_passed_over_stay_bounded(path):
    """Names come from the file, so the number of counters has an end."""
    path.write_bytes(b"\n".join(line(0, f"kind-{number}" + "x" * 500) for number in range(400)))
    with open_recording(path, on_parked=unexpected) as recording:
        assert [] == list(recording)
    assert 400 == sum(recording.ignored.values())
    assert 257 == len(recording.ignored)
    assert max(map(len, recording.ignored)) <= 80


def test_a_list_whose_items_are_null_is_empty(path):
    """Go writes an empty list as null; a list without items is no list, for it would delete everything."""
    lines = [line(0, type_="LIST", item={"items": None}), line(1, type_="LIST", item={"kind": "PodList"})]
    frames, parked = read(path, b"\n".join(lines))
    assert [{"items": []}] == [frame.object for frame in frames]
    assert ["a LIST without items"] == [one.reason[:20] for one in parked]


@pytest.mark.parametrize(
    ("bad", "reason", "at_ms"),
    [
        (b'{"at":"yesterday","type":"TICK"}', "at: 'yesterday' is no RFC 3339 time", None),
        (b'{"at":"2026-07-01T00:00:00","type":"TICK"}', "RFC 3339", None),
        (b'{"at":5,"type":"TICK"}', "RFC 3339", None),
        (line(1, type_="SYNC"), "type 'SYNC' is none of LIST", JULY_MS + 1000),
        (line(1, type_=["LIST"]), "is none of LIST", JULY_MS + 1000),
        (line(1, None), "resource is missing", JULY_MS + 1000),
        (line(1, {"a": 1}), "resource is missing", JULY_MS + 1000),
        (line(1, item=None), "object is missing", JULY_MS + 1000),
        (line(1, item=[POD]), "object is missing", JULY_MS + 1000),
        (line(1, type_="LIST", item={"items": {}}), "a LIST without items", JULY_MS + 1000),
        (b"{}", "of no format that is read", None),
        (b'{"hello":"world"}', "of no format that is read", None),
        (b"[1]", "list instead of a JSON object", None),
        (b"null", "NoneType instead of a JSON object", None),
        (b"12", "int instead of a JSON object", None),
        (b'{"object":{"kind":7},"type":"ADDED"}', "has no kind", None),
        (b"plain text", "not readable as JSON", None),
        (line(1)[:-1], "not readable as JSON", None),
        (line(1) + b"}", "not readable as JSON", None),
        (line(1)[:-1] + b',"n":NaN}', "not readable as JSON", None),
        (line(1)[:-1] + b',"n":-Infinity}', "not readable as JSON", None),
        (line(1)[:-1] + b',"n":1e999}', "not readable as JSON", None),
        (line(1).replace(b"Running", b"Run\xff\xfening"), "Invalid UTF-8", None),
        (line(1).replace(b"Running", b"\xed\xa0\x80"), "Invalid UTF-8", None),
        (line(1).replace(b"Running", b"Run\x00ning"), "not readable as JSON", None),
        (line(1).replace(b"Running", rb"\ud800"), "not readable as JSON", None),
        (b'{"at":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply", None),
        (line(1)[:-1] + b',"deep":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply", None),
    ],
)
def test_a_bad_line_is_parked_alone(path, bad, reason, at_ms):
    """The line's place, what is wrong and its bytes are kept; the lines around it are read."""
    frames, parked = read(path, line(0) + b"\n" + bad + b"\n" + line(2))
    assert [JULY_MS, JULY_MS + 2000] == [frame.at_ms for frame in frames]
    assert [(f"{path}:2", at_ms)] == [(one.place, one.at_ms) for one in parked]
    assert reason in parked[0].reason
    assert parked[0].raw
    assert parked[0].raw.isprintable()


def test_a_nul_in_an_id_is_kept(path):
    """An escaped NUL is legal JSON: it is text, kept as it is."""
    frames, parked = read(path, line(0).replace(b"rack-7", rb"rack\u00007"))
    resource = frames[0].object["status"]["containerStatuses"][0]["allocatedResourcesStatus"][0]["resources"][
        0
    ]
    assert ("fabric.example.com/rack\x007.example.com/leaf-a/link-0", []) == (resource["resourceID"], parked)


def test_parked_bytes_are_cut_and_escaped(path):
    """At most 4 KiB are kept, and nothing in them can write to a terminal."""
    frames, parked = read(path, line(0) + b"\n\x1b[31m\xff\xe2\x80\xae\x07" + b"x" * 10_000)
    assert 1 == len(frames)
    assert "\\x1b[31m\\xff\\u202e\\x07" + "x" * (4096 - 10) == parked[0].raw


def test_names_from_the_file_are_escaped_in_messages_and_counts(path):
    """A resource or an id cannot move the cursor of whoever reads the report."""
    event = encode(wrap_fact(GONE)).replace(b'"event_id":"', rb'"event_id":"\u001b[2J\u202e')
    path.write_bytes(
        line(0, "\x1b[31mpods") + b"\n" + event.replace(b'"observed_at_ms":1', b'"observed_at_ms":"x","y":1')
    )
    parked = []
    with open_recording(path, on_parked=parked.append) as recording:
        assert [] == list(recording)
    assert [r"resource \x1b[31mpods"] == list(recording.ignored)
    assert r"\x1b[2J\u202e" in parked[0].reason


def test_a_recording_is_closed_at_its_end(path):
    """Reading it to the end leaves no open file behind."""
    path.write_bytes(line(0))
    recording = open_recording(path, on_parked=unexpected)
    assert 1 == len(list(recording))
    assert recording._source._file.closed


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_line_of_ten_megabytes_is_read(path):
    """A Pod with a very large status is below the limit."""
    big = {**POD, "status": {"message": "m" * 10_000_000}}
    frames, parked = read(path, line(0) + b"\n" + line(1, item=big) + b"\n" + line(2))
    assert [POD, big, POD] == [frame.object for frame in frames]
    assert [] == parked


@pytest.mark.parametrize("chunk_bytes", [7, 1000, 1_000_000])
@pytest.mark.parametrize("end", [b"\n" + line(2), b"\n", b""])
def test_a_line_over_the_limit_is_parked_with_its_size(path, chunk_bytes, end):
    """It is not held; the limit is named, and the next line is read."""
    limit = len(line(0))
    content = line(0) + b"\n" + b"x" * (limit + 1) + end
    frames, parked = read(path, content, max_line_bytes=limit, chunk_bytes=chunk_bytes)
    assert [JULY_MS, JULY_MS + 2000][: 1 + (len(end) > 1)] == [frame.at_ms for frame in frames]
    assert [(f"{path}:2", f"longer than the limit of {limit} bytes ({limit + 1} bytes)")] == [
        (one.place, one.reason.split(";")[0]) for one in parked
    ]
    assert "x" * min(4096, limit) == parked[0].raw[:limit]


def test_a_line_of_exactly_the_limit_is_read(path):
    """The limit itself is allowed, whether or not the chunk is longer than it."""
    for chunk_bytes in (100, 100_000):
        frames, parked = read(
            path, line(0) + b"\n" + line(1), max_line_bytes=len(line(0)), chunk_bytes=chunk_bytes
        )
        assert (2, []) == (len(frames), parked)


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
@pytest.mark.parametrize("filler", [b"\0", b" ", b"["])
def test_a_bomb_does_not_fill_the_memory(path, compress, filler):
    """Some kilobytes that unfold to 256 MiB in one line are parked as one long line, in bounded memory."""
    path.write_bytes(compress(line(0) + b"\n" + filler * (256 << 20) + b"\n" + line(2)))
    assert path.stat().st_size < 500_000
    parked = []
    with open_recording(path, on_parked=parked.append, max_line_bytes=1 << 20) as recording:
        tracemalloc.start()
        try:
            frames = list(recording)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert [JULY_MS, JULY_MS + 2000] == [frame.at_ms for frame in frames]
    assert ["longer than the limit of 1048576 bytes (268435456 bytes)"] == [
        one.reason.split(";")[0] for one in parked
    ]
    assert peak_bytes < 80 << 20


def test_a_file_is_not_held_whole(path):
    """Reading 64 MiB of lines takes a few chunks of memory."""
    one = line(0) + b"\n"
    path.write_bytes(one * ((64 << 20) // len(one)))
    with open_recording(path, on_parked=unexpected) as recording:
        tracemalloc.start()
        try:
            count = sum(1 for _ in recording)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (64 << 20) // len(one) == count
    assert peak_bytes < 4 << 20


# --- compression ------------------------------------------------------------------------------------------------------

SKIPPABLE = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"
FORMS = {
    "plain": lambda a, b: a + b,
    "gzip": lambda a, b: gzip.compress(a + b),
    "gzip members": lambda a, b: gzip.compress(a) + gzip.compress(b),
    "gzip members and padding": lambda a, b: gzip.compress(a) + b"\0" * 512 + gzip.compress(b) + b"\0" * 512,
    "zstd": lambda a, b: zstandard.compress(a + b),
    "zstd frames": lambda a, b: zstandard.compress(a) + zstandard.compress(b),
    "zstd skippable frames": lambda a, b: (
        SKIPPABLE + zstandard.compress(a) + SKIPPABLE + zstandard.compress(b) + SKIPPABLE
    ),
}


@pytest.mark.parametrize("chunk_bytes", [1, 3, 1000, 256 * 1024])
@pytest.mark.parametrize("form", FORMS)
def test_compression_is_told_by_content(tmp_path, form, chunk_bytes):
    """Whatever the name says, and however many members or frames there are."""
    content = line(0) + b"\n" + line(1) + b"\n"
    for name in ("a.jsonl", "b.gz", "c.zst"):
        frames, parked = read(
            tmp_path / name, FORMS[form](content[:700], content[700:]), chunk_bytes=chunk_bytes
        )
        assert [POD, POD] == [frame.object for frame in frames]
        assert [] == parked


def gzip_flushed(lines):
    """A gzip member that was flushed after each line, as a recorder does."""
    compressor = zlib.compressobj(wbits=31)
    return (
        b"".join(compressor.compress(one) + compressor.flush(zlib.Z_SYNC_FLUSH) for one in lines)
        + compressor.flush()
    )


def zstd_flushed(lines):
    """A zstd frame that was flushed after each line."""
    compressor = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    flush = zstandard.COMPRESSOBJ_FLUSH_BLOCK
    return b"".join(compressor.compress(one) + compressor.flush(flush) for one in lines) + compressor.flush()


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("compress", "magic_bytes"), [(gzip_flushed, 2), (zstd_flushed, 4)])
def test_a_compressed_file_cut_anywhere_gives_what_is_before_and_one_parked(
    path, compress, magic_bytes, parts
):
    """At every byte: the frames are a beginning of all frames, and the cut is reported once with the byte."""
    lines = [line(second, "leases", item={**LEASE, "n": second}) + b"\n" for second in range(6)]
    lines[3], rest = lines[3][:100], lines[3][100:]
    lines.insert(4, rest)
    first = compress(lines[:4]) if parts == 2 else compress(lines)
    data = first + (compress(lines[4:]) if parts == 2 else b"")
    full, parked = read(path, data)
    assert (6, []) == (len(full), parked)
    counts = []
    for size in range(len(data)):
        path.write_bytes(data[:size])
        if size < magic_bytes:
            with pytest.raises(RecordingError, match="is empty" if size == 0 else "is no recording"):
                read(path)
            continue
        frames, parked = read(path)
        assert full[: len(frames)] == frames
        assert 1 == len(parked)
        if size == len(first):  # a whole member: only the line that is cut tells
            assert (f"{path}:4", "not readable as JSON") == (parked[0].place, parked[0].reason[:20])
        else:
            assert f"{path}:byte {size}" == parked[0].place
            assert "cut short" in parked[0].reason
        counts.append(len(frames))
    assert sorted(counts) == counts
    assert {0, 1, 2, 3, 4, 5, 6} == set(counts)


def test_a_last_line_that_is_whole_is_read_though_the_end_of_the_file_is_missing(path):
    """Only the checksum is cut off: every frame is there, and the cut is still reported."""
    frames, parked = read(path, gzip.compress(line(0) + b"\n" + line(1))[:-8])
    assert (2, [""]) == (len(frames), [one.raw for one in parked])


@pytest.mark.parametrize("form", ["gzip", "zstd"])
def test_corrupt_compressed_data_gives_what_is_before_and_one_parked(path, form):
    """A flipped bit, and bytes after the end, are found and named; frames that were read are whole ones."""
    content = b"\n".join(line(second) for second in range(60))
    data = FORMS[form](content, b"")
    if form == "zstd":
        data = zstandard.ZstdCompressor(write_checksum=True).compress(content)
    full, _ = read(path, data)
    for change in (data[:-6] + bytes([data[-6] ^ 1]) + data[-5:], data + b"garbage after the end"):
        frames, parked = read(path, change)
        assert full[: len(frames)] == frames
        assert 1 == len([one for one in parked if "corrupt" in one.reason])


# --- files that are no recordings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [b"", b"\n\n", b"  \r\n", gzip.compress(b"", mtime=0), zstandard.compress(b""), b"\xef\xbb\xbf"],
)
def test_an_empty_file_is_an_error(path, content):
    """A recorder that never wrote is not a quiet cluster."""
    with pytest.raises(RecordingError, match="is empty; expected"):
        read(path, content)


@pytest.mark.parametrize(
    "content",
    [
        b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 100,
        b"\x89PNG\r\n\x1a\n" + b"\0" * 1000,
        gzip.compress(bytes(range(256)) * 10),
        b"apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n",
        b"NAME   READY   STATUS\ndra-2  1/1  Running\n" * 200,
        b"Error from server (Forbidden): pods is forbidden\n",
        b"[" * 100_000,
        b"\0" * 300_000,
    ],
)
def test_what_is_no_recording_is_an_error_that_names_the_formats(path, content):
    """A binary file, YAML or a table is refused at once with what would be read."""
    with pytest.raises(
        RecordingError, match="is no recording: no JSON object begins any line; expected Sickbay"
    ):
        read(path, content)


def test_utf_16_is_named(path):
    """What PowerShell writes by default is told from a binary file."""
    with pytest.raises(RecordingError, match="UTF-16: save it as UTF-8"):
        read(path, line(0).decode().encode("utf-16"))


def test_endless_binary_input_is_refused_within_the_limit(monkeypatch):
    """No more than about twice the limit is read to tell, so a pipe that never ends is refused too."""
    pipe = Pipe([b"\xaa" * 1000] * 1000)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(pipe, 1000)))
    with pytest.raises(RecordingError, match="is no recording"):
        open_recording("-", on_parked=unexpected, max_line_bytes=10_000, chunk_bytes=1000)
    assert len(pipe.pieces) > 970


def test_a_missing_file_and_a_directory_are_errors_with_a_remedy(tmp_path):
    """The message names the path and what to do."""
    with pytest.raises(RecordingError, match=r"nowhere.*: no such file; give the path"):
        open_recording(tmp_path / "nowhere", on_parked=unexpected)
    with pytest.raises(RecordingError, match="is a directory; give the recordings in it"):
        open_recording(tmp_path, on_parked=unexpected)
    with pytest.raises(RecordingError, match="cannot be opened"):
        open_recording("a\0b", on_parked=unexpected)


def test_the_beginning_may_be_broken(path):
    """A log that was rotated in the middle of a line is still read by lines."""
    frames, parked = read(path, line(0)[300:] + b"\n" + line(1) + b"\n" + line(2))
    assert [JULY_MS + 1000, JULY_MS + 2000] == [frame.at_ms for frame in frames]
    assert [f"{path}:1"] == [one.place for one in parked]


# --- standard input ---------------------------------------------------------------------------------------------------


def test_a_dash_is_standard_input_and_live_lines_come_at_once(monkeypatch):
    """The first frame is there before the second line was written; the size is not known."""
    pipe = Pipe([line(0) + b"\n", line(1) + b"\n"])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(pipe)))
    with open_recording("-", on_parked=unexpected) as recording:
        frames = iter(recording)
        assert "<stdin>:1" == next(frames).place
        assert 1 == len(pipe.pieces)
        assert ["<stdin>:2"] == [frame.place for frame in frames]
        assert (None, len(line(0)) * 2 + 2) == (recording.total_bytes, recording.bytes_read)


def test_closed_standard_input_is_an_error(monkeypatch):
    """A service without standard input gets a message and no traceback."""
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(RecordingError, match="standard input is closed"):
        open_recording("-", on_parked=unexpected)


def test_a_read_error_is_reported_once_and_keeps_what_was_read(monkeypatch):
    """A disk that fails in the middle does not lose the beginning."""

    class Failing(Pipe):
        def readinto(self, buffer):
            if not self.pieces:
                raise OSError(5, "Input/output error")
            return super().readinto(buffer)

    monkeypatch.setattr(
        "sys.stdin", io.TextIOWrapper(io.BufferedReader(Failing([line(0) + b"\n" + line(1)[:50]])))
    )
    parked = []
    with open_recording("-", on_parked=parked.append) as recording:
        assert 1 == len(list(recording))
    assert [f"<stdin>:byte {len(line(0)) + 51}"] == [one.place for one in parked]
    assert "Input/output error" in parked[0].reason
    assert parked[0].raw


# --- a dump of the facts ----------------------------------------------------------------------------------------------


def test_a_dump_of_facts_gives_the_facts(path):
    """A fact is a FactFrame at its own time; a decision in the dump is counted and passed over."""
    tick = Tick(node="", observed_at_ms=JULY_MS + 1, partition=0)
    cause = wrap_fact(GONE)
    decision = NodeIncidentClosed(
        node="node-g1", at_ms=JULY_MS, incident_id="i-1", cause="node_lost", opened_at_ms=JULY_MS
    )
    path.write_bytes(
        b"\n".join(
            [encode(cause), encode(wrap_decision(decision, cause, 0, "policy")), encode(wrap_fact(tick))]
        )
    )
    with open_recording(path, on_parked=unexpected) as recording:
        assert [
            FactFrame(at_ms=JULY_MS, fact=GONE, place=f"{path}:1"),
            FactFrame(at_ms=JULY_MS + 1, fact=tick, place=f"{path}:3"),
        ] == list(recording)
    assert {"decision node_incident_closed": 1} == dict(recording.ignored)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b'"kind":"node_gone"', b'"kind":"node_exploded"', "unknown to this build"),
        (b'"schema_version":1', b'"schema_version":99', "read it with a newer build"),
        (b'"observed_at_ms":1', b'"observed_at_ms":"x","y":1', "node_gone"),
        (b'"event_id":"', b'"event_id":7,"x":"', "not a Sickbay event"),
    ],
)
def test_an_event_that_cannot_be_opened_is_parked(path, old, new, reason):
    """A newer event, or a damaged one, is shown with what to do and never guessed at."""
    event = encode(wrap_fact(GONE))
    frames, parked = read(path, event.replace(old, new) + b"\n" + event)
    assert 1 == len(frames)
    assert reason in parked[0].reason


def test_every_depth_of_nesting_is_read_or_parked(path):
    """An event is decoded in steps, and each has its own limit: at no depth does one that passes break the next."""
    event = encode(wrap_fact(GONE))
    lines = [event[:-1] + b',"deep":' + b"[" * depth + b"]" * depth + b"}" for depth in range(600, 1000)]
    frames, parked = read(path, b"\n".join(lines))
    assert 400 == len(frames) + len(parked)
    # which of the steps is the first to refuse hangs on how deep the caller stands already
    assert {one.reason[:17] for one in parked} <= {"nested too deeply", "not a Sickbay eve"}
    assert parked
