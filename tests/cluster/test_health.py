"""Health as a kubelet writes it, through a real API server and with devices that the real scheduler allocated, to custody."""

from __future__ import annotations

import copy
import time
from contextlib import suppress

import pytest
from cluster_objects import make_namespace, pod
from cluster_watch import Observer
from control_plane import ApiError
from kubelets import Kubelet, mapping

from ingest.frames import Frame
from sickbay.policy import Policy

CLAIMS = "/apis/resource.k8s.io/v1"
DRIVER = "health.example.com"
RESOURCE = "example.com/card"
MINUTE_MS = 60_000


class Ward:
    """One node with a driver and a device plugin, and what Sickbay makes of it."""

    def __init__(self, plane, observer, name):
        self.plane, self.api, self.observer = plane, plane.admin, observer
        self.name = name
        self.kubelet = Kubelet(self.api, name).register({RESOURCE: "4"})
        self.pods = make_namespace(self.api, "health")
        self.devices = [
            {"name": f"gpu-{n}"} | mapping(plane.version, per_device={"cpu": "1"}) for n in range(3)
        ]
        self.kubelet.publish(DRIVER, self.devices)
        with suppress(ApiError):  # of the test before
            self.api.create(
                f"{CLAIMS}/deviceclasses",
                {
                    "metadata": {"name": "health"},
                    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
                },
            )

    def leave(self):
        for each in self.api.items(self.pods):
            self.kubelet.remove(each)
        self.kubelet.withdraw(DRIVER)
        self.kubelet.leave()

    def with_plugin(self, name="a"):
        """Return a Pod with a card of the device plugin, as the kubelet would run it."""
        return self.api.create(self.pods, pod(name, self.name, **{"cpu": "100m", RESOURCE: "1"}))

    def with_claim(self, name="d"):
        """Return a Pod that the real scheduler bound, its claim, and the device that it allocated."""
        spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "health"}}]}}
        self.api.create(
            f"{CLAIMS}/namespaces/health/resourceclaimtemplates",
            {"metadata": {"name": f"{self.name}-{name}"}, "spec": {"spec": spec}},
        )
        asked = pod(name)
        asked["spec"]["nodeSelector"] = {"kubernetes.io/hostname": self.name}
        asked["spec"]["resourceClaims"] = [
            {"name": "gpu", "resourceClaimTemplateName": f"{self.name}-{name}"}
        ]
        asked["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
        self.api.create(self.pods, asked)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            bound = self.api.get(f"{self.pods}/{name}")
            if bound["spec"].get("nodeName"):
                break
            time.sleep(0.05)
        (status,) = bound["status"]["resourceClaimStatuses"]
        claim = self.api.get(f"{CLAIMS}/namespaces/health/resourceclaims/{status['resourceClaimName']}")
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        # what is said of the device is joined through the claim, which comes by another watch
        self.observer.has_seen("resourceclaims", claim)
        return bound, claim, result["device"]

    def say(self, bound, name, *words):
        """Let the kubelet write health: ``(resourceID, health)``."""
        told = [
            {"name": name, "resources": [{"resourceID": each, "health": health} for each, health in words]}
        ]
        self.observer.has_seen("pods", self.kubelet.run(bound, told))

    @property
    def custody(self):
        return self.observer.world.custody_of(self.name)

    def after(self, minutes):
        """Return custody as it would be if nothing happened for so long, with the node alive."""
        run = self.custody.reopened()
        run.until(self.observer.world.at_ms + minutes * MINUTE_MS)
        return run


@pytest.fixture
def ward(plane, request):
    with Observer(plane, Policy()) as observer:
        found = Ward(plane, observer, f"ward-{abs(hash(request.node.name)) % 100_000}")
        yield found
        found.leave()


def test_a_card_of_a_device_plugin_that_is_reported_unhealthy_is_quarantined_and_watched_on_its_way_back(
    ward,
):
    bound = ward.with_plugin()
    ward.say(bound, RESOURCE, ("GPU-1", "Healthy"))
    device = f"plugin:{RESOURCE}/GPU-1"
    assert ward.custody.phase(device) == "in_service"
    ward.say(bound, RESOURCE, ("GPU-1", "Unhealthy"))
    assert ward.custody.phase(device) == "quarantined"
    ward.say(bound, RESOURCE, ("GPU-1", "Healthy"))
    assert ward.custody.phase(device) == "quarantined"
    assert ward.after(30).phases(device)[-1] != "in_service"
    assert ward.after(24 * 60).phase(device) == "in_service"


@pytest.mark.parametrize("id_of", ["cdi", "path"])
def test_a_device_is_found_through_pod_claim_and_the_allocation_of_the_real_scheduler(ward, id_of):
    bound, claim, device = ward.with_claim()
    uid = claim["metadata"]["uid"]
    resource_id = {"cdi": f"k8s.{DRIVER}/claim={uid}-{device}", "path": f"{DRIVER}/{ward.name}/{device}"}[
        id_of
    ]
    ward.say(bound, "claim:gpu", (resource_id, "Unhealthy"))
    assert ward.custody.phase(f"dra:{DRIVER}/{ward.name}/{device}") == "quarantined"
    others = {f"dra:{DRIVER}/{ward.name}/{each['name']}" for each in ward.devices} - {
        f"dra:{DRIVER}/{ward.name}/{device}"
    }
    assert {ward.custody.phase(each) for each in others} == {"in_service"}


def test_unknown_is_suspected_first_and_kept_from_new_work_when_it_lasts(ward):
    bound, _, device = ward.with_claim()
    device_id = f"dra:{DRIVER}/{ward.name}/{device}"
    ward.say(bound, "claim:gpu", (f"{DRIVER}/{ward.name}/{device}", "Unknown"))
    assert ward.custody.phase(device_id) == "suspect"
    assert ward.after(30).phase(device_id) == "restricted"
    assert not ward.after(30).open_episodes()


def test_the_last_word_of_a_pod_that_has_ended_neither_opens_nor_clears(ward):
    bound = ward.with_plugin()
    ward.say(bound, RESOURCE, ("GPU-2", "Healthy"))
    ended = ward.kubelet.finish(bound, "Failed")
    ended["status"]["containerStatuses"][0]["allocatedResourcesStatus"][0]["resources"][0]["health"] = (
        "Unhealthy"
    )
    again = ward.api.patch(
        f"{ward.pods}/{bound['metadata']['name']}/status",
        {"status": {"containerStatuses": ended["status"]["containerStatuses"]}},
    )
    ward.observer.has_seen("pods", again)
    assert ward.custody.phase(f"plugin:{RESOURCE}/GPU-2") == "in_service"
    assert not ward.custody.open_episodes()


def test_a_driver_that_is_gone_is_one_incident_and_condemns_nobody(ward):
    bound = ward.with_plugin()
    ward.say(bound, RESOURCE, *((f"GPU-{n}", "Healthy") for n in range(4)))
    told = ward.kubelet.report({"cpu": "32", "memory": "64Gi", "pods": "110", RESOURCE: "4"}, {RESOURCE: "0"})
    ward.observer.has_seen("nodes", told)
    run = ward.after(1)
    assert [decision.KIND for decision in run.decisions + ward.custody.decisions].count(
        "node_incident_opened"
    ) == 1
    assert not run.open_episodes()


def test_a_node_that_is_lost_and_found_leaves_its_devices_where_they_were(ward):
    """The Leases are real; the silence between two of them is told to a copy of what Sickbay knows."""
    bound = ward.with_plugin()
    ward.say(bound, RESOURCE, ("GPU-3", "Healthy"))
    ward.observer.has_seen("leases", ward.kubelet.renew())
    world, device = copy.deepcopy(ward.observer.world), f"plugin:{RESOURCE}/GPU-3"
    for _ in range(7):
        world.apply(frame(world.at_ms + 10_000, "TICK"))
    lost = world.custody_of(ward.name)
    assert "node_lost" in {decision.cause for decision in lost.of("node_incident_opened")}
    assert lost.phase(device) == "suspect"
    world.apply(frame(world.at_ms + 1_000, "MODIFIED", "leases", ward.kubelet.renew()))
    for _ in range(12):
        world.apply(frame(world.at_ms + 10_000, "MODIFIED", "leases", ward.kubelet.renew()))
    lost.until(world.at_ms)
    assert "node_incident_closed" in {decision.KIND for decision in lost.decisions}
    assert lost.phase(device) == "in_service"
    assert not lost.open_episodes()


def frame(at_ms, kind, resource="", obj=None):
    return Frame(at_ms=at_ms, resource=resource, type=kind, object=obj, place="supposed")
