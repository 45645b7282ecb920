"""``sickbay respond``: the shell around every responder. What a role needs is brought together here; what it does is its own.

A role reads the decisions, acts through its own least permissions, and reports what it did as facts. It acts only while it leads,
where several run, and only once it has read all that was decided before.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from prometheus_client import CollectorRegistry

from responders.keeping import Act, keep
from responders.reading import Decisions
from responders.reporting import KafkaReports
from responders.view import View
from sickbay.cli.embedded import context_option, kubeconfig_option
from sickbay.cli.options import policy_option, read_policy
from sickbay.cli.processes import ended, own_namespace, process_options, run_to_exit
from sickbay.cluster.leading import Elector
from sickbay.cluster.lease_api import ApiLeases
from sickbay.decisions import DECISIONS, Decision
from sickbay.envelope import Envelope
from sickbay.operations.health import Check, Told
from sickbay.operations.http import HealthServer, watch_loop
from sickbay.operations.live_clock import LiveClock, elapsed_ns
from sickbay.operations.logs import LogFormat
from sickbay.operations.metrics import new_registry
from sickbay.operations.respond_metrics import RespondMetrics
from sickbay.operations.running import Stop
from sickbay.operations.tracing import setup_tracing
from sickbay.policy import Policy
from sickbay.settings import KafkaSettings, kafka_settings

if TYPE_CHECKING:
    from sickbay.cluster.client import ApiClient

F = TypeVar("F", bound=Callable[..., Any])

#: Kinds that the level of devices, incidents, breakers, alerts, moves and verdicts is made of: all but the ledger's entries.
LEVEL_KINDS: Final = frozenset(
    decision.KIND for decision in DECISIONS
) - {"entry_posted", "entry_reversed", "duplicate_refused", "duplicate_withdrawn", "drift_found", "drift_cleared", "census_taken"}  # fmt: skip

_ROLES: Final = {
    "alert": "responding_alert:alert",
    "exclude": "responding_exclude:exclude",
    "extend": "responding_extend:extend",
    "verify": "responding_verify:verify",
    "move": "responding_move:move",
}

_lease_options = (
    click.option(
        "--leader-elect/--no-leader-elect",
        default=True,
        show_default=True,
        help="Take turns with other replicas by a Lease; without it nobody else may act.",
    ),
    click.option(
        "--lease-namespace", help="Namespace of the Lease.  [default: that of this process, else default]"
    ),
)


class _Roles(click.Group):
    """Roles are imported when they are named: each needs other libraries."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_ROLES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ROLES:
            return None
        module, _, name = _ROLES[cmd_name].partition(":")
        command = getattr(__import__(f"sickbay.cli.{module}", fromlist=[name]), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Roles)
def respond() -> None:
    """Act on decisions: alerts, exclusion from scheduling, verified return, moves. Each is a process with its own permissions.

    What is switched on stands in the policy (respond, staged_return and moves); by default nothing has an effect on the cluster.
    What was done is reported as facts. Where Kafka is stands in the variables SICKBAY_KAFKA_….
    """


def respond_options(command: F) -> F:
    """Give a role what every one takes: ``policy_path`` and the options of a process."""
    return policy_option(process_options(command))


