"""Options that commands share, and what they are turned into. Errors name the option and what it takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from projections.engine import Store
from sickbay.errors import InputError, PolicyError
from sickbay.policy import Policy, policy_from_yaml
from sickbay.timestamps import parse_time_ms

F = TypeVar("F", bound=Callable[..., Any])


class Moment(click.ParamType):
    """An RFC 3339 time with its offset, as milliseconds since the epoch."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the time; a wrong one is a usage error."""
        if isinstance(value, int):
            return value
        try:
            return parse_time_ms(value)
        except InputError as error:
            self.fail(f"{error}; write it as 2026-07-01T08:00:00Z", param, ctx)


MOMENT = Moment()

db_option = click.option(
    "--db",
    default="sickbay.db",
    show_default=True,
    envvar="SICKBAY_DB",
    metavar="PATH",
    help="The store: a SQLite file.  [env: SICKBAY_DB]",
)
as_of_option = click.option(
    "--as-of", "as_of_ms", type=MOMENT, help="Answer for this instant of event time instead of the newest."
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


def open_store(db: str, *, read_only: bool = True) -> Store:
    """Open an existing store."""
    return Store.open(db, read_only=read_only)
