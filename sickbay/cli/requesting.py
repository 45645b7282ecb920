"""``sickbay hold`` and ``sickbay release``: requests by people, written into an embedded store as facts and decided at once.

A request may be refused by the fold; it stands in the log all the same. Several people may ask at once: the store takes one
writer at a time, and a request that finds the log moved on is folded again over what is new.
"""

from __future__ import annotations

import getpass

import click

from projections.audit import audit_view
from projections.engine import Store
from projections.records import LogRecord
from sickbay.cli import output
from sickbay.cli.folding import Fold
from sickbay.cli.options import MOMENT, db_option
from sickbay.cli.questions import find_episode
from sickbay.clock import SystemClock
from sickbay.codec import open_envelope
from sickbay.decisions import CustodyDecision
from sickbay.envelope import derived_id, partition_of
from sickbay.errors import InputError, NotFoundError, StoreError
from sickbay.facts import Fact, HoldRequested, ReleaseRequested
from sickbay.timestamps import format_time_ms

_actor = click.option("--actor", default=getpass.getuser, show_default="your user name", help="Who asks.")
_reason = click.option("--reason", required=True, help="Why; it stands in the audit for ever.")
_at = click.option(
    "--at", "at_ms", type=MOMENT, help="When it was asked, for a store of the past.  [default: now]"
)
_form = output.output_option


def ask(store: Store, node: str, request: Fact) -> list[CustodyDecision]:
    """Append a request to the partition of its node with what it leads to, and return the decisions on devices.

    Raises StoreError when another writer gets in between.
    """
    if not store.source_ended:
        raise StoreError(
            f"{store.place}: its replay was interrupted, and a request must not take the places of what is still to come;"
            " run the replay again to its end first"
        )
    number = partition_of(node, store.partitions)
    written: list[LogRecord] = []
    fold = Fold([number], store.partitions, written.extend)
    fold.restore(store.read(number), open_envelope)
    fold.request(number, request)
    fold.flush()
    result = store.write(written)
    if result.skipped:
        raise StoreError(f"{store.place}: somebody else wrote meanwhile; ask again")
    return [record.event for record in written if isinstance(record.event, CustodyDecision)]


def _node_of(store: Store, device: str, node: str | None) -> str:
    view = audit_view("devices")
    with store.reading() as connection:
        where = {"device_id": device} | ({"node": node} if node else {})
        found = sorted({str(row[view.columns.index("node")]) for row in view.rows(connection, where=where)})
        if not found:
            inventory = audit_view("inventory")
            found = sorted(
                {str(row[inventory.columns.index("node")]) for row in inventory.rows(connection, where=where)}
            )
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{device} stands on the nodes {', '.join(found)}; name one with --node")
    if node:
        return node
    raise NotFoundError(
        f"the store knows no device {device!r}; `sickbay audit inventory` lists them, or name its --node"
    )


def _tell(decided: list[CustodyDecision], device: str, form: str) -> None:
    rows = [(d.at_ms, d.KIND, d.device_id, d.phase_before, d.record.phase, d.reason) for d in decided]
    columns = ("at_ms", "kind", "device_id", "phase_before", "phase_after", "reason")
    output.print_rows(columns, rows, form, empty=f"recorded; nothing changes for {device}")


@click.command()
@click.argument("device")
@_reason
@click.option(
    "--until", "until_ms", type=MOMENT, required=True, help="When the hold ends; every hold has an end."
)
@_actor
@_at
@click.option("--node", help="The node, where one device id stands on several.")
@db_option
@_form
def hold(
    device: str,
    reason: str,
    until_ms: int,
    actor: str,
    at_ms: int | None,
    node: str | None,
    db: str,
    form: str,
) -> None:
    """Keep DEVICE out of use until a time.

    \b
    Example:
      sickbay hold dra:gpu.nvidia.com/gpu-a1/gpu-2 --until 2026-07-02T08:00:00Z --reason "fan noise, ticket 4711"
    """
    _require_words(reason, actor)
    with Store.open(db) as store:
        when = SystemClock().now_ms() if at_ms is None else at_ms
        if until_ms <= when:
            raise InputError(
                f"--until {format_time_ms(until_ms)} is not after {format_time_ms(when)}; a hold needs an end that is still to come"
            )
        place = _node_of(store, device, node)
        request = HoldRequested(
            node=place,
            observed_at_ms=when,
            request_id=derived_id("hold", place, device, actor, reason, str(when), str(until_ms)),
            device_id=device,
            actor=actor,
            reason=reason,
            until_ms=until_ms,
        )
        decided = ask(store, place, request)
    _tell(decided, device, form)


@click.command()
@click.argument("episode")
@_reason
@_actor
@_at
@db_option
@_form
def release(episode: str, reason: str, actor: str, at_ms: int | None, db: str, form: str) -> None:
    """Ask for the way back of an EPISODE to begin: a probe, or a longer observation. Nobody can force a release.

    EPISODE is an id, an unambiguous beginning of one, or `last`.

    \b
    Example:
      sickbay release last --reason "card replaced, ticket 4711"
    """
    _require_words(reason, actor)
    with Store.open(db) as store:
        episode_id = find_episode(store, episode)
        view = audit_view("episodes")
        with store.reading() as connection:
            row = next(view.rows(connection, where={"episode_id": episode_id}))
        found = dict(zip(view.columns, row, strict=True))
        when = SystemClock().now_ms() if at_ms is None else at_ms
        request = ReleaseRequested(
            node=str(found["node"]),
            observed_at_ms=when,
            request_id=derived_id("release", episode_id, actor, reason, str(when)),
            device_id=str(found["device_id"]),
            actor=actor,
            episode_id=episode_id,
            reason=reason,
        )
        decided = ask(store, str(found["node"]), request)
    _tell(decided, str(found["device_id"]), form)


def _require_words(reason: str, actor: str) -> None:
    if not reason.strip():
        raise InputError("--reason is empty; say why, the audit keeps it")
    if not actor.strip():
        raise InputError("--actor is empty; say who asks")
