"""``sickbay export`` and ``sickbay import``: ledgers written to a file, and held against a store or another file.

What is imported is only compared: a ledger is derived from its log, and nothing else may become one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final

import click

from projections.chain import first_head
from projections.engine import Store
from projections.places import Place
from sickbay.cli import output
from sickbay.cli.ledger_rows import Reading
from sickbay.cli.options import MOMENT, db_option, known_at, known_at_option, open_store
from sickbay.errors import InputError, NotFoundError, VerifyError
from sickbay.ledger_export import LINE_BYTES_MAX, Export, LogPosition, NodeLedger, compared, read, written
from sickbay.timestamps import format_time_ms

_COLUMNS = ("node", "what", "about", "one", "other")
#: Offsets that are looked at first for the last event before a position; offsets may have gaps where repeats were dropped.
_NEAR: Final = 64
_what = click.argument("what", type=click.Choice(["ledger"]))


@click.command()
@_what
@click.option("--at", "at_ms", type=MOMENT, help="Write it as of this time.  [default: the newest event]")
@known_at_option
@click.option("--node", "nodes", multiple=True, help="Only this node; may be given more than once.")
@click.option(
    "--file",
    "-o",
    "path",
    type=click.Path(dir_okay=False, allow_dash=True),
    default="-",
    show_default="standard output",
    help="Where to write it.",
)
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@db_option
def export(
    what: str,
    at_ms: int | None,
    known: dict[int, int] | int | None,
    nodes: tuple[str, ...],
    path: str,
    force: bool,
    db: Place,
) -> None:
    """Write ledgers as canonical JSON lines: a header with a digest over the whole file, then a line for each node.

    The same ledgers of the same log give the same bytes. `sickbay import FILE --check` compares them with a store or another file.

    \b
    Examples:
      sickbay export ledger -o before.jsonl
      sickbay export ledger --at 2026-07-01T08:26:00Z --node gpu-a1
    """
    assert what == "ledger", "the only thing that can be exported"
    if path in output.FORMS:
        raise click.UsageError(
            f"-o {path}: -o names the file here, and an export is JSON lines always; write ./{path} for a file of that name"
        )
    with open_store(db) as store:
        only = frozenset(nodes)
        positions = known_at(store, known, nodes[0] if len(nodes) == 1 else None)
        if at_ms is None:
            at_ms = _newest_ms(store, positions)
        with store.reading() as connection:
            ledgers = list(Reading(connection, at_ms, positions).ledgers(only))
        missing = only - {ledger.node for ledger in ledgers}
        if missing:
            raise NotFoundError(
                f"the ledger has no node {', '.join(sorted(missing))} at that moment; `sickbay ledger` lists the nodes"
            )
        lines = written(ledgers, at_ms=at_ms, positions=_heads(store, positions), only=only)
    if path == "-":
        click.get_binary_stream("stdout").writelines(lines)
        return
    _write(Path(path), lines, force=force)
    output.note(f"{path}: {len(ledgers)} ledgers as of {format_time_ms(at_ms)}")


def _newest_ms(store: Store, positions: Mapping[int, int] | None) -> int:
    """Return the event time of the newest event that is, or was, known."""
    if positions is None:
        newest = [position.newest_ms for position in store.positions().values()]
    else:
        newest = [
            record.envelope.at_ms
            for partition, offset in positions.items()
            for record in store.read(partition, limit=offset)
            if record.offset < offset
        ]
    return max(newest, default=0)


def _heads(store: Store, positions: Mapping[int, int] | None) -> dict[int, LogPosition]:
    """Return where each partition stood, with the head of its hash chain there."""
    if positions is None:
        return {
            number: LogPosition(next_offset=position.next_offset, chain_head=position.chain_head.hex())
            for number, position in store.positions().items()
        }
    return {
        number: LogPosition(next_offset=offset, chain_head=_head(store, number, offset).hex())
        for number, offset in positions.items()
    }


def _head(store: Store, partition: int, offset: int) -> bytes:
    """Return the head of a partition's chain after the events before ``offset``."""
    for begin in (max(0, offset - _NEAR), 0):
        head = None
        for record in store.read(partition, begin, limit=offset - begin):
            if record.offset < offset:
                head = record.chain
        if head is not None:
            return head
    return first_head(partition)


