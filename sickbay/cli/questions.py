"""Questions to a store: episodes, timeline, explain, audit. They read one snapshot and change nothing."""

from __future__ import annotations

from typing import Any

import click

from projections import explain as explaining
from projections.audit import AUDIT_VIEWS, audit_view
from projections.engine import Store
from projections.places import Place
from projections.records import LogRecord
from sickbay.cli import output
from sickbay.cli.options import as_of_option, db_option, known_at, known_at_option, open_store
from sickbay.cli.telling import LIFE_COLUMNS, life_row, tell, what_of
from sickbay.errors import NotFoundError

_EPISODE_COLUMNS = (
    "episode_id", "node", "device_id", "phase", "cause", "opened_at_ms", "closed_at_ms", "outcome", "flap_count", "extensions",
    "verification",
)  # fmt: skip


@click.command()
@db_option
@as_of_option
@known_at_option
@click.option("--open", "only_open", is_flag=True, help="Only those that are open.")
@click.option("--node", help="Only of this node.")
@click.option("--device", help="Only of this device.")
@output.output_option
def episodes(
    db: Place,
    as_of_ms: int | None,
    known: dict[int, int] | int | None,
    only_open: bool,
    node: str | None,
    device: str | None,
    form: str,
) -> None:
    """List quarantine episodes.

    \b
    Examples:
      sickbay episodes
      sickbay episodes --open --as-of 2026-07-01T09:00:00Z --output json
      sickbay episodes --known-at 0:120,3:64
    """
    view = audit_view("episodes")
    where = {k: v for k, v in (("node", node), ("device_id", device)) if v is not None}
    columns = _EPISODE_COLUMNS if form == "table" else view.columns
    with open_store(db) as store, store.reading() as connection:
        rows = (
            dict(zip(view.columns, row, strict=True))
            for row in view.rows(
                connection, as_of_ms=as_of_ms, known_at=known_at(store, known, node), where=where
            )
        )
        wanted = ([row[c] for c in columns] for row in rows if not only_open or row["closed_at_ms"] is None)
        output.print_rows(columns, wanted, form, empty="no episode")


_TIMELINE_COLUMNS = ("at_ms", "kind", "what", "version", "partition", "offset", "event_id")


def _timeline_row(record: LogRecord) -> tuple[Any, ...]:
    envelope = record.envelope
    version = envelope.key.rsplit("/", 1)[-1]
    return (
        envelope.at_ms,
        envelope.kind,
        what_of(record.event),
        version,
        record.partition,
        record.offset,
        envelope.event_id,
    )


@click.command()
@click.argument("device")
@db_option
@as_of_option
@click.option("--node", help="The node, where one device id stands on several.")
@output.output_option
def timeline(device: str, db: Place, as_of_ms: int | None, node: str | None, form: str) -> None:
    """Show everything the log says of DEVICE, facts and decisions, in log order.

    DEVICE is an id as the other commands print it: dra:DRIVER/POOL/DEVICE or plugin:RESOURCE/ID.

    \b
    Example:
      sickbay timeline dra:gpu.nvidia.com/gpu-a1/gpu-3
    """
    columns = _TIMELINE_COLUMNS[:4] if form == "table" else _TIMELINE_COLUMNS
    with open_store(db) as store, store.reading() as connection:
        records = explaining.timeline(connection, device, node, as_of_ms=as_of_ms)
        output.print_rows(columns, (_timeline_row(r)[: len(columns)] for r in records), form)


def find_episode(store: Store, wanted: str) -> str:
    """Return the id of an episode by an unambiguous prefix, or the newest for ``last``.

    Raises NotFoundError when none or several fit.
    """
    view = audit_view("episodes")
    with store.reading() as connection:
        rows = [dict(zip(view.columns, row, strict=True)) for row in view.rows(connection)]
    if not rows:
        raise NotFoundError("the store holds no episode")
    if wanted == "last":
        newest = max(rows, key=lambda row: (row["opened_at_ms"], row["episode_id"]))
        return str(newest["episode_id"])
    found = [str(row["episode_id"]) for row in rows if str(row["episode_id"]).startswith(wanted)]
    if len(found) != 1:
        problem = "no episode begins" if not found else f"{len(found)} episodes begin"
        raise NotFoundError(f"{problem} with {wanted!r}; `sickbay episodes` lists them")
    return found[0]


