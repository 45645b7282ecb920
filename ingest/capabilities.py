"""What a cluster can tell Sickbay, and what will be missing: the judgement of ``sickbay doctor``, over what was asked.

It must not ask anything itself (``ingest.examining`` does), and it never guesses: what was not to be had is ``unknown``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

#: ``ok``; ``off``: it works without, and something is missing; ``failed``: it does not work; ``excess``: more than is needed.
State: TypeAlias = Literal["ok", "off", "unknown", "failed", "excess"]

#: Minor versions that the tests run against (tests/cluster).
TESTED: Final = ("1.36", "1.37")


class Finding(NamedTuple):
    """One line of the examination."""

    #: ``version``, ``api``, ``gate``, ``node``, ``permission``, ``topic`` or ``store``.
    what: str
    name: str
    state: State
    found: str
    #: What follows from it and what to do; "" where all is well.
    means: str = ""


class Access(NamedTuple):
    """One thing that may be done at the API server."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    #: Of the one object that is meant, "" for any.
    name: str = ""

    def __str__(self) -> str:
        """Return it as a person would say it."""
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{'.' if self.group else ''}{self.group}{where}"


#: What watching needs (deploy/rbac/ingest.yaml).
NEEDED: Final = tuple(
    Access(verb, group, resource, namespace)
    for group, resource, namespace in (
        ("", "pods", ""),
        ("", "nodes", ""),
        ("resource.k8s.io", "resourceslices", ""),
        ("resource.k8s.io", "resourceclaims", ""),
        ("coordination.k8s.io", "leases", "kube-node-lease"),
    )
    for verb in ("list", "watch")
)
#: What nobody who only watches should be able to do.
EXCESS: Final = (
    Access("list", "", "secrets"),
    Access("create", "", "pods"),
    Access("delete", "", "pods"),
    Access("create", "", "pods/exec"),
    Access("patch", "", "pods/status"),
    Access("patch", "", "nodes"),
    Access("update", "resource.k8s.io", "resourceslices"),
    Access("update", "resource.k8s.io", "resourceclaims/status"),
    Access("create", "resource.k8s.io", "devicetaintrules"),
)

#: Feature gate to what is missing while it is off (reference of the gates: kubernetes.md 1.8, 3.1, 4.1).
_GATES: Final[Mapping[str, str]] = {
    "ResourceHealthStatus": "Pods say nothing of the health of their devices: only taints, attributes of slices and allocatable do",
    "ResourceHealthStatusMessage": "health comes without a message",
    "DRANodeAllocatableResources": "the scheduler does not count what devices take of their node: nothing is recorded for claims",
    "DRAConsumableCapacity": "no device can be shared by amounts, and no mapping can count a capacity",
    "DRAPartitionableDevices": "drivers cannot publish partitions with shared counters",
    "DRADeviceTaints": "drivers cannot mark a device in its slice",
    "DRADeviceTaintRules": "no device can be kept from new work by a rule",
    "DRAExtendedResource": "extended resources are never backed by claims",
}
#: By which version a rule that excludes a device is written, best first.
_RULE_VERSIONS: Final = ("v1", "v1beta2", "v1alpha3")
_READ_VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
_FEATURE: Final = re.compile(
    r'^kubernetes_feature_enabled\{name="([^"]+)"[^}]*\} ([01])\b', re.ASCII | re.MULTILINE
)
_NODE_FEATURE: Final = "DRANodeAllocatableResources"


def read_gates(metrics: str) -> dict[str, bool]:
    """Return the feature gates that the metrics of an API server name, and whether each is on."""
    return {name: value == "1" for name, value in _FEATURE.findall(metrics)}


def judge_version(document: Mapping[str, Any]) -> Finding:
    """Judge what ``/version`` said."""
    told = str(document.get("gitVersion") or "")
    minor = ".".join(told.removeprefix("v").split(".")[:2])
    if minor in TESTED:
        return Finding("version", "kubernetes", "ok", told)
    means = f"not one of those that were tested: {', '.join(TESTED)}"
    return Finding("version", "kubernetes", "unknown", told or "not told", means)


def judge_apis(served: Sequence[str], rules: Sequence[str]) -> Iterator[Finding]:
    """Judge the versions of ``resource.k8s.io`` that are served, and those by which DeviceTaintRules are."""
    read = next((version for version in _READ_VERSIONS if version in served), "")
    if read:
        means = "" if read == "v1" else "fields that only v1 has are not seen"
        yield Finding("api", "resource.k8s.io", "ok" if read == "v1" else "off", read, means)
    else:
        means = "no slice and no claim is seen: only device plugins are followed"
        yield Finding("api", "resource.k8s.io", "off", "not served", means)
    rule = next((version for version in _RULE_VERSIONS if version in rules), "")
    if rule:
        yield Finding("api", "devicetaintrules", "ok", rule)
    else:
        means = "no device can be kept from new work by a rule; on 1.36 set --runtime-config=resource.k8s.io/v1beta2=true"
        yield Finding("api", "devicetaintrules", "off", "not served", means)


def judge_gates(gates: Mapping[str, bool] | None, why: str = "") -> Iterator[Finding]:
    """Judge the feature gates of the API server; ``None`` where they could not be read, because of ``why``."""
    for name, missing in _GATES.items():
        if gates is None:
            means = f"{why}; allow get on /metrics (deploy/rbac/doctor.yaml) or look at --feature-gates"
            yield Finding("gate", name, "unknown", "not to be had", means)
        elif name not in gates:
            yield Finding("gate", name, "off", "not known to this server", missing)
        else:
            on = gates[name]
            yield Finding("gate", name, "ok" if on else "off", "on" if on else "off", "" if on else missing)


def judge_nodes(
    nodes: Sequence[Mapping[str, Any]] | None, gates: Mapping[str, bool] | None, *, more: bool = False
) -> Finding:
    """Judge what the kubelets declare. From 1.37 on the API server takes node resources of devices only where they declare it.

    ``nodes`` is ``None`` where they could not be listed; ``more`` says that there are others.
    """
    if nodes is None:
        return Finding(
            "node", "declaredFeatures", "unknown", "not to be had", "the nodes could not be listed"
        )
    declared = [node for node in nodes if _NODE_FEATURE in _declared(node)]
    found = f"{len(declared)} of {len(nodes)} nodes{' that were looked at' if more else ''} declare {_NODE_FEATURE}"
    means = "on the others a 1.37 API server refuses slices that say what devices take of their node: update their kubelets"
    if len(declared) == len(nodes) or (gates is not None and not gates.get(_NODE_FEATURE)):
        return Finding("node", "declaredFeatures", "ok", found)
    return Finding("node", "declaredFeatures", "unknown" if gates is None else "off", found, means)


def _declared(node: Mapping[str, Any]) -> Sequence[Any]:
    status = node.get("status")
    declared = status.get("declaredFeatures") if isinstance(status, Mapping) else None
    return declared if isinstance(declared, list) else ()


def judge_access(allowed: Mapping[Access, bool | None], *, needed: bool) -> Iterator[Finding]:
    """Judge what the API server says of who asks: of what is needed, or of what should not be allowed."""
    for access, answer in allowed.items():
        if answer is None:
            yield Finding("permission", str(access), "unknown", "not to be had", "the server did not say")
        elif needed:
            means = "" if answer else "what it would show is not seen; deploy/rbac/ingest.yaml allows it"
            yield Finding(
                "permission",
                str(access),
                "ok" if answer else "failed",
                "allowed" if answer else "denied",
                means,
            )
        elif answer:
            means = "nothing that watches needs this; take it away"
            yield Finding("permission", str(access), "excess", "allowed", means)
