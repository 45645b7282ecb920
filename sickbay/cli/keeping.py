"""``sickbay migrate`` and ``sickbay rebuild``: keeping a store in shape."""

from __future__ import annotations

import click

from projections import schema
from projections.engine import Store
from projections.places import Place
from projections.rebuild import rebuild as rebuild_projection
from projections.roles import ROLES
from sickbay.cli import output
from sickbay.cli.options import db_option


@click.command()
@db_option
@click.option(
    "--roles",
    "with_roles",
    is_flag=True,
    help="PostgreSQL: make the group roles too, and give each what it may do. Needs a superuser, or the owner of the database"
    " with CREATEROLE.",
)
def migrate(db: Place, with_roles: bool) -> None:
    """Bring the schema of a store to this build's; an empty path, or an empty database, gets a new store.

    Two that run at once do it once: the second waits and finds it done.

    \b
    Examples:
      sickbay migrate --db sickbay.db
      sickbay migrate --db postgresql://postgres@db.example/sickbay --roles
    """
    notes: list[str] = []
    before = schema.upgrade(db, with_roles=with_roles, on_note=notes.append)
    if before == schema.HEAD:
        output.line(f"{db}: schema {schema.HEAD}, nothing to do")
    else:
        output.line(f"{db}: schema {before or 'none'} -> {schema.HEAD}")
    if with_roles:
        output.line(f"{db}: roles {', '.join(ROLES)}")
    for note in notes:
        output.note(note)


@click.command()
@db_option
@click.option(
    "--accept-difference",
    is_flag=True,
    help="Switch even when the rebuilt rows differ from the live ones: after a new build, or a repair by hand.",
)
@output.output_option
def rebuild(db: Place, accept_difference: bool, form: str) -> None:
    """Build the read models anew from the log beside the live ones, compare, and switch."""
    with Store.open(db) as store:
        built = [
            rebuild_projection(store, projection, accept_difference=accept_difference)
            for projection in store.projections
        ]
    rows = [
        (str(table), "equal" if live == new else "differs", new)
        for digests in (found.digests for found in built)
        for table, (live, new) in sorted(digests.items())
    ]
    output.print_rows(("table", "compared", "digest"), rows, form)
