"""Node Leases: who has gone silent, measured by arrival.

A Lease lives as long as its resourceVersion keeps changing; its ``renewTime`` is the node's own clock and decides nothing
(kubernetes/kubernetes#108844, #113081). Silence is measured in *sighted time*: the sum of the gaps between consecutive signs of
the watch of Leases, each counted as 15 s at most. So an ingester that was away, a watch that was cut off while others went on,
or a receipt clock that jumped a day, lapses nobody (reference faults, I7 to I9).
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any, Final

import msgspec

from ingest.diff.known import Moment, Outcome
from ingest.diff.recalling import Told
from ingest.observe.nodes import observe_lease
from sickbay.facts import Fact, NodeLeaseLapsed, NodeLeaseResumed

#: The longest gap between signs that counts as having looked: ticks come every few seconds, bookmarks every minute.
GAP_MAX_MS: Final = 15_000


class Sighted:
    """Time that is only counted while somebody looks; ``ms`` only rises."""

    def __init__(self) -> None:
        self.ms = 0
        self._last_ms: int | None = None

    def sign(self, at_ms: int) -> None:
        """Let the time since the sign before pass; a clock that stepped back counts as no time."""
        if self._last_ms is not None and at_ms > self._last_ms:
            self.ms += min(at_ms - self._last_ms, GAP_MAX_MS)
        self._last_ms = at_ms


class _Lease(msgspec.Struct):
    #: Empty when it is known by what was told of it and was not read yet.
    uid: str
    epoch: int
    rv: int
    lease_ms: int
    renewed_at_ms: int
    #: Sighted time at which it lapses; ``None`` when it cannot.
    deadline_ms: int | None
    lapsed: bool = False


class LeaseCollection:
    """The known Leases and their deadlines."""

    def __init__(self) -> None:
        self._leases: dict[str, _Lease] = {}
        self._deadlines: list[tuple[int, str]] = []
        self._sighted = Sighted()

    def __len__(self) -> int:
        return len(self._leases)

    def recall(self, told: Told) -> None:
        """Know again who has gone silent; the first LIST tells of the others."""
        for name, fact in told.leases.items():
            if isinstance(fact, NodeLeaseLapsed):
                self._leases[name] = _Lease(
                    "", fact.epoch, fact.rv, fact.lease_ms, fact.last_renewal_at_ms, None, lapsed=True
                )

    def sight(self, at_ms: int) -> None:
        """Take note of a sign of the watch of Leases."""
        self._sighted.sign(at_ms)

    def restart(self) -> None:
        """Begin every wait anew: nothing was seen of Leases for a while, and that is nobody's silence but ours."""
        self._deadlines = []
        for name, lease in self._leases.items():
            if lease.deadline_ms is not None and not lease.lapsed:
                lease.deadline_ms = self._sighted.ms + lease.lease_ms
                heappush(self._deadlines, (lease.deadline_ms, name))

    def put(self, obj: dict[str, Any], moment: Moment, out: list[Fact]) -> Outcome:
        """Apply one version; a Lease outside ``kube-node-lease`` is no node's and changes nothing.

        Raises ObjectError when the Lease cannot be read.
        """
        seen = observe_lease(obj)
        if seen is None:
            return "same"
        identity = seen.identity
        name, version = identity.name, (moment.epoch, identity.rv)
        known = self._leases.get(name)
        if known is not None and version <= (known.epoch, known.rv):
            # the fact of a lapse does not carry it
            known.uid = known.uid or identity.uid
            return "same"
        vouches = seen.renewed_at_ms is not None
        lapsed = known is not None and known.lapsed
        if lapsed and vouches:
            out.append(
                NodeLeaseResumed(
                    node=name,
                    observed_at_ms=moment.at_ms,
                    epoch=moment.epoch,
                    rv=identity.rv,
                    skew_ms=None if seen.renewed_at_ms is None else moment.at_ms - seen.renewed_at_ms,
                )
            )
            lapsed = False
        deadline = self._sighted.ms + seen.lease_ms if vouches else None
        self._leases[name] = _Lease(
            identity.uid, moment.epoch, identity.rv, seen.lease_ms, moment.at_ms, deadline, lapsed
        )
        if deadline is not None:
            heappush(self._deadlines, (deadline, name))
        return "added" if known is None else "changed"

    def delete(self, obj: dict[str, Any]) -> None:
        """Forget a Lease: without it nothing is known of the node's liveness."""
        seen = observe_lease(obj)
        if seen is not None:
            known = self._leases.get(seen.identity.name)
            if known is not None and known.uid == seen.identity.uid:
                del self._leases[seen.identity.name]

    def keep_only(self, names: set[str]) -> int:
        """Forget the Leases that a LIST no longer has; return how many."""
        missing = [name for name in self._leases if name not in names]
        for name in missing:
            del self._leases[name]
        return len(missing)

    def lapse(self, at_ms: int, out: list[Fact]) -> None:
        """Emit the Leases whose time ran out, once each."""
        while self._deadlines and self._deadlines[0][0] < self._sighted.ms:
            deadline, name = heappop(self._deadlines)
            lease = self._leases.get(name)
            if lease is None or lease.deadline_ms != deadline or lease.lapsed:
                continue
            lease.lapsed = True
            out.append(
                NodeLeaseLapsed(
                    node=name,
                    observed_at_ms=at_ms,
                    epoch=lease.epoch,
                    rv=lease.rv,
                    last_renewal_at_ms=lease.renewed_at_ms,
                    lease_ms=lease.lease_ms,
                )
            )
