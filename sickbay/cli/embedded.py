"""``sickbay run --embedded``: a small cluster watched by one process and a store, without Kafka."""

from __future__ import annotations

import click

from projections.engine import EMBEDDED, Store
from projections.places import Place
from sickbay.cli import output
from sickbay.cli.embedded_log import EmbeddedLog
from sickbay.cli.feeding import Feed, Feeding
from sickbay.cli.options import db_option, policy_option, read_policy
from sickbay.cli.processes import process_options, run_logged
from sickbay.cli.replaying import EXIT_PARKED
from sickbay.errors import InputError
from sickbay.operations.logs import LogFormat

kubeconfig_option = click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False),
    help="How the API server is reached.  [default: the cluster this runs in, else the user's]",
)
context_option = click.option("--context", help="Context of the kubeconfig.  [default: its current one]")
recording_option = click.option(
    "--from-recording",
    "recordings",
    multiple=True,
    type=click.Path(dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Read this recording instead of a cluster and end with it; may be given more than once, they are merged by time.",
)
speed_option = click.option(
    "--speed",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, 1_000_000),
    help="How fast a recording goes: 1 takes as long as it took, 60 a minute for an hour, 0 waits for nothing.",
)


def require_one_source(recordings: tuple[str, ...], kubeconfig: str | None, context: str | None) -> None:
    """Raise InputError when a recording and a cluster are both named."""
    if recordings and (kubeconfig or context):
        raise InputError("--from-recording is instead of a cluster; leave --kubeconfig and --context out")


@click.command()
@click.option("--embedded", is_flag=True, help="Everything in this process, with the store as the log.")
@db_option
@policy_option
@kubeconfig_option
@context_option
@recording_option
@speed_option
@process_options
def run(
    embedded: bool,
    db: Place,
    policy_path: str | None,
    kubeconfig: str | None,
    context: str | None,
    recordings: tuple[str, ...],
    speed: float,
    log_format: LogFormat,
    http_host: str,
    http_port: int,
) -> None:
    """Watch a small cluster with one process and a store: facts, decisions and read models, without Kafka.

    Every fact is written with its decisions in one transaction, so the process may be killed at any time; started again it goes
    on with what the store holds, and tells what changed meanwhile. It stops on SIGTERM or Ctrl-C. `sickbay hold`, `release` and
    all questions can be asked of the store while it runs.

    \b
    Examples:
      sickbay run --embedded --db sickbay.db
      sickbay run --embedded --from-recording examples/one-card.jsonl.zst --speed 60 --db demo.db
    """
    if not embedded:
        raise InputError(
            "`sickbay run` needs --embedded; with Kafka the parts are `sickbay ingest`, `work` and `project`"
        )
    require_one_source(recordings, kubeconfig, context)
    feed = Feed(
        process="run",
        policy=read_policy(policy_path),
        recordings=recordings,
        speed=speed,
        kubeconfig=kubeconfig,
        context=context,
        http_host=http_host,
        http_port=http_port,
    )
    with Store.open(db, create=True, source_id=EMBEDDED) as store:
        # a live log has no end that others would have to wait for before they ask or write
        store.end_source()
        feeding = Feeding(EmbeddedLog(store), feed)

        code = run_logged(feeding.run, log_format)
    if code == 0 and recordings and feeding.parked:
        output.note(
            f"parked: {feeding.parked} that could not be used; `sickbay audit parked --db {db}` shows them"
        )
        code = EXIT_PARKED
    raise SystemExit(code)
