"""How one LIST comes together: from pages, or from the initial events of a watch.

Nothing of it is seen before all of it is there, because a part that is taken for the whole makes everything else look deleted
(W8, W9). It must not ask for anything: which page comes next is for ``ingest.reflector`` to say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from ingest.observe.fields import read_resource_version
from sickbay.cluster.wire import decode_json
from sickbay.errors import ObjectError

#: Turns an object into the part of it that is kept.
Keep: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]

#: Bytes of all pages of one LIST: some 100,000 Pods.
LIST_BYTES_MAX: Final = 1 << 30
#: Pages of one LIST, some of which may be empty.
_PAGES_MAX: Final = 100_000
#: Marks the bookmark that ends the initial events (KEP-3157).
_INITIAL_END: Final = "k8s.io/initial-events-end"


def version_of(obj: dict[str, Any]) -> int:
    """Return the resourceVersion of an object or of a list; 0 when it has none that can be read."""
    metadata = obj.get("metadata")
    try:
        return read_resource_version(
            metadata.get("resourceVersion") if isinstance(metadata, dict) else None, ""
        )
    except ObjectError:
        return 0


class Pages:
    """The pages of one LIST so far."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._head: dict[str, Any] = {}
        self._items: list[Any] = []
        self._count = 0
        #: Bytes of all pages so far.
        self.size = 0
        #: Of the first page: what is newer in a later one comes again with the watch.
        self.version = 0
        #: The token of the next page, "" before the first and after the last.
        self.token = ""

    def add(self, body: bytes) -> str:
        """Take the next page. Return "" or why the whole list cannot be used; what was listed so far is void then."""
        self._count += 1
        self.size += len(body)
        if self.size > LIST_BYTES_MAX or self._count > _PAGES_MAX:
            return f"the list has more than {LIST_BYTES_MAX} bytes or {_PAGES_MAX} pages"
        try:
            document = decode_json(body)
        except ValueError as error:
            return f"a page of the list is not JSON in UTF-8: {error}"
        metadata = document.get("metadata") if isinstance(document, dict) else None
        # Go writes an empty list as null; a document without the key is no list and never an empty one (W18)
        if not isinstance(metadata, dict) or "items" not in document:
            return "a page of the list is no list: metadata or items are missing"
        items = [] if document["items"] is None else document["items"]
        token = "" if metadata.get("continue") is None else metadata["continue"]
        if not isinstance(items, list) or not isinstance(token, str):
            return "a page of the list is no list: items or metadata.continue are of a wrong type"
        if token and token == self.token:
            return "the list does not go on: a page names itself as the next"
        if self._count == 1:
            self.version = version_of(document)
            if not self.version:
                return "the list has no metadata.resourceVersion that a watch could begin at"
            self._head = {key: document[key] for key in ("kind", "apiVersion") if key in document}
        self.token = token
        self._items += [self._keep(item) if isinstance(item, dict) else item for item in items]
        return ""

    def joined(self) -> dict[str, Any]:
        """Return the whole list as one object."""
        return _list(self._head, self.version, self._items)


class InitialEvents:
    """The temporary set of a watch that begins with synthetic events, in whatever order the server has them (W7)."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._objects: dict[tuple[str, str], dict[str, Any]] = {}
        #: Bytes of all events so far.
        self.size = 0

    def take(self, kind: str, obj: dict[str, Any], size: int) -> str:
        """Take one event. Return "" or why the list cannot be used."""
        self.size += size
        if self.size > LIST_BYTES_MAX:
            return f"the initial events have more than {LIST_BYTES_MAX} bytes"
        metadata = obj.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        key = (str(metadata.get("namespace")), str(metadata.get("name")))
        if kind == "DELETED":
            self._objects.pop(key, None)
        else:
            self._objects[key] = self._keep(obj)
        return ""

    def joined(self, version: int) -> dict[str, Any]:
        """Return the whole list as one object."""
        return _list({"kind": "List", "apiVersion": "v1"}, version, list(self._objects.values()))


def ends_initial_events(bookmark: dict[str, Any]) -> bool:
    """Whether a bookmark says that all initial events were sent."""
    metadata = bookmark.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    return isinstance(annotations, dict) and annotations.get(_INITIAL_END) == "true"


def _list(head: dict[str, Any], version: int, items: list[Any]) -> dict[str, Any]:
    return {**head, "metadata": {"resourceVersion": str(version)}, "items": items}
