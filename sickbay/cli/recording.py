"""``sickbay record``: write down what a live cluster says, so that it can be replayed.

Only what the watch keeps is written (``ingest.pruning``): no environment, no arguments, no foreign annotations of Pods.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import click

from ingest.frames import Frame
from ingest.recording_writer import RecordingWriter
from sickbay.cli import output
from sickbay.cli.replaying import EXIT_PARKED

if TYPE_CHECKING:
    # the client of Kubernetes takes a second to import, and help must not wait for it
    from ingest.watching import Watch

#: How often the file is brought up to date, and what the watch meets is told.
_FLUSH_S: Final = 5
_DURATION: Final = re.compile(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?")


class _Duration(click.ParamType):
    """A duration as 90s, 10m or 1h30m, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the duration; a wrong one is a usage error."""
        if isinstance(value, int):
            return value
        found = _DURATION.fullmatch(value)
        hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0, 0, 0)
        whole = hours * 3600 + minutes * 60 + seconds
        if not whole:
            self.fail(f"{value!r} is no duration; write 90s, 10m or 1h30m", param, ctx)
        return whole


@click.command()
@click.option(
    "--output-file",
    "path",
    required=True,
    type=click.Path(dir_okay=False),
    help="Where to write; .gz and .zst are compressed. An existing file is replaced.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False),
    envvar="KUBECONFIG",
    help="How to reach the cluster; else the cluster that this runs in, else the user's own.  [env: KUBECONFIG]",
)
@click.option("--context", "kube_context", help="The context of the kubeconfig; its current one without it.")
@click.option(
    "--for",
    "seconds",
    type=_Duration(),
    metavar="DURATION",
    help="Stop after 90s, 10m or 1h30m; else at Ctrl-C.",
)
def record(path: str, kubeconfig: str | None, kube_context: str | None, seconds: int | None) -> None:
    """Record what a cluster says of its accelerators: Pods, ResourceSlices, claims, Nodes and node Leases.

    Of Pods only what Sickbay reads is written: no environment, arguments, images or foreign annotations. It only reads, and
    needs get, list and watch on these resources.

    \b
    Examples:
      sickbay record --for 10m --output-file incident.jsonl.zst
      sickbay record --context prod --output-file incident.jsonl
    """
    recorder = _Recorder(path)
    try:
        asyncio.run(recorder.run(kubeconfig, kube_context, seconds))
    finally:
        recorder.close()
    counts = ", ".join(f"{count} of {resource}" for resource, count in sorted(recorder.counts.items()))
    output.line(f"{path}: {sum(recorder.counts.values())} frames{': ' if counts else ''}{counts}")
    if recorder.parked or recorder.unheard:
        raise SystemExit(EXIT_PARKED)


class _Recorder:
    """Writes what a watch says."""

    def __init__(self, path: str) -> None:
        self._writer = RecordingWriter(path)
        self._last_ms = 0
        self._told: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.parked = 0
        #: Resources that said nothing at all.
        self.unheard: tuple[str, ...] = ()

    def close(self) -> None:
        self._writer.close()

    async def run(self, kubeconfig: str | None, context: str | None, seconds: int | None) -> None:
        """Record until the time is over or a signal comes. Raises ServiceError and RecordingError."""
        from ingest.watching import SystemWatchClock, Watch
        from sickbay.cluster.client import ApiClient

        clock = SystemWatchClock()
        client = await ApiClient.connect(kubeconfig, context)
        output.note(f"recording {client.host}; Ctrl-C ends it")
        watch = Watch(client, clock)
        jobs = [
            asyncio.create_task(job)
            for job in (self._write(watch), self._look(watch), _until_stopped(seconds))
        ]
        try:
            done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            for job in done:
                job.result()
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
            await client.close()
        # until when it was watched, even where nothing happened
        self._writer.write(self._time(clock.now_ms()), "", "TICK")
        self._tell(watch)
        self.unheard = tuple(resource for resource, status in watch.status().items() if status.age_ms is None)
        if self.unheard:
            output.note(f"nothing was heard of {', '.join(self.unheard)}")

    async def _write(self, watch: Watch) -> None:
        async for item in watch.frames():
            if isinstance(item, Frame):
                self._writer.write(self._time(item.at_ms), item.resource, item.type, item.object)
                self.counts[item.resource] += 1
            else:
                self.parked += 1
                output.note(f"{item.place}: parked: {item.reason}")

    def _time(self, at_ms: int) -> int:
        """Return a time to write; one that stepped back, as clocks do, is held at the newest."""
        self._last_ms = max(self._last_ms, at_ms)
        return self._last_ms

    async def _look(self, watch: Watch) -> None:
        while True:
            await asyncio.sleep(_FLUSH_S)
            self._writer.flush()
            self._tell(watch)

    def _tell(self, watch: Watch) -> None:
        """Say what the watch meets, when it is something else than before."""
        for resource, status in watch.status().items():
            told = f"{status.state}: {status.reason}" if status.reason else ""
            if self._told.get(resource, "") != told:
                self._told[resource] = told
                output.note(f"{resource}: {told or status.state}")


async def _until_stopped(seconds: int | None) -> None:
    """Return after so many seconds, or at the first signal to stop."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    try:
        async with asyncio.timeout(seconds):
            await stopped.wait()
    except TimeoutError:
        return
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
