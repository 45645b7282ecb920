"""``sickbay doctor``: what is there, what will be missing, and what to do about it; nothing is changed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from ingest.capabilities import Finding
from sickbay.cli import output
from sickbay.cli.embedded import context_option, kubeconfig_option
from sickbay.cli.options import StorePlace
from sickbay.errors import ServiceError, StoreError
from sickbay.operations.topics import compare_topics
from sickbay.settings import kafka_settings

if TYPE_CHECKING:
    from projections.places import Place

_COLUMNS = ("what", "name", "state", "found", "means")


@click.command()
@kubeconfig_option
@context_option
@click.option(
    "--lease-namespace",
    default="",
    help="Ask also for what the election of `ingest` needs in this namespace.",
)
@click.option(
    "--kafka/--no-kafka",
    default=None,
    help="Compare the topics.  [default: where SICKBAY_KAFKA_BOOTSTRAP is set]",
)
@click.option("--db", "place", type=StorePlace(), help="Look at the schema of this store too.")
@output.output_option
def doctor(
    kubeconfig: str | None,
    context: str | None,
    lease_namespace: str,
    kafka: bool | None,
    place: Place | None,
    form: str,
) -> None:
    """Say what the cluster, Kafka and the store have, what will be missing without the rest, and what to do.

    Versions of Kubernetes and of its APIs, feature gates of the API server, what the kubelets declare, what this user may do and
    what it had better not, the topics, the schema. A gate of the scheduler or of a kubelet may differ from the API server's; no
    API tells. The exit code is 7 when the cluster or Kafka lacks what is needed, 5 when only the store does.

    \b
    Examples:
      sickbay doctor
      sickbay doctor --lease-namespace sickbay --db postgresql://projector@db.example/sickbay --output json
    """
    findings = asyncio.run(_cluster(kubeconfig, context, lease_namespace))
    if kafka if kafka is not None else "SICKBAY_KAFKA_BOOTSTRAP" in os.environ:
        findings += _topics()
    if place is not None:
        findings.append(_store(place))
    output.print_rows(_COLUMNS, findings, form)
    failed = [finding for finding in findings if finding.state == "failed"]
    if failed:
        error = StoreError if all(finding.what == "store" for finding in failed) else ServiceError
        raise error(
            f"{len(failed)} of what is needed is not there; the lines that say failed name the remedy"
        )


async def _cluster(kubeconfig: str | None, context: str | None, lease_namespace: str) -> list[Finding]:
    from ingest.examining import examine
    from sickbay.cluster.client import ApiClient

    try:
        client = await ApiClient.connect(kubeconfig, context)
        try:
            return await examine(client, lease_namespace)
        finally:
            await client.close()
    except ServiceError as error:
        return [Finding("version", "kubernetes", "failed", "not to be had", str(error))]


def _topics() -> Iterator[Finding]:
    try:
        compared = asyncio.run(compare_topics(kafka_settings(os.environ)))
    except ServiceError as error:
        yield Finding("topic", "all", "failed", "not to be had", str(error))
        return
    for each in compared:
        if not each.is_right:
            means = f"must be {each.wanted}; `sickbay topics check` says what to do"
            yield Finding("topic", f"{each.topic}: {each.setting}", "failed", each.found, means)
    if all(each.is_right for each in compared):
        yield Finding("topic", "all", "ok", f"{len({each.topic for each in compared})} as they must be")


def _store(place: Place) -> Finding:
    from projections import schema

    try:
        schema.check(place)
    except StoreError as error:
        return Finding("store", str(place), "failed", "cannot be used", str(error))
    return Finding("store", str(place), "ok", f"schema {schema.HEAD}, as this build needs it")
