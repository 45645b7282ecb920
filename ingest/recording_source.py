"""The bytes of a recording: a file or standard input, opened by what it holds (plain, gzip, zstd) and read in chunks.

Damage is data here: a compressed file that is cut or corrupt gives everything that can still be read, and then says where it
stopped in ``damage``. It must not know what the bytes mean, and it must never hold more than a few chunks.
"""

from __future__ import annotations

import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

import zstandard

from sickbay.errors import RecordingError

if TYPE_CHECKING:
    from io import BufferedReader

CHUNK_BYTES_DEFAULT: Final = 256 * 1024

#: Largest piece that one step of the gzip reader may produce, however small its input (a zip bomb stays in bounds).
_INFLATE_BYTES: Final = 1024 * 1024
#: A zstd block takes at least 4 bytes and gives at most 128 KiB (RFC 8878, 3.1.1.2.4), so one step gives at most 16 MiB.
_ZSTD_FEED_BYTES: Final = 512

_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
#: Last three bytes of a skippable frame's magic number; the first is 0x50 to 0x5f. Parallel writers put one in front.
_ZSTD_SKIPPABLE_MAGIC: Final = b"\x2a\x4d\x18"


class Source:
    """One open recording, as bytes.

    ``bytes_read`` counts what came from the file (compressed); ``total_bytes`` is its size, ``None`` when it is a pipe.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, chunk_bytes: int, on_read: Callable[[int], None] | None
    ) -> None:
        """Open ``path``; ``-`` is standard input. Raises RecordingError when it cannot be opened."""
        name = os.fspath(path)
        self.name = "<stdin>" if name == "-" else name
        self.bytes_read = 0
        self.total_bytes: int | None = None
        #: Why reading stopped before the end; empty while nothing is wrong.
        self.damage = ""
        self._chunk_bytes = chunk_bytes
        self._on_read = on_read
        self._file = None if name == "-" else self._open(name)
        self._read: Callable[[int], bytes]
        if self._file is not None:
            self._read = self._file.read
        elif sys.stdin is None:  # a process started with standard input closed
            raise RecordingError("standard input is closed; give the path of a recording instead of -")
        else:
            # gives what a pipe has now instead of waiting for a full chunk: a live watch is shown as it comes
            self._read = cast("BufferedReader", sys.stdin.buffer).read1

    def _open(self, name: str) -> BinaryIO:
        try:
            # a chunk is read at a time, so a buffer would only copy
            file: BinaryIO = Path(name).open("rb", buffering=0)  # noqa: SIM115 - closed by close()
        except FileNotFoundError:
            raise RecordingError(
                f"{name}: no such file; give the path of a recording, or - for standard input"
            ) from None
        except IsADirectoryError:
            raise RecordingError(f"{name} is a directory; give the recordings in it one by one") from None
        except PermissionError:
            raise RecordingError(f"{name}: permission denied; make the file readable for this user") from None
        except (OSError, ValueError) as error:
            raise RecordingError(
                f"{name} cannot be opened: {error}; give the path of a readable file"
            ) from error
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode):
            self.total_bytes = status.st_size
        return file

    def close(self) -> None:
        """Close the file; standard input stays open, for it is not ours."""
        if self._file is not None:
            self._file.close()

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes, decompressed, in pieces of bounded size; once, until the end or the damage."""
        raw = self._raw_chunks()
        first = b""
        for chunk in raw:
            first += chunk
            if len(first) >= len(_ZSTD_MAGIC):
                break
        if first.startswith(_GZIP_MAGIC):
            yield from self._gunzip(first, raw)
        elif first.startswith(_ZSTD_MAGIC) or (
            first[1:4] == _ZSTD_SKIPPABLE_MAGIC and first[0] & 0xF0 == 0x50
        ):
            yield from self._unzstd(first, raw)
        elif first:
            yield first
            yield from raw

    def _raw_chunks(self) -> Iterator[bytes]:
        while True:
            try:
                chunk = self._read(self._chunk_bytes)
            except OSError as error:
                self.damage = (
                    f"reading failed after byte {self.bytes_read}: {error}; copy the file from a sound disk"
                )
                return
            if not chunk:
                return
            self.bytes_read += len(chunk)
            if self._on_read is not None:
                self._on_read(len(chunk))
            yield chunk

    def _gunzip(self, first: bytes, raw: Iterator[bytes]) -> Iterator[bytes]:
        member = zlib.decompressobj(wbits=31)
        between = False
        for chunk in _chain(first, raw):
            data = chunk
            more = True
            while more:
                if between:
                    # zero bytes after a member are padding, as gzip itself reads them
                    data = data.lstrip(b"\0")
                    if not data:
                        break
                    member, between = zlib.decompressobj(wbits=31), False
                try:
                    out = member.decompress(data, _INFLATE_BYTES)
                except zlib.error as error:
                    self.damage = self._corrupt("gzip", error)
                    return
                if out:
                    yield out
                between = member.eof
                data = member.unused_data if between else member.unconsumed_tail
                # a full piece may leave output behind with no input left to ask for it
                more = bool(data) or len(out) == _INFLATE_BYTES
        if not between and not self.damage:
            self.damage = self._cut("gzip")

    def _unzstd(self, first: bytes, raw: Iterator[bytes]) -> Iterator[bytes]:
        decompressor = zstandard.ZstdDecompressor()
        frame = decompressor.decompressobj()
        between = False
        for chunk in _chain(first, raw):
            for start in range(0, len(chunk), _ZSTD_FEED_BYTES):
                data = chunk[start : start + _ZSTD_FEED_BYTES]
                while data:
                    if between:
                        frame, between = decompressor.decompressobj(), False
                    try:
                        out = frame.decompress(data)
                    except zstandard.ZstdError as error:
                        self.damage = self._corrupt("zstd", error)
                        return
                    if out:
                        yield out
                    between = frame.eof
                    data = frame.unused_data if between else b""
        if not between and not self.damage:
            self.damage = self._cut("zstd")

    def _corrupt(self, form: str, error: Exception) -> str:
        return (
            f"the {form} data is corrupt before byte {self.bytes_read}: {error};"
            " everything before it was read, copy the file again for the rest"
        )

    def _cut(self, form: str) -> str:
        return (
            f"the {form} data is cut short at byte {self.bytes_read};"
            " everything before it was read, copy the file again for the rest"
        )


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest
