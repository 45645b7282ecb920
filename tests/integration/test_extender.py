"""`sickbay respond extend` on a real Kafka: it follows facts and decisions, catches up after a kill, and knows when it is behind."""

from __future__ import annotations

import json
import urllib.request

import pytest
from extender_worlds import asking
from live_processes import Process, eventually, run
from live_stack import PLUGIN, World, pod
from ports import free_port

from responders.extender.answers import STALE

POLICY = """
respond:
  extender:
    mode: enforce
    when_stale: closed
    stale_after_ms: 8000
"""
SHORT = f"sickbay: fewer than 2 fit {PLUGIN} are free (1 quarantined)"
TEXT = ("--log-format", "text")


class Scheduler:
    """Asks the extender as kube-scheduler does."""

    def __init__(self):
        self.port, self.http_port = free_port(), free_port()

    def ask(self, requests, names=("n0", "n1")):
        """Return the nodes that pass and the sentences of those that do not; nothing while nobody answers."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/filter",
            asking(requests, names=names),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
                found = json.loads(answer.read())
        except OSError:
            return None
        return found["NodeNames"], found["FailedAndUnresolvableNodes"]

    def is_ready(self):
        try:
            return json.loads(self.get("/readyz"))["ready"]
        except OSError:
            return False

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=5) as answer:
            return answer.read().decode()


def holding(name, on, *healths):
    """Return a Pod that asks for as many devices as its status tells of."""
    found = pod(name, on, healths)
    found["spec"]["containers"][0]["resources"]["requests"][PLUGIN] = str(len(healths))
    return found


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path, nodes=2)
    # nobody is there at first
    for name in made.pods:
        made._call(_deleted(made, name))
    yield made
    made.close()


async def _deleted(world, name):
    world.cluster.delete("pods", name, "ml")


def put(world, obj):
    async def put():
        world.cluster.put("pods", obj)

    world._call(put())


@pytest.mark.timeout(240)
def test_answers_follow_the_topics_survive_a_kill_and_turn_with_age(kafka_ready, world, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    scheduler = Scheduler()
    ports = ("--listen-port", str(scheduler.port), "--http-port", str(scheduler.http_port))
    extend = Process(
        kafka_ready, tmp_path, "extend", "respond", "extend", "--policy", str(policy), *ports, *TEXT
    )
    ingest = Process(
        kafka_ready,
        tmp_path,
        "ingest",
        "ingest",
        "--kubeconfig",
        str(world.kubeconfig),
        "--no-leader-elect",
        *TEXT,
    )
    work = Process(kafka_ready, tmp_path, "work", "work", *TEXT)
    run(kafka_ready, "topics", "apply")
    two, both = {PLUGIN: "2"}, (["n0", "n1"], {})
    with extend:
        # nothing was told yet, so nobody knows whose devices these are; and what is nobody's passes
        found = eventually(lambda: scheduler.ask(two), "an answer", processes=(extend,))
        assert found == ([], {"n0": STALE, "n1": STALE})
        assert scheduler.ask({"cpu": "1"}) == both
        assert "sickbay_extend_stale 1.0" in scheduler.get("/metrics")
        with ingest, work:
            put(world, holding("train", "n0", "Healthy"))
            everybody = (extend, ingest, work)
            eventually(lambda: scheduler.ask(two) == both, "a fresh view", processes=everybody)
            put(world, holding("train", "n0", "Unhealthy"))
            eventually(
                lambda: scheduler.ask(two) == (["n1"], {"n0": SHORT}),
                "the node to be removed",
                processes=everybody,
            )
            assert scheduler.ask({PLUGIN: "1"}) == both
            metrics = scheduler.get("/metrics")
            assert 'sickbay_extend_nodes_total{mode="enforce",reason="unfit_devices"}' in metrics
            assert "sickbay_extend_stale 0.0" in metrics

            extend.kill()
            put(world, holding("serve", "n1", "Healthy"))
            # the device stays out when its Pod goes, and the Pod's device is free again
            world._call(_deleted(world, "train"))
            extend.start()
            eventually(
                lambda: scheduler.ask(two) == (["n1"], {"n0": SHORT}),
                "the same after a kill",
                processes=everybody,
            )
            eventually(scheduler.is_ready, "it to be ready", processes=everybody)
        # ingest and worker are gone: nothing new is known, and in time nobody vouches for what was
        eventually(
            lambda: scheduler.ask({PLUGIN: "1"}) == ([], {"n0": STALE, "n1": STALE}),
            "age",
            processes=(extend,),
        )
        assert scheduler.ask({"cpu": "1"}) == both
        assert extend.stop() == 0
