"""``sickbay gate``: the claims gate of the cluster, of a driver or of a node, closed and opened by people.

A change enters as a fact, one in each partition for what every node hears, all of them in one transaction. The fold decides what
comes of it; here it is only told.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import click
import msgspec

from projections.places import Place
from sickbay.cli import output
from sickbay.cli.folding import Fold
from sickbay.cli.gate_status import CLOSED, Gate, gates
from sickbay.cli.ledger_rows import Reading
from sickbay.cli.options import MOMENT, db_option, open_store
from sickbay.cli.requesting import actor_option, append, open_to_ask, require_words
from sickbay.clock import SystemClock
from sickbay.decisions import VerdictChanged, ledger_version
from sickbay.envelope import derived_id, partition_of
from sickbay.errors import NotFoundError
from sickbay.facts import ClaimsGateRequested
from sickbay.ledger_words import reason_words
from sickbay.timestamps import format_time_ms
from streams.ledger.state import LedgerState

_VERDICT_COLUMNS = ("node", "verdict", "holds", "changed", "ledger_version")
_STATUS_COLUMNS = Gate._fields[:6]


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
      sickbay gate close cluster --reason "what if, ticket 4712" --at 2026-07-01T12:00:00Z
      sickbay gate status
    """
    if action == "status":
        if scope is not None or reason is not None or version is not None or at_ms is not None:
            raise click.UsageError("gate status takes no scope, reason, time or version; it shows every gate")
        with open_store(db) as store, store.reading() as connection:
            _print_status(list(gates(Reading(connection))), form)
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
    with open_to_ask(db) as store:
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
    _tell(fact, scope, concerned, changed)


def _print_status(found: list[Gate], form: str) -> None:
    if form != "table":
        output.print_rows(Gate._fields, found, form)
        return
    rows = [gate[: len(_STATUS_COLUMNS)] for gate in found]
    output.print_rows(_STATUS_COLUMNS, rows, form, empty="no gate was ever closed or opened")
    for gate in found:
        if gate.refused_at_ms is not None:
            why = "it came later than the lateness horizon"
            if gate.refused_ledger_version:
                why = f"it named the ledger {gate.refused_ledger_version}, and the node had another"
            asked = "open" if gate.state == "closed" else "close"
            output.line(
                f"{gate.gate}: {gate.refused_actor} asked at {format_time_ms(gate.refused_at_ms)} to {asked} it"
                f" ({gate.refused_reason}), which was refused: {why}"
            )


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
        "; ".join(reason_words(hold) for hold in standing.holds),
        int(node in changed),
        ledger_version(state.announced.entries.values()),
    )


def _tell(
    fact: ClaimsGateRequested, scope: str, concerned: Mapping[str, LedgerState], changed: Collection[str]
) -> None:
    """Say plainly when the gate is not what was asked for, or was so already, and by which cause."""
    asked, stays = ("closed", "open") if fact.closed else ("open", "closed")
    other = [state for state in concerned.values() if _is_closed(state, fact.scope) != fact.closed]
    if other:
        output.note(f"recorded, and the gate of {scope} stays {stays}: {_cause(fact, other[0])}")
    elif concerned and not changed:
        output.note(f"recorded, and nothing changes: the gate of {scope} was {asked} already")


def _cause(fact: ClaimsGateRequested, state: LedgerState) -> str:
    """Return why a request was not followed."""
    decides = state.books.objects.newest("gate", fact.scope)
    if isinstance(decides, ClaimsGateRequested) and (decides.observed_at_ms, decides.request_id) > (
        fact.observed_at_ms,
        fact.request_id,
    ):
        return f"a newer request decides, that of {decides.actor} at {format_time_ms(decides.observed_at_ms)} (`sickbay gate status`)"
    if fact.observed_at_ms < state.cut_ms:
        return (
            f"it is of {format_time_ms(fact.observed_at_ms)}, which is beyond the lateness horizon by now"
            f" ({format_time_ms(state.cut_ms)}); ask with a later --at"
        )
    now = ledger_version(state.announced.entries.values())
    if now != fact.ledger_version:
        return (
            f"its ledger is {now} by now and not {fact.ledger_version}; check it (`sickbay ledger {fact.node}`) and name that"
            " version"
        )
    return "its ledger was another one when this was asked first, and the same words of the same time are one request; ask again"


def _is_closed(state: LedgerState, scope: str) -> bool:
    standing = state.announced.verdict
    return standing is not None and any(h.reason == CLOSED and h.scope == scope for h in standing.holds)
