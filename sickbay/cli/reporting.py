"""The report command: one page for an incident, written to a file. It reads one snapshot and changes nothing in the store."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import click

from projections.report import DEVICES_COUNTED, Scope
from projections.report import report as report_of
from sickbay.cli import output
from sickbay.cli.options import MOMENT, db_option, open_store
from sickbay.errors import InputError
from sickbay.report import render

_COLUMNS = (
    "page",
    "bytes",
    "title",
    "from_ms",
    "to_ms",
    "nodes",
    "devices",
    "episodes",
    "decisions",
    "notes",
)


@click.command()
@db_option
@click.option("--from", "from_ms", type=MOMENT, help="Show from here on; the beginning of the log otherwise.")
@click.option(
    "--until", "until_ms", type=MOMENT, help="Show up to here, as it stood then; the newest event otherwise."
)
@click.option("--node", "nodes", multiple=True, help="Only this node; may be given more than once.")
@click.option("--device", "devices", multiple=True, help="Only this device; may be given more than once.")
@click.option("--title", help="Title of the page.")
@click.option(
    "--file",
    "-o",
    "path",
    type=click.Path(dir_okay=False, allow_dash=True),
    default="incident.html",
    show_default=True,
    help="Where to write the page; - is standard output.",
)
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@click.option(
    "--output",
    "form",
    type=click.Choice(output.FORMS),
    default="table",
    show_default=True,
    help="How to print what was written.",
)
def report(
    db: str,
    from_ms: int | None,
    until_ms: int | None,
    nodes: tuple[str, ...],
    devices: tuple[str, ...],
    title: str | None,
    path: str,
    force: bool,
    form: str,
) -> None:
    """Write an incident as one HTML page that needs no network: devices on a time axis, decisions and their evidence, the ledger.

    \b
    Examples:
      sickbay report -o incident.html
      sickbay report --node gpu-a1 --from 2026-07-01T08:00:00Z --until 2026-07-01T09:00:00Z --title "gpu-3 lost"
    """
    if path in output.FORMS:
        raise click.UsageError(
            f"-o {path}: -o names the page here; write --output {path} for the form of the summary"
        )
    target = None if path == "-" else Path(path)
    if target is not None and not force and os.path.lexists(target):
        raise _taken(target)
    with open_store(db) as store, store.reading() as connection:
        found = report_of(connection, Scope(from_ms, until_ms, nodes, devices), title)
    page = render(found)
    if target is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        sys.stdout.write(page)
        for note in found.notes:
            output.note(note)
        return
    _write(target, page, force=force)
    counts = dict(found.counts)
    row = (
        path,
        len(page.encode()),
        found.title,
        found.from_ms,
        found.until_ms,
        counts["nodes"],
        counts[DEVICES_COUNTED],
        counts["episodes"],
        counts["decisions and requests"],
        " ".join(found.notes),
    )
    output.print_rows(_COLUMNS, [row], form)


def _write(target: Path, page: str, *, force: bool) -> None:
    """Write the page whole or not at all; a name that was taken in the meantime is left alone unless ``force``."""
    written = target.with_name(f".{target.name}.{os.getpid()}.part") if force else target
    try:
        with written.open("x", encoding="utf-8", newline="\n") as stream:
            stream.write(page)
    except FileExistsError:
        raise _taken(written) from None
    except BaseException:
        written.unlink(missing_ok=True)
        raise
    if force:
        written.replace(target)


def _taken(path: Path) -> InputError:
    return InputError(f"{path}: there is a file already; give another --file, or --force to write over it")
