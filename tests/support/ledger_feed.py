"""Kubernetes objects, through the observer, into the ledger of one node."""

from __future__ import annotations

import copy
import json
from pathlib import Path

from ledger_run import Run

from ingest.diff import Mirror
from ingest.frames import Frame
from sickbay.policy import Policy

SAMPLES = Path(__file__).parents[1] / "samples"


def sample(name):
    """A sample by ``folder/name``, the caller's to change."""
    return json.loads((SAMPLES / f"{name}.json").read_text())


def objects(name):
    """The objects of a sample, which may be a list."""
    found = sample(name)
    return found.get("items", [found])


class Cluster:
    """A mirror and the ledger of one node, one second between objects."""

    def __init__(self, node, policy=None):
        self.policy = policy or Policy()
        self.mirror = Mirror(self.policy.reading, 1)
        self.run = Run(self.policy, node=node)
        self.at_ms = 1_782_864_000_000
        self.facts = []

    def see(self, resource, *objects, kind="ADDED"):
        """Show objects of one resource type."""
        for obj in objects:
            self.at_ms += 1_000
            frame = Frame(at_ms=self.at_ms, resource=resource, type=kind, object=obj, place="feed")
            self.take(self.mirror.apply(frame))
        return self

    def take(self, facts):
        mine = [fact for fact in facts if fact.node in ("", self.run.node)]
        self.facts += mine
        self.run.each(mine)

    def slices(self, *names):
        """Show the slices of samples, each with a version of its own as an API server gives them."""
        for place, found in enumerate(o for name in names for o in objects(name)):
            found["metadata"]["resourceVersion"] = str(1000 + place)
            self.see("resourceslices", found)
        return self

    def later(self, ms):
        """Let time pass."""
        self.at_ms += ms
        self.run.until(self.at_ms)
        return self


def node(name, **allocatable):
    return {
        "metadata": {"name": name, "uid": f"node-{name}", "resourceVersion": "50"},
        "status": {
            "allocatable": {k.replace("_", "-"): v for k, v in allocatable.items()},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(name, node, *claims, requests=None, status=None, rv=9000, phase="Running", containers=None):
    """A Pod with one container ``main`` that refers to every claim; ``claims`` are names of claim objects."""
    main = {
        "name": "main",
        "resources": {"requests": requests or {}, "claims": [{"name": c} for c in claims]},
    }
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": f"uid-{name}", "resourceVersion": str(rv)},
        "spec": {
            "nodeName": node,
            "containers": containers or [main],
            "resourceClaims": [{"name": c, "resourceClaimName": c} for c in claims],
        },
        "status": {
            "phase": phase,
            **({} if status is None else {"nodeAllocatableResourceClaimStatuses": status}),
        },
    }


def old(claim, containers=("main",), **resources):
    """A status entry of the 1.36 shape."""
    return {"resourceClaimName": claim, "containers": list(containers), "resources": resources}


def new(claim, mapping=None, overhead=(), containers=("main",)):
    """A status entry of the 1.37 shape."""
    return {
        "resourceClaimName": claim,
        "containers": list(containers),
        "mapping": [{"name": r, "quantity": q} for r, q in (mapping or {}).items()],
        "overhead": list(overhead),
    }


def result(driver, pool, device, **more):
    return {"request": "r", "driver": driver, "pool": pool, "device": device, **more}


def claim(name, node, *results, pods=(), rv=7000):
    """An allocated claim of a node, consumed by Pods of these names."""
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": f"uid-{name}", "resourceVersion": str(rv)},
        "spec": {"devices": {"requests": []}},
        "status": {
            "allocation": {
                "devices": {"results": list(results)},
                "nodeSelector": {
                    "nodeSelectorTerms": [
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
                    ]
                },
                "allocationTimestamp": "2026-07-01T00:00:01Z",
            },
            "reservedFor": [{"resource": "pods", "name": p, "uid": f"uid-{p}"} for p in pods],
        },
    }


def slice_of(driver, node, *devices, generation=1, count=1, name=None, counters=None, rv=1000, pool=None):
    """One slice of a pool; ``devices`` are dictionaries with a name, or ``counters`` stand in their place."""
    spec = {
        "driver": driver,
        "pool": {"name": pool or node, "generation": generation, "resourceSliceCount": count},
        "nodeName": node,
    }
    if counters is None:
        spec["devices"] = list(devices)
    else:
        spec["sharedCounters"] = counters
    name = name or f"{node}-{driver}"
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(rv)}, "spec": spec}


def for_pod(claim_object, pod_object):
    """The sample's claim as a claim of the sample's Pod: one consumer with its uid."""
    found = copy.deepcopy(claim_object)
    metadata = pod_object["metadata"]
    found["status"]["reservedFor"] = [{"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}]
    return found
