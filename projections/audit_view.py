"""One audit view: a question that the store answers for any moment, with its name, words and columns.

It knows no question; these stand in the registers (``projections.audit``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sqlalchemy import Connection, Select, select

from projections.temporal import Moment
from sickbay.errors import NotFoundError

Cell: TypeAlias = str | int | None

#: Rows fetched at a time, so that an answer of any length needs little memory.
_ROWS_PER_FETCH: Final = 500


@dataclass(frozen=True, slots=True)
class AuditView:
    """One question that the store answers."""

    name: str
    doc: str
    columns: tuple[str, ...]
    #: Columns that order the answer; none of them is ever NULL.
    order: tuple[str, ...]
    query: Callable[[Moment, tuple[str, ...]], Select[Any]]

    @property
    def sql_name(self) -> str:
        """Name of the SQL view that answers for now."""
        return "audit_" + self.name.replace("-", "_")

    def rows(
        self,
        connection: Connection,
        *,
        as_of_ms: int | None = None,
        known_at: Mapping[int, int] | None = None,
        where: Mapping[str, str | int] | None = None,
        limit: int | None = None,
    ) -> Iterator[tuple[Cell, ...]]:
        """Yield the rows, in the order of ``columns``, narrowed to those whose columns equal ``where``.

        Consume them inside the connection's transaction. Raises NotFoundError for a column that the view does not have.
        """
        found = self.query(Moment(as_of_ms, known_at), self.columns).subquery(self.sql_name)
        query = select(*(found.c[name] for name in self.columns)).order_by(
            *(found.c[name] for name in self.order)
        )
        for name, value in (where or {}).items():
            if name not in self.columns:
                raise NotFoundError(
                    f"the audit view {self.name} has no column {name!r}; it has {', '.join(self.columns)}"
                )
            query = query.where(found.c[name] == value)
        if limit is not None:
            query = query.limit(limit)
        result = connection.execution_options(yield_per=_ROWS_PER_FETCH).execute(query)
        for row in result:
            yield tuple(row)


def words(text: str) -> tuple[str, ...]:
    """Return names that are written in one line."""
    return tuple(text.split())
