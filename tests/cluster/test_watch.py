"""The watch against a real API server and a real etcd: what the fake one was made to do, done by the real thing (faults W)."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, suppress
from http.client import HTTPException

import manifests
import pytest
from cli import run
from cluster_objects import make_namespace, pod, pods_there, told_of
from control_plane import ApiError, ControlPlane
from kubelets import Kubelet, mapping
from live_watch import following
from tcp_proxy import TcpProxy

from ingest.frames import RESOURCES
from sickbay.codec import fact_id
from sickbay.facts import (
    DeviceHealthObserved,
    DevicePublished,
    EpochChanged,
    PodGone,
    PodObserved,
    WatchGapFound,
)

NODE = "watched"


class Behind:
    """A control plane as one sees it through a proxy."""

    def __init__(self, plane, proxy):
        self._plane, self._port = plane, int(proxy.address.rpartition(":")[2])

    def kubeconfig(self, path, **more):
        return self._plane.kubeconfig(path, port=self._port, **more)


@asynccontextmanager
async def watching(plane, folder, **more):
    """Watch through a proxy, once all is watched."""
    with TcpProxy(("127.0.0.1", plane.port)) as proxy:
        async with following(Behind(plane, proxy), folder, **more) as live:
            await live.until(lambda: live.state() == "watching")
            yield live, proxy


def token_of_ingest(plane, folder):
    """Return the file with a token of the account that ``ingest`` runs as."""
    manifests.apply(plane.admin, "rbac/ingest.yaml")
    token = folder / "token"
    token.write_text(plane.token("sickbay", "sickbay-ingest"), encoding="utf-8")
    return token


def status_of(api, path):
    try:
        api.get(path)
    except ApiError as error:
        return error.status
    return 200


async def agree(live, plane, timeout_s=40):
    """Wait until the facts leave exactly those Pods standing that the API server has."""

    async def there():
        with suppress(ApiError, OSError, HTTPException):
            return await asyncio.to_thread(pods_there, plane.admin)
        return None

    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        wanted = await there()
        if wanted is not None and told_of(live.facts) == wanted and live.state() == "watching":
            return
        await asyncio.sleep(0.1)
    assert told_of(live.facts) == await there()


@pytest.fixture
def some(plane):
    """Return a node with Pods, on a control plane that is shared: whoever breaks it takes ``broken``."""
    kubelet, path = _fill(plane)
    yield plane, path
    for each in plane.admin.items(path):
        kubelet.remove(each)
    kubelet.leave()


@pytest.fixture
def broken(own_plane):
    """Return the same on a control plane of the test's own."""
    return own_plane, _fill(own_plane)[1]


def _fill(plane):
    kubelet = Kubelet(plane.admin, NODE).register()
    path = make_namespace(plane.admin, "watched")
    for name in "abcd":
        plane.admin.create(path, pod(name, NODE))
    return kubelet, path


@pytest.mark.parametrize("watch_list", [False, True], ids=["list", "watch_list"])
def test_a_list_in_pages_and_a_streamed_list_tell_the_same(some, tmp_path, watch_list):
    """W7, W8"""
    plane, path = some

    async def scene():
        async with watching(plane, tmp_path, watch_list=watch_list, page_limit=2) as (live, _):
            await agree(live, plane)
            plane.admin.create(path, pod("e", NODE))
            plane.admin.delete(f"{path}/b", gracePeriodSeconds=0)
            await agree(live, plane)
            assert [fact.pod for fact in live.of(PodGone)] == ["b"]
            assert not live.parked

    asyncio.run(scene())


def test_w1_what_was_deleted_while_history_was_compacted_is_gone(broken, tmp_path):
    plane, path = broken

    async def scene():
        async with watching(plane, tmp_path) as (live, proxy):
            await agree(live, plane)
            proxy.cut(refuse=True)
            plane.admin.delete(f"{path}/b", gracePeriodSeconds=0)
            plane.admin.create(path, pod("e", NODE))
            # the API server has a window of history of its own, which it loses with a restart
            plane.compact()
            await asyncio.to_thread(plane.restart, "kube-apiserver")
            proxy.heal()
            await agree(live, plane)
            assert [fact.pod for fact in live.of(PodGone)] == ["b"]
            assert [fact.final_state_known for fact in live.of(PodGone)] == [False]
            assert live.of(WatchGapFound)

    asyncio.run(scene())


