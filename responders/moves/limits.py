"""How much may move at once in the cluster, and how much in an hour. Pure.

Custody limits each node; what a partition cannot see is limited here, over the whole view. A process that starts again knows the
leases and the moves that ended from the decisions, so a restart does not begin the hour anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from responders.view import Move, View

HOUR_MS: Final = 3_600_000


class Leased(NamedTuple):
    """A move whose lease runs."""

    node: str
    move: Move

    @property
    def key(self) -> tuple[str, int]:
        """The lease: the move and its token."""
        return self.move.move_id, self.move.token


def leased(view: View, now_ms: int) -> Iterator[Leased]:
    """Yield the moves whose lease has not run out."""
    for name in sorted(view.nodes):
        for move in view.nodes[name].moves.values():
            if move.token and move.expires_at_ms > now_ms:
                yield Leased(name, move)


def admitted(
    running: Iterable[Leased],
    begun: Collection[tuple[str, int]],
    cluster_max: int,
    tenant_priority: Mapping[str, int],
) -> frozenset[tuple[str, int]]:
    """Return which leases may be acted on: those that began, then by tenant priority and by age, as many as the policy allows."""
    ranked = sorted(
        running,
        key=lambda each: (
            each.key not in begun,
            -tenant_priority.get(each.move.namespace, 0),
            each.move.expires_at_ms,
            each.move.move_id,
        ),
    )
    return frozenset(each.key for each in ranked[:cluster_max])


class Evictions:
    """Evictions of the last hour by Pod, also those that are about to happen: what is begun has its place."""

    def __init__(self) -> None:
        self._at_ms: dict[str, int] = {}

    def note(self, pod_uid: str, at_ms: int) -> None:
        """Count a Pod, once."""
        self._at_ms.setdefault(pod_uid, at_ms)

    def forget(self, pod_uid: str) -> None:
        """Count a Pod no more: it was not evicted after all."""
        self._at_ms.pop(pod_uid, None)

    def in_last_hour(self, now_ms: int) -> int:
        """Return how many there were."""
        self._at_ms = {uid: at for uid, at in self._at_ms.items() if at > now_ms - HOUR_MS}
        return len(self._at_ms)
