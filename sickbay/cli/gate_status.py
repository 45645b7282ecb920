"""Which claims gates are closed, since when, by whom and why: the requests of people held against what the verdicts say.

That something was asked does not mean that it was done. A gate is closed where it holds a node; where no node hears of it, the
newest request says what it will be.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from sickbay.cli.ledger_rows import Reading, Row
from sickbay.facts import ClaimsGateRequested

#: The reason to hold that a closed gate is.
CLOSED: Final = "claims_gate_closed"

#: Scope and node; the node is empty for what several of them hear.
_Key = tuple[str, str]


class Gate(NamedTuple):
    """A gate that was ever closed or opened, and the newest request if it was not followed (``refused_…``, else ``None``)."""

    gate: str
    state: str
    since_ms: int | None
    actor: str
    reason: str
    nodes_on_hold: int
    refused_at_ms: int | None = None
    refused_actor: str | None = None
    refused_reason: str | None = None
    #: The ledger that a refused opening named.
    refused_ledger_version: str | None = None


def gates(reading: Reading) -> Iterator[Gate]:
    """Yield every gate by scope and node."""
    requests = _requests(reading)
    held: dict[_Key, dict[str, Row]] = {}
    for row in reading.rows("ledger-holds", {"reason": CLOSED}):
        if row["held_until_ms"] is None:
            held.setdefault(_key(row["scope"], row["node"]), {})[row["node"]] = row
    drivers = {row["node"]: row["drivers"] for row in reading.verdicts()}
    for key in sorted(requests):
        yield _gate(key, requests[key], held.get(key, {}), is_heard=_is_heard(key, drivers))


def _key(scope: str, node: str) -> _Key:
    return scope, node if scope == "node" else ""


def _requests(reading: Reading) -> dict[_Key, list[Row]]:
    """Return the requests for each gate, oldest first; one that every partition heard is one."""
    found: dict[_Key, dict[str, Row]] = {}
    for row in reading.rows("requests", {"kind": ClaimsGateRequested.KIND}):
        if row["scope"]:  # version 1 of the fact was about a device
            found.setdefault(_key(row["scope"], row["node"]), {})[row["request_id"]] = row
    return {key: sorted(rows.values(), key=_order) for key, rows in found.items()}


def _order(request: Row) -> tuple[int, str]:
    return request["at_ms"], request["request_id"]


def _is_heard(key: _Key, drivers: dict[str, tuple[str, ...]]) -> bool:
    """Whether a node with a verdict hears of the gate."""
    scope, node = key
    if scope == "cluster":
        return bool(drivers)
    if scope == "node":
        return node in drivers
    return any(scope.removeprefix("driver:") in found for found in drivers.values())


def _gate(key: _Key, requests: list[Row], held: dict[str, Row], *, is_heard: bool) -> Gate:
    scope, node = key
    newest = requests[-1]
    is_closed = bool(held) or (not is_heard and bool(newest["closed"]))
    since_ms, actor, reason = _who(requests, held, is_closed=is_closed)
    found = Gate(
        f"node:{node}" if node else scope,
        "closed" if is_closed else "open",
        since_ms,
        actor,
        reason,
        len(held),
    )
    if bool(newest["closed"]) == is_closed:
        return found
    return found._replace(
        refused_at_ms=newest["at_ms"],
        refused_actor=newest["actor"],
        refused_reason=newest["reason"],
        refused_ledger_version=newest["ledger_version"],
    )


def _who(requests: list[Row], held: dict[str, Row], *, is_closed: bool) -> tuple[int | None, str, str]:
    """Return since when a gate is what it is, who made it so, and why."""
    wanted = [request for request in requests if bool(request["closed"]) == is_closed]
    for hold in sorted(held.values(), key=lambda row: -row["held_since_ms"])[:1]:
        told = hold["held_since_ms"], hold["detail"]
        wanted = [r for r in wanted if (r["at_ms"], f"{r['actor']}: {r['reason']}") == told] or wanted
    if not wanted:
        return None, "", ""
    return wanted[-1]["at_ms"], wanted[-1]["actor"], wanted[-1]["reason"]
