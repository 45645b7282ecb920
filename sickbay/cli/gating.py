"""``sickbay gate``: the claims gate of the cluster, of a driver or of a node, closed and opened by people.

A change enters as a fact, one in each partition for what every node hears, all of them in one transaction. The fold decides what
comes of it; here it is only told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import click
import msgspec

from projections.engine import Store
from projections.places import Place
from sickbay.cli import output
from sickbay.cli.folding import Fold
from sickbay.cli.ledger_rows import Reading, Row
from sickbay.cli.options import MOMENT, db_option, open_store
from sickbay.cli.requesting import actor_option, append, require_words
from sickbay.clock import SystemClock
from sickbay.decisions import Hold, VerdictChanged, ledger_version
from sickbay.envelope import derived_id, partition_of
from sickbay.errors import NotFoundError
from sickbay.facts import ClaimsGateRequested
from streams.ledger.state import LedgerState

_CLOSED: Final = "claims_gate_closed"
_VERDICT_COLUMNS = ("node", "verdict", "holds", "changed", "ledger_version")
_STATUS_COLUMNS = ("gate", "state", "since_ms", "actor", "reason", "nodes_on_hold")


class GateScope(click.ParamType):
    """``cluster``, ``driver:NAME`` or ``node:NAME``."""

    name = "scope"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the scope; another one is a usage error."""
        kind, _, name = value.partition(":")
        if value != "cluster" and (kind not in ("driver", "node") or not name.strip()):
            self.fail(f"{value!r} is no scope; write cluster, driver:NAME or node:NAME", param, ctx)
        return str(value)


@click.command()
@click.argument("action", type=click.Choice(["close", "open", "status"]))
@click.argument("scope", type=GateScope(), required=False)
@click.option("--reason", help="Why; it stands in the audit for ever. Required to close and to open.")
@actor_option
@click.option(
    "--at", "at_ms", type=MOMENT, help="When it was asked, for a store of the past.  [default: now]"
)
@click.option(
    "--ledger-version",
    "version",
    metavar="VERSION",
    help="Open a node's gate only if its ledger still is the one that was checked; `sickbay ledger NODE` prints the version.",
)
@db_option
@output.output_option
def gate(
    action: str,
    scope: str | None,
    reason: str | None,
    actor: str,
    at_ms: int | None,
    version: str | None,
    db: Place,
    form: str,
) -> None:
    """Close or open the claims gate of a SCOPE, or show which gates are closed. Behind a closed gate new claims wait; what is
    bound stays.

    SCOPE is cluster, driver:NAME (every node on which that driver publishes devices) or node:NAME. The newest request for a scope
    decides; gates of several scopes do not open one another.

    \b
    Examples:
      sickbay gate close driver:gpu.nvidia.com --reason "driver upgrade, ticket 4711"
      sickbay gate open node:gpu-a1 --reason "checked by ann" --ledger-version 0123456789abcdef
      sickbay gate status
    """
    if action == "status":
        if scope is not None or reason is not None or version is not None or at_ms is not None:
            raise click.UsageError("gate status takes no scope, reason, time or version; it shows every gate")
        with open_store(db) as store:
            output.print_rows(
                _STATUS_COLUMNS, _status(store), form, empty="no gate was ever closed or opened"
            )
        return
    if scope is None:
        raise click.UsageError(f"gate {action} of what? name a scope: cluster, driver:NAME or node:NAME")
    if reason is None:
        raise click.UsageError("Missing option '--reason'; say why, the audit keeps it")
    kind, _, name = scope.partition(":")
    if version is not None and (action, kind) != ("open", "node"):
        raise click.UsageError(
            "--ledger-version goes with `gate open node:NAME`: only one node has a ledger to check"
        )
    require_words(reason, actor)
    with Store.open(db) as store:
        when = SystemClock().now_ms() if at_ms is None else at_ms
        fact = ClaimsGateRequested(
            node=name if kind == "node" else "",
            observed_at_ms=when,
            request_id=derived_id("gate", scope, action, actor, reason, str(when), version or ""),
            device_id="",
            actor=actor,
            scope="node" if kind == "node" else scope,
            closed=action == "close",
            reason=reason,
            ledger_version=version or "",
        )
        numbers = [partition_of(name, store.partitions)] if fact.node else range(store.partitions)
        fold, written = append(
            store,
            {n: _in_partition(fact, n) for n in numbers},
            check=(lambda fold: _require_node(fold, name)) if kind == "node" else None,
        )
    changed = {r.event.node for r in written if isinstance(r.event, VerdictChanged)}
    ledgers = {
        name: state for partition in fold.partitions.values() for name, state in partition.ledgers.items()
    }
    if kind == "node":
        ledgers = {name: ledgers[name]}
    concerned = {n: s for n, s in sorted(ledgers.items()) if _concerns(s, scope)}
    rows = [_verdict_row(node, state, changed) for node, state in concerned.items()]
    output.print_rows(_VERDICT_COLUMNS, rows, form, empty=f"recorded; no node hears of {scope} now")
    _tell(fact, scope, concerned)