def cluster_options(command: F) -> F:
    """Give a role what one takes that speaks to the API server: kubeconfig, context and the Lease of its election."""
    for option in reversed(_lease_options):
        command = option(command)
    return kubeconfig_option(context_option(command))


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line asked for."""

    #: ``alert``, ``exclude``, ``extend``, ``verify`` or ``move``.
    role: str
    policy_path: str | None
    http_host: str
    http_port: int
    log_format: LogFormat
    #: Whether the role speaks to the API server, and how.
    cluster: bool = False
    kubeconfig: str | None = None
    context: str | None = None
    leader_elect: bool = False
    lease_namespace: str | None = None
    kinds: frozenset[str] = LEVEL_KINDS


@dataclass(slots=True, kw_only=True)
class Running:
    """What a role is given to work with."""

    settings: KafkaSettings
    policy: Policy
    view: View
    decisions: Decisions
    reports: KafkaReports
    clock: LiveClock
    metrics: RespondMetrics
    registry: CollectorRegistry
    stop: Stop
    #: Unlike that of every other process.
    identity: str
    elector: Elector | None
    api: ApiClient | None
    #: Added to by the role: reasons not to be ready.
    checks: list[Check] = field(default_factory=list)
    #: Called with every decision after the view took it in.
    listeners: list[Callable[[Envelope, Decision], None]] = field(default_factory=list)

    @property
    def client(self) -> ApiClient:
        """The connection to the API server, of a role that asked for one."""
        assert self.api is not None
        return self.api

    def require_lead(self) -> None:
        """Raise ServiceError unless this process may act now; asked before every write."""
        if self.elector is not None:
            self.elector.require()


#: Makes the role's act out of what it is given; what it opens belongs on the stack.
Build = Callable[[Running, AsyncExitStack], Coroutine[Any, Any, Act]]


def run_role(asked: Asked, build: Build) -> None:
    """Run a role until SIGTERM, and exit with the code of what happened."""
    settings = kafka_settings(os.environ)
    policy = read_policy(asked.policy_path)

    async def main(stop: Stop) -> None:
        async with _running(asked, settings, policy, stop) as running:
            await _run(asked, running, build)

    run_to_exit(main, asked.log_format)


@asynccontextmanager
async def _running(
    asked: Asked, settings: KafkaSettings, policy: Policy, stop: Stop
) -> AsyncIterator[Running]:
    tracing = setup_tracing(f"respond-{asked.role}", os.environ)
    registry, clock, view = new_registry(f"respond-{asked.role}"), LiveClock(), View()
    metrics = RespondMetrics(registry)
    identity = f"{socket.gethostname()}_{os.getpid()}_{elapsed_ns():x}"
    listeners: list[Callable[[Envelope, Decision], None]] = []

    def fold(envelope: Envelope, decision: Decision) -> None:
        view.fold(decision)
        for listener in listeners:
            listener(envelope, decision)

    async with AsyncExitStack() as stack:
        if tracing is not None:
            stack.push_async_callback(tracing.close)
        api = None
        if asked.cluster:
            from sickbay.cluster.client import (
                ApiClient,  # it takes a second, and a role without a cluster needs none
            )

            api = await ApiClient.connect(asked.kubeconfig, asked.context)
            stack.push_async_callback(api.close)
        elector = None
        if api is not None and asked.leader_elect:
            leases = ApiLeases(api, own_namespace(asked.lease_namespace), f"sickbay-respond-{asked.role}")
            elector = Elector(leases, identity, times=clock)
        yield Running(
            settings=settings,
            policy=policy,
            view=view,
            decisions=Decisions(settings, fold, asked.kinds, lambda: metrics.done("read", "refused")),
            reports=await stack.enter_async_context(KafkaReports(settings)),
            clock=clock,
            metrics=metrics,
            registry=registry,
            stop=stop,
            identity=identity,
            elector=elector,
            api=api,
            listeners=listeners,
        )


async def _run(asked: Asked, running: Running, build: Build) -> None:
    acting = Told("act", "it has not looked yet")
    async with AsyncExitStack() as stack:
        act = await build(running, stack)
        checks: Sequence[Check] = [running.decisions.ready, acting, *running.checks]
        if asked.http_port:
            server = HealthServer(
                running.registry,
                checks,
                [running.decisions.progress],
                host=asked.http_host,
                port=asked.http_port,
            )
            await stack.enter_async_context(server)
            stack.push_async_callback(ended, asyncio.create_task(watch_loop()))
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(running.decisions.run(), name="decisions")
            try:
                await _lead_and_keep(running, act, acting, group)
            finally:
                reading.cancel()


async def _lead_and_keep(running: Running, act: Act, acting: Told, group: asyncio.TaskGroup) -> None:
    elector, stop = running.elector, running.stop
    if elector is None:
        running.metrics.leads(leading=True)
        await keep(running.decisions, act, stop, acting)
        return
    acting.ready()  # to take over
    acquiring = asyncio.ensure_future(elector.acquire())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({acquiring, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not acquiring.done():
            return
        acquiring.result()
    finally:
        await ended(acquiring)
        await ended(stopping)
    running.metrics.leads(leading=True)
    keeping = group.create_task(elector.keep(), name="lease")
    try:
        await keep(running.decisions, act, stop, acting)
        await elector.release()
    finally:
        running.metrics.leads(leading=False)
        keeping.cancel()
