"""What every command that runs for long takes and does alike: how it logs, where it tells of its health, how it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import click

from sickbay.errors import InputError
from sickbay.operations.http import HOST_DEFAULT
from sickbay.operations.logs import LOG_FORMATS, LogFormat, setup_logging
from sickbay.operations.running import Main, run_process

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--log-format",
        type=click.Choice(LOG_FORMATS),
        default="json",
        show_default=True,
        envvar="SICKBAY_LOG_FORMAT",
        help="Log on standard error as one JSON object a line, or as text.  [env: SICKBAY_LOG_FORMAT]",
    ),
    click.option(
        "--http-host",
        default=HOST_DEFAULT,
        show_default=True,
        envvar="SICKBAY_HTTP_HOST",
        metavar="ADDRESS",
        help="Where to listen; in a Pod 0.0.0.0, so that probes come through.  [env: SICKBAY_HTTP_HOST]",
    ),
    click.option(
        "--http-port",
        type=click.IntRange(0, 65_535),
        default=0,
        show_default=True,
        envvar="SICKBAY_HTTP_PORT",
        metavar="PORT",
        help="Serve /livez, /readyz and /metrics there; 0 serves nothing.  [env: SICKBAY_HTTP_PORT]",
    ),
)


#: Where a process in a cluster finds its own namespace.
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def own_namespace(given: str | None) -> str:
    """Return the namespace of a Lease: the given one, else that of this process. Raises InputError for an empty one."""
    if given is not None:
        if not given.strip():
            raise InputError("--lease-namespace is empty; give the namespace of the Lease")
        return given
    try:
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"


def process_options(command: F) -> F:
    """Give a command ``log_format``, ``http_host`` and ``http_port``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def run_logged(main: Main, log_format: LogFormat) -> int:
    """Set the logs up, run ``main(stop)`` to its end, and return its exit code. ``sickbay --verbose`` logs details too."""
    setup_logging(log_format, verbose=logging.getLogger().isEnabledFor(logging.INFO))
    return run_process(main)


def run_to_exit(main: Main, log_format: LogFormat) -> NoReturn:
    """As ``run_logged``, and exit with the code."""
    raise SystemExit(run_logged(main, log_format))


async def ended(task: asyncio.Task[object]) -> None:
    """Cancel a task and wait for it; one that has ended stays as it is."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.wait({task})
