"""What a recording is cut into before anything is decoded, and the cutting into lines.

Whether a piece is JSON is for the decoder to say. Nothing longer than the limit is ever held: of what is longer, the
beginning and the size are kept, so that it can be shown.
"""

from __future__ import annotations

from typing import Final

import msgspec

#: Longest line, document or list item that is read: a LIST of some 40,000 Pods on one line; a Pod alone is 4 MiB at most (W15).
UNIT_BYTES_DEFAULT: Final = 64 << 20

#: How much of something unreadable is kept to be shown.
RAW_BYTES: Final = 4096

_TOO_LONG: Final = "longer than the limit of {limit} bytes ({size} bytes); raise the limit if it is wanted"


class Unit(msgspec.Struct, frozen=True):
    """A document, an item, or a list's document without its items (then ``tail`` of that list); ``data`` is not decoded."""

    line: int
    data: bytes


class Document(Unit, frozen=True):
    """A whole top-level document that is no list."""


class Item(Unit, frozen=True):
    """One element of the ``items`` of a top-level document."""


class ListEnd(Unit, frozen=True):
    """The document that held the items before it, with ``items`` empty. ``whole`` is false when it was cut or lost a part."""

    whole: bool


class Broken(Unit, frozen=True):
    """Bytes that are no document; ``data`` is their beginning, at most RAW_BYTES."""

    reason: str
    #: True for what the end of the input left open: the input was cut, or is still being written.
    at_end: bool = False


class Kept:
    """Bytes collected across chunks; past the limit only their beginning stays, and their size."""

    __slots__ = ("_limit", "_parts", "size")

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._parts: list[bytes] = []
        self.size = 0

    @property
    def too_long(self) -> bool:
        return self.size > self._limit

    def add(self, part: bytes) -> None:
        if not part:
            return
        was_too_long = self.too_long
        self.size += len(part)
        if not self.too_long:
            self._parts.append(part)
        elif not was_too_long:
            self._parts = [(b"".join(self._parts) + part)[:RAW_BYTES]]

    def first(self, count: int) -> bytes:
        found = b""
        for part in self._parts:
            found += part[: count - len(found)]
            if len(found) == count:
                break
        return found

    def last(self, count: int) -> bytes:
        found = b""
        for part in reversed(self._parts):
            found = part[-(count - len(found)) :] + found
            if len(found) == count:
                break
        return found

    def take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts, self.size = [], 0
        return data

    def too_long_reason(self) -> str:
        return _TOO_LONG.format(limit=self._limit, size=self.size)


class LineCutter:
    r"""Cuts chunks into lines at ``\n``; carriage returns stay, for JSON reads them as blank."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._kept = Kept(limit_bytes)
        #: Number of the line that comes out next, from 1.
        self.line = 1

    def feed(self, chunk: bytes) -> list[bytes | Broken]:
        """Take the next chunk; return the lines that it completes, the first of which has the number ``line`` had before."""
        pieces = chunk.split(b"\n")
        last = pieces.pop()
        lines: list[bytes | Broken] = [*pieces]
        if pieces and self._kept.size:
            lines[0] = self._limited(pieces[0], self.line)
        if len(chunk) > self._limit:
            for index, piece in enumerate(pieces):
                if len(piece) > self._limit and not isinstance(lines[index], Broken):
                    lines[index] = self._limited(piece, self.line + index)
        self.line += len(lines)
        self._kept.add(last)
        return lines

    def finish(self) -> bytes | Broken:
        """Return what stands after the last newline; empty when nothing does."""
        return self._limited(b"", self.line)

    def _limited(self, piece: bytes, line: int) -> bytes | Broken:
        """Complete a line with its last piece."""
        kept = self._kept
        kept.add(piece)
        if kept.too_long:
            reason = kept.too_long_reason()
            return Broken(line, kept.take()[:RAW_BYTES], reason)
        return kept.take()
