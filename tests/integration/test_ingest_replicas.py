"""Two real ingesters and one Lease: one is stopped and wakes, and does no harm (faults I1)."""

from __future__ import annotations

import asyncio
import signal

import pytest
from cli import start
from facts_topic import told, variables
from fake_apiserver import FakeApiServer, FakeCluster

from sickbay.cluster.lease_api import NAME_DEFAULT


def pod(health):
    device = {"resourceID": "GPU-1", "health": health}
    return {
        "metadata": {"name": "p1", "namespace": "ml"},
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {
                    "name": "main",
                    "allocatedResourcesStatus": [{"name": "nvidia.com/gpu", "resources": [device]}],
                }
            ],
        },
    }


class Replica:
    """One `sickbay ingest`."""

    def __init__(self, settings, kubeconfig):
        self.process = start(
            "ingest", "--kubeconfig", kubeconfig, "--lease-namespace", "sickbay", "--log-format", "text",
            env=variables(settings),
        )  # fmt: skip

    async def ended(self):
        _, err = await asyncio.to_thread(self.process.communicate, None, 60)
        assert b"Traceback" not in err, err.decode()
        return self.process.returncode, err.decode()


async def until(ready, seconds=60):
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(ready):  # noqa: ASYNC110 - another process makes it so
            await asyncio.sleep(0.2)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_leader_that_was_stopped_and_wakes_writes_nothing_that_counts(kafka_ready, tmp_path):
    def words():
        return [
            (epoch, fact.health)
            for epoch, _, fact in told(kafka_ready)
            if fact.KIND == "device_health_observed"
        ]

    async def scene():
        cluster = FakeCluster()
        cluster.put("nodes", {"metadata": {"name": "n1"}, "status": {}})
        cluster.put("pods", pod("Healthy"))

        def holder():
            lease = cluster.objects("leases").get(("sickbay", NAME_DEFAULT))
            return lease["spec"]["holderIdentity"] if lease else ""

        async with FakeApiServer(cluster) as server:
            server.bookmark_s = 1.0
            kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
            one = Replica(kafka_ready, kubeconfig)
            two = None
            try:
                await until(lambda: words() == [(1, "Healthy")])
                first = holder()
                two = Replica(kafka_ready, kubeconfig)
                await asyncio.sleep(5)
                one.process.send_signal(signal.SIGSTOP)
                cluster.put("pods", pod("Unhealthy"))
                await until(lambda: holder() != first)
                await until(lambda: (2, "Unhealthy") in words())
                one.process.send_signal(signal.SIGCONT)
                code, err = await one.ended()
                assert code == 7, err
                assert NAME_DEFAULT in err
                cluster.put("pods", pod("Healthy"))
                await until(lambda: words()[-1] == (2, "Healthy"))
                two.process.send_signal(signal.SIGTERM)
                assert (await two.ended())[0] == 0
                # given back, so that the next need not wait for it to run out
                assert holder() == ""
            finally:
                for replica in (one, two):
                    if replica is not None:
                        replica.process.kill()

    asyncio.run(scene())
    assert words() == [(1, "Healthy"), (2, "Unhealthy"), (2, "Healthy")]
