"""The scheduler extender under the clock: ``python bench/extender.py``; docs/benchmarks.md says what the figures mean.

One process serves a fleet, this one asks over one loopback connection as kube-scheduler does: names out, names and sentences back. In
turns with every question it asks a handler of the same server library that reads the same body and does nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from aiohttp import web
from extender_worlds import T0, asking, fleet, node_name

from responders.extender.answers import Answer, Arguments, Judge
from responders.extender.server import BODY_BYTES_MAX, ExtenderServer

GPU: Final = "nvidia.com/gpu"
#: What the issue asks for.
GOAL_MS: Final = 20
_WARM_UP: Final = 20
_START_S: Final = 120
_ASK_S: Final = 30


class _Uncounted:
    def answered(self, outcome: str, seconds: float, nodes: Any) -> None:
        pass


async def _serve(nodes: int, devices: int) -> None:
    known = fleet(nodes, devices)
    judge = Judge(known.holdings, closed=False)

    def decide(asked: Arguments) -> Answer:
        return judge.answer(asked, T0, stale=False)

    async def empty(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=b"{}", content_type="application/json")

    app = web.Application(client_max_size=BODY_BYTES_MAX)
    app.router.add_post("/empty", empty)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with ExtenderServer(decide, _Uncounted(), host="127.0.0.1", port=0) as server:
        print(json.dumps([server.port, runner.addresses[0][1]]), flush=True)
        await asyncio.to_thread(sys.stdin.read)  # until whoever asks has done
    await runner.cleanup()


def _ask(connection: http.client.HTTPConnection, path: str, body: bytes) -> tuple[int, bytes]:
    """Return nanoseconds and the answer."""
    begun = time.perf_counter_ns()
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    data = answer.read()
    passed = time.perf_counter_ns() - begun
    if answer.status != 200:
        raise SystemExit(f"{path} answered {answer.status}: {data[:200]!r}")
    return passed, data


def measure(nodes: int, devices: int, gpus: int, rounds: int) -> dict[str, Any]:
    """Ask so often, and return the figures."""
    body = asking({"cpu": "4", GPU: str(gpus)}, names=[node_name(index) for index in range(nodes)])
    command = [
        sys.executable,
        str(Path(__file__)),
        "--serve",
        "--nodes",
        str(nodes),
        "--devices",
        str(devices),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - this interpreter, this script
        try:
            assert process.stdout is not None
            assert process.stdin is not None
            ports = json.loads(process.stdout.readline())
            asked, empty = (http.client.HTTPConnection("127.0.0.1", port, timeout=_ASK_S) for port in ports)
            took: dict[str, list[int]] = {"filter": [], "empty": []}
            for number in range(rounds + _WARM_UP):
                filtered, data = _ask(asked, "/filter", body)
                nothing, _ = _ask(empty, "/empty", body)
                if number >= _WARM_UP:
                    took["filter"].append(filtered)
                    took["empty"].append(nothing)
            asked.close()
            empty.close()
            process.stdin.close()
            process.wait(_START_S)
        finally:
            process.kill()
    found = json.loads(data)
    return {
        "nodes": nodes,
        "devices": devices,
        "asked": gpus,
        "rounds": rounds,
        "body_bytes": len(body),
        "passed": len(found["NodeNames"]),
        "removed": len(found["FailedAndUnresolvableNodes"]),
        "p50_us": {name: _quantile(times, 50) for name, times in took.items()},
        "p99_us": {name: _quantile(times, 99) for name, times in took.items()},
    }


def _quantile(times: list[int], percent: int) -> int:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] // 1_000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--asked", type=int, default=4, help="devices that the Pod asks for")
    parser.add_argument("--rounds", type=int, default=1_000)
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(_serve(given.nodes, given.devices))
        return
    figures = measure(given.nodes, given.devices, given.asked, given.rounds)
    if given.output == "json":
        print(json.dumps(figures))
        return
    print(
        f"{figures['nodes']} nodes x {figures['devices']} devices, {figures['asked']} asked for: {figures['passed']} pass,"
        f" {figures['removed']} are removed; a body of {figures['body_bytes']} bytes, {figures['rounds']} rounds"
    )
    for name in ("p50_us", "p99_us"):
        filtered, nothing = figures[name]["filter"], figures[name]["empty"]
        print(
            f"{name[:3]}  filter {filtered / 1000:.2f} ms  empty {nothing / 1000:.2f} ms  ratio {filtered / nothing:.1f}"
        )
    met = figures["p99_us"]["filter"] <= GOAL_MS * 1_000
    print(f"{'met' if met else 'NOT MET'}: p99 <= {GOAL_MS} ms ({figures['p99_us']['filter'] / 1000:.2f} ms)")


if __name__ == "__main__":
    main()
