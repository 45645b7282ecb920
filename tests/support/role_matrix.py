"""What each process may do in the cluster, written down: verb x resource, for every ServiceAccount. The manifests must say the same.

A scope is a namespace, or "" for the whole cluster. A resource is ``resource.group``, and ``/name`` where only one object is meant.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

NAMESPACE: Final = "sickbay"
VERIFICATION: Final = "sickbay-verification"

#: Scope to resource to verbs.
Rights: TypeAlias = dict[str, dict[str, set[str]]]


def _leads(name: str) -> dict[str, set[str]]:
    return {
        "leases.coordination.k8s.io": {"create"},
        f"leases.coordination.k8s.io/{name}": {"get", "update"},
    }


MATRIX: Final[dict[str, Rights]] = {
    "sickbay-ingest": {
        "": {
            "pods": {"list", "watch"},
            "nodes": {"list", "watch"},
            "resourceslices.resource.k8s.io": {"list", "watch"},
            "resourceclaims.resource.k8s.io": {"list", "watch"},
        },
        "kube-node-lease": {"leases.coordination.k8s.io": {"list", "watch"}},
        NAMESPACE: _leads("sickbay-ingest"),
    },
    "sickbay-work": {},
    "sickbay-project": {},
    "sickbay-topics": {},
    "sickbay-migrate": {},
    "sickbay-respond-alert": {},
    "sickbay-respond-extend": {},
    "sickbay-respond-exclude": {
        "": {"devicetaintrules.resource.k8s.io": {"get", "list", "create", "update", "delete"}},
        NAMESPACE: _leads("sickbay-respond-exclude"),
    },
    "sickbay-respond-verify": {
        "": {"resourceslices.resource.k8s.io": {"get", "list"}},
        VERIFICATION: {
            "jobs.batch": {"get", "list", "create", "delete"},
            "pods": {"get", "list"},
            "resourceclaims.resource.k8s.io": {"get", "list", "create", "delete"},
        },
        NAMESPACE: _leads("sickbay-respond-verify"),
    },
    "sickbay-respond-move": {
        "": {
            "pods": {"list"},
            "pods/eviction": {"create"},
            "resourceclaims.resource.k8s.io": {"get"},
            "devicetaintrules.resource.k8s.io": {"get"},
            "events.events.k8s.io": {"create", "get"},
        },
        NAMESPACE: _leads("sickbay-respond-move"),
    },
}
#: Those whose Pods have a token.
WITH_TOKEN: Final = frozenset(account for account, rights in MATRIX.items() if rights)
#: What the component exec-hooks adds.
EXEC_HOOKS: Final[dict[str, Rights]] = {"sickbay-respond-move": {"": {"pods/exec": {"create", "get"}}}}


def rights_of(rules: Iterable[dict[str, Any]]) -> dict[str, set[str]]:
    """Return what rules of a role, or of a SelfSubjectRulesReview, allow: resource to verbs."""
    found: dict[str, set[str]] = {}
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                kind, slash, sub = resource.partition("/")
                whole = f"{kind}.{group}{slash}{sub}" if group else resource
                for name in rule.get("resourceNames") or [""]:
                    found.setdefault(f"{whole}/{name}" if name else whole, set()).update(rule["verbs"])
    return found


def granted(objects: Iterable[dict[str, Any]]) -> dict[str, Rights]:
    """Return what manifests grant to whom, in the shape of the matrix."""
    found = list(objects)
    roles = {
        (obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]): obj["rules"]
        for obj in found
        if obj["kind"] in {"Role", "ClusterRole"}
    }
    rights: dict[str, Rights] = {
        obj["metadata"]["name"]: {}
        for obj in found
        if obj["kind"] == "ServiceAccount" and obj["metadata"]["namespace"] == NAMESPACE
    }
    for obj in found:
        if obj["kind"] not in {"RoleBinding", "ClusterRoleBinding"}:
            continue
        scope = obj["metadata"].get("namespace", "")
        reference = obj["roleRef"]
        rules = roles[reference["kind"], scope if reference["kind"] == "Role" else "", reference["name"]]
        for subject in obj["subjects"]:
            assert (subject["kind"], subject["namespace"]) == ("ServiceAccount", NAMESPACE), subject
            of_scope = rights.setdefault(subject["name"], {}).setdefault(scope, {})
            for resource, verbs in rights_of(rules).items():
                of_scope.setdefault(resource, set()).update(verbs)
    return rights