def test_w3_versions_that_go_back_with_a_restore_raise_the_epoch_and_repair_what_is_known(broken, tmp_path):
    plane, path = broken

    async def scene():
        copy = await asyncio.to_thread(plane.back_up)
        for name in ("e", "f"):
            plane.admin.create(path, pod(name, NODE))
        plane.admin.delete(f"{path}/a", gracePeriodSeconds=0)
        async with watching(plane, tmp_path, probe_ms=500) as (live, _):
            await agree(live, plane)
            assert set(told_of(live.facts).values()) == set("bcdef")
            await asyncio.to_thread(plane.restore, copy)
            await live.until(lambda: live.of(EpochChanged), 60)
            await agree(live, plane)
            assert set(told_of(live.facts).values()) == set("abcd")
            (changed,) = live.of(EpochChanged)
            assert changed.list_rv < changed.last_rv
            # what is new in the new history has smaller versions, and is believed
            plane.admin.create(path, pod("g", NODE))
            await agree(live, plane)

    asyncio.run(scene())


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("part", ["kube-apiserver", "etcd"])
def test_a_restart_of_what_is_watched_loses_nothing_and_tells_nothing_twice(broken, tmp_path, part, kill):
    plane, path = broken

    async def scene():
        async with watching(plane, tmp_path) as (live, _):
            await agree(live, plane)
            await asyncio.to_thread(plane.restart, part, kill=kill)
            plane.admin.delete(f"{path}/c", gracePeriodSeconds=0)
            plane.admin.create(path, pod("e", NODE))
            await agree(live, plane)
            assert [fact.pod for fact in live.of(PodGone)] == ["c"]
            # the one that was deleted was first marked so
            told = [fact.pod for fact in live.of(PodObserved) if fact.deletion_requested_at_ms is None]
            assert sorted(told) == list("abcde")
            assert len({fact_id(fact) for fact in live.facts}) == len(live.facts)
            assert not live.of(EpochChanged)

    asyncio.run(scene())


def test_w17_a_name_that_is_used_again_while_nobody_looks_is_another_pod(some, tmp_path):
    plane, path = some

    async def scene():
        async with watching(plane, tmp_path) as (live, proxy):
            await agree(live, plane)
            (old,) = [uid for uid, name in told_of(live.facts).items() if name == "a"]
            proxy.cut(refuse=True)
            plane.admin.delete(f"{path}/a", gracePeriodSeconds=0)
            made = plane.admin.create(path, pod("a", NODE))
            proxy.heal()
            await agree(live, plane)
            assert [fact.pod_uid for fact in live.of(PodGone)] == [old]
            assert told_of(live.facts)[made["metadata"]["uid"]] == "a"

    asyncio.run(scene())


def test_w19_an_api_that_is_not_served_is_said_to_be_missing_and_the_rest_goes_on(tmp_path):
    versions = tuple(f"resource.k8s.io/{version}=false" for version in ("v1", "v1beta1", "v1beta2"))
    with ControlPlane(
        "1.36", runtime_config=versions, components=("etcd", "kube-apiserver"),
        gates={"DRADeviceTaintRules": False},
    ) as plane:  # fmt: skip
        _, path = _fill(plane)

        async def scene():
            async with watching(plane, tmp_path, resources=RESOURCES) as (live, _):
                for resource in ("resourceslices", "resourceclaims"):
                    await live.until(lambda resource=resource: live.state(resource) == "unavailable")
                    assert "404" in live.watch.status()[resource].reason
                plane.admin.delete(f"{path}/b", gracePeriodSeconds=0)
                await agree(live, plane)

        asyncio.run(scene())
        done = run("doctor", "--kubeconfig", plane.kubeconfig(tmp_path / "doctor"), "--output", "json")
        assert done.code == 0, done.err
        found = {row["name"]: row["state"] for row in done.json_lines() if row["what"] == "api"}
        assert found == {"resource.k8s.io": "off", "devicetaintrules": "off"}


def test_w18_a_right_that_is_taken_away_is_no_empty_cluster(some, tmp_path):
    plane, path = some
    token = token_of_ingest(plane, tmp_path)
    binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"

    async def scene():
        async with watching(plane, tmp_path, token_file=token) as (live, proxy):
            await agree(live, plane)
            kept = plane.admin.get(f"{binding}/sickbay-ingest")
            plane.admin.delete(f"{binding}/sickbay-ingest")
            try:
                api = plane.as_account("sickbay", "sickbay-ingest")
                await live.until(lambda: status_of(api, "/api/v1/pods") == 403)
                proxy.cut()
                await live.until(lambda: "403" in live.watch.status()["pods"].reason)
                plane.admin.delete(f"{path}/d", gracePeriodSeconds=0)
                assert not live.of(PodGone)
            finally:
                kept["metadata"] = {"name": "sickbay-ingest"}
                plane.admin.create(binding, kept)
            await agree(live, plane)
            assert [fact.pod for fact in live.of(PodGone)] == ["d"]

    asyncio.run(scene())


