"""The watch over real HTTP, against a server that does everything a server may do wrong. Rows: reference faults, B1."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random

import pytest
from fake_apiserver import (
    STORE_READ,
    Cut,
    FakeApiServer,
    FakeCluster,
    Refuse,
    Say,
    Silence,
    event_line,
    status,
)
from live_watch import following

from ingest.watching import SystemWatchClock, Watch
from sickbay.cluster.client import ApiClient
from sickbay.errors import ServiceError
from sickbay.facts import (
    DeviceHealthObserved,
    EpochChanged,
    NodeObserved,
    PodGone,
    PodObserved,
    PoolObserved,
    ResyncCompleted,
    WatchGapFound,
)


def pod(name, health="Healthy", message=""):
    resource = {"resourceID": "gpu-0", "health": health} | ({"message": message} if message else {})
    told = [{"name": "example.com/gpu", "resources": [resource]}]
    return {
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "c", "env": [{"name": "KEY", "value": "s3cret"}]}],
        },
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": "c", "allocatedResourcesStatus": told}],
        },
    }


def run(scene):
    asyncio.run(scene())


async def at_rest(number):
    """Wait until a number does not change any more, and return it."""
    before = -1
    while before != (now := number()):
        before = now
        await asyncio.sleep(0.3)
    return now


def gone(live):
    return sorted(fact.pod for fact in live.of(PodGone))


def marks(live):
    return [f for f in live.facts if not isinstance(f, ResyncCompleted | WatchGapFound)]


# --- gaps ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_stream", [False, True])
@pytest.mark.parametrize("position", [0, 1, 3])
def test_w1_what_was_deleted_in_a_gap_is_gone(tmp_path, in_stream, position):
    async def scene():
        cluster = FakeCluster()
        for name in "abcd":
            cluster.put("pods", pod(name))
        async with FakeApiServer(cluster) as server, following(server, tmp_path) as live:
            server.gone_in_stream = in_stream
            await live.until(lambda: live.state() == "watching")
            missing = "abcd"[position]
            server.once("watch", "pods", *[Refuse(503)] * 3)
            cluster.generation += 1
            cluster.wake()
            cluster.delete("pods", missing, "ns")
            cluster.put("pods", pod("e"))
            cluster.compact()
            await live.until(lambda: len(live.heard("LIST")) == 2)
            assert ["LIST", "ERROR", "LIST"] == [frame.type for frame in live.frames]
            assert [missing] == gone(live)
            (gap,) = live.of(WatchGapFound)
            assert (104, 106) == (gap.from_rv, gap.to_rv)
            assert f"watch:pods@{cluster.rv}" == live.frames[-1].place

    run(scene)


@pytest.mark.case("C31")
def test_c31_a_deletion_between_a_watch_and_the_next_list_is_told_at_the_list(tmp_path):
    async def scene():
        cluster = FakeCluster(97)
        for name in "abc":
            cluster.put("pods", pod(name))
        async with FakeApiServer(cluster) as server, following(server, tmp_path) as live:
            await live.until(lambda: live.state() == "watching")
            server.dropped.add(101)
            cluster.delete("pods", "b", "ns")
            cluster.touch(49)
            server.once("watch", "pods", Say(event_line("ERROR", STORE_READ)))
            cluster.generation += 1
            cluster.wake()
            await live.until(lambda: gone(live))
            (told,) = live.of(PodGone)
            assert ("b", 150, False) == (told.pod, told.rv, told.final_state_known)

    run(scene)


def test_an_unchanged_relist_of_many_objects_tells_nothing(tmp_path):
    """I5"""

    async def scene():
        cluster = FakeCluster()
        cluster.fill("pods", [pod(f"p{number}") for number in range(2_000)])
        async with FakeApiServer(cluster) as server, following(server, tmp_path) as live:
            await live.until(lambda: live.state() == "watching")
            told = len(marks(live))
            assert told >= 2_000
            server.once("watch", "pods", Refuse(410))
            cluster.generation += 1
            cluster.wake()
            await live.until(lambda: len(live.heard("LIST")) == 2)
            assert told == len(marks(live))
            assert [(2_000, 0, 0, 0)] == [
                (f.objects, f.added, f.changed, f.removed) for f in live.of(ResyncCompleted)[1:]
            ]
            assert [{"limit": "500"}] == [q for q in server.asked("list") if "continue" not in q][1:]

    run(scene)


# --- versions that go back -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [True, False])
def test_w3_a_restore_raises_the_epoch_and_repairs_what_is_known(tmp_path, cut):
    async def scene():
        cluster = FakeCluster()
        cluster.put("pods", pod("kept"))
        before = cluster.snapshot()
        cluster.put("pods", pod("lost"))
        cluster.touch(20)
        async with FakeApiServer(cluster) as server, following(server, tmp_path, probe_ms=30) as live:
            await live.until(lambda: live.state() == "watching")
            cluster.restore(before, cut=cut)
            cluster.put("pods", pod("kept", "Unhealthy"))
            await live.until(lambda: live.of(EpochChanged))
            (changed,) = live.of(EpochChanged)
            assert (1, 122, 102) == (changed.epoch, changed.last_rv, changed.list_rv)
            assert ["lost"] == gone(live)
            # from here on the watch hears again
            cluster.put("pods", pod("new"))
            await live.until(lambda: "new" in [fact.pod for fact in live.of(PodObserved)])
            assert ["Healthy", "Unhealthy"] == [
                f.health for f in live.of(DeviceHealthObserved) if f.pod == "kept"
            ]

    run(scene)


@pytest.mark.parametrize("lag", range(4))
def test_w4_a_lagging_server_never_takes_the_view_back(tmp_path, lag):
    async def scene():
        cluster = FakeCluster()
        for health in ("Healthy", "Unhealthy", "Healthy", "Unhealthy"):
            cluster.put("pods", pod("p", health))
        async with (
            FakeApiServer(cluster, lag=lag) as server,
            following(server, tmp_path, versions={"pods": cluster.rv}) as live,
        ):
            await live.until(lambda: live.heard("LIST"))
            assert ["Unhealthy"] == [fact.health for fact in live.of(DeviceHealthObserved)]
            assert "NotOlderThan" == server.asked("list")[0]["resourceVersionMatch"]
            assert (1 if lag == 0 else 2) == len(server.asked("list"))
            assert not live.of(EpochChanged)

    run(scene)


def test_w5_too_large_a_version_lists_at_once_and_does_not_loop(tmp_path):
    async def scene():
        cluster = FakeCluster()
        cluster.put("pods", pod("p"))
        async with FakeApiServer(cluster) as server:
            server.refuse_future = True
            async with following(server, tmp_path, versions={"pods": 10**6}) as live:
                await live.until(lambda: live.state() == "watching")
                assert 2 == len(server.asked("list"))
                assert 1 == len(live.heard("LIST"))

    run(scene)


# --- broken streams ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_w11_a_stream_cut_at_any_byte_loses_nothing(tmp_path, step):
    """Offsets of three events with characters of two to four bytes."""

    async def scene():
        cluster = FakeCluster()
        cluster.put("pods", pod("p", message="é"))
        async with FakeApiServer(cluster) as server, following(server, tmp_path) as live:
            await live.until(lambda: live.state() == "watching")
            offsets, at, versions = None, 0, []
            while offsets is None or at <= offsets:
                server.once("watch", "pods", Cut(at))
                opened = len(server.asked("watch"))
                cluster.generation += 1
                put = [cluster.put("pods", pod("p", message=text)) for text in ("é", "漢字", "🂡")]
                newest = cluster.rv
                await live.until(lambda newest=newest: live.watch.status()["pods"].version == newest)
                assert len(server.asked("watch")) > opened
                offsets = offsets or sum(len(event_line("MODIFIED", obj)) for obj in put)
                versions += [int(obj["metadata"]["resourceVersion"]) for obj in put]
                at += step
            heard = [int(frame.object["metadata"]["resourceVersion"]) for frame in live.heard("MODIFIED")]
            assert all(before <= after for before, after in pairwise(heard))
            assert versions == sorted(set(heard))
            assert [] == live.parked
            assert 1 == len(live.heard("LIST"))
            assert ["é", "漢字", "🂡"] == [f.message for f in live.of(DeviceHealthObserved)][-3:]

    run(scene)


@pytest.mark.case("C26")
def test_c26_a_half_open_connection_is_given_up_and_nothing_is_lost(tmp_path):
    """W10"""

    async def scene():
        cluster = FakeCluster()
        cluster.put("pods", pod("p"))
        async with FakeApiServer(cluster) as server:
            server.once("watch", "pods", Silence(40), Silence(0))
            async with following(server, tmp_path, idle_ms=60) as live:
                await live.until(lambda: live.state() == "watching")
                cluster.put("pods", pod("p", "Unhealthy"))
                await live.until(lambda: len(live.of(DeviceHealthObserved)) == 2)
                assert live.watch.status()["pods"].reconnects >= 2
                assert 1 == len(live.heard("LIST"))

    run(scene)


def test_w10_bookmarks_keep_a_quiet_watch_alive_and_its_version_young(tmp_path):
    """W6"""

    async def scene():
        cluster = FakeCluster()
        cluster.put("pods", pod("p"))
        async with FakeApiServer(cluster) as server:
            server.bookmark_s = 0.02
            async with following(server, tmp_path, idle_ms=2_000) as live:
                await live.until(lambda: live.state() == "watching")
                cluster.touch(50)
                await live.until(lambda: live.watch.status()["pods"].version == 151)
                cluster.compact()
                cluster.generation += 1
                cluster.wake()
                await live.until(lambda: len(server.asked("watch")) == 2 and live.state() == "watching")
                await asyncio.sleep(2.5)
                status_ = live.watch.status()["pods"]
                assert (0, 1) == (status_.relists, status_.reconnects)
                assert status_.age_ms < 2_000
                assert [] == live.heard("ERROR")

    run(scene)


def test_w12_w15_lines_that_cannot_be_used_are_parked_and_the_rest_arrives(tmp_path):
    async def scene():
        cluster = FakeCluster()
        cluster.put("pods", pod("p"))
        async with FakeApiServer(cluster) as server:
            bad = b'{"type":"ADDED","object":{"n":"\xff"}}\n'
            server.once("watch", "pods", Say(bad + b"x" * 300_000 + b"\n", end=False))
            async with following(server, tmp_path, line_bytes_max=100_000) as live:
                await live.until(lambda: live.state() == "watching")
                cluster.put("pods", pod("p", "Unhealthy"))
                await live.until(lambda: len(live.of(DeviceHealthObserved)) == 2)
                assert ["UTF-8", "too large"] == [
                    word
                    for p, word in zip(live.parked, ("UTF-8", "too large"), strict=True)
                    if word in p.reason
                ]
                assert {"watch:pods@101"} == {p.place.partition("#")[0] for p in live.parked}
                # the key of a letter is its place
                assert 2 == len({p.place for p in live.parked})
                assert not any("xxx" in repr(p) for p in live.parked)

    run(scene)


def test_w15_what_waits_for_a_slow_reader_is_bounded(tmp_path):
    """I11: 64 updates of 2 MiB, and nobody who takes them."""

    async def scene():
        cluster = FakeCluster()
        cluster.put("pods", pod("p"))
        async with FakeApiServer(cluster) as server:
            client = await ApiClient.connect(server.kubeconfig(tmp_path / "kubeconfig"))
            watch = Watch(client, SystemWatchClock(), resources=["pods"])
            frames = watch.frames()
            assert "LIST" == (await anext(frames)).type
            for number in range(64):
                cluster.put("pods", pod("p", message=f"{number:04}" + "x" * (2 << 20)))
            read = await at_rest(lambda: watch.status()["pods"].bytes_read)
            assert 30 << 20 < read < 48 << 20
            heard = [await anext(frames) for _ in range(64)]
            assert sorted(int(f.object["metadata"]["resourceVersion"]) for f in heard) == list(
                range(102, 166)
            )
            assert watch.status()["pods"].bytes_read > 128 << 20
            assert 0 == watch.status()["pods"].relists
            await frames.aclose()
            await client.close()

    run(scene)


# --- refusals ------------------------------------------------------------------------------------------------------------


def test_w13_a_storm_of_errors_is_waited_out_without_a_relist(tmp_path):
    async def scene():
        cluster = FakeCluster()
        cluster.put("pods", pod("p"))
        async with FakeApiServer(cluster) as server, following(server, tmp_path) as live:
            await live.until(lambda: live.state() == "watching")
            storm = [Refuse(429, headers=(("Retry-After", "0"),)), Refuse(500, b"<html>"), Refuse(503)] * 4
            server.once("watch", "pods", *storm)
            cluster.generation += 1
            cluster.put("pods", pod("p", "Unhealthy"))
            await live.until(lambda: len(live.of(DeviceHealthObserved)) == 2)
            assert 14 == len(server.asked("watch"))
            assert 1 == len(server.asked("list"))

    run(scene)


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_w18_a_right_that_is_lost_makes_the_view_stale_and_nothing_gone(tmp_path, verb):
    async def scene():
        cluster = FakeCluster()
        for name in "abc":
            cluster.put("pods", pod(name))
        async with FakeApiServer(cluster) as server, following(server, tmp_path, refused_ms=50) as live:
            await live.until(lambda: live.state() == "watching")
            if verb == "list":
                server.once("watch", "pods", Refuse(410))
            server.once(verb, "pods", *[Refuse(403, status(403, "Forbidden", "no list of pods"))] * 3)
            cluster.generation += 1
            cluster.wake()
            await live.until(lambda: live.state() == "stale")
            assert "403 Forbidden: no list of pods" == live.watch.status()["pods"].reason
            await live.until(lambda: live.state() == "watching")
            assert [] == gone(live)
            # the first one, the three that were refused, and the one that was not
            assert 5 == len(server.asked(verb))

    run(scene)


def test_i16_a_token_that_rotates_is_read_again(tmp_path):
    async def scene():
        cluster = FakeCluster()
        cluster.put("pods", pod("p"))
        token_file = tmp_path / "token"
        token_file.write_text("one\n")
        async with FakeApiServer(cluster) as server:
            server.tokens = {"one"}
            async with following(server, tmp_path, token_file=token_file) as live:
                await live.until(lambda: live.state() == "watching")
                server.tokens = {"two"}
                cluster.generation += 1
                cluster.put("pods", pod("p", "Unhealthy"))
                await live.until(lambda: live.state() == "stale")
                assert live.watch.status()["pods"].reason.startswith("401 Unauthorized")
                token_file.write_text("two\n")
                await live.until(lambda: live.state() == "watching")
                await live.until(lambda: len(live.of(DeviceHealthObserved)) == 2)
                assert 1 == len(live.heard("LIST"))
                assert "Bearer two" == server.requests[-1].authorization

    run(scene)


def test_w19_a_cluster_without_dra_is_watched_without_it_until_it_comes(tmp_path):
    async def scene():
        cluster = FakeCluster()
        cluster.put("nodes", {"metadata": {"name": "n1"}})
        async with FakeApiServer(cluster) as server:
            server.dra_versions = []
            async with following(server, tmp_path, resources=("nodes", "resourceslices")) as live:
                await live.until(lambda: live.state("resourceslices") == "unavailable")
                await live.until(lambda: live.of(NodeObserved) and live.state("nodes") == "watching")
                server.dra_versions = ["v1beta1", "v1beta2"]
                pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
                spec = {"driver": "gpu.example.com", "nodeName": "n1", "pool": pool, "devices": []}
                cluster.put("resourceslices", {"metadata": {"name": "s"}, "spec": spec})
                await live.until(lambda: live.of(PoolObserved) and live.state("resourceslices") == "watching")
                # an upgrade of the cluster takes the version away that is read
                server.dra_versions = ["v1"]
                cluster.generation += 1
                cluster.wake()
                await live.until(lambda: len(server.asked("watch", "resourceslices")) >= 3)
                await live.until(lambda: live.state("resourceslices") == "watching")
                assert [] == live.parked

    run(scene)


# --- lists ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [1, 2, 3])
def test_w9_a_token_that_expires_on_any_page_is_no_loss(tmp_path, page):
    async def scene():
        cluster = FakeCluster()
        cluster.fill("pods", [pod(f"p{number:02}") for number in range(40)])
        async with FakeApiServer(cluster) as server:
            expired = Refuse(410, status(410, "Expired", "continue"))
            server.once("watch", "pods", Refuse(410))
            async with following(server, tmp_path, page_limit=10) as live:
                await live.until(lambda: live.state() == "watching")
                server.once("list", "pods", *[Silence(10**9)] * page, expired)
                server.once("watch", "pods", Refuse(410))
                cluster.delete("pods", "p35", "ns")
                cluster.generation += 1
                cluster.wake()
                await live.until(lambda: gone(live))
                assert ["p35"] == gone(live)
                assert {} == server.asked("list")[-1]

    run(scene)


def test_w7_w8_initial_events_shuffled_and_cut_become_one_whole_list(tmp_path):
    async def scene():
        cluster = FakeCluster()
        cluster.fill("pods", [pod(f"p{number:02}") for number in range(20)])
        async with FakeApiServer(cluster) as server:
            server.shuffle = Random(7)  # noqa: S311
            server.once("watch", "pods", *[Cut(after) for after in (0, 100, 5_000, 9_000)])
            async with following(server, tmp_path, watch_list=True) as live:
                await live.until(lambda: live.state() == "watching" and live.frames)
                (heard,) = live.frames
                assert ("LIST", 20) == (heard.type, len(heard.object["items"]))
                assert [] == server.asked("list")
                cluster.put("pods", pod("p00", "Unhealthy"))
                await live.until(lambda: "Unhealthy" in [f.health for f in live.of(DeviceHealthObserved)])

    run(scene)


def test_a_server_without_initial_events_is_listed(tmp_path):
    async def scene():
        cluster = FakeCluster()
        cluster.put("pods", pod("p"))
        async with FakeApiServer(cluster) as server:
            server.watch_list = False
            async with following(server, tmp_path, watch_list=True) as live:
                await live.until(lambda: live.state() == "watching")
                assert 1 == len(server.asked("list"))

    run(scene)


# --- events that are not what they should be -----------------------------------------------------------------------------


def test_w17_w21_duplicates_and_an_object_made_anew_tell_each_thing_once(tmp_path):
    async def scene():
        cluster = FakeCluster()
        cluster.put("pods", pod("p"))
        async with FakeApiServer(cluster) as server:
            server.duplicates = True
            async with following(server, tmp_path) as live:
                await live.until(lambda: live.state() == "watching")
                cluster.put("pods", pod("p", "Unhealthy"))
                cluster.delete("pods", "p", "ns")
                cluster.put("pods", pod("p"))
                await live.until(lambda: len(live.heard("ADDED")) == 2)
                assert ["p"] == gone(live)
                assert ["Healthy", "Unhealthy", "Healthy"] == [
                    f.health for f in live.of(DeviceHealthObserved) if f.live
                ]
                assert 2 == len({fact.pod_uid for fact in live.of(PodObserved)})

    run(scene)


def test_w22_an_event_that_the_server_dropped_is_found_by_the_next_resync(tmp_path):
    async def scene():
        cluster = FakeCluster()
        for name in "ab":
            cluster.put("pods", pod(name))
        async with FakeApiServer(cluster) as server, following(server, tmp_path, resync_ms=300) as live:
            await live.until(lambda: live.state() == "watching")
            server.dropped |= {103, 104}
            cluster.delete("pods", "a", "ns")
            cluster.put("pods", pod("b", "Unhealthy"))
            await live.until(lambda: gone(live))
            assert ["a"] == gone(live)
            assert "Unhealthy" == live.of(DeviceHealthObserved)[-1].health
            assert [] == live.of(WatchGapFound)

    run(scene)


# --- what never gets better ----------------------------------------------------------------------------------------------


def test_a_server_that_is_no_url_ends_the_watch(tmp_path):
    async def scene():
        async with FakeApiServer(FakeCluster()) as server:
            server.url = "http://exa mple:x"
            client = await ApiClient.connect(server.kubeconfig(tmp_path / "kubeconfig"))
            with pytest.raises(ServiceError, match="no URL of an API server"):
                await anext(Watch(client, SystemWatchClock()).frames())
            await client.close()

    run(scene)


@pytest.mark.parametrize("frames", [0, 1])
def test_a_watch_that_is_given_up_leaves_nothing_behind(tmp_path, frames):
    async def scene():
        cluster = FakeCluster()
        cluster.put("pods", pod("p"))
        async with FakeApiServer(cluster) as server:
            client = await ApiClient.connect(server.kubeconfig(tmp_path / "kubeconfig"))
            before = asyncio.all_tasks()

            async def take():
                async for _ in Watch(client, SystemWatchClock(), resources=["pods"]).frames():
                    pass

            task = asyncio.create_task(take())
            while len(server.asked("watch")) < frames:  # noqa: ASYNC110 - the server has no event for it
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.sleep(0)
            ours = {task for task in asyncio.all_tasks() - before if "/ingest/" in repr(task)}
            assert set() == ours
            await client.close()

    run(scene)


def test_a_server_that_is_not_there_is_waited_for(tmp_path):
    async def scene():
        async with FakeApiServer(FakeCluster()) as server:
            port, server.url = server.url, "http://127.0.0.1:1"
            async with following(server, tmp_path) as live:
                await live.until(lambda: live.state() == "waiting" and live.watch.status()["pods"].reason)
                status_ = live.watch.status()["pods"]
                assert "cannot be reached" in status_.reason
                assert (None, 0) == (status_.age_ms, status_.version)
                assert port not in status_.reason

    run(scene)


def test_no_secret_of_a_pod_gets_past_the_watch(tmp_path):
    async def scene():
        cluster = FakeCluster()
        cluster.put("pods", pod("p"))
        async with FakeApiServer(cluster) as server, following(server, tmp_path) as live:
            await live.until(lambda: live.state() == "watching")
            cluster.put("pods", pod("p", "Unhealthy"))
            await live.until(lambda: len(live.frames) == 2)
            assert "s3cret" not in repr(live.frames)

    run(scene)
