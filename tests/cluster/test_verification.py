"""Probes on a real control plane: the scheduler gives their claim the tainted device and no other, the Job controller ends them."""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import suppress

import pytest
from cluster_objects import make_namespace, pod
from control_plane import ApiError
from kubelets import Kubelet
from verification_worlds import TEMPLATE, Silent, device, fold

from responders.verification.namespace import Namespace
from responders.verification.templates import read_templates
from responders.verification.verifier import Verifier
from responders.view import View
from sickbay.clock import SystemClock
from sickbay.cluster.client import ApiClient
from sickbay.policy import ReturnPolicy

DRA = "/apis/resource.k8s.io/v1"
NAMESPACE = "sickbay-verification"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
CLAIMS = f"{DRA}/namespaces/{NAMESPACE}/resourceclaims"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DRIVER = "probed.example.com"
NODE = "probed"
DEVICE = f"dra:{DRIVER}/{NODE}/gpu-1"
#: Everything that CEL might stumble over.
ODD = 'a"b\\c\n\té😀$(x) && true'
CARDS = (
    device("gpu-0", model="a", uuid=ODD + "0", index=0),
    device("gpu-1", model="a", uuid=ODD + "1", index=1),
)
TEMPLATES = read_templates(
    {
        f"{kind}.yaml": TEMPLATE.replace("device-class: gpu", "device-class: probed")
        for kind in ("probe", "canary")
    },
    "templates",
)
WAIT_S = 30


class Probed:
    """A node with two devices of which one is tainted, and a verifier that looks whenever the test waits."""

    def __init__(self, plane):
        self.plane, self.api = plane, plane.admin
        self.view, self.facts = View(), []
        self.kubelet = Kubelet(self.api, NODE).register()
        self.other = Kubelet(self.api, "not-probed").register()
        for kubelet in (self.kubelet, self.other):
            kubelet.publish(DRIVER, CARDS)
        make_namespace(self.api, NAMESPACE)
        selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
        with suppress(ApiError):
            self.api.create(f"{DRA}/deviceclasses", {"metadata": {"name": "probed"}, "spec": {"selectors": selectors}})  # fmt: skip
        version = "v1beta2" if plane.version == "1.36" else "v1"
        self.rules = f"/apis/resource.k8s.io/{version}/devicetaintrules"
        selector = {"driver": DRIVER, "pool": NODE, "device": "gpu-1"}
        taint = {"key": "sickbay.dev/quarantine", "value": "episode", "effect": "NoSchedule"}
        self.api.create(
            self.rules,
            {
                "apiVersion": f"resource.k8s.io/{version}",
                "kind": "DeviceTaintRule",
                "metadata": {"name": "probed"},
                "spec": {"deviceSelector": selector, "taint": taint},
            },
        )
        time.sleep(0.5)  # until the scheduler has heard of all of it
        self.now_ms = SystemClock().now_ms
        self.policy = ReturnPolicy(prober="job", probe_timeout_ms=600_000)

    async def report(self, fact):
        self.facts.append(fact)

    def begin(self, phase="probing", **changes):
        changes = {"return_at_ms": self.now_ms()} | changes
        fold(self.view, phase, DEVICE, node=NODE, **changes)

    def until(self, holds, what):
        """Look, as the process does, until something holds, and return it."""

        async def run():
            client = await ApiClient.connect(self.plane.kubeconfig(self.plane.folder / "verifier"))
            verifier = Verifier(
                namespace=Namespace(client, NAMESPACE, "sickbay"),
                templates=TEMPLATES,
                policy=self.policy,
                view=self.view,
                reports=self,
                metrics=Silent(),
                require_lead=lambda: None,
                now_ms=self.now_ms,
            )
            try:
                end = time.monotonic() + WAIT_S
                while time.monotonic() < end:
                    again_s = await verifier.act()
                    if found := holds():
                        return found
                    await asyncio.sleep(min(0.1, 0.1 if again_s is None else again_s))
            finally:
                await client.close()
                await asyncio.sleep(0.25)  # see live_watch.following
            raise AssertionError(what)

        return asyncio.run(run())

    def bound(self):
        """Return the Pod of the step once it is bound, and not one that is over."""
        bound = (each for each in self.api.items(PODS) if each["spec"].get("nodeName"))
        over = ("Succeeded", "Failed")
        return next((each for each in bound if each["status"].get("phase") not in over), None)

    def taken_back(self, path):
        """Wait until the controller has taken the allocation of a claim back, while no verifier looks."""
        end = time.monotonic() + WAIT_S
        while self.allocated(path):
            assert time.monotonic() < end, "its allocation was not taken back"
            time.sleep(0.05)

    def allocated(self, path):
        results = self.api.get(path).get("status", {}).get("allocation", {}).get("devices", {}).get("results")
        return results and [(each["pool"], each["device"]) for each in results]

    def leave(self):
        for path in (JOBS, CLAIMS):
            for each in self.api.items(path):
                with suppress(ApiError):
                    self.api.delete(f"{path}/{each['metadata']['name']}", propagationPolicy="Background")
        for each in self.api.items(PODS):
            self.kubelet.remove(each)
        end = time.monotonic() + WAIT_S
        while (self.api.items(CLAIMS) or self.api.items(PODS)) and time.monotonic() < end:
            time.sleep(0.05)
        self.api.delete(f"{self.rules}/probed")
        for kubelet in (self.kubelet, self.other):
            kubelet.withdraw(DRIVER)
            kubelet.leave()


