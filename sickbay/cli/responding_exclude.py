"""``sickbay respond exclude``: device taint rules, by policy."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import Any, Final

import click

from responders.exclusion.excluder import Excluder
from responders.keeping import Act
from sickbay.cli.responding import Asked, Running, cluster_options, respond_options, run_role

_log: Final = logging.getLogger(__name__)


@click.command()
@cluster_options
@respond_options
def exclude(**options: Any) -> None:
    """Keep new work off DRA devices by DeviceTaintRules, one for each device that takes no new work.

    By default (respond.exclusion.mode: observe) the rules have the effect None, which is a dry run. A rule with the annotation
    sickbay.dev/override is left to the person who set it.

    \b
    Example:
      sickbay respond exclude --policy policy.yaml --http-port 8080
    """

    async def build(running: Running, _stack: AsyncExitStack) -> Act:
        mode = running.policy.respond.exclusion.mode
        _log.info(
            "taint rules by policy",
            extra={"mode": mode, "rules": len(running.policy.respond.exclusion.rules)},
        )
        excluder = Excluder(
            running.client,
            running.reports,
            running.view,
            running.policy,
            installation=running.settings.prefix,
            times=running.clock,
            metrics=running.metrics,
            require_lead=running.require_lead,
        )
        return excluder.act

    run_role(Asked(role="exclude", cluster=True, **options), build)
