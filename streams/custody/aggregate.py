"""The custody decider of one node: what is (``announced``) against what should be (the timeline's head).

``decide`` says what changed since it last spoke: the transitions one by one when time only moved on, and the difference of
levels when a late fact changed the past. What in-order facts would not have opened is closed as ``retracted``, never erased.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from sickbay.codec import fact_id
from sickbay.decider import Decider
from sickbay.decisions import (
    AlertCleared,
    AlertRaised,
    CustodyDecision,
    Decision,
    DeviceRecord,
    DeviceReleased,
    MoveDecision,
    MoveFinished,
    MoveLeaseGranted,
    MovePlanned,
    NodeIncidentClosed,
    NodeIncidentOpened,
)
from sickbay.envelope import derived_id
from sickbay.facts import Fact
from sickbay.policy import Policy
from streams.custody.standing import same_episode, told
from streams.custody.state import NEVER, Move, NodeCustody, Unit
from streams.custody.timeline import Timeline

#: Raised whenever the shape of the state or the meaning of ``evolve`` changes; a snapshot of another version is rebuilt.
FOLD_VERSION: Final = 3
#: Alerts of this kind are one-off: they are not kept as a level.
LATE_FACT: Final = "late_fact"


class KnownIncident(msgspec.Struct, frozen=True):
    """An announced node incident."""

    cause: Literal["node_lost", "plugin_down", "mass_turn"]
    scope: str
    opened_at_ms: int


class KnownMove(msgspec.Struct, frozen=True):
    """An announced move that is not finished."""

    device_id: str
    episode_id: str
    pod_uid: str
    namespace: str
    pod: str
    token: int


class Announced(msgspec.Struct):
    """What the decisions so far add up to. Devices in service are not listed."""

    devices: dict[str, DeviceRecord] = {}
    incidents: dict[str, KnownIncident] = {}
    #: Alert id to (kind, about).
    alerts: dict[str, tuple[str, str]] = {}
    moves: dict[str, KnownMove] = {}


class NodeState:
    """The state of one node's custody. ``evolve`` takes it over and returns it; nobody else changes it."""

    __slots__ = ("announced", "node", "timeline")

    def __init__(self, node: str, timeline: Timeline, announced: Announced) -> None:
        self.node = node
        self.timeline = timeline
        self.announced = announced

    @property
    def due_ms(self) -> int:
        """The time at which a tick would change something."""
        return self.timeline.head.due_ms


def initial(
    node: str,
    policies: Mapping[str, Policy],
    policy_hash: str,
    *,
    now_ms: int = 0,
    breakers: Mapping[str, int] | None = None,
) -> NodeState:
    """Return the state of a node of which nothing is known yet."""
    custody = NodeCustody(node=node, policy_hash=policy_hash, time_ms=now_ms, breakers=dict(breakers or {}))
    return NodeState(node, Timeline(custody, policies, now_ms), Announced())


def evolve(state: NodeState, event: Fact | Decision) -> NodeState:
    """Take in what was seen or what was decided."""
    if isinstance(event, Fact):
        state.timeline.absorb(event)
        return state
    timeline, announced = state.timeline, state.announced
    timeline.outbox, timeline.rebuilt_from_ms = [], None
    match event:
        case CustodyDecision():
            if event.record.phase == "in_service":
                announced.devices.pop(event.device_id, None)
            else:
                announced.devices[event.device_id] = event.record
        case NodeIncidentOpened():
            announced.incidents[event.incident_id] = KnownIncident(event.cause, event.scope, event.at_ms)
        case NodeIncidentClosed():
            announced.incidents.pop(event.incident_id, None)
        case AlertRaised(alert="late_fact"):
            timeline.late = [f for f in timeline.late if fact_id(f) != event.about]
        case AlertRaised():
            announced.alerts[event.alert_id] = (event.alert, event.about)
        case AlertCleared():
            announced.alerts.pop(event.alert_id, None)
        case MoveFinished():
            announced.moves.pop(event.move_id, None)
        case MoveDecision():
            announced.moves[event.move_id] = KnownMove(
                event.device_id,
                event.episode_id,
                event.pod_uid,
                event.namespace,
                event.pod,
                event.token if isinstance(event, MoveLeaseGranted) else 0,
            )
        case _:
            pass
    return state


def replay(state: NodeState, event: Fact | Decision) -> NodeState:
    """Take in a recorded event and decide nothing; a recorded decision answers the facts before it."""
    state = evolve(state, event)
    state.timeline.advance()
    return state