@pytest.fixture
def probed(plane):
    found = Probed(plane)
    yield found
    found.leave()


def test_a_probe_gets_exactly_the_tainted_device_on_its_node_and_passes(probed):
    probed.begin()
    running = probed.until(probed.bound, "the Pod was not bound")
    assert running["spec"]["nodeName"] == NODE
    name = running["metadata"]["labels"]["batch.kubernetes.io/job-name"]
    assert probed.allocated(f"{CLAIMS}/{name}") == [(NODE, "gpu-1")]
    probed.kubelet.run(running)
    looks = itertools.count()

    def reported():
        if next(looks) == 2:
            probed.kubelet.finish(running)
        return probed.facts

    (fact,) = probed.until(reported, "nothing was reported")
    assert (fact.passed, fact.detail) == (True, "its claim had this device")
    # the canary has it next, and what is left of the probe goes
    probed.begin("canary", canary_at_ms=probed.now_ms())
    real = probed.now_ms
    probed.now_ms = lambda: real() + 60_000
    probed.until(lambda: [each["metadata"]["name"] for each in probed.api.items(JOBS)] == [name.replace("probe", "canary")] and len(probed.api.items(CLAIMS)) == 1, "the probe is still there")  # fmt: skip
    running = probed.until(probed.bound, "the canary was not bound")
    claim = f"{CLAIMS}/{name.replace('probe', 'canary')}"
    assert probed.allocated(claim) == [(NODE, "gpu-1")]
    # it ends while the process is away
    probed.kubelet.run(running)
    probed.kubelet.finish(running)
    probed.taken_back(claim)
    probed.until(lambda: len(probed.facts) == 2, "the canary was not reported")
    assert (probed.facts[1].passed, probed.facts[1].detail) == (True, "no other device fits its claim")
    probed.view.nodes.clear()
    probed.until(lambda: not probed.api.items(JOBS), "garbage stays")


def test_an_ordinary_claim_does_not_get_the_tainted_device(probed):
    for number in range(2):
        asked = {"name": "r", "exactly": {"deviceClassName": "probed"}}
        claim = {"metadata": {"name": f"plain-{number}"}, "spec": {"devices": {"requests": [asked]}}}
        probed.api.create(CLAIMS, claim)
        body = pod(f"plain-{number}")
        body["spec"] |= {
            "nodeSelector": {"kubernetes.io/hostname": NODE},
            "resourceClaims": [{"name": "r", "resourceClaimName": f"plain-{number}"}],
        }
        body["spec"]["containers"][0]["resources"]["claims"] = [{"name": "r"}]
        probed.api.create(PODS, body)
        # the first word of the scheduler may be of what it has not heard of yet
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            found = probed.api.get(f"{PODS}/plain-{number}")
            words = str(found["status"].get("conditions"))
            if found["spec"].get("nodeName") or (number == 1 and "cannot allocate all claims" in words):
                break
            time.sleep(0.05)
        given = found["spec"].get("nodeName"), probed.allocated(f"{CLAIMS}/plain-{number}")
        assert given == ((NODE, [(NODE, "gpu-0")]) if number == 0 else (None, None)), words
    assert "cannot allocate all claims" in words