def _write(path: Path, lines: Iterable[bytes], *, force: bool) -> None:
    """Write the file whole or not at all; a name that was taken in the meantime is left alone unless ``force``."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part") if force else path
    try:
        with part.open("xb") as stream:
            stream.writelines(lines)
    except FileExistsError:
        raise InputError(
            f"{part}: there is a file already; give another --file, or --force to write over it"
        ) from None
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if force:
        part.replace(path)


@click.command("import")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@click.option(
    "--check", is_flag=True, help="Compare; required, for there is nothing else that an import may do."
)
@click.option(
    "--against",
    type=click.Path(dir_okay=False),
    help="Compare with this file instead of the store.",
)
@db_option
@output.output_option
def import_(file: str, check: bool, against: str | None, db: Place, form: str) -> None:
    """Compare an exported ledger FILE with the store at the same instant, or with another file.

    A ledger is derived from the log of facts and decisions, so one that is in a file can never become the ledger of a store: only
    --check is possible. Exit code 0: they are equal; 6: they differ. FILE may be - for standard input.

    \b
    Examples:
      sickbay import before.jsonl --check
      sickbay import before.jsonl --check --against after.jsonl --output json
    """
    if not check:
        raise click.UsageError(
            "a ledger is derived from its log, and what is in a file can only be compared with one: give --check"
        )
    given = _read(file)
    instant = format_time_ms(given.header.at_ms)
    only = frozenset(given.header.only)
    if against is None:
        other, ledgers = str(db), _stored(db, given, only)
    else:
        export = _read(against)
        other, ledgers = against, export.ledgers
        only = (
            only & frozenset(export.header.only)
            if only and export.header.only
            else only | {*export.header.only}
        )
        if export.header.at_ms != given.header.at_ms:
            output.note(f"{file} is as of {instant}, {against} as of {format_time_ms(export.header.at_ms)}")
    found = compared(*(_narrowed(side, only) for side in (given.ledgers, ledgers)))
    equal = f"{file} and {other} are equal as of {instant}: {len(_narrowed(given.ledgers, only))} ledgers"
    output.print_rows(_COLUMNS, found, form, empty=equal)
    if found:
        raise VerifyError(
            f"{file} (one) and {other} (other) differ in {len(found)} places as of {instant}; `sickbay ledger NODE --journal` shows"
            " what a ledger came from"
        )


def _narrowed(ledgers: Mapping[str, NodeLedger], only: frozenset[str]) -> dict[str, NodeLedger]:
    """Return the ledgers that both sides were asked for."""
    return {node: ledger for node, ledger in ledgers.items() if not only or node in only}


def _stored(db: Place, given: Export, only: frozenset[str]) -> dict[str, NodeLedger]:
    """Return the ledgers of a store as of the instant of a file, and say so when the file is of another log."""
    with open_store(db) as store:
        positions = store.positions()
        for partition, position in given.header.positions.items():
            known = positions.get(partition)
            is_behind = known is None or known.next_offset < position.next_offset
            if is_behind or _head(store, partition, position.next_offset).hex() != position.chain_head:
                output.note(
                    f"the log of {db} is not the one that the file was exported from, or does not reach as far"
                    f" (partition {partition})"
                )
                break
        with store.reading() as connection:
            return {ledger.node: ledger for ledger in Reading(connection, given.header.at_ms).ledgers(only)}


def _read(path: str) -> Export:
    """Read a file. Raises InputError when it cannot be read, or is not whole."""
    if path == "-":
        return read(_lines(click.get_binary_stream("stdin")), "standard input")
    try:
        with Path(path).open("rb") as stream:
            return read(_lines(stream), path)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); give a file that `sickbay export ledger` wrote"
        ) from error


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    while line := stream.readline(LINE_BYTES_MAX + 1):
        yield line
