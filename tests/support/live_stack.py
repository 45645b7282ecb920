"""The whole live path for tests: a fake cluster that changes, Kafka, PostgreSQL, and the processes between them.

The fake API server runs in a thread of its own, so that the test may wait and kill. Afterwards ``settle`` waits until everything
is level, and ``agree`` proves what must hold: nothing lost, nothing twice, and one truth in topics, store and workers.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import psycopg
from fake_apiserver import FakeApiServer, FakeCluster
from live_processes import Process, answers_and_ends, eventually, read_topic, run

from ingest.diff import Mirror
from ingest.frames import Frame
from projections.engine import Store
from sickbay.cloudevents import unpack
from sickbay.codec import open_envelope
from sickbay.facts import Fact, PodGone, PodObserved
from sickbay.policy import ReadingPolicy

PLUGIN = "nvidia.com/gpu"
HEALTHS = ("Healthy", "Healthy", "Healthy", "Unhealthy", "Unknown")


def node(name):
    return {
        "metadata": {"name": name},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "capacity": {"cpu": "8", PLUGIN: "2"},
            "allocatable": {"cpu": "8", PLUGIN: "2"},
        },
    }


def pod(name, on, healths):
    devices = [{"resourceID": f"{on}-GPU-{index}", "health": health} for index, health in enumerate(healths)]
    return {
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {"nodeName": on, "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {"name": "main", "allocatedResourcesStatus": [{"name": PLUGIN, "resources": devices}]}
            ],
        },
    }


class World:
    """A fake cluster behind HTTP that a test changes step by step."""

    def __init__(self, folder, nodes=8, seed=1):
        self.draw = random.Random(seed)  # noqa: S311 - a fixed world
        self.cluster = FakeCluster()
        self.names = [f"n{index}" for index in range(nodes)]
        self.pods = {}
        self._made = 0
        for name in self.names:
            self.cluster.put("nodes", node(name))
            self._new_pod(name)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.server = FakeApiServer(self.cluster)
        self.server.bookmark_s = 1.0
        self._call(self.server.__aenter__())
        self.kubeconfig = self.server.kubeconfig(Path(folder) / "kubeconfig")

    def _call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def close(self):
        self._call(self.server.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _new_pod(self, on):
        self._made += 1
        name = f"p{self._made}"
        self.pods[name] = on
        self.cluster.put("pods", pod(name, on, ["Healthy", "Healthy"]))

    def step(self):
        """Change one thing: a health word mostly, a Pod that ends and another that comes, a compaction now and then."""

        async def change():
            name = self.draw.choice(sorted(self.pods))
            on = self.pods[name]
            kind = self.draw.random()
            if kind < 0.8:
                self.cluster.put("pods", pod(name, on, [self.draw.choice(HEALTHS) for _ in range(2)]))
            elif kind < 0.95:
                self.cluster.delete("pods", name, "ml")
                del self.pods[name]
                self._new_pod(on)
            else:
                self.cluster.compact(keep=3)

        self._call(change())

    def truth(self):
        """Return what a mirror that was never away says of the world as it is: subject to content."""

        async def lists():
            return {r: list(self.cluster.objects(r).values()) for r in ("nodes", "pods")}

        mirror, told = Mirror(ReadingPolicy(), 1), []
        for resource, items in self._call(lists()).items():
            frame = Frame(
                at_ms=1,
                resource=resource,
                type="LIST",
                object={"metadata": {"resourceVersion": "999999"}, "items": items},
                place="world",
            )
            told += mirror.apply(frame)
        return newest(told)


def _subject(fact):
    return (fact.node, fact.subject, getattr(fact, "pod_uid", ""))


def newest(facts):
    """Return subject to the content of its newest fact, of what lives."""
    found = {}
    for fact in facts:
        if getattr(fact, "partition", None) is not None or fact.resource not in ("pods", "nodes"):
            continue
        key = _subject(fact)
        if key not in found or (found[key].epoch, found[key].rv) <= (fact.epoch, fact.rv):
            found[key] = fact
    return {
        key: _content(fact)
        for key, fact in found.items()
        if not isinstance(fact, PodGone)
        and getattr(fact, "live", True)
        and not type(fact).__name__.endswith("Gone")
    }


def _content(fact):
    content = json.loads(json.dumps(fact.__class__.__name__))
    fields = {
        f: getattr(fact, f) for f in fact.__struct_fields__ if f not in ("observed_at_ms", "epoch", "rv")
    }
    return content, repr(sorted(fields.items(), key=lambda item: item[0]))


class Stack:
    """Ingest, two workers and a projector on a Kafka and a store."""

    def __init__(self, settings, world, folder, db, workers=2, recording=None):
        self.settings, self.world, self.db = settings, world, str(db)
        text = ("--log-format", "text")
        make = lambda name, *arguments: Process(settings, folder, name, *arguments, *text)  # noqa: E731
        if recording is None:
            source = ("--kubeconfig", str(world.kubeconfig), "--no-leader-elect")
        else:  # four hours in twenty seconds
            source = ("--from-recording", str(recording), "--speed", "720")
        self.ingest = make("ingest", "ingest", *source)
        self.workers = [make(f"work-{n}", "work", "--snapshot-every-ms", "500") for n in range(workers)]
        self.project = make("project", "project", "--db", self.db)
        self.processes = [self.ingest, *self.workers, self.project]
        run(settings, "topics", "apply")

    def start(self):
        for process in self.processes:
            process.start()
        return self

    def revive(self):
        """Start again what has ended, as whoever keeps processes running does."""
        for process in self.processes:
            if not process.is_running:
                process.start()

    def close(self):
        for process in self.processes:
            process.__exit__()

    def told(self):
        """Return every fact in Kafka, by partition and order."""
        return [
            event
            for _, records in sorted(read_topic(self.settings, self.settings.topics.facts).items())
            for record in records
            for opened in unpack(record.value, record.headers)
            if isinstance(event := open_envelope(opened.envelope), Fact)
        ]

    def is_level(self):
        """Whether everything in the facts topic is answered and merged into the store."""
        stored = self.positions()
        answered, ends = answers_and_ends(self.settings)
        return all(min(answered[n], stored[n]) >= end for n, end in ends.items())

    def positions(self):
        """Return partition to the offset of the next facts record that the store merges; none while it is not there."""
        query = "SELECT partition_number, next_offset FROM source_position WHERE topic = 'facts'"
        try:
            if self.db.startswith("postgresql"):
                with psycopg.connect(
                    self.db, options="-c search_path=sickbay", connect_timeout=5
                ) as connection:
                    found = dict(connection.execute(query).fetchall())
            else:
                with closing(sqlite3.connect(f"file:{self.db}?mode=ro", uri=True, timeout=5)) as connection:
                    found = dict(connection.execute(query).fetchall())
        except (psycopg.Error, sqlite3.Error):
            found = {}
        return {n: found.get(n, -1) for n in range(self.settings.partitions)}

    def settle(self, wait_s=120):
        """Wait until everything that was seen is told, answered and in the store; ticks go on meanwhile."""
        self.revive()
        truth = self.world.truth()

        def told():
            self.revive()
            return newest(self.told()) == truth

        eventually(told, "a log that says what the world is", wait_s)
        eventually(lambda: "recalled" in self.ingest.log_since_start, "an ingester at work", wait_s)
        assert self.ingest.stop() == 0, self.ingest.log[-3000:]
        self.become_level(wait_s)

    def become_level(self, wait_s=120):
        """Wait until all that is told is answered and in the store."""

        def level():
            for process in (*self.workers, self.project):
                if not process.is_running:
                    process.start()
            return self.is_level()

        eventually(level, "a store that holds what the topics hold", wait_s)

    def stop(self):
        """End workers and projector in good order."""
        for process in (*self.workers, self.project):
            if process.is_running:
                time.sleep(0.1)
        eventually(
            lambda: all("takes records" in w.log_since_start for w in self.workers), "workers at work", 60
        )
        # one that was started just now and found all of it done has no ear for a signal yet
        eventually(
            lambda: "projecting the partitions" in self.project.log_since_start, "a projector at work", 60
        )
        codes = {process.name: process.stop() for process in (*self.workers, self.project)}
        assert set(codes.values()) == {0}, codes

    def agree(self):
        """Prove that topics, store and workers hold one truth, and that no decision was made twice."""
        proved = run(self.settings, "verify", "--live", "--db", self.db, "--output", "json", check=False)
        assert proved.returncode == 0, proved.stderr
        result = json.loads(proved.stdout)
        # a worker that stops while the group divides its partitions has none to write a snapshot of
        assert any(
            re.match(r"workers: [1-9]\d* snapshots of \d+ partitions", line) for line in result["live"]
        ), result
        with Store.open(self.db, read_only=True) as store:
            ids = [
                (number, record.envelope.event_id)
                for number in store.positions()
                for record in store.read(number)
            ]
            pods = [
                record
                for number in store.positions()
                for record in store.read(number)
                if record.envelope.kind == PodObserved.KIND
            ]
        assert len(ids) == len(set(ids))
        assert pods
        return result
