"""``sickbay run --embedded`` on a cluster: killed, the cluster goes on without it, and started again it tells what is gone."""

import asyncio
import json
import signal
import sqlite3
import time
from contextlib import asynccontextmanager, closing
from urllib.request import urlopen

from cli import run, start
from fake_apiserver import FakeApiServer, FakeCluster, Refuse
from ports import free_port

PLUGIN = "nvidia.com/gpu"


def node(number):
    return {
        "metadata": {"name": f"n{number}"},
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]},
    }


def pod(number, health="Healthy"):
    device = {"resourceID": f"GPU-{number}", "health": health}
    return {
        "metadata": {"name": f"p{number}", "namespace": "ml"},
        "spec": {"nodeName": f"n{number}", "containers": [{"name": "main"}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {"name": "main", "allocatedResourcesStatus": [{"name": PLUGIN, "resources": [device]}]}
            ],
        },
    }


def cluster_of(count):
    cluster = FakeCluster()
    for number in range(count):
        cluster.put("nodes", node(number))
        cluster.put("pods", pod(number))
    return cluster


@asynccontextmanager
async def watching(kubeconfig, db, *more):
    """A process that watches; it is killed at the end if it still runs."""
    process = start(
        "run", "--embedded", "--kubeconfig", kubeconfig, "--db", db, "--log-format", "text", *more
    )
    try:
        yield process
    finally:
        process.kill()
        _, err = await asyncio.to_thread(process.communicate)
        assert b"Traceback" not in err, err.decode()


async def stopped(process):
    process.send_signal(signal.SIGTERM)
    return await asyncio.to_thread(process.wait, 30)


async def facts(db, kind):
    """Return the payloads of every event of a kind, in the order of each partition."""
    try:
        with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as connection:
            found = connection.execute(
                "SELECT data FROM event_log WHERE kind = ? ORDER BY partition_number, log_offset", (kind,)
            ).fetchall()
    except sqlite3.OperationalError:
        return []  # it is being made
    return [json.loads(data)["payload"] for (data,) in found]


async def ready(port, seconds=40):
    """Return what it says of being ready; until it is, that is an error."""
    end = time.monotonic() + seconds
    while True:
        try:
            return json.load(await asyncio.to_thread(urlopen, f"http://127.0.0.1:{port}/readyz", timeout=5))
        except OSError:
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.1)


async def until(db, kind, count, seconds=40):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = await facts(db, kind)
        if len(found) >= count:
            return found
        await asyncio.sleep(0.5)
    raise AssertionError(f"no {count} x {kind} within {seconds} s: {await facts(db, kind)}")


def test_what_is_deleted_while_it_is_dead_is_told_to_be_gone_when_it_lives_again(tmp_path):
    db = tmp_path / "live.db"

    async def scene():
        cluster = cluster_of(4)
        async with FakeApiServer(cluster) as server:
            server.bookmark_s = 1.0
            kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
            async with watching(kubeconfig, db):
                await until(db, "pod_observed", 4)
                cluster.put("pods", pod(0, "Unhealthy"))
                await until(db, "quarantine_opened", 1)
                await until(db, "tick", 8)
            cluster.delete("pods", "p1", "ml")
            cluster.delete("nodes", "n2")
            cluster.put("pods", pod(3, "Unhealthy"))
            cluster.compact()
            port = free_port()
            async with watching(kubeconfig, db, "--http-port", port) as process:
                (gone,) = await until(db, "pod_gone", 1)
                assert gone["node"] == "n1"
                (left,) = await until(db, "node_gone", 1)
                assert left["node"] == "n2"
                await until(db, "quarantine_opened", 2)
                assert (await ready(port))["passed"] == ["log", "watch"]
                told = await asyncio.to_thread(urlopen, f"http://127.0.0.1:{port}/metrics", timeout=5)
                assert 'sickbay_ingest_facts_total{kind="pod_gone"} 1.0' in told.read().decode()
                assert await stopped(process) == 0
        # each Pod was told once by each of its contents, however often it was listed
        assert len(await facts(db, "pod_observed")) == 4
        assert len(await facts(db, "policy_changed")) == 8
        ticks = [tick["observed_at_ms"] for tick in await facts(db, "tick") if tick["partition"] == 0]
        assert ticks == sorted(set(ticks))

    asyncio.run(scene())
    verified = run("verify", "--db", db)
    assert verified.code == 0, verified.err


def test_nothing_is_ticked_while_one_resource_is_refused(tmp_path):
    db = tmp_path / "live.db"

    async def scene():
        cluster = cluster_of(2)
        async with FakeApiServer(cluster) as server:
            server.bookmark_s = 1.0
            server.once("*", "nodes", *[Refuse(403)] * 50)
            server.once("list", "nodes", *[Refuse(403)] * 50)
            server.once("watch", "nodes", *[Refuse(403)] * 50)
            kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
            async with watching(kubeconfig, db) as process:
                await until(db, "pod_observed", 2)
                await asyncio.sleep(11)
                assert await facts(db, "tick") == []
                assert await stopped(process) == 0

    asyncio.run(scene())
