"""``sickbay breaker``: which breakers are open, and a person's word that a storm is over."""

from __future__ import annotations

from typing import Any

import click

from projections.audit import audit_view
from projections.engine import Store
from projections.places import Place
from projections.sources import follows_kafka
from sickbay.cli import output
from sickbay.cli.options import MOMENT, db_option, open_store
from sickbay.cli.requesting import actor_option, append, open_to_ask, reason_option, require_words
from sickbay.clock import SystemClock
from sickbay.decisions import BreakerClosed
from sickbay.envelope import CLUSTER_STREAM, derived_id, partition_of
from sickbay.errors import InputError
from sickbay.facts import BreakerResetRequested

_COLUMNS = ("scope", "state", "at_ms", "adverse", "known", "threshold")


class BreakerScope(click.ParamType):
    """``cluster`` or ``driver:NAME``."""

    name = "scope"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the scope; another one is a usage error."""
        kind, _, name = value.partition(":")
        if value != "cluster" and (kind != "driver" or not name.strip()):
            self.fail(f"{value!r} is no scope; write cluster or driver:NAME", param, ctx)
        return str(value)


@click.group()
def breaker() -> None:
    """Show which breakers are open, or declare that a storm is over."""


@breaker.command()
@db_option
@output.output_option
def status(db: Place, form: str) -> None:
    """Show the newest word on every breaker that ever opened.

    \b
    Example:
      sickbay breaker status
    """
    with open_store(db) as store:
        newest = _newest(store)
    rows = [tuple(row[name] for name in _COLUMNS) for _, row in sorted(newest.items())]
    output.print_rows(_COLUMNS, rows, form, empty="no breaker ever opened")


@breaker.command()
@click.argument("scope", type=BreakerScope())
@reason_option
@actor_option
@click.option("--at", "at_ms", type=MOMENT, help="When it was asked.  [default: now]")
@db_option
@output.output_option
def reset(scope: str, reason: str, actor: str, at_ms: int | None, db: Place, form: str) -> None:
    """Close the breaker of a SCOPE, and forget what turned adverse up to now. It opens again when as much turns adverse anew.

    SCOPE is cluster or driver:NAME. Only a breaker that runs can be reset: of a store that follows Kafka, or that `sickbay run
    --embedded` writes, which closes it at its next tick.

    \b
    Example:
      sickbay breaker reset driver:gpu.nvidia.com --reason "driver upgrade went wrong and is rolled back, ticket 4711"
    """
    require_words(reason, actor)
    with open_to_ask(db) as store:
        when = SystemClock().now_ms() if at_ms is None else at_ms
        home = partition_of(CLUSTER_STREAM, store.partitions)
        known = _newest(store).get(scope)
        if known is None or known["state"] != "open":
            raise InputError(f"the breaker of {scope} is not open; `sickbay breaker status` shows which are")
        request = BreakerResetRequested(
            node=CLUSTER_STREAM,
            observed_at_ms=when,
            request_id=derived_id("breaker", scope, actor, reason, str(when)),
            device_id="",
            actor=actor,
            scope=scope,
            reason=reason,
            partition=home,
        )
        _, written = append(store, {home: request})
        live = follows_kafka(store.source_id)
    closed = [
        (record.event.scope, "closed", record.event.at_ms)
        for record in written
        if isinstance(record.event, BreakerClosed)
    ]
    told = "recorded, and nothing closed" if live else "recorded; `sickbay run` closes it at its next tick"
    output.print_rows(("scope", "state", "at_ms"), closed, form, empty=told)


def _newest(store: Store) -> dict[str, dict[str, Any]]:
    """Return the newest word on each scope."""
    view = audit_view("breaker-history")
    with store.reading() as connection:
        rows: list[dict[str, Any]] = [
            dict(zip(view.columns, row, strict=True)) for row in view.rows(connection)
        ]
    newest: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["at_ms"]):
        newest[row["scope"]] = row
    return newest
