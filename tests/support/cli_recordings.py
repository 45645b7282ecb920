"""Small recordings, written as the sources of design section 10 write them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import zstandard
from cli import EXAMPLES, ROOT, environment, example

RESOURCE = "nvidia.com/gpu"


def pod(name, resource_id, health, version, *, message=None, node="node-1"):
    """A running Pod that reports one plugin device."""
    device = {"resourceID": resource_id, "health": health} | ({} if message is None else {"message": message})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "uid": f"uid-{name}", "resourceVersion": str(version)},
        "spec": {"nodeName": node, "containers": [{"name": "main"}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {"name": "main", "allocatedResourcesStatus": [{"name": RESOURCE, "resources": [device]}]}
            ],
        },
    }


def frame(at, kind, item, resource="pods"):
    """One line of Sickbay's own format; ``at`` is the time within 2026-07-01."""
    return json.dumps({"at": f"2026-07-01T{at}Z", "resource": resource, "type": kind, "object": item})


def write(path, lines):
    """Write lines, text or bytes, and return the path as text."""
    path.write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines))
    return str(path)


def plain(name):
    """An example without its compression."""
    with Path(example(name)).open("rb") as stream:
        return zstandard.ZstdDecompressor().stream_reader(stream).read()


def faulty(path, *more):
    """A recording of one card that turns Unhealthy, with further lines."""
    return write(
        path,
        [
            frame("08:00:00", "ADDED", pod("first", "GPU-1", "Healthy", 1)),
            *more,
            frame("08:05:00", "MODIFIED", pod("first", "GPU-1", "Unhealthy", 9_000)),
            frame("08:06:00", "MODIFIED", pod("first", "GPU-1", "Unhealthy", 9_001)),
        ],
    )


def generated(path, *, nodes, seconds, rate, fault_rate="0.02", seed=7):
    """A recording of load with many faults and late frames; the same arguments give the same one."""
    arguments = [
        *("--nodes", nodes, "--pods-per-node", 4, "--events-per-second", rate, "--duration-s", seconds),
        *("--fault-rate", fault_rate, "--out-of-order", "0.02", "--seed", seed),
    ]
    subprocess.run(
        [sys.executable, EXAMPLES / "generate.py", path, *map(str, arguments)],
        env=environment(PYTHONPATH=str(ROOT)),
        check=True,
        capture_output=True,
        timeout=60,
    )
    return path
