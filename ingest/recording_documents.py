"""Cutting the bytes of a recording into JSON documents and the items of a list, without decoding them.

A list of a whole cluster is hundreds of megabytes in one document, so its items come out one at a time. Only strings and
brackets are looked at. It must not decode, and it must come back to its feet after anything broken.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

from ingest.recording_text import RAW_BYTES, Broken, Document, Item, Kept, ListEnd, Unit

# Neighbouring parts of a pattern share no byte, so going back finds nothing and the time is linear in the input (faults X7).
# Possessive quantifiers would say so, and match wrongly in Python before 3.11.5.
# A newline ends a string early on purpose: JSON forbids it there, so it marks a document that was cut.
_STRING_REST: Final = re.compile(rb'[^"\\\n]*(?:\\.[^"\\\n]*)*')
_TO_BRACKET: Final = re.compile(rb'[^"{}\[\]]*(?:"[^"\\\n]*(?:\\.[^"\\\n]*)*"[^"{}\[\]]*)*[{}\[\]]')
_TO_STRING: Final = re.compile(rb'[^"{}\[\]]*(?:"[^"\\\n]*(?:\\.[^"\\\n]*)*"[^"{}\[\]]*)*')
_BLANK: Final = re.compile(rb"[ \t\r\n]*")
#: The key stands after ``{``, ``,`` or blank; a quote inside a string stands after a backslash and is never taken for it.
_ITEMS_KEY: Final = re.compile(rb'[{,\s]"items"\s*:\s*\[\Z')
_ITEMS_KEY_BYTES: Final = 256
_INDENTED: Final = re.compile(rb"\{\r?\n[ \t]")
_INDENTED_BYTES: Final = 4

_OPEN_BRACE: Final = ord("{")
_OPEN_BRACKET: Final = ord("[")
_NEWLINE: Final = ord("\n")
_BACKSLASH: Final = ord("\\")


class _Where(Enum):
    BETWEEN_DOCUMENTS = auto()
    IN_DOCUMENT = auto()
    BETWEEN_ITEMS = auto()
    IN_ITEM = auto()
    LOST = auto()


class DocumentCutter:
    """Cuts chunks into top-level JSON objects, one after the other with or without blank between; ``items`` come out singly.

    After something broken, reading goes on at the next line that begins with ``{``; kubectl and every JSON printer begin a
    document so, and nothing inside an indented one.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._where = _Where.BETWEEN_DOCUMENTS
        self._depth = 0
        self._in_string = False
        self._escaped = False
        #: The document, or what is around the items of a list.
        self._head = Kept(limit_bytes)
        self._head_line = 1
        self._had_items = False
        self._whole = True
        self._indented: bool | None = None
        #: The item, what stands between two items, or what was lost.
        self._piece = Kept(limit_bytes)
        self._piece_line = 1
        self._lost_reason = ""
        # in the chunk: the first byte that is not kept yet, and the position that _line belongs to
        self._mark = 0
        self._counted = 0
        self._line = 1
        self._byte_before = _NEWLINE
        self._out: list[Unit] = []

    def feed(self, chunk: bytes) -> list[Unit]:
        """Take the next chunk and return what it completes, in order."""
        position, end = 0, len(chunk)
        while position < end:
            if self._where is _Where.BETWEEN_DOCUMENTS:
                position = self._seek_document(chunk, position)
            elif self._where is _Where.LOST:
                position = self._seek_line(chunk, position)
            elif self._in_string:
                position = self._skip_string(chunk, position)
            else:
                position = self._skip_to_boundary(chunk, position)
        if end:
            self._keep(chunk, end)
            self._line_at(chunk, end)
            self._mark = self._counted = 0
            self._byte_before = chunk[-1]
        return self._take_out()

    def finish(self) -> list[Unit]:
        """Return what the end of the input left open."""
        reason = "the input ends inside this document; record again, or wait until it is written"
        if self._where is _Where.LOST:
            self._emit_lost()
        elif self._where is _Where.IN_DOCUMENT:
            self._out.append(Broken(self._head_line, self._head.first(RAW_BYTES), reason, at_end=True))
            self._end_list(b"", whole=False)
        elif self._where is not _Where.BETWEEN_DOCUMENTS:
            self._out.append(Broken(self._piece_line, self._piece.first(RAW_BYTES), reason, at_end=True))
            self._cut_list()
        self._where = _Where.BETWEEN_DOCUMENTS
        return self._take_out()

    def _take_out(self) -> list[Unit]:
        out, self._out = self._out, []
        return out

    def _seek_document(self, chunk: bytes, position: int) -> int:
        found = _BLANK.match(chunk, position)
        assert found is not None
        at = self._mark = found.end()
        if at == len(chunk):
            return at
        if chunk[at] != _OPEN_BRACE:
            self._piece_line = self._line_at(chunk, at)
            self._lost_reason = "no JSON object begins here; expected one that begins with {"
            self._where = _Where.LOST
            return at
        self._head_line = self._line_at(chunk, at)
        self._had_items, self._whole, self._indented = False, True, None
        self._depth = 1
        self._where = _Where.IN_DOCUMENT
        return at + 1

    def _seek_line(self, chunk: bytes, position: int) -> int:
        if position == 0 and self._byte_before == _NEWLINE and chunk[0] == _OPEN_BRACE:
            at = 0
        else:
            at = chunk.find(b"\n{", position) + 1
            if at == 0:
                return len(chunk)
        self._keep(chunk, at)
        self._emit_lost()
        return at

    def _skip_string(self, chunk: bytes, position: int) -> int:
        if self._escaped:
            self._escaped = False
            position += chunk[position] != _NEWLINE
        found = _STRING_REST.match(chunk, position)
        assert found is not None
        stop = found.end()
        if stop == len(chunk):
            return stop
        if chunk[stop] == _BACKSLASH and stop + 1 == len(chunk):
            self._escaped = True
            return stop + 1
        self._in_string = False
        if chunk[stop] in b"\\\n":
            self._lose(chunk, stop, "a string is cut by the end of its line")
            return stop
        return stop + 1

    def _skip_to_boundary(self, chunk: bytes, position: int) -> int:
        floor = 1 if self._where is _Where.IN_DOCUMENT else 2
        depth = self._depth
        to_bracket = _TO_BRACKET.match
        while (found := to_bracket(chunk, position)) is not None:
            position = found.end()
            byte = chunk[position - 1]
            if byte in b"{[":
                if (
                    byte == _OPEN_BRACE
                    and (chunk[position - 2] if position > 1 else self._byte_before) == _NEWLINE
                    and self._is_indented(chunk)
                ):
                    return self._restart(chunk, position - 1)
                depth += 1
                if depth == floor + 1 and self._opened(chunk, position, byte):
                    break
            else:
                depth -= 1
                if depth <= floor and self._closed(chunk, position, depth):
                    break
        else:
            rest = _TO_STRING.match(chunk, position)
            assert rest is not None
            position = rest.end()
            self._in_string = position < len(chunk)
            position += self._in_string
        self._depth = depth
        return position

    def _opened(self, chunk: bytes, position: int, byte: int) -> bool:
        """A bracket opened right above the floor: the array of items, or one item. True when the state has changed."""
        if self._where is _Where.BETWEEN_ITEMS:
            self._check_separators(chunk, position - 1)
            self._piece_line = self._line_at(chunk, position - 1)
            self._where = _Where.IN_ITEM
            return True
        if self._where is not _Where.IN_DOCUMENT or byte != _OPEN_BRACKET or self._head.too_long:
            return False
        key = chunk[max(self._mark, position - _ITEMS_KEY_BYTES) : position]
        key = self._head.last(_ITEMS_KEY_BYTES - len(key)) + key if len(key) < _ITEMS_KEY_BYTES else key
        if _ITEMS_KEY.search(key) is None:
            return False
        self._keep(chunk, position)
        self._had_items = True
        self._piece_line = self._line_at(chunk, position)
        self._where = _Where.BETWEEN_ITEMS
        return True

    def _closed(self, chunk: bytes, position: int, depth: int) -> bool:
        """A bracket closed down to the floor: the end of an item, of the items, or of a document. True as in _opened."""
        if self._where is _Where.IN_ITEM:
            self._keep(chunk, position)
            if self._piece.too_long:
                self._whole = False
                self._out.append(
                    Broken(self._piece_line, self._piece.first(RAW_BYTES), self._piece.too_long_reason())
                )
                self._piece.take()
            else:
                self._out.append(Item(self._piece_line, self._piece.take()))
            self._piece_line = self._line_at(chunk, position)
            self._where = _Where.BETWEEN_ITEMS
            return True
        if self._where is _Where.BETWEEN_ITEMS:
            self._check_separators(chunk, position - 1)
            self._where = _Where.IN_DOCUMENT
            return True
        if depth > 0:
            return False
        self._keep(chunk, position)
        if self._head.too_long:
            self._out.append(
                Broken(self._head_line, self._head.first(RAW_BYTES), self._head.too_long_reason())
            )
            self._end_list(b"", whole=False)
        elif self._had_items:
            self._end_list(self._head.take(), whole=self._whole)
        else:
            self._out.append(Document(self._head_line, self._head.take()))
        self._where = _Where.BETWEEN_DOCUMENTS
        return True

    def _check_separators(self, chunk: bytes, end: int) -> None:
        self._keep(chunk, end)
        between = self._piece.first(RAW_BYTES)
        self._piece.take()
        if between.strip(b", \t\r\n"):
            self._whole = False
            self._out.append(Broken(self._piece_line, between, "no Kubernetes object; each item must be one"))

    def _restart(self, chunk: bytes, at: int) -> int:
        self._lose(
            chunk,
            at,
            f"the document stops before its end; another one begins at line {self._line_at(chunk, at)}",
        )
        self._emit_lost()
        return at

    def _lose(self, chunk: bytes, at: int, reason: str) -> None:
        self._keep(chunk, at)
        if self._where is _Where.IN_DOCUMENT:
            # what was around the items, or a document: it is the lost piece
            self._piece_line = self._head_line
            self._piece.take()
            self._piece.add(self._head.first(RAW_BYTES))
            self._end_list(b"", whole=False)
        else:
            self._cut_list()
        self._lost_reason = reason
        self._where = _Where.LOST

    def _emit_lost(self) -> None:
        self._out.append(Broken(self._piece_line, self._piece.first(RAW_BYTES), self._lost_reason))
        self._piece.take()
        self._where = _Where.BETWEEN_DOCUMENTS

    def _cut_list(self) -> None:
        # the head ends with the [ of its items: closed, it still says the kind of the list
        self._end_list(self._head.take() + b"]}", whole=False)

    def _end_list(self, data: bytes, *, whole: bool) -> None:
        self._head.take()
        if self._had_items:
            self._out.append(ListEnd(self._head_line, data, whole))

    def _is_indented(self, chunk: bytes) -> bool:
        if self._indented is None:
            start = self._head.first(_INDENTED_BYTES)
            if len(start) < _INDENTED_BYTES and self._where is _Where.IN_DOCUMENT:
                start += chunk[self._mark : self._mark + _INDENTED_BYTES - len(start)]
            self._indented = _INDENTED.match(start) is not None
        return self._indented

    def _keep(self, chunk: bytes, end: int) -> None:
        """Keep the chunk from the mark to ``end`` where it belongs, and move the mark."""
        part = chunk[self._mark : end]
        self._mark = end
        if self._where is _Where.IN_DOCUMENT:
            self._head.add(part)
        elif self._where is not _Where.BETWEEN_DOCUMENTS:
            self._piece.add(part)

    def _line_at(self, chunk: bytes, position: int) -> int:
        self._line += chunk.count(b"\n", self._counted, position)
        self._counted = position
        return self._line
