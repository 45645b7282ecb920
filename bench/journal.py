"""How long a balance as of an instant takes on a long journal, and a read by primary key in the same store: ``journal.py KIND N``.

The N lines are made up and loaded in bulk, the index last: executemany into SQLite, COPY into PostgreSQL. Each node has an equal part of them;
what is posted is taken back by the next line of its node, but for one in five. The projection is measured elsewhere.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any, Final

import msgspec
from clock import Figures
from sqlalchemy import Connection, and_, select
from stores import insert_rows, store_on

from projections.audit import audit_view
from projections.ledger_tables import ledger_line
from projections.postgresql import is_postgresql

_START_MS: Final = 1_782_892_800_000
_STEP_MS: Final = 40
NODES: Final = 1_000
_PARTITIONS: Final = 8
#: Rows of one statement.
_CHUNK: Final = 10_000
#: Questions of each sort, each about another node, instant or line; and as many before the clock runs, for a warm cache.
_QUESTIONS: Final = 200
_WARM: Final = 20
_BOOKS: Final = (("recorded", "claims"), ("derived", "claims"), ("common", "pods"), ("derived", "overhead"))
#: A whole-number step that meets all lines and nodes in turn, far apart.
_STRIDE: Final = 7_919


def made_up(count: int) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of ``ledger_line``, in the order of its columns."""
    for number in range(count):
        place, node = divmod(number, NODES)
        pair, is_reversal = divmod(place, 2)
        if pair % 5 == 0:
            # two postings that stay
            pair, is_reversal = 2 * place, 0
        book, account = _BOOKS[pair % 4]
        resource = "cpu" if pair % 3 else "memory"
        amount = (1 + pair % 16) * (250 if resource == "cpu" else 1 << 30)
        yield (
            1, node % _PARTITIONS, number, 0, f"{number:032x}", "reversed" if is_reversal else "posted", f"node-{node}", book,
            f"claim/{node}/{pair}", account, resource, ("0", "1", "unknown")[pair % 3], -amount if is_reversal else amount, 0,
            _START_MS + number * _STEP_MS, f"pod-{node}-{pair}", f"claim-{node}-{pair}",
        )  # fmt: skip


def load(connection: Connection, count: int) -> None:
    """Load the lines, then make the index that balances are answered from."""
    indexes = sorted(ledger_line.indexes, key=lambda index: str(index.name))
    for index in indexes:
        index.drop(connection)
    rows = made_up(count)
    while chunk := list(islice(rows, _CHUNK)):
        insert_rows(connection, ledger_line, chunk)
    for index in indexes:
        index.create(connection)


def _median_ns(ask: Callable[[int], object]) -> int:
    for number in range(_WARM):
        ask(_QUESTIONS + number)
    times = []
    for number in range(_QUESTIONS):
        begin = perf_counter_ns()
        ask(number)
        times.append(perf_counter_ns() - begin)
    return int(median(times))


def measure(kind: str, count: int, folder: Path) -> Figures:
    """Load a store with ``count`` lines and ask it."""
    with store_on(kind, folder) as make:
        store = make("journal")
        begin = perf_counter_ns()
        with store.engine.connect() as connection, connection.begin():
            load(connection, count)
        if kind == "postgresql":
            with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                # as autovacuum does in its own time
                connection.exec_driver_sql("VACUUM ANALYZE ledger_line")
        loaded_ns = perf_counter_ns() - begin
        balances = audit_view("ledger-balances")
        with store.reading() as connection:
            assert kind == ("postgresql" if is_postgresql(connection) else "sqlite")

            def balance(number: int) -> list[Any]:
                as_of_ms = _START_MS + count * _STEP_MS * (50 + number % 50) // 100
                where = {"node": f"node-{number * _STRIDE % NODES}"}
                found = list(balances.rows(connection, as_of_ms=as_of_ms, where=where))
                assert found, "a node without a balance"
                return found

            def key_read(number: int) -> Any:
                line = number * _STRIDE % count
                key = (1, line % NODES % _PARTITIONS, line, 0)
                wanted = and_(
                    *(
                        column == value
                        for column, value in zip(ledger_line.primary_key.columns, key, strict=True)
                    )
                )
                return connection.execute(select(ledger_line).where(wanted)).one()

            return Figures(
                kind=kind,
                lines=count,
                balance_nanoseconds=_median_ns(balance),
                key_read_nanoseconds=_median_ns(key_read),
                load_nanoseconds=loaded_ns,
            )


if __name__ == "__main__":
    asked, lines = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="sickbay-bench-") as place:
        sys.stdout.buffer.write(msgspec.json.encode(measure(asked, int(lines), Path(place))))