def decide(state: NodeState) -> tuple[Decision, ...]:
    """Return what must be said so that what is announced is what should be; nothing when it is."""
    timeline, announced = state.timeline, state.announced
    timeline.advance()
    if not timeline.outbox and timeline.rebuilt_from_ms is None and not timeline.late:
        return ()
    head = timeline.head
    out: list[Decision] = [_late(state.node, fact, timeline.now_ms) for fact in timeline.late]
    if timeline.rebuilt_from_ms is None:
        return (*out, *timeline.outbox)
    at_ms = timeline.now_ms
    for incident_id in sorted(announced.incidents.keys() - head.incidents.keys()):
        opened = announced.incidents[incident_id]
        if not any(
            isinstance(d, NodeIncidentClosed) and d.incident_id == incident_id for d in timeline.outbox
        ):
            out.append(
                NodeIncidentClosed(
                    node=state.node, at_ms=at_ms, reason="a late fact showed that it never was", incident_id=incident_id,
                    cause=opened.cause, scope=opened.scope, opened_at_ms=opened.opened_at_ms, outcome="retracted",
                )
            )  # fmt: skip
    said: set[int] = set()
    for unit_id in sorted(announced.devices.keys() | head.units.keys() | _devices(timeline.outbox)):
        out += _catch_up(state, unit_id, said)
    for decision in timeline.outbox:
        if isinstance(decision, CustodyDecision):
            if id(decision) in said:
                out.append(decision)
        elif _news(state, decision):
            out.append(decision)
    out += _moot(state, out)
    out += _again(state, out)
    return tuple(_ordered(announced, out))


def _devices(outbox: list[Decision]) -> set[str]:
    return {d.device_id for d in outbox if isinstance(d, CustodyDecision)}


def _late(node: str, fact: Fact, at_ms: int) -> AlertRaised:
    about = fact_id(fact)
    return AlertRaised(
        node=node,
        at_ms=at_ms,
        clause="lateness_horizon_ms",
        reason=f"{fact.KIND} became true before the lateness horizon: recorded, not acted on",
        evidence=(about,),
        alert_id=derived_id("alert", node, LATE_FACT, about),
        alert=LATE_FACT,
        about=about,
    )


def _catch_up(state: NodeState, unit_id: str, said: set[int]) -> list[Decision]:
    """Choose the transitions of one device that lead from what was announced to what is, and retract what never was."""
    timeline = state.timeline
    unit = timeline.head.units.get(unit_id)
    target = unit.record() if unit is not None and unit.phase != "in_service" else None
    current = state.announced.devices.get(unit_id)
    if current == target:
        return []
    story = [d for d in timeline.outbox if isinstance(d, CustodyDecision) and d.device_id == unit_id]
    start = max((i + 1 for i, d in enumerate(story) if d.record == current), default=0)
    if start == 0 and current is not None and current.episode is not None:
        episode_id = current.episode.episode_id
        same = [
            i for i, d in enumerate(story) if d.record.episode and d.record.episode.episode_id == episode_id
        ]
        closed = [
            i
            for i, d in enumerate(story)
            if isinstance(d, DeviceReleased) and d.closed.episode_id == episode_id
        ]
        if same or closed:
            start = min(max(same[-1:] + closed[-1:]), len(story) - 1)
        else:
            return _retract(state, unit_id, current, unit, target, story, said)
    for decision in story[start:]:
        said.add(id(decision))
    if story[start:]:
        return []
    return _retract(state, unit_id, current, unit, target, story, said)


def _retract(
    state: NodeState,
    unit_id: str,
    current: DeviceRecord | None,
    unit: Unit | None,
    target: DeviceRecord | None,
    story: list[CustodyDecision],
    said: set[int],
) -> list[Decision]:
    """Say that what was announced of a device never was; the new story, if there is one, follows."""
    if current is not None and story and isinstance(story[0], DeviceReleased):
        story = story[1:]  # said when it happened: what is announced came after it
    said.update(id(decision) for decision in story)
    at_ms = state.timeline.now_ms
    settled = story[0].phase_before if story else "in_service"
    if settled not in ("in_service", "suspect", "restricted"):
        settled = "in_service"  # what follows names its episode itself
    record = target if target is not None and not story else DeviceRecord(phase=settled, since_ms=at_ms)
    scope = unit.scope if unit else ""
    before = current.phase if current else "in_service"
    if same_episode(current, target):
        # only what was said of the episode since then never was: it goes on
        return [told(record, node=state.node, at_ms=at_ms, unit_id=unit_id, scope=scope, before=before)]
    if current is not None and current.episode is not None:
        closed = msgspec.structs.replace(
            current.episode, closed_at_ms=at_ms, outcome="retracted", open_causes=()
        )
        return [
            DeviceReleased(
                node=state.node, at_ms=at_ms, clause="lateness_horizon_ms", reason="a late fact showed that it never was",
                device_id=unit_id, driver=scope, phase_before=before, record=record, closed=closed,
            )
        ]  # fmt: skip
    return [told(record, node=state.node, at_ms=at_ms, unit_id=unit_id, scope=scope, before=before)]


