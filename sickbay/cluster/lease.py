"""Who leads, as a Lease of ``coordination.k8s.io/v1`` says it: the pure part (faults I1, I7).

Time is monotonic and this process's own: a Lease runs out when *we* saw no change of it for as long as it says, whatever times
its holder wrote into it, so clocks that differ by hours change nothing. Leading ends some seconds before anybody else may see
the Lease run out. A Lease that is not there proves nothing about its last holder, and being absent twice is not being absent in
between: it is made first, and waited for like one that somebody holds. It must do no I/O and read no clock.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple, TypeAlias

#: How long a Lease is good for without a renewal, milliseconds; what client-go's users have.
LEASE_MS: Final = 15_000
#: A leader that could not renew for so long stops.
RENEW_DEADLINE_MS: Final = 10_000
#: Pause between two looks at the Lease.
RETRY_MS: Final = 2_000

#: ``make``: there is none to look at. ``acquire``: try to become its holder. ``renew``: it is ours, write that again. ``wait``: somebody may lead. ``lost``: we led
#: and do not any more; there is no way back but a new start.
Step: TypeAlias = Literal["make", "acquire", "renew", "wait", "lost"]


class Seen(NamedTuple):
    """What is known of a Lease: its content, and since when it has been that."""

    #: ``None`` when there is no such object.
    lease: dict[str, Any] | None
    #: Monotonic milliseconds at which it was first seen like this.
    since_ms: int


def looked(before: Seen | None, lease: dict[str, Any] | None, now_ms: int) -> Seen:
    """Return what is known after a look: an unchanged Lease keeps its time."""
    if before is not None and _sign(before.lease) == _sign(lease):
        return Seen(lease, before.since_ms)
    return Seen(lease, now_ms)


def _sign(lease: dict[str, Any] | None) -> object:
    """Return what changes with every sign of life of a holder."""
    return None if lease is None else (holder_of(lease), transitions_of(lease), _spec(lease).get("renewTime"))


def next_step(seen: Seen, identity: str, now_ms: int, *, renewed_ms: int | None) -> Step:
    """Return what to do. ``renewed_ms`` is when our last successful renewal was *sent*, ``None`` when we do not lead."""
    holder = None if seen.lease is None else holder_of(seen.lease)
    if renewed_ms is not None:
        return "renew" if holder == identity and now_ms - renewed_ms < RENEW_DEADLINE_MS else "lost"
    if seen.lease is None:
        return "make"
    # an empty holder stopped and said so; of any other it takes the whole time until he cannot believe it any more
    ran_out = now_ms - seen.since_ms >= max(LEASE_MS, _duration_ms(seen.lease))
    return "acquire" if holder == "" or ran_out else "wait"


def made(name: str, identity: str, renew_time: str) -> dict[str, Any]:
    """Return a Lease that nobody leads by yet, in the name of who made it."""
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}}
    return _written(lease, identity, renew_time, 0)


def taken(lease: dict[str, Any], identity: str, renew_time: str, at_least: int) -> dict[str, Any]:
    """Return the Lease as its new holder writes it; ``at_least`` is a bound for the number of its leadership."""
    written = _written(lease, identity, renew_time, max(transitions_of(lease) + 1, at_least))
    return written | {"spec": written["spec"] | {"acquireTime": renew_time}}


def renewed(lease: dict[str, Any], identity: str, renew_time: str, transitions: int) -> dict[str, Any]:
    """Return the Lease as its holder writes it again; an empty ``identity`` gives it back."""
    return _written(lease, identity, renew_time, transitions)


def _written(lease: dict[str, Any], identity: str, renew_time: str, transitions: int) -> dict[str, Any]:
    spec = {
        "holderIdentity": identity,
        "leaseDurationSeconds": LEASE_MS // 1000,
        "leaseTransitions": transitions,
        "renewTime": renew_time,
    }
    return lease | {"spec": _spec(lease) | spec}


def _spec(lease: dict[str, Any]) -> dict[str, Any]:
    spec = lease.get("spec")
    return spec if isinstance(spec, dict) else {}


def holder_of(lease: dict[str, Any]) -> str:
    """Return who holds a Lease, "" for nobody."""
    holder = _spec(lease).get("holderIdentity")
    return holder if isinstance(holder, str) else ""


def transitions_of(lease: dict[str, Any]) -> int:
    """Return how often its holder changed, 0 when that cannot be read."""
    transitions = _spec(lease).get("leaseTransitions")
    return transitions if isinstance(transitions, int) and transitions > 0 else 0


def _duration_ms(lease: dict[str, Any]) -> int:
    seconds = _spec(lease).get("leaseDurationSeconds")
    # an hour is longer than any leader was ever waited for: beyond it somebody wrote nonsense
    return seconds * 1000 if isinstance(seconds, int) and 0 < seconds <= 3_600 else LEASE_MS
