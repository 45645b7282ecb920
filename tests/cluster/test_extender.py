"""The real kube-scheduler asks the extender: what a Pod's owner reads, and what is never held up.

Sickbay watches the control plane itself; custody and the ledger decide in this process, and the extender serves over HTTP as it does
in its own. Only Kafka is missing (tests/integration/test_extender.py has it).
"""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import ExitStack, suppress

import pytest
from cluster_objects import make_namespace, pod
from cluster_stories import until
from cluster_watch import Observer
from control_plane import VERSIONS, ApiError, ControlPlane
from extender_worlds import Known, policy_of
from kubelets import Kubelet

from responders.extender.answers import STALE, Judge
from responders.extender.server import ExtenderServer
from sickbay.clock import SystemClock
from sickbay.facts import ClaimsGateRequested

CARD = "example.com/card"
GPU = "gpu.example.com"
DRA = "/apis/resource.k8s.io/v1"
NAMESPACE = "extended"


class Counted:
    def __init__(self):
        self.outcomes = []

    def answered(self, outcome, *_):
        self.outcomes.append(outcome)


class Extender:
    """The extender in a thread of its own; what it knows is fed on its event loop."""

    def __init__(self):
        self.known = Known(policy_of("enforce"))
        self.stale = False
        self.figures = Counted()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        judge = Judge(self.known.holdings, closed=True)
        decide = lambda asked: judge.answer(asked, SystemClock().now_ms(), stale=self.stale)  # noqa: E731
        self.server = ExtenderServer(decide, self.figures, host="127.0.0.1", port=0)
        self.call(self.server.__aenter__())

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def feed(self, facts, decisions):
        async def feed():
            self.known.told(*facts).decided(*decisions)

        self.call(feed())

    def close(self):
        self.call(self.server.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


class World:
    """A control plane whose scheduler asks the extender, and what Sickbay makes of it."""

    def __init__(self, plane, extender, observer):
        self.plane, self.api, self.extender, self.observer = plane, plane.admin, extender, observer
        self.pods = make_namespace(self.api, NAMESPACE)
        self._facts, self._decisions = 0, {}
        with suppress(ApiError):
            selector = {"cel": {"expression": f'device.driver == "{GPU}"'}}
            self.api.create(
                f"{DRA}/deviceclasses", {"metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}}
            )

    def decide(self):
        """Let the extender hear of everything that was seen and decided."""
        self.observer.catch_up()
        world = self.observer.world
        facts, self._facts = world.facts[self._facts :], len(world.facts)
        decisions = []
        for runs in (world.custody, world.runs):
            for name, run in runs.items():
                seen = self._decisions.get((id(runs), name), 0)
                decisions += run.decisions[seen:]
                self._decisions[id(runs), name] = len(run.decisions)
        self.extender.feed(facts, decisions)

    def ask(self, name, *, claim=False, on=(), **requests):
        """Make a Pod that the scheduler is to place, on one of these nodes only."""
        asked = pod(name, **requests)
        if on:
            match = [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(on)}]
            required = {"nodeSelectorTerms": [{"matchExpressions": match}]}
            asked["spec"]["affinity"] = {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
            }
        if claim:
            requests = [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]
            path = f"{DRA}/namespaces/{NAMESPACE}/resourceclaims"
            self.api.create(path, {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}})
            asked["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
            asked["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
        return self.api.create(self.pods, asked)

    def bound(self, name):
        """Return where a Pod was bound to."""
        return until(
            lambda: self.api.get(f"{self.pods}/{name}")["spec"].get("nodeName"),
            f"{name} is not bound: {self.words(name)}",
        )

    def words(self, name):
        """Return what the scheduler says of a Pod: its condition, and its events."""
        found = self.api.get(f"{self.pods}/{name}")
        conditions = [
            c.get("message", "") for c in found["status"].get("conditions", ()) if c["type"] == "PodScheduled"
        ]
        events = self.api.items(
            f"/api/v1/namespaces/{NAMESPACE}/events", fieldSelector=f"involvedObject.name={name}"
        )
        return conditions, [e["message"] for e in events if e["reason"] == "FailedScheduling"]

    def refused(self, name, sentence):
        """Wait until the owner of a Pod reads a sentence, in the condition and in an event, and return the event."""

        def reads():
            conditions, events = self.words(name)
            return all(any(sentence in text for text in texts) for texts in (conditions, events)) and events

        return next(text for text in until(reads, f"{name}: {self.words(name)}") if sentence in text)

    def sick_card(self, name):
        """Register a node of two cards and bring one into quarantine; it is well again by its plugin's word, and nobody holds it."""
        kubelet = Kubelet(self.api, name).register({CARD: "2"})
        old = self.api.create(self.pods, pod(f"old-{name}", name, **{CARD: "1"}))
        for health in ("Healthy", "Unhealthy", "Healthy"):
            told = [{"name": CARD, "resources": [{"resourceID": "CARD-0", "health": health}]}]
            self.observer.has_seen("pods", kubelet.run(old, told))
        kubelet.remove(old)
        self.observer.until(lambda: old["metadata"]["uid"] in self.observer.deleted)
        device = f"plugin:{CARD}/CARD-0"
        assert self.observer.world.custody_of(name).phase(device) == "quarantined"
        self.decide()
        return kubelet


@pytest.fixture(params=VERSIONS, scope="module")
def world(request):
    with ExitStack() as stack:
        extender = Extender()
        stack.callback(extender.close)
        plane = ControlPlane(request.param)
        stack.callback(plane.remove)
        file = plane.folder / "scheduler.json"
        configuration = json.loads(file.read_text())
        configuration["extenders"] = [
            {
                "urlPrefix": f"http://127.0.0.1:{extender.server.port}",
                "filterVerb": "filter",
                "nodeCacheCapable": True,
                "ignorable": False,
                "httpTimeout": "2s",
            }
        ]
        file.write_text(json.dumps(configuration))
        plane.start()
        observer = stack.enter_context(Observer(plane, policy_of("enforce")))
        yield World(plane, extender, observer)


@pytest.fixture
def clean(world):
    """Return the world; what a test made of nodes and Pods is taken away."""
    yield world
    world.extender.stale = False
    for each in world.api.items(world.pods):
        with suppress(ApiError):
            world.api.delete(f"{world.pods}/{each['metadata']['name']}", gracePeriodSeconds=0)
    for each in world.api.items("/api/v1/nodes"):
        world.api.delete(f"/api/v1/nodes/{each['metadata']['name']}")


def test_an_extender_filtered_device_plugin_node_shows_the_reason_in_the_pod_s_event(clean):
    clean.sick_card("sick")
    clean.ask("two", **{CARD: "2"})
    told = clean.refused("two", f"1 sickbay: fewer than 2 fit {CARD} are free (1 quarantined)")
    assert told.startswith("0/1 nodes are available: ")
    assert "victim" not in told, "preemption was tried in vain"
    # what the node can still give, it gives
    clean.ask("one", **{CARD: "1"})
    assert clean.bound("one") == "sick"


def test_a_pod_that_fits_elsewhere_lands_there(clean):
    clean.sick_card("sick")
    Kubelet(clean.api, "well").register({CARD: "2"})
    clean.ask("two", **{CARD: "2"})
    assert clean.bound("two") == "well"


def test_a_pod_that_asks_for_nothing_of_ours_is_bound_while_the_extender_is_stale_and_closed(clean):
    clean.sick_card("sick")
    clean.extender.stale = True
    clean.ask("plain", cpu="1")
    assert clean.bound("plain") == "sick"
    clean.ask("one", **{CARD: "1"})
    clean.refused("one", STALE)
    clean.extender.stale = False
    # any event of the cluster has the scheduler try again
    Kubelet(clean.api, "well").register({CARD: "2"})
    assert clean.bound("one") in {"sick", "well"}


def test_a_node_on_ledger_hold_is_refused_for_a_claim_pod_and_takes_others(clean):
    node = Kubelet(clean.api, "gated").register()
    for each in node.publish(GPU, [{"name": f"gpu-{n}"} for n in range(2)]):
        clean.observer.has_seen("resourceslices", each)
    run = clean.observer.world.run("gated")
    gate = lambda closed, request: ClaimsGateRequested(  # noqa: E731
        node="gated", observed_at_ms=SystemClock().now_ms(), request_id=request, actor="ann", reason="upgrade", scope="node", closed=closed, device_id="",
    )  # fmt: skip
    run.step(gate(True, "g1"))
    clean.decide()
    clean.ask("claims", claim=True, on=["gated"], cpu="1")
    clean.refused("claims", "1 sickbay: new claims wait, the node's ledger is on hold (claims_gate_closed)")
    clean.ask("plain", on=["gated"], cpu="1")
    assert clean.bound("plain") == "gated"
    run.step(gate(False, "g2"))
    clean.decide()
    clean.api.patch("/api/v1/nodes/gated", {"metadata": {"labels": {"now": "open"}}})
    assert clean.bound("claims") == "gated"


def test_the_scheduler_could_read_every_answer(clean):
    clean.sick_card("sick")
    clean.ask("one", **{CARD: "1"})
    clean.bound("one")
    assert clean.extender.figures.outcomes
    assert set(clean.extender.figures.outcomes) == {"answered"}
