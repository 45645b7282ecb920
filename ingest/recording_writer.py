"""Writing recordings: one frame a line, in canonical compact JSON, so that equal frames give equal bytes.

It must not read a clock (the caller knows when a frame was received), and it refuses what the reader would refuse.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, Self, get_args

import msgspec
import zstandard

from ingest.frames import RESOURCES, FrameType
from ingest.recording_text import UNIT_BYTES_DEFAULT
from sickbay.errors import InputError, RecordingError
from sickbay.timestamps import format_time_ms

_TYPES: Final = get_args(FrameType)
_encode: Final = msgspec.json.Encoder(order="sorted").encode


class _Sink(Protocol):
    def write(self, data: bytes, /) -> int: ...

    def flush(self) -> Any: ...

    def close(self) -> None: ...


class RecordingWriter:
    """Writes one recording; ``.gz`` and ``.zst`` names are compressed. An existing file is replaced.

    Use it as a context manager, or call ``close``: only then is a compressed file complete.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_line_bytes: int = UNIT_BYTES_DEFAULT) -> None:
        """Raises RecordingError when the file cannot be created."""
        self._name = os.fspath(path)
        self._limit = max_line_bytes
        self.frames = 0
        try:
            self._file: BinaryIO = Path(self._name).open("wb")  # noqa: SIM115 - closed by close()
        except (OSError, ValueError) as error:
            raise RecordingError(f"{self._name} cannot be written: {error}; choose another path") from error
        self._sink: _Sink = self._file
        if self._name.endswith(".gz"):
            # no name and no time in the header: the same frames give the same file
            self._sink = gzip.GzipFile(filename="", mode="wb", fileobj=self._file, mtime=0)
        elif self._name.endswith(".zst"):
            self._sink = zstandard.ZstdCompressor().stream_writer(self._file, closefd=False)

    def write(self, at_ms: int, resource: str, type: FrameType, object: dict[str, Any] | None = None) -> None:  # noqa: A002 - the names of the format
        """Write one frame; a TICK has neither ``resource`` nor ``object``.

        Raises RecordingError, and writes nothing, when the frame could not be read back or the file cannot be written.
        """
        frame: dict[str, Any] = {"at": self._time(at_ms), "type": type}
        if type not in _TYPES:
            raise RecordingError(f"{self._name}: type {type!r} is none of {', '.join(_TYPES)}")
        if type != "TICK":
            if resource not in RESOURCES:
                raise RecordingError(f"{self._name}: resource {resource!r} is none of {', '.join(RESOURCES)}")
            if object is None:
                raise RecordingError(f"{self._name}: a {type} frame needs its object")
            frame |= {"resource": resource, "object": object}
        try:
            line = _encode(frame)
        except (ValueError, TypeError, RecursionError, OverflowError) as error:
            raise RecordingError(f"{self._name}: the object cannot be written as JSON: {error}") from error
        if len(line) > self._limit:
            raise RecordingError(
                f"{self._name}: the frame has {len(line)} bytes, more than the {self._limit} that are read back;"
                " raise max_line_bytes for writing and reading"
            )
        try:
            self._sink.write(line + b"\n")
        except OSError as error:
            raise RecordingError(
                f"{self._name} cannot be written: {error}; free space or choose another path"
            ) from error
        self.frames += 1

    def flush(self) -> None:
        """Bring everything written so far to the file, readable even if ``close`` never comes."""
        try:
            self._sink.flush()
            self._file.flush()
        except OSError as error:
            raise RecordingError(
                f"{self._name} cannot be written: {error}; free space or choose another path"
            ) from error

    def close(self) -> None:
        """Finish the file."""
        if self._file.closed:
            return
        try:
            self._sink.close()
            self._file.close()
        except OSError as error:
            raise RecordingError(
                f"{self._name} cannot be written: {error}; free space or choose another path"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _time(self, at_ms: int) -> str:
        try:
            return format_time_ms(at_ms)
        except InputError as error:
            raise RecordingError(f"{self._name}: {error}") from error
