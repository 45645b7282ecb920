"""Asking an API server what it is and what it allows, for ``sickbay doctor``. Nothing is changed; every request is bounded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ingest.capabilities import (
    EXCESS,
    NEEDED,
    Access,
    Finding,
    judge_access,
    judge_apis,
    judge_gates,
    judge_nodes,
    judge_version,
    read_gates,
)
from sickbay.cluster.apistatus import read_status, told
from sickbay.cluster.client import ApiClient, UnreachableError
from sickbay.cluster.lease_api import NAME_DEFAULT
from sickbay.errors import ServiceError

#: Metrics of a large API server are tens of megabytes.
_METRICS_BYTES_MAX: Final = 128 << 20
#: Nodes are large, and the longest answer of this kind is a few megabytes.
_NODES_MAX: Final = 100
_GROUP: Final = "/apis/resource.k8s.io"
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


async def examine(client: ApiClient, lease_namespace: str = "") -> list[Finding]:
    """Return what there is to say of a cluster, and of what its API server allows.

    ``lease_namespace`` is where replicas of ``ingest`` take turns, "" where they do not. Raises ServiceError when the API server
    cannot be reached at all.
    """
    code, _, version = await client.request_json("GET", "/version")
    if code != 200:
        raise ServiceError(
            f"{client.host}/version: {told(code, version)}; name a kubeconfig that kubectl works with"
        )
    findings = [judge_version(version), *judge_apis(*await _versions(client))]
    gates, why = await _gates(client)
    findings += judge_gates(gates, why)
    nodes = await _document(client, "/api/v1/nodes", (("limit", str(_NODES_MAX)),))
    if nodes is None:
        findings.append(judge_nodes(None, gates))
    else:
        more = bool(nodes.get("metadata", {}).get("continue"))
        findings.append(judge_nodes(nodes.get("items") or (), gates, more=more))
    findings += judge_access(await _ask(client, (*NEEDED, *_of_lease(lease_namespace))), needed=True)
    findings += judge_access(await _ask(client, EXCESS), needed=False)
    return findings


def _of_lease(namespace: str) -> Iterator[Access]:
    if namespace:
        for verb in ("get", "create", "update"):
            # the name of what is made cannot be limited
            name = "" if verb == "create" else NAME_DEFAULT
            yield Access(verb, "coordination.k8s.io", "leases", namespace, name)


async def _versions(client: ApiClient) -> tuple[Sequence[str], Sequence[str]]:
    """Return the versions of the group that are served, and those that have DeviceTaintRules."""
    group = await _document(client, _GROUP) or {}
    served = [str(each.get("version")) for each in group.get("versions") or () if isinstance(each, dict)]
    with_rules = []
    for version in served:
        listed = (await _document(client, f"{_GROUP}/{version}") or {}).get("resources") or ()
        if any(isinstance(each, dict) and each.get("name") == "devicetaintrules" for each in listed):
            with_rules.append(version)
    return served, with_rules


async def _gates(client: ApiClient) -> tuple[Mapping[str, bool] | None, str]:
    """Return the feature gates, or ``None`` and why they are not to be had."""
    try:
        code, _, body = await client.get("/metrics", (), _METRICS_BYTES_MAX)
    except UnreachableError as error:
        return None, str(error)
    if code != 200:
        return None, told(code, read_status(body))
    return read_gates(body.decode("utf-8", "replace")), ""


async def _document(
    client: ApiClient, path: str, query: Sequence[tuple[str, str]] = ()
) -> dict[str, Any] | None:
    """Return what a path says, ``None`` when the server refuses or does not answer."""
    try:
        code, _, document = await client.request_json("GET", path, query)
    except UnreachableError:
        return None
    return document if code == 200 else None


async def _ask(client: ApiClient, wanted: Sequence[Access]) -> dict[Access, bool | None]:
    """Ask the server what it allows who asks; ``None`` where it does not say."""
    answers: dict[Access, bool | None] = {}
    for access in wanted:
        resource, _, subresource = access.resource.partition("/")
        attributes = {
            "verb": access.verb,
            "group": access.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": access.namespace,
            "name": access.name,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        try:
            code, _, document = await client.request_json("POST", _REVIEWS, (), review)
        except UnreachableError:
            code, document = 0, {}
        status = document.get("status") if code in (200, 201) else None
        answers[access] = status.get("allowed") is True if isinstance(status, dict) else None
    return answers
