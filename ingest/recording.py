"""Reading recordings: files as they were left behind, turned into frames (design, section 10).

A file is read as a stream and never held whole. What cannot be read is parked with its place and the rest goes on; only a
file that is no recording at all is an error. It must not interpret objects, read a clock, or fill in what a file leaves out
without saying so.
"""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Final, Self

import msgspec

from ingest.frames import FactFrame, Frame, Parked, Unread
from ingest.glance import glance
from ingest.recording_documents import DocumentCutter
from ingest.recording_formats import FORMATS, Converter, ListCollector, is_line_shaped
from ingest.recording_objects import Ignored, Refused, printable
from ingest.recording_source import CHUNK_BYTES_DEFAULT, Source
from ingest.recording_text import RAW_BYTES, UNIT_BYTES_DEFAULT, Broken, Item, LineCutter, ListEnd, Unit
from ingest.recording_writer import RecordingWriter
from sickbay.errors import RecordingError

__all__ = ["Ignored", "Recording", "RecordingWriter", "open_recording", "read_recordings"]

#: Time between two objects that carry no time, unless stated otherwise.
STEP_MS_DEFAULT: Final = 1000

#: Lines that are looked at to tell what a file holds.
_SAMPLE_LINES: Final = 100
_DOCUMENT_START: Final = re.compile(rb'^\{\s*(?:["}]|\Z)', re.MULTILINE)
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

_decode: Final = msgspec.json.Decoder().decode


