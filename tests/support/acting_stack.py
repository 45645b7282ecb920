"""The whole of Sickbay on a real control plane and a real Kafka: ingest, worker, projector and responders as processes.

Each process can be killed and started again. Kubelets are played (``kubelets.py``); what they must do again and again, such as
renewing their Leases, a thread does.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import yaml
from control_plane import ApiError, ControlPlane
from kubelets import Kubelet
from live_processes import Process, eventually, read_topic, run

from sickbay.cloudevents import unpack
from sickbay.codec import open_envelope
from sickbay.facts import Fact

#: Windows that a test can wait for.
QUICK = {
    "unknown": {"window_ms": 20_000, "hold_down_ms": 500, "settle_ms": 1_000},
    "quarantine": {"min_hold_ms": 1_000},
    "staged_return": {"observation_ms": 3_000, "observation_only_ms": 3_000},
}


def merged(*documents: dict[str, Any]) -> dict[str, Any]:
    """Return one document; what comes later counts."""
    out: dict[str, Any] = {}
    for document in documents:
        for key, value in document.items():
            known = out.get(key)
            out[key] = merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return out


class ActingStack:
    """Use it as a context: everything ends with it."""

    def __init__(self, plane: ControlPlane, settings: Any, folder: Path, policy: dict[str, Any]) -> None:
        self.plane, self.api, self.settings, self.folder = plane, plane.admin, settings, folder
        self.policy = folder / "policy.yaml"
        self.policy.write_text(yaml.safe_dump(merged(QUICK, policy)), encoding="utf-8")
        self.db = str(folder / "sickbay.db")
        self.kubeconfig = str(plane.kubeconfig(folder / "kubeconfig"))
        self.kubelets: list[Kubelet] = []
        self.processes: dict[str, Process] = {}
        self._ended = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="leases", daemon=True)
        run(settings, "topics", "apply")
        self.add(
            "ingest",
            "ingest",
            "--policy",
            str(self.policy),
            "--kubeconfig",
            self.kubeconfig,
            "--no-leader-elect",
        )
        self.add("work", "work")
        self.add("project", "project", "--db", self.db)

    def add(self, name: str, *arguments: str) -> Process:
        """Add a process; ``respond`` roles get the policy and the cluster."""
        self.processes[name] = Process(self.settings, self.folder, name, *arguments, "--log-format", "text")
        return self.processes[name]

    def respond(self, role: str, *arguments: str, name: str = "") -> Process:
        """Add a responder that speaks to the cluster."""
        cluster = (
            () if role in ("alert", "extend") else ("--kubeconfig", self.kubeconfig, "--no-leader-elect")
        )
        return self.add(name or role, "respond", role, "--policy", str(self.policy), *cluster, *arguments)

    def __enter__(self) -> Self:
        self._renewing.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._renewing.join(30)
        for process in self.processes.values():
            process.__exit__()

    def start(self) -> None:
        """Start what does not run."""
        for process in self.processes.values():
            if not process.is_running:
                process.start()

    def await_start(self) -> None:
        """Start everything and wait until it is at work."""
        self.start()
        words = {"ingest": "recalled", "work": "takes records", "project": "projecting"}
        for name, process in self.processes.items():
            word = words.get(name, "read what was decided")
            eventually(lambda p=process, w=word: w in p.log_since_start, f"{name} at work", 60, [process])

    def _renew(self) -> None:
        while not self._ended.wait(5.0):
            for kubelet in list(self.kubelets):
                with suppress(ApiError, OSError):
                    kubelet.renew()

    def sickbay(self, *arguments: str) -> str:
        """Run a command on the store and return what it printed."""
        return str(run(self.settings, *arguments, "--db", self.db).stdout)

    def audit(self, name: str, **where: str) -> list[dict[str, Any]]:
        """Return the rows of an audit view, none while the store is not there."""
        done = run(self.settings, "audit", name, "--db", self.db, "--output", "json", check=False)
        if done.returncode:
            return []
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return [row for row in rows if all(row[key] == value for key, value in where.items())]

    def told(self, kind: type[Fact]) -> Iterator[Any]:
        """Yield the facts of a kind, in the order of their partition."""
        for _, records in sorted(read_topic(self.settings, self.settings.topics.facts).items()):
            for record in records:
                for opened in unpack(record.value, record.headers):
                    if opened.envelope.kind == kind.KIND:
                        yield open_envelope(opened.envelope)

    def decided(self, *kinds: str) -> Iterator[Any]:
        """Yield the decisions of these kinds."""
        for _, records in sorted(read_topic(self.settings, self.settings.topics.decisions).items()):
            for record in records:
                for opened in unpack(record.value, record.headers) if record.value else ():
                    if opened.envelope.kind in kinds:
                        yield open_envelope(opened.envelope)

    def alerts(self) -> list[dict[str, str]]:
        """Return the labels of the alerts that stand, as the topic of alerts has them."""
        newest: dict[bytes, Any] = {}
        for records in read_topic(self.settings, self.settings.topics.alerts, partitions=1).values():
            for record in records:
                newest[record.key] = record.value and json.loads(record.value)
        return [notice["labels"] for notice in newest.values() if notice and notice["change"] != "cleared"]
