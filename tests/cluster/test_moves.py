"""Moves on a real API server: the Eviction API with its budgets and preconditions, a real controller, the real scheduler."""

from __future__ import annotations

import asyncio
import itertools
import threading
from contextlib import suppress

import pytest
from cluster_acting import Rack, until
from cluster_objects import pod
from control_plane import ApiError
from move_worlds import Hooks
from responding import KeptReports, metrics, quarantined

from responders.moves.cluster import Cluster
from responders.moves.mover import Mover
from responders.moves.pods import read_pod
from responders.view import View
from sickbay.cluster.client import ApiClient
from sickbay.decisions import MoveLeaseGranted, MovePlanned
from sickbay.operations.live_clock import LiveClock
from sickbay.policy import MovePolicy, Policy

_NUMBERS = itertools.count(1)
LEASE_MS = 40_000
BUDGETS = "/apis/policy/v1/namespaces/act/poddisruptionbudgets"


class Ward:
    """A rack whose kubelet is played in a thread, and a workload of a real ReplicaSet on one of its devices."""

    def __init__(self, plane):
        number = next(_NUMBERS)
        self.rack = Rack(plane, f"ward-{number}", driver=f"ward{number}.example.com")
        self.api, self.clock, self.view, self.reports = plane.admin, LiveClock(), View(), KeptReports()
        self.policy = Policy(moves=MovePolicy(enabled=True, lease_ms=LEASE_MS))
        self.name = f"work-{number}"
        self.kubeconfig = str(plane.kubeconfig(plane.folder / f"ward-{number}"))
        self._ended = threading.Event()
        self._playing = threading.Thread(target=self._play, daemon=True)
        self._playing.start()

    def _play(self):
        while not self._ended.wait(0.1):
            with suppress(ApiError, OSError):
                for each in self.api.items(self.rack.pods):
                    if each["spec"].get("nodeName") != self.rack.name:
                        continue
                    if "deletionTimestamp" in each["metadata"]:
                        self.rack.kubelet.remove(each)
                    elif each["status"].get("phase") == "Pending":
                        told = self.rack.kubelet.run(each)
                        ready = [*told["status"].get("conditions", ()), {"type": "Ready", "status": "True"}]
                        self.api.patch(
                            f"{self.rack.pods}/{each['metadata']['name']}/status",
                            {"status": {"conditions": ready}},
                        )

    def begin(self, *, controlled=True, lease_ms=LEASE_MS, before=lambda: None):
        """Run the workload, and quarantine the device that the scheduler gave it. Return its Pod.

        ``before`` is called before the lease begins to run.
        """
        self.rack.ask("warm")
        self.rack.bound("warm")
        self.api.delete(f"{self.rack.pods}/warm", gracePeriodSeconds=0)
        spec = pod("x")["spec"] | {
            "nodeSelector": {"kubernetes.io/hostname": self.rack.name},
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": self.rack.driver}],
        }
        spec["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
        metadata = {"labels": {"app": self.name, "sickbay.dev/ability": "restartable"}}
        if controlled:
            template = {"metadata": metadata, "spec": spec | {"restartPolicy": "Always"}}
            selector = {"matchLabels": {"app": self.name}}
            body = {
                "metadata": {"name": self.name},
                "spec": {"replicas": 1, "selector": selector, "template": template},
            }
            self.api.create("/apis/apps/v1/namespaces/act/replicasets", body)
        else:
            self.api.create(self.rack.pods, {"metadata": metadata | {"name": self.name}, "spec": spec})
        (found,) = until(self.ready, "the workload")
        device = self.rack.device_id(self.rack.device_of(found["metadata"]["name"]))
        before()
        now_ms = self.clock.now_ms()
        self.view.fold(quarantined(device, self.rack.name, now_ms))
        of = {
            "node": self.rack.name, "at_ms": now_ms, "device_id": device, "move_id": self.name, "episode_id": "e",
            "pod_uid": found["metadata"]["uid"], "namespace": "act", "pod": found["metadata"]["name"],
        }  # fmt: skip
        self.view.fold(MovePlanned(**of, ability="restartable", topology="whole"))
        self.view.fold(MoveLeaseGranted(**of, token=1, expires_at_ms=now_ms + lease_ms))
        # a taint rule keeps the scheduler off it in a whole installation; here the card is taken away
        self.bad = device.rsplit("/", 1)[1]
        self.rack.kubelet.publish(
            self.rack.driver, [{"name": each} for each in self.rack.devices if each != self.bad]
        )
        return found

    def ready(self):
        return [
            each
            for each in self.api.items(self.rack.pods, labelSelector=f"app={self.name}")
            if any(
                c["type"] == "Ready" and c["status"] == "True" for c in each["status"].get("conditions", ())
            )
            and "deletionTimestamp" not in each["metadata"]
        ]

    def budget(self, name, least):
        """Make a disruption budget of the workload, and wait until it counts as many Pods as it needs."""
        selector = {"matchLabels": {"app": self.name}}
        body = {"metadata": {"name": name}, "spec": {"minAvailable": least, "selector": selector}}
        self.api.create(BUDGETS, body)

        def counts():
            status = self.api.get(f"{BUDGETS}/{name}").get("status", {})
            return status.get("observedGeneration") and status.get("currentHealthy", 0) >= least

        until(counts, "a budget that counts")

    def move(self, movers=1):
        """Let movers that all believe to lead act until one has reported the end; return what they wrote."""
        writes = []

        async def run():
            client = await ApiClient.connect(self.kubeconfig)

            class Counted:
                async def request_json(self, method, path, query=(), body=None):
                    answer = await client.request_json(method, path, query, body)
                    if method == "POST":
                        writes.append((path.rsplit("/", 1)[-1], answer[0]))
                    return answer

            running = [
                Mover(
                    Cluster(Counted(), lambda: None), Hooks(), self.reports, self.view, self.policy,
                    times=self.clock, metrics=metrics(), identity=f"mover-{n}", require_lead=lambda: None,
                )
                for n in range(movers)
            ]  # fmt: skip
            try:
                async with asyncio.timeout(90):
                    while self.outcome is None:
                        await asyncio.gather(*(mover.act() for mover in running))
                        await asyncio.sleep(0.05)
                    if movers > 1:  # the others come to their end too
                        await asyncio.sleep(3)
            finally:
                for mover in running:
                    await mover.close()
                await client.close()

        asyncio.run(run())
        return writes

    @property
    def outcome(self):
        return next((fact for fact in self.reports.facts.values() if fact.KIND == "move_reported"), None)

    def leave(self):
        self._ended.set()
        self._playing.join(30)
        with suppress(ApiError):
            self.api.delete(f"/apis/apps/v1/namespaces/act/replicasets/{self.name}")
        with suppress(ApiError):
            self.api.delete(f"{BUDGETS}/{self.name}")
        self.rack.leave()


@pytest.fixture
def ward(plane):
    found = Ward(plane)
    yield found
    found.leave()


def test_a_workload_is_evicted_and_its_replacement_is_scheduled_on_another_device(ward):
    before = ward.begin()
    writes = ward.move()
    assert "done" == ward.outcome.outcome, ward.outcome
    (after,) = ward.ready()
    assert before["metadata"]["uid"] != after["metadata"]["uid"]
    assert ward.rack.device_of(after["metadata"]["name"]) != ward.bad
    assert [201] == [code for path, code in writes if path == "eviction"]
    events = ward.api.items("/apis/events.k8s.io/v1/namespaces/act/events")
    assert before["metadata"]["uid"] in {
        each["regarding"].get("uid") for each in events if each["reason"] == "DeviceQuarantined"
    }


def test_two_movers_fighting_over_one_workload_evict_once(ward):
    before = ward.begin()
    writes = ward.move(movers=2)
    evictions = [code for path, code in writes if path == "eviction"]
    assert 1 == evictions.count(201), writes
    (after,) = ward.ready()
    assert before["metadata"]["uid"] != after["metadata"]["uid"]
    assert "done" == ward.outcome.outcome


def test_a_disruption_budget_that_forbids_it_keeps_the_workload_and_is_the_evidence(ward):
    before = ward.begin(lease_ms=12_000, before=lambda: ward.budget(ward.name, 1))
    ward.move()
    assert "failed" == ward.outcome.outcome
    # the server's words name the budget and its counts
    assert f"The disruption budget {ward.name} needs 1 healthy pods and has 1" in ward.outcome.detail
    assert [before["metadata"]["uid"]] == [each["metadata"]["uid"] for each in ward.ready()]


def test_of_a_pod_with_two_budgets_the_eviction_api_cannot_judge_and_that_is_the_evidence(ward):
    """It answers 500 for as long as both are there; nothing that is tried again mends it."""
    other = f"{ward.name}-b"

    def budgets():
        for name in (ward.name, other):
            ward.budget(name, 0)

    try:
        before = ward.begin(lease_ms=12_000, before=budgets)
        writes = ward.move()
    finally:
        with suppress(ApiError):
            ward.api.delete(f"{BUDGETS}/{other}")
    assert {500} == {code for path, code in writes if path == "eviction"}
    assert ("failed", True) == (
        ward.outcome.outcome,
        "more than one PodDisruptionBudget" in ward.outcome.detail,
    )
    assert [before["metadata"]["uid"]] == [each["metadata"]["uid"] for each in ward.ready()]


def test_a_pod_that_nobody_would_replace_is_left_and_its_owner_sees_why(ward):
    before = ward.begin(controlled=False)
    writes = ward.move()
    assert ("failed", []) == (ward.outcome.outcome, [w for w in writes if w[0] == "eviction"])
    notes = [
        each["note"]
        for each in ward.api.items("/apis/events.k8s.io/v1/namespaces/act/events")
        if each["regarding"].get("uid") == before["metadata"]["uid"]
    ]
    assert any("has no controller" in note for note in notes)


def test_the_eviction_api_holds_a_mover_to_the_version_that_it_read(ward):
    """What two movers rest on: an older version is refused, also while the Pod ends, and so is another Pod under the name.

    A Pod that ends takes an eviction with its newest version again, and answers 201: so a mover must look before it evicts.
    """
    found = ward.begin()
    read = read_pod(found)
    path = f"{ward.rack.pods}/{read.name}"

    async def scene():
        client = await ApiClient.connect(ward.kubeconfig)
        try:
            cluster = Cluster(client, lambda: None)
            # its kubelet alone does not end it
            ward.api.patch(path, {"metadata": {"finalizers": ["example.com/held"]}})
            stale = await cluster.evict(read)
            fresh = (await cluster.pods("act"))[read.uid]
            done = await cluster.evict(fresh)
            late = await cluster.evict(fresh)
            ending = (await cluster.pods("act"))[read.uid]
            assert ending.deleting
            again = await cluster.evict(ending)
            ward.api.patch(path, {"metadata": {"finalizers": None}})
            until(lambda: read.uid not in _uids(ward), "the end of the Pod")
            gone = await cluster.evict(fresh)
            return [each.outcome for each in (stale, done, late, again, gone)]
        finally:
            await client.close()

    assert ["changed", "done", "changed", "done", "changed"] == asyncio.run(scene())


def _uids(ward):
    return {each["metadata"]["uid"] for each in ward.api.items(ward.rack.pods)}
