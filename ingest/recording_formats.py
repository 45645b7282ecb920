"""Documents of every format that is read, as frames.

Each document is told by its own keys, so formats may be mixed in one file. It must not read bytes or decide where a document
ends, and it must not judge objects beyond what a frame needs: the object goes on as it was decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias, get_args

import msgspec

from ingest.frames import RESOURCES, FactFrame, Frame, FrameType
from ingest.recording_audit import AuditReader, is_audit_event
from ingest.recording_objects import (
    GROUP_AND_KIND,
    ArrivalClock,
    Ignored,
    Refused,
    newest,
    newest_times,
    resource_of,
)
from sickbay.codec import decode_envelope, open_envelope
from sickbay.errors import CodecError, InputError
from sickbay.facts import Fact
from sickbay.timestamps import parse_time_ms

#: For messages.
FORMATS: Final = (
    "Sickbay recordings (JSON lines), kubectl get -o json, kubectl get --watch --output-watch-events -o json,"
    " API-server audit logs (JSON), dumps of sickbay.facts; plain, gzip or zstd"
)

#: ``(place, reason, raw bytes, at_ms)``.
Park: TypeAlias = Callable[[str, str, bytes, int | None], None]

_TYPES: Final[tuple[str, ...]] = get_args(FrameType)
_WATCH_TYPES: Final = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR")


def is_line_shaped(document: Any) -> bool:
    """Whether a document is of a format that is written one document a line."""
    return isinstance(document, dict) and (
        ("type" in document and ("at" in document or "object" in document))
        or ("event_id" in document and "payload" in document)
        or is_audit_event(document)
    )


class Converter:
    """Turns the documents of one recording into frames, in order."""

    def __init__(self, *, park: Park, step_ms: int, ignored: Ignored) -> None:
        """``park`` takes the items of a list that are refused alone, ``step_ms`` is the step of objects without a time."""
        self._park = park
        self._ignored = ignored
        self._clock = ArrivalClock(step_ms)
        self._audit = AuditReader(ignored)
        #: Resource of the newest watch event: an ERROR does not say whose it is.
        self._watched = ""

    def convert(self, document: Any, data: bytes, place: str) -> tuple[Frame | FactFrame, ...]:
        """Return the frames of one decoded document; ``data`` is its bytes. Raises Refused when it cannot be used."""
        if type(document) is not dict:
            raise Refused(f"{type(document).__name__} instead of a JSON object; expected {FORMATS}")
        if "at" in document:
            return self._own(document, place)
        if "type" in document and "object" in document:
            return self._watch_event(document, place)
        if "event_id" in document and "payload" in document:
            return self._fact(data, place)
        if is_audit_event(document):
            return self._audit.convert(document, place)
        if "items" in document:
            return self._list(document, place)
        if "kind" in document:
            return self._single(document, place)
        raise Refused(f"a JSON object of no format that is read; expected {FORMATS}")

    def _own(self, document: dict[str, Any], place: str) -> tuple[Frame, ...]:
        try:
            at_ms = parse_time_ms(document["at"])
        except InputError as error:
            raise Refused(f"at: {error}") from error
        frame_type, resource, item = document.get("type"), document.get("resource"), document.get("object")
        if frame_type not in _TYPES:
            raise Refused(f"type {frame_type!r:.80} is none of {', '.join(_TYPES)}", at_ms)
        if frame_type == "TICK":
            return (Frame(at_ms=at_ms, resource="", type="TICK", object=None, place=place),)
        if resource not in RESOURCES:
            if isinstance(resource, str) and resource:
                return self._ignored.note(f"resource {resource}")
            raise Refused(f"resource is missing or no text; expected one of {', '.join(RESOURCES)}", at_ms)
        if type(item) is not dict:
            raise Refused(
                "object is missing or no JSON object; write the object as the API server sent it", at_ms
            )
        if frame_type == "LIST":
            if item.get("items", ()) is None:  # Go writes an empty list so
                item["items"] = []
            if not isinstance(item.get("items"), list):
                raise Refused("a LIST without items; write the whole list object, an empty list as []", at_ms)
        return (Frame(at_ms=at_ms, resource=resource, type=frame_type, object=item, place=place),)

    def _watch_event(self, document: dict[str, Any], place: str) -> tuple[Frame, ...]:
        frame_type, item = document["type"], document["object"]
        if frame_type not in _WATCH_TYPES:
            raise Refused(f"watch event type {frame_type!r:.80} is none of {', '.join(_WATCH_TYPES)}")
        if type(item) is not dict:
            raise Refused(
                "a watch event whose object is no JSON object; record with --output-watch-events -o json"
            )
        resource: str | None
        if frame_type == "ERROR":
            resource = self._watched
            if not resource:
                raise Refused(
                    "a watch ERROR before any object: whose watch failed is not known; start the watch again"
                )
        else:
            resource = resource_of(item)
            if resource is None:
                return self._ignored.note(f"kind {item['kind']}")
            self._watched = resource
        at_ms = self._clock.next(*newest_times(item))
        return (Frame(at_ms=at_ms, resource=resource, type=frame_type, object=item, place=place),)

    def _single(self, item: dict[str, Any], place: str) -> tuple[Frame, ...]:
        # ADDED and no LIST: one object proves nothing about the absence of others
        resource = resource_of(item)
        if resource is None:
            return self._ignored.note(f"kind {item['kind']}")
        at_ms = self._clock.next(*newest_times(item))
        return (Frame(at_ms=at_ms, resource=resource, type="ADDED", object=item, place=place),)

    def _fact(self, data: bytes, place: str) -> tuple[FactFrame, ...]:
        try:
            event = open_envelope(decode_envelope(data))
        except CodecError as error:
            raise Refused(str(error)) from error
        if not isinstance(event, Fact):
            return self._ignored.note(f"decision {event.KIND}")
        return (FactFrame(at_ms=event.observed_at_ms, fact=event, place=place),)

    def _list(self, document: dict[str, Any], place: str) -> tuple[Frame, ...]:
        items = document.pop("items")
        if not isinstance(items, list | None):
            raise Refused("items is no JSON array; give the list as kubectl prints it with -o json")
        collector = self.collector()
        for index, item in enumerate(items or ()):
            collector.add(item, f"{place} items[{index}]")
        return collector.finish(document, place, whole=True)

    def collector(self) -> ListCollector:
        """Return an empty collector for the items of the next list."""
        return ListCollector(self._park, self._clock, self._ignored)


class ListCollector:
    """The items of one list, by resource. A list that lost a part is no LIST: what it lacks would look deleted."""

    def __init__(self, park: Park, clock: ArrivalClock, ignored: Ignored) -> None:
        """Takes the ``park``, clock and counter of the recording."""
        self._park = park
        self._clock = clock
        self._ignored = ignored
        self._by_resource: dict[str, list[dict[str, Any]]] = {}
        #: Items without a kind of their own, as the API server (unlike kubectl) serves them; the list's kind is theirs.
        self._unnamed: list[dict[str, Any]] = []
        self._whole = True
        self._written_ms: int | None = None
        self._life_ms: int | None = None

    def add(self, item: Any, place: str) -> None:
        """Take the next item; what is no object is parked alone."""
        if type(item) is not dict:
            self.lose()
            self._park(
                place,
                "an item that is no JSON object; give the list as kubectl prints it",
                _encoded(item),
                None,
            )
        elif "kind" in item:
            self._take(item, place)
        else:
            self._unnamed.append(item)

    def lose(self) -> None:
        """Note that an item was broken: what is left is no whole list."""
        self._whole = False

    def _take(self, item: dict[str, Any], place: str) -> None:
        try:
            resource = resource_of(item)
        except Refused as refused:
            self.lose()
            self._park(place, refused.reason, _encoded(item), None)
            return
        if resource is None:
            self._ignored.note(f"kind {item['kind']}")
            return
        self._by_resource.setdefault(resource, []).append(item)
        written_ms, life_ms = newest_times(item)
        self._written_ms = newest(self._written_ms, written_ms)
        self._life_ms = newest(self._life_ms, life_ms)

    def finish(self, head: dict[str, Any], place: str, *, whole: bool) -> tuple[Frame, ...]:
        """Return one LIST frame for each resource; ``head`` is the list object without its items.

        When ``whole`` is false, an item was lost, or the list is a page of a longer one (``metadata.continue``), each
        object is an ADDED instead.
        """
        kind, version = head.get("kind"), head.get("apiVersion")
        item_kind = kind.removesuffix("List") if isinstance(kind, str) and kind.endswith("List") else ""
        for item in self._unnamed:
            if item_kind:
                item["kind"] = item_kind
                item.setdefault("apiVersion", version)
            self._take(item, place)
        for resource, (_, name) in GROUP_AND_KIND.items():
            if item_kind == name and resource_of({"kind": name, "apiVersion": version}) == resource:
                self._by_resource.setdefault(resource, [])
        if not self._by_resource:
            return self._ignored.note(f"empty {kind}") if not self._unnamed else ()
        metadata = head.get("metadata")
        is_page = isinstance(metadata, dict) and bool(metadata.get("continue"))
        at_ms = self._clock.next(self._written_ms, self._life_ms)
        found = [
            (resource, self._by_resource[resource]) for resource in RESOURCES if resource in self._by_resource
        ]
        if whole and self._whole and not is_page:
            return tuple(
                Frame(
                    at_ms=at_ms, resource=resource, type="LIST", object={**head, "items": items}, place=place
                )
                for resource, items in found
            )
        return tuple(
            Frame(at_ms=at_ms, resource=resource, type="ADDED", object=item, place=place)
            for resource, items in found
            for item in items
        )


def _encoded(item: Any) -> bytes:
    return msgspec.json.encode(item)
