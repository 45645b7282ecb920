"""What an alert is, and the words it is told in: kinds, severities, labels, texts. The contract is docs/alerts.md.

Pure. What is about to be told, and when, is decided in ``plan`` and ``book``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from sickbay.operations.redaction import escaped

Severity: TypeAlias = Literal["critical", "warning", "info"]

#: Every kind with its severity, unless what it is about says otherwise (``plan``).
SEVERITIES: Final[dict[str, Severity]] = {
    "breaker": "critical",
    "node_incident": "warning",
    "quarantine": "warning",
    "restricted": "warning",
    "suspect": "info",
    "held": "warning",
    "flapping": "warning",
    "unattributed_unhealthy": "warning",
    "device_replaced": "info",
    "workload_not_movable": "warning",
    "late_fact": "warning",
    "device_conflict": "critical",
    "probable_duplicate": "warning",
    "numa_spanned": "warning",
    "numa_missed": "warning",
}

#: Names of members that are told; the others are counted.
FIRST_MAX: Final = 5
#: A text is cut there: a message of a driver may be long, and a receiver shows a few lines.
TEXT_MAX: Final = 1_000


class Members(msgspec.Struct, frozen=True, kw_only=True):
    """What one cause explains, of one kind."""

    #: Kind of alert that each would be by itself, or ``device`` or ``node`` for parts of the alert.
    kind: str
    count: int
    #: The first few names.
    first: tuple[str, ...]


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert that should stand now."""

    #: The same for as long as the cause lasts, and for every replica and restart.
    alert_id: str
    kind: str
    severity: Severity
    #: Follow from the id and never change; the severity is no part of them.
    labels: dict[str, str]
    annotations: dict[str, str]
    #: Event time.
    starts_at_ms: int
    members: tuple[Members, ...] = ()


def alert_name(kind: str) -> str:
    """Return the label ``alertname`` of a kind: ``SickbayNodeIncident``."""
    return "Sickbay" + "".join(part.capitalize() for part in kind.split("_"))


def make_alert(
    alert_id: str,
    kind: str,
    starts_at_ms: int,
    summary: str,
    why: str,
    *,
    labels: dict[str, str],
    members: Sequence[Members] = (),
    severity: Severity | None = None,
    runbooks: str = "docs/alerts.md",
) -> Alert:
    """Return an alert; empty labels are left out, texts are made safe to show and cut."""
    annotations = {"summary": summary, "description": why, "runbook_url": f"{runbooks}#{kind}"}
    if members:
        annotations["members"] = "; ".join(map(_members_text, members))
    return Alert(
        alert_id=alert_id,
        kind=kind,
        severity=severity or SEVERITIES.get(kind, "warning"),
        labels={
            name: value
            for name, value in {"alertname": alert_name(kind), "alert_id": alert_id, **labels}.items()
            if value
        },
        annotations={name: _shown(text) for name, text in annotations.items()},
        starts_at_ms=starts_at_ms,
        members=tuple(members),
    )


def members_of(kind: str, names: Sequence[str]) -> Members:
    """Return the members of one kind; ``names`` in their order."""
    return Members(kind=kind, count=len(names), first=tuple(names[:FIRST_MAX]))


def because(reason: str, clause: str) -> str:
    """Return a reason with the clause of the policy that decided."""
    return f"{reason} ({clause})" if clause else reason


def driver_of(device_id: str) -> str:
    """Return the driver or resource in a device id, empty when it is none."""
    scheme, _, rest = device_id.partition(":")
    parts = rest.split("/")
    if scheme == "dra":
        return parts[0]
    # the name of a resource has a slash of its own
    return "/".join(parts[:2]) if scheme == "plugin" else ""


def _members_text(members: Members) -> str:
    more = ", …" if members.count > len(members.first) else ""
    return f"{members.count} {members.kind}: {', '.join(members.first)}{more}"


def _shown(text: str) -> str:
    text = escaped(text)
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"
