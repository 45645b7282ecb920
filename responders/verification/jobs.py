"""The objects of one step: the Job made of the operator's template, and for DRA the claim that only the one device fits.

Pure. The Job comes first and owns the claim, so that what takes the Job away takes the claim too; its Pod waits until the claim is
there. Both have one name, which follows from the step.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any, Final

from responders.labels import EPISODE, MANAGED_BY, NODE, TAINT_KEY
from responders.verification.selecting import Published, Term, expression_of
from responders.verification.steps import Step
from responders.verification.templates import CLAIM, Template
from sickbay.policy import ReturnPolicy

STEP: Final = "sickbay.dev/step"
DEVICE: Final = "sickbay.dev/device"
ATTEMPT: Final = "sickbay.dev/attempt"
#: What the driver published when the claim was made (``Published.digest``).
PUBLISHED: Final = "sickbay.dev/published"
#: All objects of this kind, of any installation.
OURS: Final = f"{MANAGED_BY}=sickbay,{STEP}"
#: Kubernetes takes a finished Job away so much later than the step could still stand.
_TTL_MORE_S: Final = 3_600

_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def build_job(step: Step, template: Template, policy: ReturnPolicy, now_ms: int) -> dict[str, Any]:
    """Return the Job of a step, without its namespace. It ends at the step's deadline, whenever it began."""
    timeout_ms = policy.probe_timeout_ms if step.kind == "probe" else policy.canary_timeout_ms
    spec = copy.deepcopy(template.spec)
    spec |= {
        "activeDeadlineSeconds": max(1, (step.deadline_ms - now_ms) // 1_000),
        "backoffLimit": 0,
        "ttlSecondsAfterFinished": timeout_ms // 1_000 + _TTL_MORE_S,
    }
    metadata = spec["template"].get("metadata") or {}
    spec["template"]["metadata"] = {
        "labels": (metadata.get("labels") or {}) | _labels(step),
        "annotations": (metadata.get("annotations") or {}) | _annotations(step),
    }
    pod = spec["template"]["spec"]
    # a probe talks to its device; who needs the API server says so
    pod.setdefault("automountServiceAccountToken", False)
    pod["affinity"] = (pod.get("affinity") or {}) | {"nodeAffinity": _pinned(step.node)}
    if template.device_class:
        pod["resourceClaims"] = [{"name": CLAIM, "resourceClaimName": step.name}]
    variables = [
        {"name": "SICKBAY_DEVICE", "value": _literal(step.device_id)},
        {"name": "SICKBAY_NODE", "value": _literal(step.node)},
        {"name": "SICKBAY_EPISODE", "value": _literal(step.episode_id)},
    ]
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        container["env"] = [*(container.get("env") or ()), *variables]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": step.name,
            "labels": template.labels | _labels(step),
            "annotations": template.annotations | _annotations(step),
        },
        "spec": spec,
    }


def build_claim(
    step: Step, template: Template, terms: tuple[Term, ...], published: Published, job_uid: str
) -> dict[str, Any]:
    """Return the claim of a step (resource.k8s.io/v1), without its namespace: one device, by its attributes, owned by the Job."""
    place = step.place
    assert place is not None, "a device plugin has no claims"
    asked: dict[str, Any] = {
        "deviceClassName": template.device_class,
        "allocationMode": "ExactCount",
        "count": 1,
        "selectors": [{"cel": {"expression": expression_of(place.driver, terms)}}],
        # any effect: NoExecute would end the Pod
        "tolerations": [{"key": TAINT_KEY, "operator": "Exists"}],
    }
    if template.admin_access:
        asked["adminAccess"] = True
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": step.name,
            "labels": _labels(step),
            "annotations": _annotations(step) | {PUBLISHED: published.digest},
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": step.name, "uid": job_uid},
            ],
        },
        "spec": {"devices": {"requests": [{"name": CLAIM, "exactly": asked}]}},
    }


def owner_of(claim: Mapping[str, Any]) -> str:
    """Return the uid of the Job that a claim belongs to, "" when it has none."""
    owners = claim["metadata"].get("ownerReferences") or ()
    return next((str(each["uid"]) for each in owners if each.get("kind") == "Job"), "")


def allocated(claim: Mapping[str, Any], step: Step) -> bool | None:
    """Whether the claim has exactly the device of the step; ``None`` while it has none."""
    allocation = (claim.get("status") or {}).get("allocation")
    if not allocation:
        return None
    results = (allocation.get("devices") or {}).get("results") or ()
    found = [(each.get("driver"), each.get("pool"), each.get("device")) for each in results]
    return found == [step.place]


def allocated_names(claim: Mapping[str, Any]) -> str:
    """Return what the claim has, for people."""
    results = ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results") or ()
    told = [f"{each.get('driver')}/{each.get('pool')}/{each.get('device')}" for each in results]
    return ", ".join(told) or "no device"


def _labels(step: Step) -> dict[str, str]:
    # an episode's id is a uuid; another is found by the annotation alone
    episode = step.episode_id if _LABEL_VALUE.fullmatch(step.episode_id) else step.name
    return {MANAGED_BY: "sickbay", EPISODE: episode, STEP: step.kind}


def _annotations(step: Step) -> dict[str, str]:
    return {
        DEVICE: step.device_id,
        NODE: step.node,
        EPISODE: step.episode_id,
        ATTEMPT: str(step.attempt),
    }


def _pinned(node: str) -> dict[str, Any]:
    # by the name of the object, as DaemonSets do it: a label may be missing, or be another's
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}


def _literal(value: str) -> str:
    # the kubelet would expand $(NAME)
    return value.replace("$", "$$")
