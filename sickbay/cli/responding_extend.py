"""``sickbay respond extend``: the scheduler extender. What it needs of topics, clock and files is brought together here."""

from __future__ import annotations

import asyncio
import gc
import logging
from contextlib import AsyncExitStack
from typing import Final

import click

from ingest.kafka_recall import recall_partitions
from responders.extender.answers import Answer, Arguments, Judge
from responders.extender.following import Facts, Recalled
from responders.extender.freshness import Freshness
from responders.extender.holdings import DECISION_KINDS, FACT_KINDS, Holdings
from responders.extender.server import Certificate, ExtenderServer
from responders.keeping import Act
from sickbay.cli.processes import ended
from sickbay.cli.responding import LEVEL_KINDS, Asked, Running, respond_options, run_role
from sickbay.errors import InputError
from sickbay.facts import Fact, Tick
from sickbay.operations.extend_metrics import ExtendMetrics
from sickbay.operations.http import HOST_DEFAULT
from sickbay.operations.logs import LogFormat
from sickbay.settings import KafkaSettings

#: The port that is listened on unless another is given.
PORT_DEFAULT: Final = 8888

_log: Final = logging.getLogger(__name__)


@click.command()
@respond_options
@click.option(
    "--listen-host",
    default=HOST_DEFAULT,
    show_default=True,
    metavar="ADDRESS",
    help="Where kube-scheduler asks; in a Pod 0.0.0.0.",
)
@click.option(
    "--listen-port",
    type=click.IntRange(0, 65_535),
    default=PORT_DEFAULT,
    show_default=True,
    metavar="PORT",
    help="The port of POST /filter; 0 takes any free one, which the log names.",
)
@click.option(
    "--tls-cert-file",
    type=click.Path(dir_okay=False),
    help="Certificate chain (PEM) for https; renewed files are taken up.",
)
@click.option("--tls-key-file", type=click.Path(dir_okay=False), help="Key (PEM) of the certificate.")
def extend(
    policy_path: str | None,
    listen_host: str,
    listen_port: int,
    tls_cert_file: str | None,
    tls_key_file: str | None,
    log_format: LogFormat,
    http_host: str,
    http_port: int,
) -> None:
    """Answer kube-scheduler which nodes a Pod may go to: an HTTP scheduler extender.

    It removes nodes whose fit devices are fewer than asked, whose ledger is on hold, or whose exact free amount is too small,
    and says why in the Pod's events. The policy (respond.extender) says where that is enforced; by default it is only counted.
    It needs no permission in the cluster, and several may serve at once.

    \b
    Examples:
      sickbay respond extend --policy policy.yaml --http-port 8080
      sickbay respond extend --listen-host 0.0.0.0 --tls-cert-file tls.crt --tls-key-file tls.key
    """
    if (tls_cert_file is None) != (tls_key_file is None):
        raise InputError("--tls-cert-file and --tls-key-file belong together; give both or none")
    certificate = (
        Certificate(tls_cert_file, tls_key_file)
        if tls_cert_file is not None and tls_key_file is not None
        else None
    )

    async def build(running: Running, stack: AsyncExitStack) -> Act:
        return await _build(running, stack, listen_host, listen_port, certificate)

    asked = Asked(
        role="extend",
        policy_path=policy_path,
        http_host=http_host,
        http_port=http_port,
        log_format=log_format,
        kinds=LEVEL_KINDS | DECISION_KINDS,
    )
    run_role(asked, build)


async def _build(
    running: Running, stack: AsyncExitStack, host: str, port: int, certificate: Certificate | None
) -> Act:
    rules, decisions, clock = running.policy.respond.extender, running.decisions, running.clock
    holdings = Holdings(running.view, running.policy)
    freshness = Freshness(running.settings.partitions)
    running.listeners.append(lambda _, decision: holdings.fold_decision(decision))

    def fold(partition: int, offset: int, fact: Fact) -> None:
        if isinstance(fact, Tick):
            freshness.ticked(partition, offset, fact.observed_at_ms)
        else:
            holdings.fold_fact(fact)

    facts = Facts(
        running.settings,
        lambda: _recall(running.settings),
        fold,
        FACT_KINDS,
        lambda: running.metrics.done("read", "refused"),
    )

    def caught_up() -> bool:
        return decisions.caught_up.is_set() and facts.caught_up.is_set()

    def behind_ms() -> int | None:
        known_ms = freshness.known_ms(decisions.answered)
        return None if known_ms is None else max(0, clock.now_ms() - known_ms)

    def is_stale() -> bool:
        behind = behind_ms()
        return not caught_up() or behind is None or behind > rules.stale_after_ms

    judge = Judge(holdings, closed=rules.when_stale == "closed")

    def decide(asked: Arguments) -> Answer:
        return judge.answer(asked, clock.now_ms(), stale=is_stale(), caught_up=caught_up())

    following = asyncio.create_task(facts.run(), name="facts")
    stack.push_async_callback(ended, following)
    running.checks.append(facts.ready)
    figures = ExtendMetrics(running.registry, behind_ms, is_stale)
    server = ExtenderServer(decide, figures, host=host, port=port, certificate=certificate)
    await stack.enter_async_context(server)
    was_stale, is_frozen = True, False

    async def act() -> float | None:
        nonlocal was_stale, is_frozen
        if caught_up() and not is_frozen:
            # what was read stays: the collector need not go through it again while somebody waits for an answer
            gc.collect()
            gc.freeze()
            is_frozen = True
        if following.done():
            following.result()  # it ends by an error of the program alone
        if certificate is not None:
            try:
                certificate.refresh()
            except InputError as error:
                _log.warning("the certificate that was loaded is served on: %s", error)
        if is_stale() != was_stale:
            was_stale = not was_stale
            _log.warning("answers are by when_stale" if was_stale else "answers are by what is known")
        return None

    return act


async def _recall(settings: KafkaSettings) -> dict[int, Recalled]:
    """Return the newest fact of each subject, by partition, and where to go on. Raises ServiceError."""
    memories = await recall_partitions(settings)
    return {
        number: Recalled(
            events=[entry.noted.data for entry in memory.entries.values()],
            until=memory.covered.until,
            epoch=memory.covered.epoch,
        )
        for number, memory in memories.items()
    }
