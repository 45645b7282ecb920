"""``sickbay work``: the shell around a Faust worker. Options and the environment in, an exit code out."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from sickbay.cli.processes import ended, process_options, run_to_exit
from sickbay.cli.refolding import rebuild_snapshots
from sickbay.clock import SystemClock
from sickbay.errors import InputError
from sickbay.kafka import client_arguments, topic_identity
from sickbay.operations.health import Progress, Told
from sickbay.operations.http import HealthServer, watch_loop
from sickbay.operations.logs import LogFormat
from sickbay.operations.metrics import new_registry
from sickbay.operations.running import Stop
from sickbay.operations.stage_metrics import WorkMetrics
from sickbay.operations.topics import check_topics
from sickbay.operations.tracing import setup_tracing
from sickbay.settings import KafkaSettings, kafka_settings
from streams.worker import SNAPSHOT_EVERY_MS

#: How often the worker compares its positions with the ends of the topic.
_LOOK_S: Final = 1.0

_log: Final = logging.getLogger(__name__)


class _Wanted(NamedTuple):
    """What the command line asked for."""

    store: str
    data_dir: Path | None
    rebuild: bool
    snapshot_every_ms: int
    http_host: str
    http_port: int


class _Figures:
    """A worker's counts, as metrics and as progress."""

    def __init__(self, metrics: WorkMetrics, progress: Progress) -> None:
        self._metrics, self._progress = metrics, progress
        self._open: dict[str, int] = {}
        self._held: frozenset[int] = frozenset()
        self._answers: Counter[str] = Counter()
        self._facts: Counter[str] = Counter()
        self._decisions: Counter[str] = Counter()

    def answered(self, outcome: str, facts: Mapping[str, int], decisions: Mapping[str, int]) -> None:
        self._answers[outcome] += 1
        self._facts.update(facts)
        self._decisions.update(decisions)
        self._progress.moved()

    def tell(self) -> None:
        """Bring what was counted since the last time into the metrics: a counter costs more than many records do."""
        facts, decisions = self._facts, self._decisions
        for outcome, records in self._answers.items():
            self._metrics.answered(outcome, facts, decisions, records)
            facts, decisions = Counter(), Counter()  # told with the first
        self._answers.clear()
        self._facts.clear()
        self._decisions.clear()

    def parked(self) -> None:
        self._metrics.parked()

    def decided(self, written_at_ms: int) -> None:
        self._metrics.decided(written_at_ms)

    def moved(self, partition: int, position: int, time_ms: int) -> None:
        self._metrics.positions.moved(partition, position, time_ms)

    def snapshotted(self, partition: int) -> None:
        self._metrics.snapshotted(partition)

    def held(self, positions: Mapping[int, int]) -> None:
        self._metrics.positions.assigned(positions)
        for gone in self._held - positions.keys():
            self._metrics.revoked(gone)
        for new in positions.keys() - self._held:
            self._metrics.snapshotted(new)
        self._held = frozenset(positions)

    def breaker(self, waiting: Mapping[str, int]) -> None:
        for scope in self._open.keys() | waiting.keys():
            if self._open.get(scope) != waiting.get(scope):
                self._metrics.breaker(scope, waiting=waiting.get(scope))
        self._open = dict(waiting)


