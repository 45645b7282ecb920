"""The breaker: so much turned adverse at once that the cause is the cluster's, or ours.

One aggregate for the whole cluster, fed by each partition's census. It opens for a driver or for the cluster when more than
max(floor, ratio) of the known devices turned adverse inside the window. It closes after a quiet time, and not while more than that
many devices are still Unknown: closing would restrict them all at once. Partitions hear of it as the fact
``breaker_state_changed``. Its counts are part of its state, so a restart does not forget a storm.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sickbay.decider import Decider
from sickbay.decisions import AlertCleared, AlertRaised, BreakerClosed, BreakerOpened, CensusTaken, Decision
from sickbay.envelope import CLUSTER_STREAM, derived_id
from sickbay.facts import BreakerResetRequested, Fact, PolicyChanged, Tick
from sickbay.policy import BreakerPolicy, Policy, policy_from_document

#: Scope of the breaker for the whole cluster; a driver's is ``driver:<name>``.
CLUSTER: Final = "cluster"


class BreakerState(msgspec.Struct):
    """Counts and open breakers at one moment of event time."""

    now_ms: int = 0
    policy: BreakerPolicy = Policy().breaker
    #: Partition to driver to devices known.
    known: dict[int, dict[str, int]] = {}
    #: ``node|device`` to (driver, when it last turned adverse, the node incident that explains it or ""); older than the
    #: window is dropped.
    adverse: dict[str, tuple[str, int, str]] = {}
    #: Partition to driver to (devices that would be restricted if no breaker were open, their nodes, the first of these). Each
    #: partition tells it anew when one opens; until then what it told in the last storm may keep that one open for some ticks.
    waiting: dict[int, dict[str, tuple[int, int, str]]] = {}
    #: Open scope to when it opened.
    open: dict[str, int] = {}
    #: Open scope to since when it is below its threshold, judged at ticks: what partitions tell of one moment comes one by one.
    calm_since: dict[str, int] = {}
    #: Scope to the newest time at which a person declared it over: what turned adverse up to then counts no more.
    forgotten: dict[str, int] = {}
    #: Open scope that a person declared over, to when and to who and why.
    reset: dict[str, tuple[int, str]] = {}

    @property
    def is_stuck(self) -> bool:
        """Whether something is open, and time alone changes nothing for it."""
        return bool(self.open) and not (self.adverse or self.calm_since or self.reset)


def evolve(state: BreakerState, event: Fact | Decision) -> BreakerState:
    """Take in a census, the time, a policy, or a decision of the breaker's own."""
    match event:
        case CensusTaken():
            state.known[event.partition] = event.known
            for scope, device, at_ms, incident in event.adverse:
                known_ms = state.adverse.get(device, ("", -1, ""))[1]
                if known_ms <= at_ms and not _is_forgotten(state, scope, at_ms):
                    state.adverse[device] = (scope, at_ms, incident)
            state.waiting[event.partition] = event.waiting
            state.now_ms = max(state.now_ms, event.at_ms)
        case Tick():
            state.now_ms = max(state.now_ms, event.observed_at_ms)
        case PolicyChanged():
            state.policy = policy_from_document(event.document).breaker
        case BreakerOpened():
            state.open[event.scope] = event.at_ms
        case BreakerResetRequested():
            _forget(state, event)
        case BreakerClosed():
            state.open.pop(event.scope, None)
            state.calm_since.pop(event.scope, None)
            state.reset.pop(event.scope, None)
        case _:
            return state
    since_ms = state.now_ms - state.policy.window_ms
    state.adverse = {device: seen for device, seen in state.adverse.items() if seen[1] > since_ms}
    if isinstance(event, Tick):
        for scope in state.open:
            if _is_calm(state, scope):
                state.calm_since.setdefault(scope, state.now_ms)
            else:
                state.calm_since.pop(scope, None)
    return state


def _forget(state: BreakerState, request: BreakerResetRequested) -> None:
    """Forget what turned adverse in a scope up to a person's word; what turns adverse after it counts anew."""
    at_ms = request.observed_at_ms
    state.forgotten[request.scope] = max(at_ms, state.forgotten.get(request.scope, -1))
    state.adverse = {
        device: seen for device, seen in state.adverse.items() if not _is_forgotten(state, seen[0], seen[1])
    }
    if state.open.get(request.scope, at_ms + 1) <= at_ms:
        state.reset[request.scope] = (at_ms, f"reset by {request.actor}: {request.reason}")


def _is_forgotten(state: BreakerState, driver: str, at_ms: int) -> bool:
    return at_ms <= max(state.forgotten.get(CLUSTER, -1), state.forgotten.get(f"driver:{driver}", -1))


