"""Times on the command line, for commands that ask a store and for those that ask only Kafka, which load no database."""

from __future__ import annotations

from typing import Any

import click

from sickbay.errors import InputError
from sickbay.timestamps import parse_time_ms


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
            self.fail(str(error), param, ctx)
