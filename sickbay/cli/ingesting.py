"""``sickbay ingest``: the watch of a cluster, or a recording, into Kafka."""

from __future__ import annotations

import os
from typing import Final

import click

from ingest.kafka_log import KafkaFactLog
from sickbay.cli import output
from sickbay.cli.embedded import (
    context_option,
    kubeconfig_option,
    recording_option,
    require_one_source,
    speed_option,
)
from sickbay.cli.feeding import Feed, Feeding
from sickbay.cli.options import policy_option, read_policy
from sickbay.cli.processes import own_namespace, process_options, run_logged
from sickbay.cli.replaying import EXIT_PARKED
from sickbay.operations.health import Fresh
from sickbay.operations.logs import LogFormat
from sickbay.operations.running import Stop
from sickbay.operations.tracing import setup_tracing
from sickbay.settings import KafkaSettings, kafka_settings

#: Facts that wait for longer are not on their way: Kafka does not take them.
_WAITS_MAX_MS: Final = 15_000


@click.command()
@policy_option
@kubeconfig_option
@context_option
@click.option(
    "--leader-elect/--no-leader-elect",
    default=True,
    show_default=True,
    help="Take turns with other replicas by a Lease; without it nobody else may write. A recording is never elected.",
)
@click.option(
    "--lease-namespace",
    help="Namespace of the Lease sickbay-ingest.  [default: that of this process, else default]",
)
@recording_option
@speed_option
@process_options
def ingest(
    policy_path: str | None,
    kubeconfig: str | None,
    context: str | None,
    leader_elect: bool,
    lease_namespace: str | None,
    recordings: tuple[str, ...],
    speed: float,
    log_format: LogFormat,
    http_host: str,
    http_port: int,
) -> None:
    """Watch a cluster and tell Kafka what was seen, as facts.

    Kafka is named by SICKBAY_KAFKA_BOOTSTRAP and its kin; `sickbay topics apply` makes the topics. What was told before is read
    back from Kafka, so nothing has to be kept between two runs. It stops on SIGTERM or Ctrl-C with everything kept that was
    taken, and ends with exit code 7 when Kafka or the Lease is lost: start it again then.

    \b
    Examples:
      sickbay ingest --http-port 9100
      sickbay ingest --from-recording examples/one-card.jsonl.zst --speed 0
    """
    require_one_source(recordings, kubeconfig, context)
    settings = kafka_settings(os.environ)
    feed = Feed(
        process="ingest",
        policy=read_policy(policy_path),
        recordings=recordings,
        speed=speed,
        kubeconfig=kubeconfig,
        context=context,
        lease_namespace=own_namespace(lease_namespace) if leader_elect and not recordings else None,
        http_host=http_host,
        http_port=http_port,
    )
    parked = 0

    async def main(stop: Stop) -> None:
        nonlocal parked
        parked = await _ingest(settings, feed, stop)

    code = run_logged(main, log_format)
    if code == 0 and recordings and parked:
        output.note(f"parked: {parked} that could not be used; `sickbay parked list` shows them")
        code = EXIT_PARKED
    raise SystemExit(code)


async def _ingest(settings: KafkaSettings, feed: Feed, stop: Stop) -> int:
    """Feed Kafka and return how much was parked."""
    tracing = setup_tracing("ingest", os.environ)
    log = KafkaFactLog(settings)
    waits = Fresh("kafka", lambda: round(log.oldest_waiting_s * 1000), _WAITS_MAX_MS)
    feeding = Feeding(log, feed, [waits])
    try:
        await log.start()
        await feeding.run(stop)
    except Exception:
        if feeding.may_write:
            await log.close()
        raise
    finally:
        if tracing is not None:
            await tracing.close()
    return feeding.parked
