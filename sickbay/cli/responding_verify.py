"""``sickbay respond verify``: brings the verifier together with what it is given."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import click

from responders.keeping import Act
from sickbay.cli.options import read_policy
from sickbay.cli.responding import Asked, Running, cluster_options, respond_options, run_role
from sickbay.errors import InputError

_log: Final = logging.getLogger(__name__)


@click.command()
@click.option(
    "--templates",
    "templates_path",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The Job templates: probe.yaml, canary.yaml, probe.<driver>.yaml ….  [needed with staged_return.prober: job]",
)
@click.option(
    "--namespace",
    default="sickbay-verification",
    show_default=True,
    help="Where the Jobs and their claims are made.",
)
@cluster_options
@respond_options
def verify(
    templates_path: Path | None,
    namespace: str,
    **options: Any,
) -> None:
    """Run the probe and the canary of a device on its way back, as Jobs of your templates, and report how they ended.

    It has nothing to do unless staged_return.prober is job.

    \b
    Example:
      sickbay respond verify --policy policy.yaml --templates examples/verification
    """
    from responders.verification.namespace import Namespace
    from responders.verification.templates import Templates, read_templates
    from responders.verification.verifier import Verifier

    prober = read_policy(options["policy_path"]).staged_return.prober
    if templates_path is None and prober == "job":
        raise InputError("staged_return.prober is job: give the directory of the templates by --templates")
    templates = (
        Templates() if templates_path is None else read_templates(_texts(templates_path), str(templates_path))
    )

    async def build(running: Running, _: AsyncExitStack) -> Act:
        if prober != "job":
            _log.warning(
                "staged_return.prober is none: no device is verified, and this process has nothing to do"
            )
        verifier = Verifier(
            namespace=Namespace(running.client, namespace, running.settings.prefix),
            templates=templates,
            policy=running.policy.staged_return,
            view=running.view,
            reports=running.reports,
            metrics=running.metrics,
            require_lead=running.require_lead,
            now_ms=running.clock.now_ms,
        )
        return verifier.act

    run_role(Asked(role="verify", cluster=True, **options), build)


def _texts(folder: Path) -> dict[str, str]:
    """Read the files of a directory; a mounted ConfigMap keeps its versions in names that begin with ``..``."""
    try:
        return {
            file.name: file.read_text(encoding="utf-8")
            for file in folder.iterdir()
            if not file.name.startswith("..")
        }
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{folder}: cannot be read: {error}; give a directory with probe.yaml and canary.yaml"
        ) from error
