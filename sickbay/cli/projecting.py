"""``sickbay project``: the shell around the projector. Options and the environment in, an exit code out."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack

import click

from projections.consumer import Projector
from projections.engine import Store
from projections.figures import StoreFigures
from projections.places import Place
from sickbay.cli.options import db_option
from sickbay.cli.processes import ended, process_options, run_to_exit
from sickbay.clock import SystemClock
from sickbay.operations.figure_metrics import FigureMetrics
from sickbay.operations.figures import Figures
from sickbay.operations.http import HealthServer, watch_loop
from sickbay.operations.logs import LogFormat
from sickbay.operations.metrics import new_registry
from sickbay.operations.running import Stop
from sickbay.operations.stage_metrics import ProjectMetrics
from sickbay.operations.tracing import setup_tracing
from sickbay.settings import KafkaSettings, kafka_settings


class _Counted:
    """The figures of a store that is opened for each counting: the projector may not have made it yet."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def read(self) -> Figures:
        """Count now. Raises StoreError."""
        with Store.open(self._place, read_only=True) as store:
            return StoreFigures(store).read()


@click.command()
@db_option
@click.option(
    "--group-instance-id",
    default="",
    metavar="NAME",
    help="Name this projector, so that it keeps its partitions over a short restart (a StatefulSet's Pod name, for example).",
)
@process_options
def project(db: Place, http_port: int, http_host: str, group_instance_id: str, log_format: LogFormat) -> None:
    """Write facts and decisions from Kafka into a store, until SIGTERM.

    Where Kafka is stands in the variables SICKBAY_KAFKA_…. Several may run: they share the partitions, and one that was replaced
    writes nothing. The store keeps where to read on, so a projector may be killed at any time.

    \b
    Examples:
      sickbay project --db postgresql://writer@db.example/sickbay --http-port 8081
      SICKBAY_KAFKA_BOOTSTRAP=localhost:9092 sickbay project --db sickbay.db --log-format text
    """
    settings = kafka_settings(os.environ)

    async def main(stop: Stop) -> None:
        await _project(stop, settings, db, (http_host, http_port), group_instance_id)

    run_to_exit(main, log_format)


async def _project(
    stop: Stop, settings: KafkaSettings, db: Place, listen: tuple[str, int], group_instance_id: str
) -> None:
    tracing = setup_tracing("project", os.environ)
    registry, clock = new_registry("project"), SystemClock()
    figures = FigureMetrics(registry, _Counted(db), clock)
    projector = Projector(
        settings,
        db,
        group_instance_id=group_instance_id,
        clock=clock,
        metrics=ProjectMetrics(registry, clock),
    )
    async with AsyncExitStack() as stack:
        if tracing is not None:
            stack.push_async_callback(tracing.close)
        if listen[1]:
            server = HealthServer(
                registry, [projector.ready], [projector.progress], host=listen[0], port=listen[1]
            )
            await stack.enter_async_context(server)
            stack.push_async_callback(ended, asyncio.create_task(figures.keep()))
            stack.push_async_callback(ended, asyncio.create_task(watch_loop()))
        work = asyncio.create_task(projector.run(), name="projector")
        stopping = asyncio.create_task(stop.wait())
        stack.push_async_callback(ended, stopping)
        try:
            await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
            projector.stop()
            await work
        finally:
            await ended(work)
