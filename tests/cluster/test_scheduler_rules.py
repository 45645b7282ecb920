"""Rules of the real scheduler that keep a Pod from its devices and are not the ledger's: they are as Sickbay describes them.

Each is read from the scheduler's own words; where it is a bug, its number upstream is named.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress

import pytest
from cluster_objects import make_namespace, pod
from cluster_stories import until
from cluster_watch import Observer
from control_plane import ApiError
from judged_clusters import policy_of
from kubelets import Kubelet, mapping

DRA = "/apis/resource.k8s.io/v1"
NAMESPACE = "ruled"
CLAIMS = f"{DRA}/namespaces/{NAMESPACE}/resourceclaims"
NODE = "ruled"


class Ruled:
    """A node with devices that take cpu (``mapped``), only overhead (``over``) or nothing (``bare``)."""

    def __init__(self, plane, observer):
        self.plane, self.api, self.observer = plane, plane.admin, observer
        self.kubelet = Kubelet(self.api, NODE).register()
        self.pods = make_namespace(self.api, NAMESPACE)
        later = plane.version != "1.36"
        said = {
            "mapped": mapping(plane.version, per_device={"cpu": "2"}),
            "bare": {},
            "over": mapping(plane.version, overhead={"memory": {"perPod": "1Gi"}}) if later else {},
        }
        for name, what in said.items():
            driver = f"{name}.example.com"
            for each in self.kubelet.publish(driver, [{"name": f"{name}-{n}"} | what for n in range(4)]):
                observer.has_seen("resourceslices", each)
            with suppress(ApiError):
                self.api.create(
                    f"{DRA}/deviceclasses",
                    {
                        "metadata": {"name": f"ruled-{name}"},
                        "spec": {
                            "selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}],
                            "extendedResourceName": f"example.com/{name}",
                        },
                    },
                )
        time.sleep(0.3)

    def leave(self):
        for each in self.api.items(self.pods):
            self.kubelet.remove(each)
        for each in self.api.items(CLAIMS):
            with suppress(ApiError):
                self.api.delete(f"{CLAIMS}/{each['metadata']['name']}")
        # the claim controller lets go of them first
        until(lambda: not self.api.items(CLAIMS), "claims are still there")
        for name in ("mapped", "bare", "over"):
            self.kubelet.withdraw(f"{name}.example.com")
        self.kubelet.leave()

    def claim(self, kind):
        requests = [{"name": "r", "exactly": {"deviceClassName": f"ruled-{kind}"}}]
        self.api.create(CLAIMS, {"metadata": {"name": kind}, "spec": {"devices": {"requests": requests}}})

    def place(self, name, *, claim="", refers=True, extended="", refused=""):
        """Make a Pod and return it with the scheduler's words, "" where it is bound.

        Nodes, slices and classes reach the scheduler each by a watch of its own, so its first word may be of what it has not heard
        of: a refusal is returned once it is the one that is expected (a pattern).
        """
        asked = pod(name, **({"cpu": "100m"} | ({f"example.com/{extended}": "1"} if extended else {})))
        if claim:
            asked["spec"]["resourceClaims"] = [{"name": claim, "resourceClaimName": claim}]
            if refers:
                asked["spec"]["containers"][0]["resources"]["claims"] = [{"name": claim}]
        self.api.create(self.pods, asked)
        words = []
        end = time.monotonic() + 20
        while time.monotonic() < end:
            found = self.api.get(f"{self.pods}/{name}")
            if found["spec"].get("nodeName"):
                return found, ""
            words = [each.get("message", "") for each in found["status"].get("conditions", ())]
            if refused and re.search(refused, " ".join(words)):
                return found, " ".join(words)
            time.sleep(0.02)
        raise AssertionError(f"{name} is neither bound nor refused as expected: {words}")

    def books(self, found):
        """Return both books, once the Pod was heard of."""
        self.observer.has_seen("pods", self.api.get(f"{self.pods}/{found['metadata']['name']}"))
        for each in self.api.items(CLAIMS):
            self.observer.has_seen("resourceclaims", each)
        run = self.observer.world.run(NODE)
        return run.requested("recorded"), run.requested("derived")


@pytest.fixture
def ruled(plane):
    with Observer(plane, policy_of(plane.version)) as observer:
        found = Ruled(plane, observer)
        yield found
        found.leave()


def test_a_claim_that_takes_from_its_node_is_for_one_pod_and_one_that_takes_nothing_for_many(ruled):
    ruled.claim("mapped")
    ruled.claim("bare")
    first, words = ruled.place("a", claim="mapped")
    assert not words
    taken = "is already used by another pod|cannot be shared across pods"
    _, words = ruled.place("b", claim="mapped", refused=taken)
    assert words
    assert [ruled.place(name, claim="bare")[1] for name in "cd"] == ["", ""]
    recorded, derived = ruled.books(first)
    assert recorded == derived


def test_overhead_alone_is_shared_and_each_pod_pays_its_own(ruled):
    if ruled.plane.version == "1.36":
        # there is no overhead yet: the API server drops the field, and the device takes nothing
        later = mapping("1.37", overhead={"memory": {"perPod": "1Gi"}})
        (published,) = ruled.kubelet.publish("over.example.com", [{"name": "over-0"} | later])
        assert published["spec"]["devices"] == [{"name": "over-0"}]
        return
    ruled.claim("over")
    before = ruled.books(ruled.place("x")[0])[0].get("memory", 0)
    found = [ruled.place(name, claim="over") for name in "ab"]
    assert [words for _, words in found] == ["", ""]
    recorded, derived = ruled.books(found[-1][0])
    assert recorded == derived
    assert recorded["memory"] - before == 2 * 2**30


def test_a_claim_that_no_container_refers_to_is_refused_by_136_and_counted_by_137(ruled):
    ruled.claim("mapped")
    rule = "not referenced by any container" if ruled.plane.version == "1.36" else ""
    found, words = ruled.place("a", claim="mapped", refers=False, refused=rule)
    if rule:
        assert words
        return
    assert not words
    recorded, derived = ruled.books(found)
    assert recorded == derived
    assert recorded["cpu"] > 2


def test_an_extended_resource_that_takes_from_its_node_cannot_be_bound_and_one_that_takes_nothing_can(ruled):
    """1.36 by the rule above; 1.37 by kubernetes/kubernetes#141467, whose placeholder the API server does not take."""
    rule = (
        "not referenced by any container"
        if ruled.plane.version == "1.36"
        else "no mapping found in pod reference"
    )
    _, words = ruled.place("a", extended="mapped", refused=rule)
    assert "<extended-resources>" in words
    found, words = ruled.place("b", extended="bare")
    assert not words
    recorded, derived = ruled.books(found)
    assert recorded == derived
