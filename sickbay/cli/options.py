"""Options that commands share, and what they are turned into. Errors name the option and what it takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from projections.engine import Store
from projections.places import Place, place_of
from projections.sources import follows_kafka
from sickbay.cli import output
from sickbay.cli.moments import Moment
from sickbay.envelope import partition_of
from sickbay.errors import InputError, PolicyError
from sickbay.policy import Policy, policy_from_yaml

F = TypeVar("F", bound=Callable[..., Any])


class StorePlace(click.ParamType):
    """A path or URL of a store, as a text that shows no password wherever it is printed."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        """Read the place. Raises StoreError for one that cannot be a store."""
        return place_of(value)


class Position(click.ParamType):
    """Positions of the log: ``{partition: next offset}``, or one offset whose partition the question tells."""

    name = "position"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[int, int] | int:
        """Read the positions; a partition that is named twice, or a negative number, is a usage error."""
        if isinstance(value, dict | int):
            return value
        if _is_number(value):
            return int(value)
        found: dict[int, int] = {}
        for part in value.split(","):
            partition, _, offset = part.partition(":")
            if not (_is_number(partition) and _is_number(offset)):
                self.fail(f"{part!r} is no PARTITION:OFFSET; write 0:120, or 0:120,3:64", param, ctx)
            if int(partition) in found:
                self.fail(f"partition {partition} is named twice", param, ctx)
            found[int(partition)] = int(offset)
        return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


MOMENT = Moment()

db_option = click.option(
    "--db",
    type=StorePlace(),
    default="sickbay.db",
    show_default=True,
    envvar="SICKBAY_DB",
    metavar="PLACE",
    help="The store: the path of a SQLite file, or postgresql://user@host/database.  [env: SICKBAY_DB]",
)
as_of_option = click.option(
    "--as-of", "as_of_ms", type=MOMENT, help="Answer for this instant of event time instead of the newest."
)
known_at_option = click.option(
    "--known-at",
    "known",
    type=Position(),
    metavar="PARTITION:OFFSET,…",
    help="Answer by what was known when the partitions stood before these offsets; those not named were not known at all.",
)
policy_option = click.option(
    "--policy",
    "policy_path",
    type=click.Path(dir_okay=False),
    help="Policy document (YAML); the defaults decide without one.",
)


def read_policy(path: str | None) -> Policy:
    """Read a policy file, or return the default policy.

    Raises PolicyError when it cannot be read or used.
    """
    if path is None:
        return Policy()
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise PolicyError(
            f"{path}: cannot be read ({error.strerror}); give the path of a policy document"
        ) from error
    except UnicodeDecodeError as error:
        raise PolicyError(f"{path}: cannot be read ({error}); save it as UTF-8") from error
    return policy_from_yaml(text, place=path)


def known_at(
    store: Store, known: dict[int, int] | int | None, node: str | None = None
) -> dict[int, int] | None:
    """Return the positions that were asked for; a bare offset is one of the partition of ``node``.

    Raises InputError for a bare offset without a node, a partition that does not exist, and an offset that is still to come.
    """
    if known is None:
        return None
    if isinstance(known, int):
        if node is None:
            raise InputError(
                f"--known-at {known} names no partition, and the question no node; write it as 0:{known}"
            )
        known = {partition_of(node, store.partitions): known}
    positions = store.positions()
    for partition, offset in known.items():
        if partition >= store.partitions:
            raise InputError(
                f"--known-at {partition}:{offset}: {store.place} has the partitions 0 to {store.partitions - 1}"
            )
        end = positions[partition].next_offset if partition in positions else 0
        if offset > end:
            raise InputError(
                f"--known-at {partition}:{offset}: partition {partition} ends before offset {end}; name one up to it"
            )
    return known


def open_store(db: str, *, read_only: bool = True) -> Store:
    """Open an existing store to ask it; a note says when its replay was interrupted, for then it is asked of half a log.

    One that follows Kafka has no end and is asked of what is projected.
    """
    store = Store.open(db, read_only=read_only)
    try:
        if not store.source_ended and not follows_kafka(store.source_id):
            output.note(
                f"note: the replay into {store.place} was interrupted, and this is of the log so far; run it again to its end"
            )
    except BaseException:
        store.close()
        raise
    return store