def _news(state: NodeState, decision: Decision) -> bool:
    """Whether a transition that is not about one device closes a gap between what was announced and what is."""
    head, announced = state.timeline.head, state.announced
    match decision:
        case NodeIncidentOpened():
            return decision.incident_id in head.incidents.keys() - announced.incidents.keys()
        case NodeIncidentClosed():
            return decision.incident_id in announced.incidents.keys() - head.incidents.keys()
        case AlertRaised():
            return decision.alert_id in head.alerts.keys() - announced.alerts.keys()
        case AlertCleared():
            return decision.alert_id in announced.alerts.keys() - head.alerts.keys()
        case MovePlanned():
            return decision.move_id in unfinished(head) and decision.move_id not in announced.moves
        case MoveLeaseGranted():
            known = announced.moves.get(decision.move_id)
            return decision.move_id in unfinished(head) and (known is None or known.token < decision.token)
        case MoveFinished():
            return decision.move_id in announced.moves and decision.move_id not in unfinished(head)
        case _:
            return False


def unfinished(head: NodeCustody) -> dict[str, Move]:
    """Return the moves that go on. Finished ones stay in the head so that they are not planned again."""
    return {move_id: move for move_id, move in head.moves.items() if not move.finished}


def _moot(state: NodeState, out: list[Decision]) -> list[Decision]:
    """End alerts and moves that were announced and never were."""
    head, announced, at_ms = state.timeline.head, state.announced, state.timeline.now_ms
    ended: list[Decision] = []
    cleared = {d.alert_id for d in out if isinstance(d, AlertCleared)}
    for alert_id in sorted(announced.alerts.keys() - head.alerts.keys() - cleared):
        kind, about = announced.alerts[alert_id]
        ended.append(
            AlertCleared(
                node=state.node, at_ms=at_ms, reason="a late fact showed that it never was", alert_id=alert_id,
                alert=kind, about=about,
            )
        )  # fmt: skip
    finished = {d.move_id for d in out if isinstance(d, MoveFinished)}
    for move_id in sorted(announced.moves.keys() - unfinished(head).keys() - finished):
        move = announced.moves[move_id]
        ended.append(
            MoveFinished(
                node=state.node, at_ms=at_ms, reason="a late fact showed that it never was", device_id=move.device_id,
                move_id=move_id, episode_id=move.episode_id, pod_uid=move.pod_uid, namespace=move.namespace, pod=move.pod,
                token=0, outcome="retracted",
            )
        )  # fmt: skip
    return ended


def _again(state: NodeState, out: list[Decision]) -> list[Decision]:
    """Say again what was announced as ended and, as a late fact showed, goes on."""
    head, announced, at_ms = state.timeline.head, state.announced, state.timeline.now_ms
    reason = "a late fact showed that it goes on"
    said = {d.subject for d in out}
    again: list[Decision] = [
        NodeIncidentOpened(
            node=state.node, at_ms=incident.opened_at_ms, reason=reason, incident_id=incident_id, cause=incident.cause,
            scope=incident.scope,
        )
        for incident_id, incident in sorted(head.incidents.items())
        if incident_id not in announced.incidents and incident_id not in said
    ]  # fmt: skip
    again += [
        AlertRaised(
            node=state.node, at_ms=raised_ms, reason=reason, alert_id=alert_id, alert=kind, about=about
        )
        for alert_id, (kind, about, raised_ms) in sorted(head.alerts.items())
        if alert_id not in announced.alerts and alert_id not in said
    ]
    for move_id, move in sorted(unfinished(head).items()):
        known = announced.moves.get(move_id)
        if move_id in said or (known is not None and known.token == move.token):
            continue
        again.append(
            MoveLeaseGranted(
                node=state.node, at_ms=at_ms, reason=reason, device_id=move.unit_id, move_id=move_id,
                episode_id=move.episode_id, pod_uid=move.pod_uid, namespace=move.namespace, pod=move.pod,
                token=move.token, expires_at_ms=at_ms if move.expires_at_ms == NEVER else move.expires_at_ms,
            )
        )  # fmt: skip
    return again


def _ordered(announced: Announced, out: list[Decision]) -> list[Decision]:
    """Make each device's first transition start from the phase that was announced."""
    phases: dict[str, Any] = {}
    for index, decision in enumerate(out):
        if isinstance(decision, CustodyDecision):
            known = announced.devices.get(decision.device_id)
            before = phases.get(decision.device_id, known.phase if known else "in_service")
            if decision.phase_before != before:
                out[index] = msgspec.structs.replace(decision, phase_before=before)
            phases[decision.device_id] = decision.record.phase
    return out


def dump(state: NodeState) -> bytes:
    """Return the snapshot of a settled state: canonical bytes, equal for equal states."""
    content = {
        "fold_version": FOLD_VERSION,
        "node": state.node,
        "timeline": state.timeline.dump(),
        "announced": state.announced,
    }
    return msgspec.json.encode(content, order="sorted")


def load(data: bytes, policies: Mapping[str, Policy]) -> NodeState | None:
    """Read a snapshot back; ``None`` when another fold version wrote it and the state must be built from the log."""
    content = msgspec.json.decode(data)
    if content["fold_version"] != FOLD_VERSION:
        return None
    return NodeState(
        content["node"],
        Timeline.load(content["timeline"], policies),
        msgspec.convert(content["announced"], Announced),
    )


CUSTODY: Final[Decider[Fact, Decision, NodeState]] = Decider(evolve=evolve, decide=decide)
