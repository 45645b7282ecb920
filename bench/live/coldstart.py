"""Many objects: the first list of a cluster to facts that are published and folded, the same list again, and after a restart.

Without services nothing is published, and only the lists are measured.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from report import Goal

from sickbay.clock import SystemClock
from sickbay.settings import KafkaSettings

from .listing import DEVICES, write_pages
from .logs import ends
from .observing import Observed
from .processes_of import Answers, wait_ready, worker_process
from .services import ROOT, Services, environment

#: The goal is for 100,000 objects.
_RELIST_S: Final = 20
_LIMIT_S: Final = 900.0
#: What a relist may add to the memory of the first list, in percent: it holds one resource's list beside the mirror.
_MORE_MEMORY_PERCENT: Final = 50


class ColdStart(msgspec.Struct, frozen=True, kw_only=True):
    """What it came to."""

    devices: int
    objects: int
    cold: Observed
    #: From the start of the listing process to the last answer; 0 without Kafka.
    folded_milliseconds: int = 0
    restart: Observed | None = None


def cold_start(
    services: Services | None, folder: Path, *, nodes: int, say: Callable[[str], None]
) -> tuple[ColdStart, list[Goal]]:
    """Measure it once."""
    objects = sum(write_pages(folder, nodes).values())
    say(f"  {objects} objects are made")
    if services is None:
        result = ColdStart(devices=nodes * DEVICES, objects=objects, cold=_observe("cold", folder, {}))
        return result, _goals(result)
    settings = services.installation()
    worker = worker_process(settings, folder)
    try:
        worker.start()
        wait_ready(worker)
        cold, folded_ms = asyncio.run(_folded(settings, worker, folder))
        worker.stop()
    finally:
        worker.kill()
    say(f"  {cold.kafka_facts} facts are folded after {folded_ms / 1000:.1f} s")
    result = ColdStart(
        devices=nodes * DEVICES,
        objects=objects,
        cold=cold,
        folded_milliseconds=folded_ms,
        restart=_observe("restart", folder, environment(settings)),
    )
    return result, _goals(result)


async def _folded(settings: KafkaSettings, worker: Any, folder: Path) -> tuple[Observed, int]:
    async with Answers(settings) as answers:
        begun_ms = SystemClock().now_ms()
        cold = await asyncio.to_thread(_observe, "cold", folder, environment(settings))
        await answers.until(await ends(settings, settings.topics.facts), _LIMIT_S, worker)
        return cold, answers.last_ms - begun_ms


def _observe(what: str, folder: Path, where: Mapping[str, str]) -> Observed:
    done = subprocess.run(  # noqa: S603 - this interpreter, a module of this tree
        [sys.executable, "-m", "live.observing", what, str(folder)],
        cwd=ROOT / "bench",
        env=dict(where),
        capture_output=True,
        check=False,
        timeout=_LIMIT_S,
    )
    if done.returncode:
        raise SystemExit(f"listing ({what}) failed: {done.stderr.decode(errors='replace')[-4_000:]}")
    return msgspec.json.decode(done.stdout, type=Observed)


def _goals(result: ColdStart) -> list[Goal]:
    first, again = result.cold.listed
    lists = [("in the same process", again)]
    if result.restart is not None:
        lists.append(("after a restart, by what Kafka remembers", result.restart.listed[0]))
    goals = []
    for when, listed in lists:
        seconds = listed.nanoseconds / 1e9
        more = 100 * (listed.peak_bytes - first.peak_bytes) // first.peak_bytes
        goals.append(
            Goal(
                goal=f"relist of {result.objects:,} unchanged objects {when}: 0 facts, <= {_RELIST_S} s, <= {_MORE_MEMORY_PERCENT} %"
                " more memory than the first list",
                reached=f"{listed.facts} facts, {seconds:.1f} s,"
                f" {listed.peak_bytes >> 20} MiB after {first.peak_bytes >> 20} MiB",
                met=not listed.facts and seconds <= _RELIST_S and more <= _MORE_MEMORY_PERCENT,
            )
        )
    return goals
