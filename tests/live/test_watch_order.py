"""The first lists come in the order that a mirror which knows only what was told needs, and nobody is waited for in vain."""

from __future__ import annotations

import asyncio
import time

import pytest
from fake_apiserver import FakeApiServer, FakeCluster, Refuse, Silence
from live_watch import following

from ingest.frames import RESOURCES

#: Longer than any of these tests.
LONG_MS = 60_000


def listed(live):
    return [frame.resource for frame in live.heard("LIST")]


@pytest.mark.parametrize("watch_list", [False, True])
def test_slices_come_before_pods_and_pods_before_the_rest(tmp_path, watch_list):
    async def scene():
        async with FakeApiServer(FakeCluster()) as server:
            # whoever is slow is waited for
            verb = "watch" if watch_list else "list"
            server.once(verb, "resourceslices", Refuse(500), Refuse(429), Refuse(500))
            server.once(verb, "pods", Refuse(500), Refuse(500))
            async with following(
                server, tmp_path, resources=RESOURCES, turn_ms=LONG_MS, watch_list=watch_list
            ) as live:
                await live.until(lambda: set(listed(live)) == set(RESOURCES))
                assert listed(live)[:2] == ["resourceslices", "pods"]

    asyncio.run(scene())


@pytest.mark.parametrize("code", [401, 403, 404])
def test_nobody_waits_for_what_is_refused(tmp_path, code):
    async def scene():
        async with FakeApiServer(FakeCluster()) as server:
            server.once("list", "resourceslices", *[Refuse(code)] * 20)
            async with following(server, tmp_path, resources=RESOURCES, turn_ms=LONG_MS) as live:
                await live.until(lambda: set(listed(live)) >= set(RESOURCES) - {"resourceslices"}, 5)
                assert "pods" == listed(live)[0]

    asyncio.run(scene())


def test_who_does_not_answer_is_waited_for_as_long_as_a_turn_lasts(tmp_path):
    async def scene():
        async with FakeApiServer(FakeCluster()) as server:
            server.once("list", "resourceslices", Silence(0))
            began = time.monotonic()
            async with following(server, tmp_path, resources=RESOURCES, turn_ms=200) as live:
                await live.until(lambda: set(listed(live)) >= set(RESOURCES) - {"resourceslices"}, 5)
                # two turns for the rest: it waits for Pods, too
                assert 0.2 <= time.monotonic() - began < 3
                assert "pods" == listed(live)[0]

    asyncio.run(scene())


def test_a_watch_of_one_resource_waits_for_nobody(tmp_path):
    async def scene():
        async with (
            FakeApiServer(FakeCluster()) as server,
            following(server, tmp_path, resources=("leases",), turn_ms=LONG_MS) as live,
        ):
            await live.until(lambda: listed(live), 5)

    asyncio.run(scene())