def test_a_probe_that_fails_has_failed_with_its_exit_code(probed):
    probed.begin()
    running = probed.until(probed.bound, "the Pod was not bound")
    ended = {"exitCode": 3, "reason": "Error", "message": "ECC error in bank 7"}
    status = {"name": "main", "ready": False, "restartCount": 0, "image": "none", "imageID": "none", "state": {"terminated": ended}}  # fmt: skip
    path = f"{PODS}/{running['metadata']['name']}/status"
    probed.api.patch(path, {"status": {"phase": "Failed", "containerStatuses": [status]}})
    (fact,) = probed.until(lambda: probed.facts, "nothing was reported")
    assert not fact.passed
    assert fact.detail.endswith("main ended with 3 (Error): ECC error in bank 7")


def test_a_probe_that_does_not_end_is_ended_by_its_job_and_has_failed(probed):
    probed.policy = ReturnPolicy(prober="job", probe_timeout_ms=20_000)
    probed.begin()
    # our own deadline stands behind that of the Job
    start = probed.now_ms()
    real, probed.now_ms = probed.now_ms, lambda: start
    running = probed.until(probed.bound, "the Pod was not bound")
    probed.kubelet.run(running)
    (fact,) = probed.until(lambda: probed.facts, "nothing was reported")
    assert not fact.passed
    assert fact.detail.startswith("DeadlineExceeded: ")
    probed.now_ms = real


def test_a_device_in_use_is_not_taken_and_the_report_says_what_it_waited_for(probed):
    # the workload that was on it when it turned bad still runs
    tolerations = [{"key": "sickbay.dev/quarantine", "operator": "Exists"}]
    cel = {"cel": {"expression": f'device.attributes["{DRIVER}"].index == 1'}}
    asked = {
        "name": "r",
        "exactly": {"deviceClassName": "probed", "tolerations": tolerations, "selectors": [cel]},
    }
    probed.api.create(CLAIMS, {"metadata": {"name": "held"}, "spec": {"devices": {"requests": [asked]}}})
    body = pod("holder")
    body["spec"] |= {
        "nodeSelector": {"kubernetes.io/hostname": NODE},
        "resourceClaims": [{"name": "r", "resourceClaimName": "held"}],
    }
    body["spec"]["containers"][0]["resources"]["claims"] = [{"name": "r"}]
    probed.api.create(PODS, body)
    probed.until(probed.bound, "the workload was not bound")
    probed.begin()
    probed.until(lambda: any(each.get("message") for found in probed.api.items(PODS) for each in found["status"].get("conditions", ()) if found["metadata"]["name"] != "holder"), "the scheduler said nothing")  # fmt: skip
    real = probed.now_ms
    probed.now_ms = lambda: real() + 600_000
    (fact,) = probed.until(lambda: probed.facts, "nothing was reported")
    assert not fact.passed
    assert "did not end in time; it waited: " in fact.detail
    assert "cannot allocate all claims" in fact.detail


def test_a_device_that_its_attributes_cannot_single_out_never_passes(probed):
    probed.kubelet.publish(DRIVER, [device("gpu-0", model="a"), device("gpu-1", model="a")])
    probed.begin()
    (fact,) = probed.until(lambda: probed.facts, "nothing was reported")
    assert not fact.passed
    assert "cannot single the device out" in fact.detail
    assert not probed.api.items(JOBS)
    assert not probed.api.items(CLAIMS)


def test_a_device_whose_attributes_another_took_over_never_passes(probed):
    """The cards change names between the slice that was read and the allocation."""
    scheduler = probed.plane.parts["kube-scheduler"]
    scheduler.kill()
    try:
        probed.begin()
        probed.until(lambda: probed.api.items(CLAIMS), "no claim was made")
        first, second = (dict(each) for each in CARDS)
        first["name"], second["name"] = second["name"], first["name"]
        probed.kubelet.publish(DRIVER, [second, first])
    finally:
        scheduler.start()
    (fact,) = probed.until(lambda: probed.facts, "nothing was reported")
    assert not fact.passed
    assert fact.detail.startswith(f"the claim was given {DRIVER}/{NODE}/gpu-0 and not this device")
    probed.until(lambda: not probed.api.items(JOBS), "the Job goes on on another device")
