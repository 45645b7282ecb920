"""How answers look: a table for people, JSON for programs, CSV for spreadsheets.

Times leave here as RFC 3339 text beside nothing else; the store keeps milliseconds. What a driver or a person wrote is shown
with its control characters escaped, so that a message cannot paint a false line (faults.md X2), and a CSV cell that a
spreadsheet would run is quoted (X6).
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TextIO

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from sickbay.timestamps import format_time_ms

Format = str
#: Columns that hold a moment.
_MOMENTS: Final = ("at_ms", "since_ms", "from_ms", "to_ms", "_at_ms", "ended_ms", "until_ms")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_encoder: Final = msgspec.json.Encoder()
#: How an answer can be printed.
FORMS: Final = ("table", "json", "csv")

output_option = click.option(
    "--output",
    "-o",
    "form",
    type=click.Choice(FORMS),
    default="table",
    show_default=True,
    help="How to print the answer.",
)


def is_moment(column: str) -> bool:
    """Whether a column holds a time in milliseconds since the epoch, and not a duration."""
    return column.endswith(_MOMENTS)


def name_of(column: str) -> str:
    """Return a column's name as it is printed: a moment loses its unit, because it is printed as a time."""
    return column.removesuffix("_ms") if is_moment(column) else column


def shown(column: str, value: Any) -> Any:
    """Return a cell as it is printed: a moment as RFC 3339, everything else as it is."""
    if value is not None and is_moment(column) and isinstance(value, int):
        return format_time_ms(value)
    return value


def printable(text: str) -> str:
    """Return ``text`` with control and bidirectional characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def print_rows(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    form: Format,
    *,
    stream: TextIO | None = None,
    empty: str = "",
) -> None:
    """Print rows as a table, one JSON object a line, or CSV with a header."""
    stream = stream or sys.stdout
    if form == "json":
        for row in rows:
            stream.write(_json_line({name_of(c): shown(c, v) for c, v in zip(columns, row, strict=True)}))
    elif form == "csv":
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([name_of(column) for column in columns])
        for row in rows:
            writer.writerow([_cell(shown(c, v)) for c, v in zip(columns, row, strict=True)])
    else:
        _print_table(columns, iter(rows), stream, empty)


def _json_line(value: Mapping[str, Any]) -> str:
    text = _encoder.encode(value).decode()
    if not text.isprintable():
        text = "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
    return text + "\n"


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON document on one line."""
    sys.stdout.write(_json_line(value))


def _cell(value: Any) -> Any:
    text = "" if value is None else str(value)
    if isinstance(value, str) and text.startswith(_FORMULA):
        return "'" + printable(text)
    return printable(text)


def _print_table(columns: Sequence[str], rows: Iterator[Sequence[Any]], stream: TextIO, empty: str) -> None:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(name_of(column).replace("_", " "), overflow="fold")
    count = 0
    for row in rows:
        count += 1
        table.add_row(*(_text(shown(c, v)) for c, v in zip(columns, row, strict=True)))
    if count == 0:
        stream.write((empty or "nothing to show") + "\n")
        return
    console(stream).print(table)


def _text(value: Any) -> str:
    if value is None or value == "":
        return "–"  # noqa: RUF001 - a dash that is no minus sign
    from rich.markup import escape

    return escape(printable(str(value)))


def console(stream: TextIO | None = None) -> Console:
    """Return a console that wraps for a person and never for a pipe."""
    stream = stream or sys.stdout
    return Console(file=stream, width=None if stream.isatty() else 200, highlight=False, soft_wrap=False)


def line(text: str) -> None:
    """Print one line for a person."""
    sys.stdout.write(printable(text) + "\n")


def note(text: str) -> None:
    """Print one line beside the answer, where it does not disturb a pipe."""
    sys.stderr.write(printable(text) + "\n")
