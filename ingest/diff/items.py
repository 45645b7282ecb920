"""Who a raw object is, told without reading it: what a LIST needs of items that may turn out to be unreadable.

Nothing here may raise for what an object holds.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any, Final

from ingest.observe.fields import read_resource_version
from sickbay.errors import ObjectError

#: Characters of an object that are shown.
_RAW_MAX: Final = 4_096
#: Versions of unreadable objects that are remembered.
_ONCE_MAX: Final = 10_000


class Once:
    """Tells what it was asked before, of the newest ``_ONCE_MAX``: every list of a cluster holds its unreadable objects again."""

    def __init__(self) -> None:
        self._asked: dict[Hashable, None] = {}

    def is_new(self, resource: str, item: Any, reason: str) -> bool:
        """Whether this version of an object was not asked for with this reason; one without an identity is new each time."""
        key = (resource, uid_of(item), rv_of(item), reason)
        if key in self._asked:
            return False
        if not (key[1] and key[2]):
            return True
        self._asked[key] = None
        if len(self._asked) > _ONCE_MAX:
            del self._asked[next(iter(self._asked))]
        return True


def metadata_of(item: Any) -> dict[str, Any]:
    metadata = item.get("metadata") if isinstance(item, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def uid_of(item: Any) -> str:
    uid = metadata_of(item).get("uid")
    return uid if isinstance(uid, str) else ""


def names_of(item: Any) -> tuple[str, str]:
    """Return name and namespace of an item, "" where they cannot be read."""
    metadata = metadata_of(item)
    name, namespace = metadata.get("name"), metadata.get("namespace")
    return (name if isinstance(name, str) else "", namespace if isinstance(namespace, str) else "")


def rv_of(item: Any) -> int:
    """Return an item's version, 0 when it has none that can be read."""
    try:
        return read_resource_version(metadata_of(item).get("resourceVersion"), "")
    except ObjectError:
        return 0


def shown(obj: Any) -> str:
    """Return who the object is, as escaped JSON: its content may hold secrets and is not kept."""
    if not isinstance(obj, dict):
        return ""
    metadata = metadata_of(obj)
    who = {
        "apiVersion": obj.get("apiVersion"),
        "kind": obj.get("kind"),
        "metadata": {key: metadata.get(key) for key in ("namespace", "name", "uid", "resourceVersion")},
    }
    return json.dumps(who, ensure_ascii=True)[:_RAW_MAX]
