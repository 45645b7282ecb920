"""What the ledger says of one node: how much of each resource is spoken for, as the scheduler counts it and exactly.

A fold of its decisions. ``common`` and ``recorded`` make up what the scheduler counts, ``common`` and ``derived`` what follows from
slices and claims (docs/ledger.md). Where the derived book follows a scheduler that under-counts (``ledger.emulate``), the standing
differences say what is truly used, and that is added. Amounts are whole nano-units. Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from responders.extender.asking import is_node_resource
from sickbay.decisions import Decision, DriftCleared, DriftFound, EntryPosted, EntryReversed
from sickbay.quantity import parse

#: Kinds of the decisions that are folded.
KINDS: Final = frozenset(kind.KIND for kind in (EntryPosted, EntryReversed, DriftFound, DriftCleared))
_BOOKS: Final = ("common", "recorded", "derived")

_Amounts = tuple[tuple[str, int], ...]


class Balances:
    """The books of one node that are kept in node resources."""

    __slots__ = ("_drifts", "_entries", "_requested", "supply_nano")

    def __init__(self) -> None:
        #: Resource to what the node has, by its own word.
        self.supply_nano: dict[str, int] = {}
        #: ``(book, key)`` to what the entry moved: the place it moved it in, and how much.
        self._entries: dict[tuple[str, str], tuple[dict[str, int], _Amounts]] = {}
        self._requested: dict[str, dict[str, int]] = {book: {} for book in _BOOKS}
        #: What a difference adds to the derived book to make it exact.
        self._drifts: dict[str, _Amounts] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be lost by forgetting the node."""
        return not (self._entries or self._drifts)

    def fold(self, decision: Decision) -> None:
        """Take in the next decision on the node; one that was taken in already changes nothing."""
        match decision:
            case EntryPosted(entry=entry) | EntryReversed(entry=entry) if entry.book in _BOOKS:
                place = (entry.book, entry.key)
                self._take_back(place)
                if isinstance(decision, EntryPosted):
                    side = self.supply_nano if entry.account == "supply" else self._requested[entry.book]
                    amounts = _summed((each.resource, parse(each.quantity).nano) for each in entry.amounts)
                    self._entries[place] = (side, amounts)
                    _move(side, amounts, 1)
            case DriftFound(drift=drift):
                more = {r: parse(text).nano for r, text in drift.exact.items()}
                for resource, text in drift.derived.items():
                    more[resource] = more.get(resource, 0) - parse(text).nano
                self._drifts.pop(drift.about, None)
                if any(more.values()):
                    self._drifts[drift.about] = tuple(more.items())
            case DriftCleared(drift=drift):
                self._drifts.pop(drift.about, None)
            case _:
                pass

    def uncounted_nano(self) -> dict[str, int]:
        """Return the exact free amount of each resource of which the scheduler does not count all that is used.

        Where it counts everything its own answer is the fresher one, and there is nothing to add to it.
        """
        common, recorded, derived = (self._requested[book] for book in _BOOKS)
        more: dict[str, int] = {}
        for amounts in self._drifts.values():
            _move(more, amounts, 1)
        found = {}
        for resource in {*derived, *more}:
            exact = derived.get(resource, 0) + more.get(resource, 0)
            if exact > recorded.get(resource, 0) and resource in self.supply_nano:
                found[resource] = self.supply_nano[resource] - common.get(resource, 0) - exact
        return found

    def _take_back(self, place: tuple[str, str]) -> None:
        side, amounts = self._entries.pop(place, (None, ()))
        if side is not None:
            _move(side, amounts, -1)


def _summed(lines: Iterable[tuple[str, int]]) -> _Amounts:
    total: dict[str, int] = {}
    for resource, nano in lines:
        if is_node_resource(resource):
            total[resource] = total.get(resource, 0) + nano
    return tuple(total.items())


def _move(side: dict[str, int], amounts: _Amounts, sign: int) -> None:
    for resource, nano in amounts:
        left = side.get(resource, 0) + sign * nano
        if left:
            side[resource] = left
        else:
            side.pop(resource, None)