def test_i16_a_token_that_is_worth_nothing_any_more_is_read_anew(some, tmp_path):
    plane, path = some
    token = token_of_ingest(plane, tmp_path)
    account = "/api/v1/namespaces/sickbay/serviceaccounts"

    async def scene():
        async with watching(plane, tmp_path, token_file=token) as (live, proxy):
            await agree(live, plane)
            # a new account under the old name: the tokens of the old one are refused
            plane.admin.delete(f"{account}/sickbay-ingest")
            plane.admin.create(account, {"metadata": {"name": "sickbay-ingest"}})
            # the API server remembers for some seconds whom it knew
            await asyncio.sleep(11)
            proxy.cut()
            await live.until(lambda: "401" in live.watch.status()["pods"].reason)
            token.write_text(plane.token("sickbay", "sickbay-ingest"), encoding="utf-8")
            plane.admin.create(path, pod("e", NODE))
            await agree(live, plane)

    asyncio.run(scene())


def test_w10_a_connection_that_is_dead_and_does_not_say_so_is_left(some, tmp_path):
    plane, path = some

    async def scene():
        async with watching(plane, tmp_path, idle_ms=2_000) as (live, proxy):
            await agree(live, plane)
            proxy.swallow("replies")
            plane.admin.create(path, pod("e", NODE))
            await live.until(lambda: live.watch.status()["pods"].reason, 30)
            proxy.heal()
            await agree(live, plane)

    asyncio.run(scene())


def test_w11_a_stream_that_is_cut_anywhere_is_read_again(some, tmp_path):
    plane, path = some

    async def scene():
        async with watching(plane, tmp_path) as (live, proxy):
            for cut in range(20):
                proxy.cut_after(200 + 97 * cut, "replies")
                plane.admin.create(path, pod(f"x{cut}", NODE))
                plane.admin.delete(f"{path}/x{cut - 2}", gracePeriodSeconds=0) if cut > 1 else None
                await asyncio.sleep(0.02)
            proxy.heal()
            await agree(live, plane)
            gone = [fact.pod_uid for fact in live.of(PodGone)]
            assert len(gone) == len(set(gone))
            assert not live.parked

    asyncio.run(scene())


def test_w15_what_is_as_large_as_the_api_allows_is_read_whole(some, tmp_path):
    plane, path = some
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {f"a{n}": {"string": "x" * 64} for n in range(16)},
            "capacity": {f"c{n}": {"value": "16Gi"} for n in range(16)},
        } | mapping(plane.version, per_device={"cpu": "1"})
        for number in range(64)
    ]  # fmt: skip
    kubelet = Kubelet(plane.admin, "large").register()
    health = [
        {
            "name": "example.com/gpu",
            "resources": [
                {"resourceID": f"GPU-{n}", "health": "Unhealthy", "message": "m" * 1_000} for n in range(128)
            ],
        }
    ]

    async def scene():
        async with watching(plane, tmp_path, resources=RESOURCES) as (live, _):
            made = plane.admin.create(path, pod("large", "large", **{"cpu": "1", "example.com/gpu": "128"}))
            kubelet.run(made, health)
            kubelet.publish(
                "large.example.com", devices + [d | {"name": f"more-{d['name']}"} for d in devices]
            )
            await live.until(lambda: len(live.of(DevicePublished)) >= 128)
            await live.until(lambda: len(live.of(DeviceHealthObserved)) >= 128)
            assert not live.parked

    try:
        asyncio.run(scene())
    finally:
        kubelet.withdraw("large.example.com")
        kubelet.leave()


def test_w16_without_the_gate_health_is_absent_and_nobody_is_called_healthy(tmp_path):
    """The field is dropped by the API server on write; the gate of health cannot be put off on a version that has it stable."""
    with ControlPlane(
        "1.36", gates={"ResourceHealthStatus": False, "ResourceHealthStatusMessage": False},
        components=("etcd", "kube-apiserver"),
    ) as plane:  # fmt: skip
        kubelet = Kubelet(plane.admin, NODE).register()
        path = make_namespace(plane.admin, "watched")
        told = [{"name": "example.com/gpu", "resources": [{"resourceID": "GPU-0", "health": "Healthy"}]}]
        asked = pod("a", NODE, **{"cpu": "1", "example.com/gpu": "1"})
        kubelet.run(plane.admin.create(path, asked), told)

        async def scene():
            async with watching(plane, tmp_path, resources=RESOURCES) as (live, _):
                await agree(live, plane)
                assert not live.of(DeviceHealthObserved)

        asyncio.run(scene())


@pytest.mark.timeout(200)
def test_w6_a_quiet_resource_goes_on_by_the_bookmarks_of_the_server(some, tmp_path):
    """Once a minute, says the API server; without them the version of a quiet resource would leave its history."""
    plane, path = some

    async def scene():
        resources = ("resourceslices", "pods")
        async with watching(plane, tmp_path, resources=resources, idle_ms=180_000) as (live, _):
            before = live.watch.status()["resourceslices"].version
            plane.admin.create(path, pod("e", NODE))
            await live.until(lambda: live.watch.status()["resourceslices"].version > before, 150)
            assert {frame.type for frame in live.frames if frame.resource == "resourceslices"} == {
                "LIST",
                "BOOKMARK",
            }

    asyncio.run(scene())
