"""The bytes of a watch, cut into lines and decoded: the one place where a stream becomes events.

Only whole lines are decoded, and strictly, as JSON in UTF-8 (kubernetes-client/python#2087): replacing what cannot be decoded
would make one device id of two (W12). A line without its end is never used, even where it would decode: the stream broke
there, and the server sends it again (W11). What cannot be used may hold the secrets of a Pod, so nothing of its content is kept
(X1). It must not know what an event means: that is ``ingest.reflector``.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final

import msgspec

from sickbay.cluster.wire import decode_json

#: Longest line: a Pod with 250 containers that each report on 128 devices fits (W15).
LINE_BYTES_MAX: Final = 8 << 20


class WatchEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of a watch; ``object`` is the raw JSON object."""

    type: str
    object: dict[str, Any]
    #: Length of its line, the newline included.
    size: int


class Unusable(msgspec.Struct, frozen=True, gc=False):
    """Bytes that are no event. Only who has them elsewhere can tell them again, by length and digest."""

    reason: str
    size: int
    #: In hexadecimal.
    sha256: str

    @property
    def shown(self) -> str:
        """What is kept in the place of the bytes."""
        return f"{self.size} bytes, sha256 {self.sha256}"


def unusable(reason: str, data: bytes | bytearray | memoryview) -> Unusable:
    """Return what is kept of bytes that cannot be used."""
    return Unusable(reason, len(data), sha256(data).hexdigest())


class Framer:
    """Collects the pieces of one stream. Holds one line and one piece at most, so never more than the limit and a piece."""

    __slots__ = ("_digest", "_limit", "_line", "_size")

    def __init__(self, limit_bytes: int = LINE_BYTES_MAX) -> None:
        self._limit = limit_bytes
        self._line = bytearray()
        #: Bytes of the line so far.
        self._size = 0
        #: Of a line that is too long, which is not held.
        self._digest = sha256()

    @property
    def pending(self) -> int:
        """Bytes of a line whose end has not come: at the end of the stream, what makes it a broken one."""
        return self._size

    def feed(self, piece: bytes) -> Iterator[WatchEvent | Unusable]:
        """Take the next bytes and yield every line that they end, in order; blank lines are passed over.

        Lines are decoded one by one as they are asked for; what is not asked for is lost with the stream.
        """
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            self._add(piece, start, end)
            line, size, digest = self._line, self._size, self._digest
            self._line, self._size, self._digest = bytearray(), 0, sha256()
            start = end + 1
            if size > self._limit:
                reason = f"a line of {size} bytes, more than the {self._limit} that are read: the object is too large to be watched"
                yield Unusable(reason, size, digest.hexdigest())
            elif line.strip():
                yield _decoded(line, size + 1)
        self._add(piece, start, len(piece))

    def _add(self, piece: bytes, start: int, end: int) -> None:
        self._size += end - start
        if self._size <= self._limit:
            self._line += memoryview(piece)[start:end]
        else:
            self._digest.update(self._line)
            self._digest.update(memoryview(piece)[start:end])
            self._line.clear()


def _decoded(line: bytearray, size: int) -> WatchEvent | Unusable:
    try:
        document = decode_json(line)
    except ValueError as error:
        return unusable(f"a line of the watch is not JSON in UTF-8: {error}", line)
    kind = document.get("type") if isinstance(document, dict) else None
    obj = document.get("object") if isinstance(document, dict) else None
    if not isinstance(kind, str) or not isinstance(obj, dict):
        return unusable("a line of the watch is JSON and no watch event: type and object are missing", line)
    return WatchEvent(kind, obj, size)