def _in_partition(fact: ClaimsGateRequested, number: int) -> ClaimsGateRequested:
    return fact if fact.node else msgspec.structs.replace(fact, partition=number)


def _require_node(fold: Fold, name: str) -> None:
    known = sorted(node for partition in fold.partitions.values() for node in partition.ledgers)
    if name not in known:
        raise NotFoundError(f"the store knows no node {name!r}; `sickbay ledger` lists the nodes")


def _concerns(state: LedgerState, scope: str) -> bool:
    standing = state.announced.verdict
    if standing is None:
        return False
    return not scope.startswith("driver:") or scope.removeprefix("driver:") in standing.drivers


def _verdict_row(node: str, state: LedgerState, changed: set[str]) -> tuple[Any, ...]:
    standing = state.announced.verdict
    assert standing is not None, "a node that is concerned has a verdict"
    return (
        node,
        standing.verdict,
        "; ".join(told(hold) for hold in standing.holds),
        int(node in changed),
        ledger_version(state.announced.entries.values()),
    )


def told(hold: Hold) -> str:
    """Return a reason to hold in a few words."""
    return f"{hold.reason} {hold.scope}".strip()


def _tell(fact: ClaimsGateRequested, scope: str, concerned: Mapping[str, LedgerState]) -> None:
    """Say plainly when the gate is not what was asked for."""
    other = [node for node, state in concerned.items() if _is_closed(state, fact.scope) != fact.closed]
    if not other:
        return
    stays = "open" if fact.closed else "closed"
    if fact.ledger_version:
        now = ledger_version(concerned[fact.node].announced.entries.values())
        if now != fact.ledger_version:
            output.note(
                f"recorded, and the gate of {scope} stays closed: its ledger is {now} by now and not {fact.ledger_version};"
                f" check it (`sickbay ledger {fact.node}`) and name that version"
            )
            return
    output.note(
        f"recorded, and the gate of {scope} stays {stays}: a newer request decides (`sickbay gate status`), or this one came later"
        " than the lateness horizon"
    )


def _is_closed(state: LedgerState, scope: str) -> bool:
    standing = state.announced.verdict
    return standing is not None and any(h.reason == _CLOSED and h.scope == scope for h in standing.holds)


def _status(store: Store) -> Iterator[tuple[Any, ...]]:
    """Yield every gate that was ever closed or opened, as its newest request and the verdicts say."""
    newest: dict[tuple[str, str], Row] = {}
    held: dict[tuple[str, str], set[str]] = {}
    with store.reading() as connection:
        reading = Reading(connection)
        for row in reading.rows("requests", {"kind": ClaimsGateRequested.KIND}):
            if not row["scope"]:
                continue  # version 1 of the fact was about a device
            key = (row["scope"], row["node"])
            known = newest.get(key)
            if known is None or _order(known) < _order(row):
                newest[key] = row
        for row in reading.rows("ledger-holds", {"reason": _CLOSED}):
            if row["held_until_ms"] is None:
                scope, node = row["scope"], row["node"]
                held.setdefault((scope, node if scope == "node" else ""), set()).add(node)
    for key in sorted(newest):
        (scope, node), request = key, newest[key]
        nodes = held.get(key, set())
        # a request to open that names a ledger may not have been followed: the node's verdict says
        closed = bool(nodes) if node else bool(request["closed"])
        yield (
            f"node:{node}" if node else scope,
            "closed" if closed else "open",
            request["at_ms"],
            request["actor"],
            request["reason"],
            len(nodes),
        )


def _order(request: Row) -> tuple[int, str]:
    return request["at_ms"], request["request_id"]
