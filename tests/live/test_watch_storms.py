"""Storms: everything that can go wrong, at random and at once; afterwards nothing is lost and nobody is a ghost."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from fake_apiserver import (
    STORE_READ,
    TOO_LARGE,
    Cut,
    FakeApiServer,
    FakeCluster,
    Refuse,
    Say,
    event_line,
    status,
)
from live_watch import following

from sickbay.facts import DeviceHealthObserved, PodGone, PodObserved

NAMES = [f"p{number}" for number in range(12)]


def pod(name, health):
    told = [{"name": "example.com/gpu", "resources": [{"resourceID": name, "health": health}]}]
    return {
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": "c", "allocatedResourcesStatus": told}],
        },
    }


def fault(random):
    return random.choice([
        Cut(random.randrange(1_500)),
        Refuse(429, headers=(("Retry-After", "0"),)),
        Refuse(500, b"oops"),
        Refuse(410),
        Refuse(504, random.choice(TOO_LARGE)),
        Refuse(403),
        Refuse(401),
        Refuse(404),
        Say(event_line("ERROR", status(410, "Expired"))),
        Say(event_line("ERROR", status(500, "InternalError"))),
        Say(event_line("ERROR", STORE_READ)),
        Say(b'{"type":"ADDED","obj', end=True),
    ])  # fmt: skip


def step(random, cluster, server, snapshots):
    """Let one thing happen; return whether it was a restore."""
    there = sorted(name for _, name in cluster.objects("pods"))
    match random.randrange(20):
        case 0 | 1:
            server.once(random.choice(["watch", "watch", "list"]), "pods", fault(random))
        case 2:
            cluster.generation += 1
            cluster.wake()
        case 3:
            cluster.compact()
        case 4:
            server.expire_tokens()
        case 5:
            server.lag = random.randrange(3)
        case 6 if snapshots is not None:
            snapshots.append(cluster.snapshot())
        case 7 if snapshots:
            cluster.restore(snapshots.pop(), cut=random.random() < 0.5)
            # what was recorded after it is of a history that never was
            snapshots.clear()
            return True
        case 8 | 9 | 10 if there:
            cluster.delete("pods", random.choice(there), "ns")
        case _:
            cluster.put("pods", pod(random.choice(NAMES), random.choice(["Healthy", "Unhealthy"])))
    return False


@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize("watch_list", [False, True])
@pytest.mark.parametrize(
    "seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 20))]
)
def test_after_a_storm_the_facts_say_what_the_cluster_says(tmp_path, seed, watch_list, restores):
    """Invariants no_ghost, deletes_complete and no_lost_state of reference faults, C."""

    async def scene():
        random = Random(f"{seed}-{watch_list}-{restores}")  # noqa: S311
        cluster = FakeCluster()
        snapshots = [] if restores else None
        async with (
            FakeApiServer(cluster) as server,
            following(server, tmp_path, page_limit=3, probe_ms=20, watch_list=watch_list) as live,
        ):
            server.duplicates = bool(seed % 2)
            for _ in range(150):
                if step(random, cluster, server, snapshots):
                    # what is on its way of the old history is read first: of those versions are the ones that are waited for
                    for _ in range(20):
                        await asyncio.sleep(0.001)
                    # a history that outgrows the old one within a probe's time cannot be told from it
                    await live.until(lambda: live.watch.status()["pods"].version <= cluster.rv)
                if random.random() < 0.3:
                    await asyncio.sleep(random.random() / 100)
            server.lag = 0
            cluster.put("pods", pod("end", "Healthy"))
            want = {
                obj["metadata"]["uid"]: obj["status"]["containerStatuses"][0]["allocatedResourcesStatus"][0][
                    "resources"
                ][0]["health"]
                for obj in cluster.objects("pods").values()
            }

            def known():
                return standing(live.facts)

            def settled():
                return live.state() == "watching" and known() == want

            try:
                await live.until(settled, 10)
            except TimeoutError:
                assert want == known(), live.watch.status()
                raise
            gone = [fact.pod_uid for fact in live.of(PodGone)]
            if not restores:
                assert len(gone) == len(set(gone))

    asyncio.run(scene())


def standing(facts):
    """Uid to health of every Pod that the facts leave standing."""
    found = {}
    for fact in facts:
        if isinstance(fact, PodObserved):
            found.setdefault(fact.pod_uid, None)
        elif isinstance(fact, DeviceHealthObserved) and fact.live:
            found[fact.pod_uid] = fact.health
        elif isinstance(fact, PodGone):
            found.pop(fact.pod_uid, None)
    return found
