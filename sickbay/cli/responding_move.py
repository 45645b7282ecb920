"""``sickbay respond move``: workloads off quarantined devices."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import Any, Final

import click

from responders.keeping import Act
from responders.moves.cluster import Cluster
from responders.moves.hooks import Hooks
from responders.moves.mover import Mover
from sickbay.cli.responding import Asked, Running, cluster_options, respond_options, run_role

_log: Final = logging.getLogger(__name__)


@click.command()
@cluster_options
@respond_options
def move(**options: Any) -> None:
    """Move workloads off quarantined devices: stop and checkpoint hooks, eviction through disruption budgets, the replacement.

    Custody says who is moved and leases each move; what a workload allows is declared by its labels and annotations. It has nothing
    to do unless moves.enabled.

    \b
    Example:
      sickbay respond move --policy policy.yaml --http-port 8080
    """

    async def build(running: Running, stack: AsyncExitStack) -> Act:
        if not running.policy.moves.enabled:
            _log.warning("moves.enabled is false: nobody is moved, and this process has nothing to do")
        hooks = Hooks(running.client)
        stack.push_async_callback(hooks.close)
        mover = Mover(
            Cluster(running.client, running.require_lead),
            hooks,
            running.reports,
            running.view,
            running.policy,
            times=running.clock,
            metrics=running.metrics,
            identity=running.identity,
            require_lead=running.require_lead,
        )
        running.listeners.append(mover.heard)
        stack.push_async_callback(mover.close)
        return mover.act

    run_role(Asked(role="move", cluster=True, **options), build)