class Recording:
    """One open recording: iterate over it once for its frames, in file order.

    ``parked`` and ``ignored`` count as it is read. It is closed at its end; use it as a context manager to be sure.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        on_parked: Callable[[Parked], None],
        step_ms: int = STEP_MS_DEFAULT,
        max_line_bytes: int = UNIT_BYTES_DEFAULT,
        chunk_bytes: int = CHUNK_BYTES_DEFAULT,
        on_read: Callable[[int], None] | None = None,
        ignored: Ignored | None = None,
        glances: bool = False,
    ) -> None:
        """Open ``path`` and tell its format; the arguments are those of ``read_recordings``."""
        self._glances = glances
        self._source = Source(path, chunk_bytes=chunk_bytes, on_read=on_read)
        self.name = self._source.name
        self.parked = 0
        self.ignored = Ignored() if ignored is None else ignored
        self._on_parked = on_parked
        self._limit = max_line_bytes
        self._converter = Converter(park=self._park, step_ms=step_ms, ignored=self.ignored)
        self._collector: ListCollector | None = None
        self._chunks = self._source.chunks()
        try:
            self._sample, self._by_line = self._look()
        except BaseException:
            self.close()
            raise

    @property
    def bytes_read(self) -> int:
        """Bytes read from the file so far, as they are stored (compressed)."""
        return self._source.bytes_read

    @property
    def total_bytes(self) -> int | None:
        """Size of the file, ``None`` when it is not a regular file."""
        return self._source.total_bytes

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Frame | FactFrame | Unread]:
        try:
            yield from self._lines() if self._by_line else self._documents()
        finally:
            self.close()

    def _all_chunks(self) -> Iterator[bytes]:
        sample, self._sample = self._sample, b""
        if sample:
            yield sample
        yield from self._chunks

    def _look(self) -> tuple[bytes, bool]:
        """Read enough to tell the format; return what was read, and whether it goes by lines."""
        held: list[bytes] = []
        size, look_at = 0, 1
        for chunk in self._chunks:
            held.append(chunk)
            size += len(chunk)
            if size < look_at:
                continue
            look_at = 2 * size
            sample = b"".join(held).removeprefix(_BYTE_ORDER_MARK)
            by_line = _goes_by_line(sample, at_end=False)
            if by_line is None and size > self._limit:
                by_line = False
            if by_line is not None:
                if not by_line:
                    self._require_document(sample)
                return sample, by_line
        sample = b"".join(held).removeprefix(_BYTE_ORDER_MARK)
        if not sample.strip() and not self._source.damage:
            raise RecordingError(f"{self.name} is empty; expected {FORMATS}")
        by_line = bool(_goes_by_line(sample, at_end=True))
        if not by_line and not self._source.damage:
            self._require_document(sample)
        return sample, by_line

    def _require_document(self, sample: bytes) -> None:
        if _DOCUMENT_START.search(sample) is None:
            hint = (
                " (it looks like UTF-16: save it as UTF-8)"
                if sample[:2] in {b"\xff\xfe", b"\xfe\xff"}
                else ""
            )
            raise RecordingError(
                f"{self.name} is no recording{hint}: no JSON object begins any line; expected {FORMATS}"
            )

    def _lines(self) -> Iterator[Frame | FactFrame | Unread]:
        cutter = LineCutter(self._limit)
        for line, place in self._whole_lines(cutter):
            seen = glance(line) if self._glances else None
            if seen is None:
                yield from self._read(line, place)
            else:
                yield Unread(*seen, self._read, line, place)
        last = cutter.finish()
        place = f"{self.name}:{cutter.line}"
        if isinstance(last, Broken):
            self._park(place, last.reason, last.data, None)
            last = b""
        if self._source.damage and _is_cut(last):
            self._park_damage(last)
            return
        yield from self._read(last, place)
        self._park_damage(b"")

    def _whole_lines(self, cutter: LineCutter) -> Iterator[tuple[bytes, str]]:
        for chunk in self._all_chunks():
            number = cutter.line
            for line in cutter.feed(chunk):
                place = f"{self.name}:{number}"
                if isinstance(line, Broken):
                    self._park(place, line.reason, line.data, None)
                else:
                    yield line, place
                number += 1

    def _documents(self) -> Iterator[Frame | FactFrame]:
        cutter = DocumentCutter(self._limit)
        for chunk in self._all_chunks():
            for unit in cutter.feed(chunk):
                yield from self._unit(unit)
        cut = b""
        for unit in cutter.finish():
            if isinstance(unit, Broken) and unit.at_end and self._source.damage:
                cut = unit.data
            else:
                yield from self._unit(unit)
        self._park_damage(cut)

    def _unit(self, unit: Unit) -> tuple[Frame | FactFrame, ...]:
        place = f"{self.name}:{unit.line}"
        if isinstance(unit, Broken):
            self._park(place, unit.reason, unit.data, None)
            return ()
        if isinstance(unit, Item):
            self._collector = self._collector or self._converter.collector()
            try:
                item = _decode(unit.data)
            except (ValueError, RecursionError) as error:
                self._collector.lose()
                self._park(place, _not_json(error), unit.data, None)
                return ()
            self._collector.add(item, place)
            return ()
        if isinstance(unit, ListEnd):
            collector, self._collector = self._collector or self._converter.collector(), None
            return collector.finish(self._head(unit, place), place, whole=unit.whole)
        return self._read(unit.data, place)

    def _head(self, unit: ListEnd, place: str) -> dict[str, object]:
        try:
            head = _decode(unit.data) if unit.data else {}
        except (ValueError, RecursionError) as error:
            self._park(place, _not_json(error), unit.data, None)
            head = {}
        assert isinstance(head, dict)
        head.pop("items", None)
        return head

    def _read(self, data: bytes, place: str) -> tuple[Frame | FactFrame, ...]:
        try:
            document = _decode(data)
        except (ValueError, RecursionError) as error:
            if data.strip():
                self._park(place, _not_json(error), data, None)
            return ()
        try:
            return self._converter.convert(document, data, place)
        except Refused as refused:
            self._park(place, refused.reason, data, refused.at_ms)
        except RecursionError as error:
            self._park(place, _not_json(error), data, None)
        return ()

    def _park_damage(self, cut: bytes) -> None:
        if self._source.damage:
            self._park(f"{self.name}:byte {self._source.bytes_read}", self._source.damage, cut, None)

    def _park(self, place: str, reason: str, raw: bytes, at_ms: int | None) -> None:
        self.parked += 1
        text = raw[:RAW_BYTES].decode("utf-8", "backslashreplace")
        self._on_parked(Parked(place=place, reason=printable(reason), raw=printable(text), at_ms=at_ms))


def open_recording(
    path: str | os.PathLike[str],
    *,
    on_parked: Callable[[Parked], None],
    step_ms: int = STEP_MS_DEFAULT,
    max_line_bytes: int = UNIT_BYTES_DEFAULT,
    chunk_bytes: int = CHUNK_BYTES_DEFAULT,
) -> Recording:
    """Open one recording of any format in ``FORMATS``; ``-`` is standard input.

    Compression and format are told from what the file holds, never from its name. ``on_parked`` gets everything unreadable.
    ``step_ms`` is the time between objects that carry none; ``max_line_bytes`` the longest line, document or list item
    that is read (a longer one is parked); ``chunk_bytes`` how much is read at a time.

    Raises RecordingError when the file is missing, unreadable, empty, or no recording.
    """
    return Recording(
        path, on_parked=on_parked, step_ms=step_ms, max_line_bytes=max_line_bytes, chunk_bytes=chunk_bytes
    )


def read_recordings(
    paths: Iterable[str | os.PathLike[str]],
    *,
    on_parked: Callable[[Parked], None],
    step_ms: int = STEP_MS_DEFAULT,
    max_line_bytes: int = UNIT_BYTES_DEFAULT,
    chunk_bytes: int = CHUNK_BYTES_DEFAULT,
    on_progress: Callable[[int, int | None], None] | None = None,
    ignored: Ignored | None = None,
    glances: bool = False,
) -> Iterator[Frame | FactFrame | Unread]:
    """Yield the frames of several recordings as one, by time; equal times in the order of ``paths``.

    Frames of one file never change places: one that is dated before its forerunner is merged as if it had that one's time,
    and keeps its own. ``on_progress`` gets ``(bytes read, total bytes)`` over all files, as stored; the total is ``None``
    when one of them is a pipe. ``ignored`` takes the counts of what was passed over. With
    ``glances``, lines that an object may be told by come as ``Unread``. All files are opened at the first
    step; the other arguments and RecordingError are those of ``open_recording``.
    """
    names = [os.fspath(path) for path in paths]
    if names.count("-") > 1:
        raise RecordingError("standard input (-) is given twice; it can be read once")
    ignored = Ignored() if ignored is None else ignored
    recordings: list[Recording] = []
    read_bytes = 0

    def on_read(count: int) -> None:
        nonlocal read_bytes
        read_bytes += count
        if on_progress is not None and len(recordings) == len(names):
            sizes = [recording.total_bytes for recording in recordings]
            on_progress(read_bytes, None if None in sizes else sum(size or 0 for size in sizes))

    with ExitStack() as stack:
        for name in names:
            recording = Recording(
                name,
                on_parked=on_parked,
                step_ms=step_ms,
                max_line_bytes=max_line_bytes,
                chunk_bytes=chunk_bytes,
                on_read=on_read,
                ignored=ignored,
                glances=glances,
            )
            recordings.append(stack.enter_context(recording))
        on_read(0)
        if len(recordings) == 1:
            yield from recordings[0]
        else:
            for _, frame in heapq.merge(*map(_by_running_time, recordings), key=lambda pair: pair[0]):
                yield frame


def _by_running_time(recording: Recording) -> Iterator[tuple[int, Frame | FactFrame | Unread]]:
    latest_ms = 0
    for frame in recording:
        latest_ms = max(latest_ms, frame.at_ms)
        yield latest_ms, frame


def _goes_by_line(sample: bytes, *, at_end: bool) -> bool | None:
    """Whether the sample is one document a line; ``None`` when more of it is needed to tell."""
    lines = sample.split(b"\n", _SAMPLE_LINES)
    complete = len(lines) > _SAMPLE_LINES or at_end
    last = lines.pop()
    if at_end and len(lines) < _SAMPLE_LINES:
        lines.append(last)
    for line in filter(bytes.strip, lines):
        if line.strip() == b"{":  # printed over many lines; nothing else begins so
            return False
        try:
            if is_line_shaped(_decode(line)):
                return True
        except (ValueError, RecursionError):
            continue
    return False if complete else None


def _is_cut(last: bytes) -> bool:
    try:
        _decode(last)
    except (ValueError, RecursionError):
        return True
    return False


def _not_json(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply to be read; no Kubernetes object is, so the data is damaged or hostile"
    return f"not readable as JSON in UTF-8 ({error}); the data was cut or changed, record it again"
