"""What the owner of a workload is told: Kubernetes Events on the Pod. Pure.

Names are derived, so that each is made once, whoever makes it and however often. The Event of a move that begins is also its record:
who moves, and since when; that of a lease whose move failed is the record of the failure. A process that takes over reads them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from responders.moves.pods import Pod
from responders.moves.replacing import Member
from responders.moves.steps import Begun
from responders.view import Move
from sickbay.envelope import derived_id
from sickbay.timestamps import format_time_ms

RECORD: Final = "sickbay.dev/move"
CONTROLLER: Final = "sickbay.dev/move"
Reason = Literal["DeviceQuarantined", "MoveFailed", "WorkloadStopped", "WorkloadNotMovable"]
#: The API takes 1,024 bytes (pkg/apis/core/validation/events.go).
_NOTE_BYTES_MAX: Final = 1_000


class _Record(msgspec.Struct, frozen=True):
    members: tuple[Member, ...]
    group: str = ""


def event_name(pod: str, *parts: str) -> str:
    """Return the name of an Event about a Pod."""
    return f"{pod[:200]}.sickbay-{derived_id('owner', *parts)[:18].replace('-', '')}"


def begun_name(move: Move) -> str:
    """Return the name of the record of a move."""
    return event_name(move.pod, move.move_id, "begun")


def event(
    pod: Pod | Mapping[str, str],
    name: str,
    reason: Reason,
    note: str,
    now_ms: int,
    identity: str,
    **annotations: str,
) -> dict[str, Any]:
    """Return an Event (events.k8s.io/v1) on a Pod."""
    read = (
        {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid} if isinstance(pod, Pod) else dict(pod)
    )
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": read["namespace"], "annotations": annotations},
        "eventTime": f"{format_time_ms(now_ms)[:-1]}000Z",
        "reportingController": CONTROLLER,
        "reportingInstance": identity[:128],
        "action": "Move",
        "reason": reason,
        "type": "Warning",
        "note": note.encode()[:_NOTE_BYTES_MAX].decode(errors="ignore"),
        "regarding": {"apiVersion": "v1", "kind": "Pod", **read},
    }


def begun_event(
    move: Move, pod: Pod, members: tuple[Member, ...], group: str, now_ms: int, identity: str
) -> dict[str, Any]:
    """Return the Event that tells the owner that a move begins, and records it."""
    found = event(
        pod,
        begun_name(move),
        "DeviceQuarantined",
        f"the device {move.device_id} is quarantined (sickbay explain {move.episode_id}); the Pod is being moved off it:"
        f" {', '.join(member.name for member in members)[:300]}",
        now_ms,
        identity,
    )
    found["metadata"]["annotations"] = {RECORD: msgspec.json.encode(_Record(members, group)).decode()}
    return found


def read_begun(found: Mapping[str, Any]) -> Begun | None:
    """Read the record of a move back, ``None`` where somebody wrote something else under its name."""
    metadata = found.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(annotations, dict):
        return None
    try:
        record = msgspec.json.decode(str(annotations.get(RECORD, "")), type=_Record)
    except msgspec.MsgspecError:
        return None
    return Begun(members=record.members, group=record.group, since=str(metadata.get("creationTimestamp", "")))


def pod_of(move: Move) -> dict[str, str]:
    """Return what names the Pod of a move."""
    return {"namespace": move.namespace, "name": move.pod, "uid": move.pod_uid}


def failed_name(move: Move) -> str:
    """Return the name of the record that a move failed under its lease."""
    return event_name(move.pod, move.move_id, str(move.token), "failed")


def read_failed(found: Mapping[str, Any]) -> str:
    """Return why a move failed. Whoever else wrote under the name of the record has stopped the move."""
    note = found.get("note")
    return (isinstance(note, str) and note.partition(" failed: ")[2]) or "it is recorded as failed"


def failed_event(
    move: Move, pod: Mapping[str, str], detail: str, now_ms: int, identity: str
) -> dict[str, Any]:
    """Return the Event that tells the owner that a move failed, once for each lease."""
    return event(
        pod,
        failed_name(move),
        "MoveFailed",
        f"the move off {move.device_id} failed: {detail}",
        now_ms,
        identity,
    )


def stopped_event(
    move: Move, pod: Mapping[str, str], detail: str, now_ms: int, identity: str
) -> dict[str, Any]:
    """Return the Event that tells the owner what was stopped for a move and stays stopped, once for each lease."""
    return event(
        pod,
        event_name(move.pod, move.move_id, str(move.token), "stopped"),
        "WorkloadStopped",
        f"the move off {move.device_id} is over, and what was stopped for it stays stopped until you let it go on: {detail}",
        now_ms,
        identity,
    )


def not_movable_event(alert_id: str, device_id: str, pod: Pod, now_ms: int, identity: str) -> dict[str, Any]:
    """Return the Event that tells the owner that the workload stays, because it declares no ability to be moved."""
    return event(
        pod,
        event_name(pod.name, alert_id, pod.uid),
        "WorkloadNotMovable",
        f"the device {device_id} is quarantined, and the Pod declares neither checkpoint nor restartable (sickbay.dev/ability):"
        " it stays where it is until you move it",
        now_ms,
        identity,
    )
