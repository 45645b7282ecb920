"""The command line: the composition root, the only module that brings the stages together.

It must hold no rule of its own: a command reads options, calls a stage, prints what comes back, and turns an error into its
exit code (README, "Exit codes").
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import NoReturn

import click

from sickbay.errors import SickbayError

_COMMANDS = {
    "record": "recording:record",
    "replay": "replaying:replay",
    "what-if": "replaying:what_if",
    "episodes": "questions:episodes",
    "timeline": "questions:timeline",
    "explain": "questions:explain",
    "audit": "questions:audit",
    "ledger": "ledger:ledger",
    "report": "reporting:report",
    "promotion": "promoting:promotion",
    "verify": "verifying:verify",
    "hold": "requesting:hold",
    "release": "requesting:release",
    "gate": "gating:gate",
    "export": "exporting:export",
    "import": "exporting:import_",
    "topics": "topics:topics",
    "ingest": "ingesting:ingest",
    "work": "working:work",
    "project": "projecting:project",
    "respond": "responding:respond",
    "breaker": "breaking:breaker",
    "run": "embedded:run",
    "parked": "parked:parked",
    "doctor": "doctor:doctor",
    "migrate": "keeping:migrate",
    "rebuild": "keeping:rebuild",
}


class _Lazy(click.Group):
    """A group whose commands are imported when they are named, so that help is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which one meets them."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        command = getattr(__import__(f"sickbay.cli.{module}", fromlist=[name]), name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run a command and hand its answer on; a reader of a pipe that leaves early, as `head` does, is no failure."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # what is still buffered goes nowhere, or the interpreter would complain of it when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(0) from None
        return result


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="sickbay", prog_name="sickbay")
@click.option("--verbose", "-v", is_flag=True, help="Log what is being done.")
def cli(verbose: bool) -> None:
    """Watch Kubernetes accelerators or replay their incidents, and ask what was decided and why.

    \b
    Exit codes: 0 done; 1 failed; 2 wrong input or usage; 3 done, but something was parked; 4 an event this build cannot read;
    5 the store cannot be used; 6 verify, rebuild or import found a difference; 7 Kafka or the API server cannot be used;
    130 interrupted.
    """
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        stream=sys.stderr,
        format="%(levelname)s %(message)s",
    )


def main() -> None:
    """Run the command line and exit with the code of what happened."""
    try:
        cli.main(prog_name="sickbay", standalone_mode=False)
    except click.exceptions.Abort:
        raise SystemExit(130) from None
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from None
    except SickbayError as error:
        _fail(str(error), error.exit_code)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _fail(f"{place}{error.strerror or error}; check the place that is read or written, and run again", 1)
    except Exception as error:
        logging.getLogger(__name__).info("what went wrong", exc_info=True)
        _fail(f"internal error: {error!r}; please report it with the output of `sickbay --verbose …`", 1)


def _fail(problem: str, exit_code: int) -> NoReturn:
    """Say on one line what went wrong, and exit."""
    from sickbay.cli.output import printable

    click.echo(f"sickbay: {printable(' '.join(problem.split()))}", err=True)
    with suppress(OSError):
        sys.stdout.close()  # what could not be written must not be tried again when the interpreter ends
    raise SystemExit(exit_code)
