"""What every format of recording needs to know of a Kubernetes object: its resource, and the newest time it carries.

It reads ``kind``, ``apiVersion`` and ``metadata`` and nothing else; what the object means is for the observer.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from sickbay.errors import InputError
from sickbay.timestamps import parse_time_ms

#: API resource to its group and kind. The group counts: there are other kinds named Node (storage and metrics add-ons).
GROUP_AND_KIND: Final[dict[str, tuple[str, str]]] = {
    "pods": ("", "Pod"),
    "resourceslices": ("resource.k8s.io", "ResourceSlice"),
    "resourceclaims": ("resource.k8s.io", "ResourceClaim"),
    "nodes": ("", "Node"),
    "leases": ("coordination.k8s.io", "Lease"),
}
_RESOURCE_OF: Final = {group_and_kind: resource for resource, group_and_kind in GROUP_AND_KIND.items()}

#: Distinct reasons that are counted one by one; names come from the input, so their number has to end.
_REASONS_LIMIT: Final = 256
_REASON_CHARACTERS: Final = 80


def printable(text: str) -> str:
    """Return the text with everything escaped that could change how it is shown (faults X2): controls, bidi, blanks."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


class Refused(Exception):  # noqa: N818 - it never leaves this package: it becomes a Parked
    """One document cannot be used. ``at_ms`` is its time when it got as far as having one."""

    def __init__(self, reason: str, at_ms: int | None = None) -> None:
        """``reason`` names what is wrong and the remedy."""
        super().__init__(reason)
        self.reason = reason
        self.at_ms = at_ms


class Ignored(Counter[str]):
    """What was passed over on purpose, by reason: other kinds, reads in an audit log, decisions in a dump."""

    def note(self, reason: str) -> tuple[()]:
        """Count one; return no frames, so that a reader can end with it."""
        reason = printable(reason[:_REASON_CHARACTERS])
        self[reason if reason in self or len(self) < _REASONS_LIMIT else "other"] += 1
        return ()


def resource_of(item: dict[str, Any]) -> str | None:
    """Return the resource of an object by its kind and API group, ``None`` when it is not one that is read.

    An object without ``apiVersion`` goes by its kind. Raises Refused when it has no kind.
    """
    kind = item.get("kind")
    if not isinstance(kind, str) or not kind:
        raise Refused("the object has no kind; give whole objects, as kubectl prints them with -o json")
    version = item.get("apiVersion")
    if isinstance(version, str) and version:
        return _RESOURCE_OF.get((version.rpartition("/")[0], kind))
    return next((resource for resource, (_, name) in GROUP_AND_KIND.items() if name == kind), None)


def time_of(text: Any) -> int | None:
    """Return the time of a field in milliseconds, ``None`` when it is absent or cannot be read: then it proves nothing."""
    if text is None:
        return None
    try:
        return parse_time_ms(text)
    except InputError:
        return None


def newest_times(item: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return the newest write to an object and the newest step of its life, each ``None`` when it says nothing of it.

    The first is the newest of all when there is a ``managedFields`` time; kubectl leaves those out unless asked
    (``--show-managed-fields``). The second is the creation, or the asking for deletion: ``deletionTimestamp`` lies
    ``deletionGracePeriodSeconds`` after that.
    """
    metadata = item.get("metadata")
    if not isinstance(metadata, dict):
        return None, None
    life = time_of(metadata.get("creationTimestamp"))
    deletion_ms = time_of(metadata.get("deletionTimestamp"))
    if deletion_ms is not None:
        grace_seconds = metadata.get("deletionGracePeriodSeconds")
        asked_ms = deletion_ms - (max(0, grace_seconds) * 1000 if type(grace_seconds) is int else 0)
        life = newest(life, asked_ms)
    written: int | None = None
    entries = metadata.get("managedFields")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict):
            written = newest(written, time_of(entry.get("time")))
    return None if written is None else newest(written, life), life


def newest(first: int | None, second: int | None) -> int | None:
    """Return the later of two times, either of which may be unknown."""
    if first is None or (second is not None and second > first):
        return second
    return first


class ArrivalClock:
    """Gives a time to objects that were recorded without one; it never goes back.

    A write time moves it to that time at most. Without one, the creation or deletion moves it when it is news; else each
    object comes one step after the one before, so that their order is kept.
    """

    def __init__(self, step_ms: int) -> None:
        """``step_ms`` is the stated step."""
        self._step_ms = step_ms
        self._now_ms = 0

    def next(self, written_ms: int | None, life_ms: int | None) -> int:
        """Return when the next object was seen, milliseconds since the Unix epoch."""
        if written_ms is not None:
            self._now_ms = max(self._now_ms, written_ms)
        elif life_ms is not None and life_ms > self._now_ms:
            self._now_ms = life_ms
        else:
            self._now_ms += self._step_ms
        return self._now_ms
