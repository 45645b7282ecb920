"""What follows from the objects of a node: entries, refusals, alerts, drift and holds, kept up part by part.

Several parts may say the same thing, two claims of one name for example; it stands while one of them says it, in the words of
the first.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, Final, Literal, TypeVar

from sickbay.decisions import Entry, Hold
from sickbay.policy import Policy
from streams.ledger.claims import find_claim
from streams.ledger.findings import NEVER, NOTHING, EntryKey, Findings, RefusalKey, TimedDrift, TimedHold
from streams.ledger.inventory import find_device, find_node, find_pool
from streams.ledger.objects import Objects, Unit
from streams.ledger.pods import find_pod

_Value = TypeVar("_Value")

#: Changed things by what they are.
_ENTRY: Final = "entry"
_REFUSAL: Final = "refusal"
_ALERT: Final = "alert"
_TIMED: Final = "timed"


class Books:
    """The findings of every part of a node."""

    def __init__(self, policy: Policy) -> None:
        self.objects = Objects()
        self._policy = policy
        self._findings: dict[Unit, Findings] = {}
        self._entries: dict[EntryKey, dict[Unit, Entry]] = {}
        self._refused: dict[RefusalKey, dict[Unit, Entry]] = {}
        self._alerts: dict[tuple[str, str], dict[Unit, str]] = {}
        self._holds: dict[Unit, list[TimedHold]] = {}
        self._drifts: dict[Unit, list[TimedDrift]] = {}
        #: Pools that came back, and until when their rebuilding holds: claims and devices may still move that.
        self._rebuilding: dict[Unit, int] = {}
        #: The next time at which time alone changes something, ``None`` while it must be worked out.
        self._due_ms: int | None = None
        #: What may be different from what is announced: ``(what, key)``.
        self.changed: set[tuple[str, Any]] = set()

    def use(self, policy: Policy) -> None:
        """Put a policy in force: everything is looked at again."""
        self._policy = policy
        self._due_ms = None
        self.objects.dirty |= self.objects.units()
        self.changed.add((_TIMED, ""))

    def look(self, cut_ms: int) -> None:
        """Look again at the parts that facts touched; what was over before ``cut_ms`` no fact can change any more."""
        objects = self.objects
        claims = {unit[1] for unit in objects.dirty if unit[0] == "claim"}
        objects.dirty |= objects.contested(claims)
        if self._rebuilding and objects.dirty:
            self._rebuilding = {pool: until for pool, until in self._rebuilding.items() if until >= cut_ms}
            for unit in self._rebuilding:
                pool = (unit[1], unit[2])
                if pool in objects.touched_pools or claims & objects.by_pool.get(pool, set()):
                    objects.dirty.add(unit)
        objects.touched_pools.clear()
        if objects.judged_anew:
            objects.judged_anew = False
            self._due_ms = None
            self.changed.add((_TIMED, ""))
        dirty, objects.dirty = objects.dirty, set()
        pods = {unit for unit in dirty if unit[0] == "pod"}
        for unit in sorted(dirty - pods):
            if unit[0] == "claim":
                before = self._findings.get(unit, NOTHING).borne
                after = self._replace(unit, find_claim(objects, unit[1], self._policy)).borne
                pods |= {("pod", pod) for borne in (before, after) for _, pod in borne}
            elif unit[0] == "device":
                self._replace(unit, find_device(objects, unit[1]))
            elif unit[0] == "pool" and unit not in objects.kept:
                self._replace(unit, NOTHING)
            elif unit[0] == "pool":
                found = find_pool(objects, unit[1], unit[2], self._policy, self._is_counted)
                self._replace(unit, found)
                for timed in found.holds:
                    if timed.hold.reason == "driver_rebuilding":
                        self._rebuilding[unit] = timed.until_ms
            else:
                self._replace(unit, find_node(objects))
        for unit in sorted(pods):
            self._replace(unit, find_pod(objects, unit[1], self._policy, self._findings))

    def _is_counted(self, claim_uid: str) -> bool:
        found = self._findings.get(("claim", claim_uid), NOTHING)
        return any(book == "recorded" for book, _ in found.entries)

    def _replace(self, unit: Unit, after: Findings) -> Findings:
        before = self._findings.get(unit, NOTHING)
        for what, index, old, new in (
            (_ENTRY, self._entries, before.entries, after.entries),
            (_REFUSAL, self._refused, before.refused, after.refused),
            (_ALERT, self._alerts, before.alerts, after.alerts),
        ):
            self._index(what, index, unit, old, new)
        if before.holds or before.drifts or after.holds or after.drifts:
            self.changed.add((_TIMED, ""))
            self._due_ms = None
            self._holds.pop(unit, None)
            if after.holds:
                self._holds[unit] = after.holds
            self._drifts.pop(unit, None)
            if after.drifts:
                self._drifts[unit] = after.drifts
        if after.says_nothing:
            self._findings.pop(unit, None)
        else:
            self._findings[unit] = after
        return after

    def _index(self, what: str, index: Any, unit: Unit, old: Any, new: Any) -> None:
        for key in old:
            if key not in new:
                self.changed.add((what, key))
                del index[key][unit]
                if not index[key]:
                    del index[key]
        for key, value in new.items():
            index.setdefault(key, {})[unit] = value
            if old.get(key) != value:
                self.changed.add((what, key))

    @property
    def emulate(self) -> str:
        """Whose rules the derived book follows."""
        return self._policy.ledger.emulate

    # --- what follows now ---

    def standing(self) -> dict[EntryKey, Entry]:
        """Return every entry that follows."""
        return {key: _first(found) for key, found in self._entries.items()}

    def entry(self, key: EntryKey) -> Entry | None:
        """Return the entry under a key."""
        return _first_of(self._entries.get(key))

    def refusal(self, key: RefusalKey) -> Entry | None:
        """Return what is refused under a key for a contender."""
        return _first_of(self._refused.get(key))

    def alert(self, key: tuple[str, str]) -> str | None:
        """Return why an alert stands, ``None`` when it does not."""
        return _first_of(self._alerts.get(key))

    @property
    def judged_anew(self) -> bool:
        """Whether verdict or drift may have changed."""
        return (_TIMED, "") in self.changed

    def changed_entries(self) -> Iterable[EntryKey]:
        """Return the keys of entries that may have changed."""
        return [key for what, key in self.changed if what == _ENTRY]

    def changed_refusals(self) -> Iterable[RefusalKey]:
        """Return the keys of refusals that may have changed."""
        return [key for what, key in self.changed if what == _REFUSAL]

    def changed_alerts(self) -> Iterable[tuple[str, str]]:
        """Return the alerts that may have changed."""
        return [key for what, key in self.changed if what == _ALERT]

    def drifts(self, now_ms: int, shown: Container[str]) -> dict[str, TimedDrift]:
        """Return the differences that are more than the objects following one another.

        One that was ``shown`` stands while it lasts, even if something it rests on changed a moment ago.
        """
        found: dict[str, TimedDrift] = {}
        every = [timed for unit in sorted(self._drifts) for timed in self._drifts[unit]]
        # of several that are about one thing, one that is old enough comes first
        for is_old in (True, False):
            for timed in every:
                if (timed.from_ms <= now_ms) if is_old else (timed.drift.about in shown):
                    found.setdefault(timed.drift.about, timed)
        return found

    # --- the verdict ---

    @property
    def known(self) -> bool:
        """Whether there is anything to judge: the Node object was seen, or a pool on it."""
        return bool(self.objects.pools) or self.objects.newest("node") is not None

    @property
    def node_class(self) -> Literal["canary", "stable"]:
        """The class of the node by its label."""
        node, ledger = self.objects.node, self._policy.ledger
        if node is None:
            return "stable"
        return "canary" if node.labels.get(ledger.canary_label) in ledger.canary_values else "stable"

    def holds(self, now_ms: int, drifts: Mapping[str, TimedDrift]) -> tuple[Hold, ...]:
        """Return every reason to hold that applies, one for each reason and scope; ``drifts`` are those that stand."""
        found: dict[tuple[str, str], Hold] = {}
        for timed in self._timed_holds():
            if timed.from_ms <= now_ms < timed.until_ms:
                hold = timed.hold
                found.setdefault((hold.reason, hold.scope), hold)
        on_drift = self._policy.ledger.hold_on_drift
        if on_drift != "never":
            for about, (drift, from_ms) in drifts.items():
                if on_drift == "any" or not drift.explained:
                    since_ms = min(from_ms, now_ms)
                    hold = Hold(reason="drift", scope=about, since_ms=since_ms, detail=drift.cause)
                    found.setdefault((hold.reason, hold.scope), hold)
        return tuple(found[key] for key in sorted(found))

    def _timed_holds(self) -> list[TimedHold]:
        found = [timed for unit in sorted(self._holds) for timed in self._holds[unit]]
        objects = self.objects
        lapsed = objects.lapsed
        if lapsed is not None:
            detail = "the node's Lease lapsed; nobody vouches for its slices"
            since_ms = lapsed.observed_at_ms
            found.append(TimedHold(Hold(reason="slice_stale", since_ms=since_ms, detail=detail), since_ms))
        for gap in objects.gaps.values():
            detail = "nothing was seen of it for a while"
            hold = Hold(reason="watch_gap", scope=gap.watched, since_ms=gap.from_ms, detail=detail)
            found.append(TimedHold(hold, gap.from_ms, gap.to_ms + self._policy.ledger.recheck_ms))
        drivers = objects.drivers()
        for gate in objects.gates.values():
            driver = gate.scope.removeprefix("driver:")
            if not gate.closed or (gate.scope.startswith("driver:") and driver not in drivers):
                continue
            detail = f"{gate.actor}: {gate.reason}"
            since_ms = gate.observed_at_ms
            hold = Hold(reason="claims_gate_closed", scope=gate.scope, since_ms=since_ms, detail=detail)
            found.append(TimedHold(hold, since_ms))
        return found

    def due_ms(self, now_ms: int) -> int:
        """Return the next time after ``now_ms`` at which time alone changes something."""
        if self._due_ms is None or self._due_ms <= now_ms:
            self._due_ms = self._next_due_ms(now_ms)
        return self._due_ms

    def _next_due_ms(self, now_ms: int) -> int:
        due_ms = NEVER
        for holds in self._holds.values():
            for timed in holds:
                due_ms = _sooner(due_ms, now_ms, timed.from_ms, timed.until_ms)
        for drifts in self._drifts.values():
            for drift in drifts:
                due_ms = _sooner(due_ms, now_ms, drift.from_ms)
        for gap in self.objects.gaps.values():
            due_ms = _sooner(due_ms, now_ms, gap.from_ms, gap.to_ms + self._policy.ledger.recheck_ms)
        return due_ms


def _sooner(due_ms: int, now_ms: int, *times_ms: int) -> int:
    for time_ms in times_ms:
        if now_ms < time_ms < due_ms:
            due_ms = time_ms
    return due_ms


def _first(found: dict[Unit, _Value]) -> _Value:
    return found[min(found)] if len(found) > 1 else next(iter(found.values()))


def _first_of(found: dict[Unit, _Value] | None) -> _Value | None:
    return _first(found) if found else None