@click.command()
@click.argument("episode")
@db_option
@as_of_option
@output.output_option
def explain(episode: str, db: Place, as_of_ms: int | None, form: str) -> None:
    """Explain an EPISODE: fact, decision, consequence, with the evidence and the policy clause that decided.

    EPISODE is an id, an unambiguous beginning of one, or `last`.

    \b
    Examples:
      sickbay explain last
      sickbay explain 3f6c --as-of 2026-07-01T09:00:00Z
    """
    with open_store(db) as store:
        episode_id = find_episode(store, episode)
        with store.reading() as connection:
            found = explaining.explain(connection, episode_id)
    steps = [s for s in found.steps if as_of_ms is None or s.decision.envelope.at_ms <= as_of_ms]
    if not steps:
        raise NotFoundError(
            f"episode {episode_id} had not begun then; leave --as-of out, or give a later time"
        )
    rows = [_step_row(step) for step in steps]
    if form == "json":
        output.print_json(
            {
                "episode": {output.name_of(k): output.shown(k, v) for k, v in found.episode.items()},
                "steps": [
                    {output.name_of(c): output.shown(c, v) for c, v in zip(_STEP_COLUMNS, row, strict=True)}
                    for row in rows
                ],
                "life": [
                    {
                        output.name_of(c): output.shown(c, v)
                        for c, v in zip(LIFE_COLUMNS, life_row(r), strict=True)
                    }
                    for r in found.life
                    if as_of_ms is None or r.envelope.at_ms <= as_of_ms
                ],
                "moves": list(found.moves),
                "alerts": list(found.alerts),
                "incidents": list(found.incidents),
            }
        )
    elif form == "csv":
        output.print_rows(_STEP_COLUMNS, rows, form)
    else:
        tell(found, steps, as_of_ms)


_STEP_COLUMNS = (
    "at_ms", "kind", "phase_before", "phase_after", "clause", "reason", "policy", "cause_event_id", "cause", "evidence_event_ids",
    "event_id",
)  # fmt: skip


def _step_row(step: explaining.Step) -> tuple[Any, ...]:
    envelope = step.decision.envelope
    return (
        envelope.at_ms,
        envelope.kind,
        step.before.phase if step.before else "in_service",
        step.after.phase,
        step.clause,
        step.reason,
        step.policy,
        envelope.causation_id,
        step.cause.envelope.kind if step.cause else "",
        " ".join(record.envelope.event_id for record in step.evidence),
        envelope.event_id,
    )


@click.command()
@click.argument("name", required=False)
@db_option
@as_of_option
@known_at_option
@click.option(
    "--where",
    multiple=True,
    metavar="COLUMN=VALUE",
    help="Only rows with this value; may be given more than once.",
)
@click.option("--limit", type=click.IntRange(1), help="At most this many rows.")
@output.output_option
def audit(
    name: str | None,
    db: Place,
    as_of_ms: int | None,
    known: dict[int, int] | int | None,
    where: tuple[str, ...],
    limit: int | None,
    form: str,
) -> None:
    """Answer an audit view by NAME; without one, list the views.

    The same views stand in the database under the prefix audit_ (docs/audit-views.md).

    \b
    Examples:
      sickbay audit
      sickbay audit transitions --where node=gpu-a1 --output csv
      sickbay audit devices --as-of 2026-07-01T09:00:00Z --known-at 0:120,3:64
    """
    if name is None:
        output.print_rows(("view", "answers"), ((v.name, v.doc) for v in AUDIT_VIEWS.values()), form)
        return
    view = audit_view(name)
    conditions: dict[str, str | int] = {}
    for condition in where:
        column, equals, value = condition.partition("=")
        if not equals:
            raise click.UsageError(f"--where {condition}: write COLUMN=VALUE")
        conditions[column] = value
    with open_store(db) as store, store.reading() as connection:
        rows = view.rows(
            connection,
            as_of_ms=as_of_ms,
            known_at=known_at(store, known, str(conditions["node"]) if "node" in conditions else None),
            where=conditions,
            limit=limit,
        )
        output.print_rows(view.columns, rows, form)
