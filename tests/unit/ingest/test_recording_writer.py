"""Writing recordings."""

from __future__ import annotations

import errno
import gzip

import pytest
import zstandard

from ingest.recording import RecordingWriter, open_recording
from sickbay.errors import RecordingError

JULY_MS = 1_782_864_000_000  # 2026-07-01T00:00:00Z
LEASE = {"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {"name": "nöde", "uid": "u"}}
NAMES = ("plain.jsonl", "packed.jsonl.gz", "packed.jsonl.zst")


def unexpected(parked):
    pytest.fail(f"parked: {parked}")


def unpack(path):
    data = path.read_bytes()
    if path.suffix == ".zst":
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return gzip.decompress(data) if path.suffix == ".gz" else data


def write_some(path):
    with RecordingWriter(path) as writer:
        writer.write(JULY_MS + 7, "leases", "LIST", {"items": [LEASE], "kind": "LeaseList"})
        writer.write(JULY_MS + 8, "", "TICK")
        assert 2 == writer.frames


@pytest.mark.parametrize("name", NAMES)
def test_lines_are_canonical_and_the_suffix_says_how_they_are_packed(tmp_path, name):
    """Sorted keys, no blanks, milliseconds and Z, UTF-8 as it is."""
    write_some(tmp_path / name)
    assert (
        '{"at":"2026-07-01T00:00:00.007Z","object":{"items":[{"apiVersion":"coordination.k8s.io/v1","kind":"Lease",'
        '"metadata":{"name":"nöde","uid":"u"}}],"kind":"LeaseList"},"resource":"leases","type":"LIST"}\n'
        '{"at":"2026-07-01T00:00:00.008Z","type":"TICK"}\n'
    ).encode() == unpack(tmp_path / name)


@pytest.mark.parametrize("name", NAMES)
def test_equal_frames_give_equal_files(tmp_path, name):
    """No name and no time of writing is in the file."""
    (tmp_path / "sub").mkdir()
    write_some(tmp_path / name)
    write_some(tmp_path / "sub" / name)
    written = (tmp_path / name).read_bytes()
    assert written == (tmp_path / "sub" / name).read_bytes()
    if name.endswith(".gz"):
        assert bytes(4) == written[4:8]  # the field of the time


@pytest.mark.parametrize("name", NAMES)
def test_what_was_flushed_is_readable_before_the_end(tmp_path, name):
    """A recorder that is killed loses only what came after the last flush."""
    writer = RecordingWriter(tmp_path / name)
    writer.write(JULY_MS, "leases", "ADDED", LEASE)
    writer.flush()
    parked = []
    with open_recording(tmp_path / name, on_parked=parked.append) as recording:
        assert [LEASE] == [frame.object for frame in recording]
    assert (name != "plain.jsonl") == bool(parked)
    writer.close()
    writer.close()
    with open_recording(tmp_path / name, on_parked=unexpected) as recording:
        assert [LEASE] == [frame.object for frame in recording]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((-1, "pods", "ADDED", LEASE), "1970 to 9999"),
        ((JULY_MS, "services", "ADDED", LEASE), "resource 'services' is none of"),
        ((JULY_MS, "", "ADDED", LEASE), "resource '' is none of"),
        ((JULY_MS, "pods", "CHANGED", LEASE), "type 'CHANGED' is none of"),
        ((JULY_MS, "pods", "ADDED"), "needs its object"),
        ((JULY_MS, "pods", "ADDED", {"a": object()}), "cannot be written as JSON"),
        ((JULY_MS, "pods", "ADDED", {"a": "\ud800"}), "cannot be written as JSON"),
        ((JULY_MS, "pods", "ADDED", {"a": "x" * 1000}), "raise max_line_bytes"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(tmp_path, arguments, reason):
    """The error names the file and the remedy, and the file stays as it was."""
    path = tmp_path / "a.jsonl"
    with RecordingWriter(path, max_line_bytes=1000) as writer:
        writer.write(JULY_MS, "", "TICK")
        with pytest.raises(RecordingError, match=reason) as caught:
            writer.write(*arguments)
        assert str(path) in str(caught.value)
        assert 1 == writer.frames
    assert 1 == path.read_bytes().count(b"\n")


def test_a_line_of_exactly_the_limit_is_written_and_read(tmp_path):
    """Writer and reader count alike."""
    path = tmp_path / "a.jsonl"
    with RecordingWriter(path) as writer:
        writer.write(JULY_MS, "leases", "ADDED", LEASE)
    limit = path.stat().st_size - 1
    with RecordingWriter(path, max_line_bytes=limit) as writer:
        writer.write(JULY_MS, "leases", "ADDED", LEASE)
    with open_recording(path, on_parked=unexpected, max_line_bytes=limit) as recording:
        assert 1 == len(list(recording))
    with (
        RecordingWriter(path, max_line_bytes=limit - 1) as writer,
        pytest.raises(RecordingError, match="max_line_bytes"),
    ):
        writer.write(JULY_MS, "leases", "ADDED", LEASE)


def test_a_file_that_cannot_be_created_is_an_error(tmp_path):
    """The message names the path and what to do."""
    with pytest.raises(RecordingError, match=r"nowhere.*cannot be written.*choose another path"):
        RecordingWriter(tmp_path / "nowhere" / "a.jsonl")


class FullDisk:
    def write(self, _):
        raise OSError(errno.ENOSPC, "No space left on device")

    def flush(self):
        raise OSError(errno.ENOSPC, "No space left on device")

    close = flush


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_is_an_error(tmp_path, monkeypatch, name):
    """A frame that did not fit must not count as written, wherever the disk ran full."""
    writer = RecordingWriter(tmp_path / name)
    with monkeypatch.context() as patch:
        patch.setattr(writer, "_sink", FullDisk())
        for step in (lambda: writer.write(JULY_MS, "leases", "ADDED", LEASE), writer.flush, writer.close):
            with pytest.raises(RecordingError, match=r"cannot be written.*No space left.*free space"):
                step()
    assert 0 == writer.frames
    writer.close()