def _driver_of(scope: str) -> str | None:
    """Return the driver that a scope is about, ``None`` for the cluster's."""
    return None if scope == CLUSTER else scope.removeprefix("driver:")


def waiting_for(state: BreakerState, scope: str) -> int:
    """Return how many devices would be restricted if the breaker of a scope closed now.

    The devices of one node are that node's trouble, and none. For the cluster's, those that the breaker of their driver keeps are
    none either, unless that one is about to close too.
    """
    driver = _driver_of(scope)
    names = {name for by_driver in state.waiting.values() for name in by_driver}
    if driver is None:
        names = {name for name in names if not _keeps(state, f"driver:{name}")}
    else:
        names &= {driver}
    told = [by_driver.get(name) for by_driver in state.waiting.values() for name in names]
    counted = [each for each in told if each is not None and each[0]]
    on_one_node = len({node for _, _, node in counted}) == 1 and all(nodes == 1 for _, nodes, _ in counted)
    return 0 if on_one_node else sum(devices for devices, _, _ in counted)


def _keeps(state: BreakerState, scope: str) -> bool:
    """Whether the breaker of a driver is open and stays so."""
    return scope in state.open and scope not in state.reset and not _is_calm(state, scope)


def _is_calm(state: BreakerState, scope: str) -> bool:
    """Whether no more than the threshold turned adverse lately, and no more than that wait for the breaker."""
    adverse, threshold, _ = _count(state, scope)
    return max(adverse, waiting_for(state, scope)) <= threshold


def _count(state: BreakerState, scope: str) -> tuple[int, int, int]:
    """Return (adverse, threshold, known) of a scope."""
    driver = _driver_of(scope)
    known = sum(n for counts in state.known.values() for name, n in counts.items() if driver in (None, name))
    alone = explained = 0
    nodes = set()
    for device, (name, _, incident) in state.adverse.items():
        if driver not in (None, name):
            continue
        if incident:
            explained += 1
            nodes.add(device.split("|", 1)[0])
        else:
            alone += 1
    # what one node's own incident explains is that node's trouble; on two nodes it may be everybody's
    adverse = alone + (explained if len(nodes) > 1 else 0)
    share = -(-known * state.policy.ratio_percent // 100)
    return adverse, max(state.policy.floor, share), known


def decide(state: BreakerState) -> tuple[Decision, ...]:
    """Return the breakers that must open or close now."""
    if not state.adverse and not state.open:
        return ()
    out: list[Decision] = []
    drivers = sorted({name for name, _, _ in state.adverse.values()})
    for scope in (CLUSTER, *(f"driver:{name}" for name in drivers)):
        adverse, threshold, known = _count(state, scope)
        if scope not in state.open and adverse > threshold:
            reason = f"{adverse} of {known} known devices turned adverse within {state.policy.window_ms} ms"
            out.append(
                BreakerOpened(
                    node=CLUSTER_STREAM, at_ms=state.now_ms, clause="breaker.ratio_percent", reason=reason,
                    scope=scope, adverse=adverse, known=known, threshold=threshold,
                )
            )  # fmt: skip
            out.append(
                AlertRaised(
                    node=CLUSTER_STREAM, at_ms=state.now_ms, clause="breaker.ratio_percent", reason=reason,
                    alert_id=derived_id("alert", "breaker", scope), alert="breaker", about=scope,
                )
            )  # fmt: skip
    for scope, opened_ms in sorted(state.open.items()):
        calm_ms = state.calm_since.get(scope)
        reset = state.reset.get(scope)
        is_quiet = calm_ms is not None and state.now_ms - calm_ms >= state.policy.quiet_ms
        if reset is not None or (is_quiet and _is_calm(state, scope)):
            clause, reason = "breaker.quiet_ms", "below the threshold for the whole quiet time"
            if reset is not None:
                clause, reason = "breaker_reset_requested", reset[1]
            out.append(
                BreakerClosed(
                    node=CLUSTER_STREAM, at_ms=max(state.now_ms, reset[0] if reset else 0), clause=clause, reason=reason,
                    scope=scope, opened_at_ms=opened_ms,
                )
            )  # fmt: skip
            out.append(
                AlertCleared(
                    node=CLUSTER_STREAM, at_ms=state.now_ms, reason="the breaker closed",
                    alert_id=derived_id("alert", "breaker", scope), alert="breaker", about=scope,
                )
            )  # fmt: skip
    return tuple(out)


BREAKER: Final[Decider[Fact | CensusTaken, Decision, BreakerState]] = Decider(evolve=evolve, decide=decide)
