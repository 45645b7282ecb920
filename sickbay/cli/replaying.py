"""``sickbay replay`` and ``sickbay what-if``: recordings decided, and decided again under another policy."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from ingest.recording import open_recording
from projections.audit import audit_view
from projections.engine import Store
from projections.places import Place
from sickbay.cli import output
from sickbay.cli.differing import Difference, differences
from sickbay.cli.ledger_rows import Reading
from sickbay.cli.options import MOMENT, db_option, policy_option, read_policy
from sickbay.cli.pipeline import Options, Outcome, Replay
from sickbay.policy import Policy
from sickbay.timestamps import format_time_ms
from sickbay.topics import PARTITIONS_DEFAULT

#: Exit code of a run that did everything but what it had to park.
EXIT_PARKED = 3
_DIFFERENCE_COLUMNS = (
    "change", "node", "device_id", "what", "base", "other", "base_policy", "base_policy_hash", "other_policy", "other_policy_hash",
)  # fmt: skip

_files = click.argument("files", nargs=-1, required=True, type=click.Path(dir_okay=False, allow_dash=True))
_until = click.option("--until", "until_ms", type=MOMENT, help="Stop there, and let time pass up to there.")
_from = click.option(
    "--from", "from_ms", type=MOMENT, help="Begin there with what was known then; nothing is decided before."
)
_node = click.option("--node", "nodes", multiple=True, help="Only this node; may be given more than once.")
_step = click.option(
    "--step-ms",
    default=1000,
    show_default=True,
    type=click.IntRange(1, 3_600_000),
    help="Time between objects of a recording that carries no times.",
)
_workers = click.option(
    "--workers",
    type=click.IntRange(1, PARTITIONS_DEFAULT),
    help="Fold workers; the log has the same bytes whatever the number.  [default: one for each core]",
)


def default_workers(paths: tuple[str, ...]) -> int:
    """Return one worker for each core, and one for small recordings, where starting processes costs more than it saves."""
    size = sum(Path(p).stat().st_size if Path(p).is_file() else 0 for p in paths)
    return min(os.cpu_count() or 1, PARTITIONS_DEFAULT) if size > 4_000_000 else 1


def _require_recordings(paths: tuple[str, ...]) -> None:
    """Raise RecordingError for a file that is no recording before a store is made that is pinned to it."""
    for path in paths:
        # a pipe can be read once only, and not for this
        if path != "-" and (Path(path).is_file() or not Path(path).exists()):
            open_recording(path, on_parked=lambda _: None).close()


@contextmanager
def _progress(quiet: bool) -> Iterator[Any]:
    if quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=output.console(sys.stderr), transient=True) as progress:
        task = progress.add_task("replaying", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@click.command()
@_files
@db_option
@policy_option
@_from
@_until
@_node
@_step
@_workers
@click.option("--quiet", is_flag=True, help="No progress bar.")
@output.output_option
def replay(
    files: tuple[str, ...],
    db: Place,
    policy_path: str | None,
    from_ms: int | None,
    until_ms: int | None,
    nodes: tuple[str, ...],
    step_ms: int,
    workers: int | None,
    quiet: bool,
    form: str,
) -> None:
    """Replay recordings of a cluster into a store: facts, decisions, read models.

    FILES are recordings (plain, gzip or zstd), `kubectl get -o json` lists, `kubectl get --watch --output-watch-events -o
    json` streams, API-server audit logs at RequestResponse level, or dumps of sickbay.facts; - is standard input. Several are
    merged by time. A replay that was stopped goes on where it stopped when it is run again.

    \b
    Examples:
      sickbay replay examples/one-card.jsonl.zst
      sickbay replay incident.jsonl.gz --policy strict.yaml --until 2026-07-01T12:00:00Z --db strict.db
      kubectl get pods -A --watch --output-watch-events -o json | sickbay replay -
    """
    options = Options(
        paths=files,
        policy=read_policy(policy_path),
        from_ms=from_ms,
        until_ms=until_ms,
        nodes=frozenset(nodes),
        workers=workers or default_workers(files),
        step_ms=step_ms,
    )
    _require_recordings(files)
    with (
        _progress(quiet) as on_progress,
        Store.open(db, create=True, partitions=PARTITIONS_DEFAULT, source_id=options.source_id()) as store,
    ):
        outcome = Replay(options, store, on_progress=on_progress).run()
        summary = _summary(store, outcome, options.policy)
    _report(summary, outcome, db, form)
    if outcome.parked:
        raise SystemExit(EXIT_PARKED)


def _summary(store: Store, outcome: Outcome, policy: Policy) -> dict[str, Any]:
    with store.reading() as connection:
        episodes = sum(1 for _ in audit_view("episodes").rows(connection))
        opened = sum(1 for _ in audit_view("open-episodes").rows(connection))
        incidents = sum(1 for _ in audit_view("node-incidents").rows(connection))
        transitions = sum(1 for _ in audit_view("transitions").rows(connection))
        reading = Reading(connection)
        on_hold = sum(1 for _ in reading.verdicts({"verdict": "hold"}))
        drifts = [row["ended_at_ms"] is None for row in reading.rows("ledger-drift")]
        refused = [row["withdrawn_at_ms"] is None for row in reading.rows("ledger-duplicates")]
    return {
        "frames": outcome.frames,
        "facts": outcome.facts,
        "decisions_on_devices": transitions,
        "episodes": episodes,
        "open_episodes": opened,
        "node_incidents": incidents,
        "nodes_on_hold": on_hold,
        "drifts": len(drifts),
        "open_drifts": sum(drifts),
        "refused_duplicates": len(refused),
        "standing_duplicates": sum(refused),
        "parked": outcome.parked,
        "passed_over": dict(sorted(outcome.ignored.items())),
        "from": format_time_ms(outcome.first_ms or 0),
        "to": format_time_ms(outcome.last_ms or 0),
        "policy": policy.version,
        "policy_hash": policy.hash(),
    }


def _report(summary: dict[str, Any], outcome: Outcome, db: Place, form: str) -> None:
    if form == "json":
        output.print_json(summary)
        return
    if form == "csv":
        flat = {k: v for k, v in summary.items() if not isinstance(v, dict)}
        output.print_rows(list(flat), [list(flat.values())], form)
        return
    output.line(
        f"{outcome.frames} frames from {summary['from']} to {summary['to']}: {outcome.facts} facts,"
        f" {summary['decisions_on_devices']} decisions on devices under policy {summary['policy']}"
        f" ({summary['policy_hash']})"
    )
    output.line(
        f"{summary['episodes']} episodes ({summary['open_episodes']} open), {summary['node_incidents']} node incidents;"
        f" the store is {db}"
    )
    output.line(
        f"ledger: {summary['nodes_on_hold']} nodes on hold, {summary['drifts']} differences between the books"
        f" ({summary['open_drifts']} standing), {summary['refused_duplicates']} refused duplicates"
        f" ({summary['standing_duplicates']} standing)"
    )
    for reason, count in summary["passed_over"].items():
        output.note(f"passed over: {count} x {reason}")
    if outcome.parked:
        output.note(
            f"parked: {outcome.parked} that could not be used; `sickbay audit parked --db {db}` shows them"
        )


@click.command("what-if")
@_files
@click.option(
    "--policy",
    "policy_path",
    required=True,
    type=click.Path(dir_okay=False),
    help="The policy to try (YAML).",
)
@click.option(
    "--base-policy", "base_path", type=click.Path(dir_okay=False), help="What to compare with; the defaults."
)
@_from
@_until
@_node
@_step
@_workers
@output.output_option
def what_if(
    files: tuple[str, ...],
    policy_path: str,
    base_path: str | None,
    from_ms: int | None,
    until_ms: int | None,
    nodes: tuple[str, ...],
    step_ms: int,
    workers: int | None,
    form: str,
) -> None:
    """Decide recordings again under another policy and show which episodes, Unknown runs, node incidents, moves of workloads,
    holds of nodes and differences between the books of the ledger appear, vanish or move.

    Nothing is written to a store: the result is a difference, never history.

    \b
    Example:
      sickbay what-if examples/one-card.jsonl.zst --policy examples/policies/stricter.yaml
    """
    policies = (read_policy(base_path), read_policy(policy_path))
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="sickbay-what-if-") as folder:
        places = [str(Path(folder) / name) for name in ("base.db", "other.db")]
        for policy, place in zip(policies, places, strict=True):
            options = Options(
                paths=files,
                policy=policy,
                from_ms=from_ms,
                until_ms=until_ms,
                nodes=frozenset(nodes),
                workers=workers or default_workers(files),
                step_ms=step_ms,
            )
            with Store.open(
                place, create=True, partitions=PARTITIONS_DEFAULT, source_id=options.source_id()
            ) as store:
                outcome = Replay(options, store).run()
        with Store.open(places[0], read_only=True) as base, Store.open(places[1], read_only=True) as other:
            found = differences(base, other)
    _print_differences(found, policies, outcome, form)
    if outcome.parked:
        output.note(f"parked: {outcome.parked} that could not be used, under both policies alike")
        raise SystemExit(EXIT_PARKED)


def _print_differences(
    found: Sequence[Difference], policies: Sequence[Policy], outcome: Outcome, form: str
) -> None:
    """Print differences: under fixed names for programs, under those of the policies for people."""
    names = [f"{policy.version} ({policy.hash()})" for policy in policies]
    if form != "table":
        rows = [
            (*row, *(word for policy in policies for word in (policy.version, policy.hash())))
            for row in found
        ]
        output.print_rows(_DIFFERENCE_COLUMNS, rows, form)
        return
    output.line(
        f"{outcome.facts} facts decided under {names[0]} and under {names[1]}: {len(found)} differences"
    )
    versions = [policy.version for policy in policies]
    heads = [f"under {name}" for name in (names if versions[0] == versions[1] else versions)]
    output.print_rows(
        (*_DIFFERENCE_COLUMNS[:4], *heads),
        found,
        form,
        empty="no episode, Unknown run, node incident, move, hold or difference of the ledger differs",
    )