@click.command()
@click.option(
    "--store",
    type=click.Choice(["memory", "rocksdb"]),
    default="memory",
    show_default=True,
    help="Where recovered state is kept: rocksdb, on disk, needs the extra `rocksdb`.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for rocksdb and for Faust's own files.  [default: sickbay-work, where rocksdb is chosen]",
)
@click.option(
    "--rebuild",
    is_flag=True,
    help="First build every snapshot anew from the log in Kafka, deciding nothing: after an upgrade that says so. No other worker"
    " may run.",
)
@click.option(
    "--snapshot-every-ms",
    type=click.IntRange(100, 3_600_000),
    default=SNAPSHOT_EVERY_MS,
    show_default=True,
    help="Time between two snapshots of a partition: what a kill makes the next worker fold again.",
)
@process_options
def work(
    store: str,
    data_dir: Path | None,
    rebuild: bool,
    snapshot_every_ms: int,
    http_port: int,
    http_host: str,
    log_format: LogFormat,
) -> None:
    """Fold facts from Kafka into decisions, until SIGTERM.

    Where Kafka is stands in the variables SICKBAY_KAFKA_…. Several may run: they share the partitions, and when one is killed
    the others go on from its last snapshot and say the same. State is kept in Kafka; a worker needs no disk of its own.

    \b
    Examples:
      sickbay work --http-port 8080
      SICKBAY_KAFKA_BOOTSTRAP=localhost:9092 sickbay work --log-format text
    """
    settings = kafka_settings(os.environ)
    if store == "rocksdb":
        _require_rocksdb()

    async def main(stop: Stop) -> None:
        await _work(
            stop, settings, _Wanted(store, data_dir, rebuild, snapshot_every_ms, http_host, http_port)
        )

    run_to_exit(main, log_format)


def _require_rocksdb() -> None:
    try:
        import rocksdict  # noqa: F401 - asked for by name
    except ImportError as error:
        raise InputError(
            f"--store rocksdb needs the extra `rocksdb` (pip install 'sickbay[rocksdb]'): {error}"
        ) from error


async def _work(stop: Stop, settings: KafkaSettings, wanted: _Wanted) -> None:
    # Faust costs half a second to import, and no other command needs it
    from streams.app import LiveWorker

    tracing = setup_tracing("work", os.environ)
    registry, clock = new_registry("work"), SystemClock()
    metrics = WorkMetrics(registry, clock)
    progress, ready = Progress("facts"), Told("worker")
    async with AsyncExitStack() as stack:
        if tracing is not None:
            stack.push_async_callback(tracing.close)
        if wanted.http_port:
            server = HealthServer(registry, [ready], [progress], host=wanted.http_host, port=wanted.http_port)
            await stack.enter_async_context(server)
            stack.push_async_callback(ended, asyncio.create_task(watch_loop()))
        await check_topics(settings)
        if wanted.rebuild:
            positions = await rebuild_snapshots(settings)
            _log.info("snapshots are built anew", extra={"positions": str(positions)})
        data_dir = wanted.data_dir or Path("sickbay-work")
        if wanted.store == "memory":  # nothing is kept there, but Faust makes its directories all the same
            data_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sickbay-work-")))
        figures = _Figures(metrics, progress)
        worker = LiveWorker(
            settings,
            figures,
            source=await topic_identity(settings, settings.topics.facts),
            security=_credentials(settings),
            store=f"{wanted.store}://",
            data_dir=data_dir,
            snapshot_every_ms=wanted.snapshot_every_ms,
        )
        if tracing is not None:
            worker.trace()
        stack.push_async_callback(
            ended, asyncio.create_task(_look(worker, figures, metrics, progress, ready))
        )
        await worker.run(stop.wait)


async def _look(
    worker: Any, figures: _Figures, metrics: WorkMetrics, progress: Progress, ready: Told
) -> None:
    """Tell how far the worker is, and whether it is at work at all."""
    while True:
        await asyncio.sleep(_LOOK_S)
        figures.tell()
        if ready.problem() is not None and worker.is_ready:
            _log.info("the worker takes records")
        if not worker.is_ready:
            ready.failed("the state is being recovered, or the group divides its partitions")
            continue
        ready.ready()
        waiting = False
        spans = await worker.spans()
        for partition, (position, end) in spans.items():
            metrics.positions.saw_end(partition, end)
            waiting |= end > position
        if waiting:
            progress.waits()
        elif spans:  # a broker that does not answer says nothing of what waits
            progress.idle()


def _credentials(settings: KafkaSettings) -> Any:
    """Return what Faust calls credentials, ``None`` for plain text. Raises ServiceError for files that cannot be read."""
    from streams.app import credentials

    arguments = client_arguments(settings, "sickbay-work")
    return credentials(arguments)
