"""``sickbay respond alert``: options in, a role that tells what stands out. It needs no cluster and no Lease."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp
import click

from responders.alerts.book import Book, Entry
from responders.alerts.plan import plan
from responders.alerts.posting import new_session, target_of
from responders.alerts.sending import Courier, Teller
from responders.alerts.sinks import Alertmanager, Sink, Webhook
from responders.alerts.topic import Memory, NoMemory, TopicMemory
from responders.keeping import Act
from sickbay.cli.responding import Asked, Running, respond_options, run_role
from sickbay.errors import InputError
from sickbay.operations.logs import LogFormat
from sickbay.operations.topics import check_topics

RUNBOOKS: Final = "docs/alerts.md"


class Wanted(NamedTuple):
    """Who is told."""

    alertmanagers: Sequence[str]
    webhook: str | None
    secret_file: Path | None
    topic: bool
    runbooks: str


@click.command()
@click.option(
    "--alertmanager",
    "alertmanagers",
    metavar="URL",
    multiple=True,
    help="An Alertmanager; each one of a cluster is named.",
)
@click.option("--webhook", metavar="URL", help="Gets every change as a signed CloudEvent.")
@click.option(
    "--webhook-secret-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The keys that sign: base64, one a line, the newest first.",
)
@click.option(
    "--topic/--no-topic",
    default=True,
    show_default=True,
    help="Keep the newest state of each alert in Kafka. Without it a restart tells again what stands.",
)
@click.option(
    "--runbooks",
    metavar="URL",
    default=RUNBOOKS,
    show_default=True,
    help="Where docs/alerts.md is found by whoever gets an alert.",
)
@respond_options
def alert(
    alertmanagers: tuple[str, ...],
    webhook: str | None,
    webhook_secret_file: Path | None,
    topic: bool,
    runbooks: str,
    policy_path: str | None,
    http_port: int,
    http_host: str,
    log_format: LogFormat,
) -> None:
    """Tell what stands, grouped by its cause, until SIGTERM: to Alertmanagers, a webhook and the topic <prefix>.alerts.

    It needs no permission in the cluster. Run one; what it told is kept in Kafka, so a restart neither repeats nor forgets.

    \b
    Examples:
      sickbay respond alert --alertmanager http://alertmanager:9093
      sickbay respond alert --webhook https://alerts.example/sickbay --webhook-secret-file /etc/sickbay/webhook
    """
    wanted = Wanted(alertmanagers, webhook, webhook_secret_file, topic, runbooks)
    _require(wanted)

    async def build(running: Running, stack: AsyncExitStack) -> Act:
        return await build_alert(running, stack, wanted)

    asked = Asked(
        role="alert", policy_path=policy_path, http_host=http_host, http_port=http_port, log_format=log_format
    )
    run_role(asked, build)


def _require(wanted: Wanted) -> None:
    """Raise InputError for what makes no sense together."""
    for url in wanted.alertmanagers:
        target_of("--alertmanager", url)
    if wanted.webhook is not None:
        target_of("--webhook", wanted.webhook)
    if (wanted.webhook is None) != (wanted.secret_file is None):
        raise InputError("--webhook and --webhook-secret-file belong together: what is sent is signed")
    if wanted.webhook is not None and not wanted.topic:
        raise InputError(
            "--webhook needs the topic: without its memory a restart would repeat, and forget what ended"
        )
    if not (wanted.alertmanagers or wanted.topic):
        raise InputError("nobody would be told; name an --alertmanager, or leave --no-topic out")


async def build_alert(running: Running, stack: AsyncExitStack, wanted: Wanted) -> Act:
    """Return the role's act, with its couriers at work. Raises ServiceError, and InputError for an address that is none."""
    policy, clock = running.policy.respond.alerts, running.clock
    session = await stack.enter_async_context(new_session())
    sinks = _sinks(running, session, wanted)
    memory: Memory = NoMemory()
    found: dict[str, Entry] = {}
    if wanted.topic:
        await check_topics(running.settings)
        memory = kept = await stack.enter_async_context(TopicMemory(running.settings, running.metrics))
        found = kept.found
    book = Book(policy, [sink.name for sink in sinks], found)
    couriers = [
        Courier(sink, book, clock, running.metrics, policy.resend_ms, running.decisions.changed.set)
        for sink in sinks
    ]
    running.checks.extend(courier.check for courier in couriers)
    teller = Teller(
        lambda now_ms: plan(running.view, policy, now_ms, runbooks=wanted.runbooks),
        book,
        memory,
        couriers,
        clock,
        running.metrics,
    )
    stack.push_async_callback(teller.close)
    teller.start()
    return teller.act


def _sinks(running: Running, session: aiohttp.ClientSession, wanted: Wanted) -> list[Sink]:
    resend_ms = running.policy.respond.alerts.resend_ms
    sinks: list[Sink] = [Alertmanager(session, url, running.clock, resend_ms) for url in wanted.alertmanagers]
    if wanted.webhook is not None and wanted.secret_file is not None:
        sinks.append(Webhook(session, wanted.webhook, wanted.secret_file, running.clock))
    names = [sink.name for sink in sinks]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name} is named twice")
    return sinks
