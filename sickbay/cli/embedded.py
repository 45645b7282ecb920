"""``sickbay run --embedded``: a small cluster watched by one process and a store, without Kafka."""

from __future__ import annotations

import click

from projections.engine import EMBEDDED, Store
from projections.places import Place
from sickbay.cli import output
from sickbay.cli.embedded_log import EmbeddedLog
from sickbay.cli.feeding import Feed, Feeding
from sickbay.cli.options import db_option, policy_option, read_policy
from sickbay.cli.replaying import EXIT_PARKED
from sickbay.errors import InputError
from sickbay.operations.logs import LOG_FORMATS, LogFormat, setup_logging
from sickbay.operations.running import Stop, run_process

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
http_port_option = click.option(
    "--http-port",
    default=0,
    show_default=True,
    type=click.IntRange(0, 65_535),
    help="Serve /livez, /readyz and /metrics on this port; 0 for no server.",
)
http_host_option = click.option(
    "--http-host", default="127.0.0.1", show_default=True, help="The address that is served on."
)
log_format_option = click.option(
    "--log-format",
    default="json",
    show_default=True,
    type=click.Choice(LOG_FORMATS),
    help="How logs are written.",
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
@http_port_option
@http_host_option
@log_format_option
@click.pass_context
def run(
    context_: click.Context,
    embedded: bool,
    db: Place,
    policy_path: str | None,
    kubeconfig: str | None,
    context: str | None,
    recordings: tuple[str, ...],
    speed: float,
    http_port: int,
    http_host: str,
    log_format: LogFormat,
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
    setup_logging(log_format, verbose=bool(context_.find_root().params.get("verbose")))
    with Store.open(db, create=True, source_id=EMBEDDED) as store:
        # a live log has no end that others would have to wait for before they ask or write
        store.end_source()
        feeding = Feeding(EmbeddedLog(store), feed)

        async def main(stop: Stop) -> None:
            await feeding.run(stop)

        code = run_process(main)
    if code:
        raise SystemExit(code)
    if recordings and feeding.parked:
        output.note(
            f"parked: {feeding.parked} that could not be used; `sickbay audit parked --db {db}` shows them"
        )
        raise SystemExit(EXIT_PARKED)
