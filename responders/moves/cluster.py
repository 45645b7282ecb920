"""What a mover asks of the API server: Pods and claims to read, evictions and Events to write. Nothing is judged here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from responders.exclusion.rules import VERSIONS, read_effect
from responders.moves.pods import Pod, read_pod
from sickbay.cluster.objects import get, list_all, refusal, send
from sickbay.cluster.requests import Requests
from sickbay.errors import ServiceError


class Evicted(NamedTuple):
    """What the API server made of an eviction."""

    #: ``done``; ``changed``: it is another Pod by now, or another version, read it again; ``refused``, for now or for good.
    outcome: str
    told: str = ""


class Cluster:
    """The API server, as far as a mover may ask it."""

    def __init__(self, api: Requests, require_lead: Callable[[], None]) -> None:
        self._api = api
        self._require_lead = require_lead

    async def pods(self, namespace: str) -> dict[str, Pod]:
        """Return the Pods of a namespace by uid. Raises ServiceError."""
        listed = await list_all(self._api, f"/api/v1/namespaces/{namespace}/pods", needs="list on pods")
        pods = (read_pod(item) for item in listed)
        return {pod.uid: pod for pod in pods if pod is not None}

    async def claim(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return a ResourceClaim, ``None`` when there is none. Raises ServiceError."""
        return await get(self._api, f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}")

    async def taint_effect(self, rule: str) -> str:
        """Return the effect of a DeviceTaintRule, "" when there is none. Raises ServiceError."""
        for version in VERSIONS:
            found = await get(self._api, f"/apis/resource.k8s.io/{version}/devicetaintrules/{rule}")
            if found is not None:
                return read_effect(found)
        return ""

    async def evict(self, pod: Pod) -> Evicted:
        """Evict a Pod exactly as it was read: of two that evict one, the second finds another version. Raises ServiceError."""
        self._require_lead()
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction"
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid, "resourceVersion": pod.version}},
        }
        code, answer = await send(self._api, "POST", path, (), body)
        if code in (200, 201):
            return Evicted("done")
        if code in (404, 409):
            return Evicted("changed")
        # 500 is the answer for a Pod with more than one budget, which the Eviction API cannot weigh
        if code in (403, 429) or (code == 500 and "PodDisruptionBudget" in str(answer.get("message"))):
            return Evicted("refused", refusal("create", path, code, answer))
        raise ServiceError(refusal("create", path, code, answer))

    async def event(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return an Event, ``None`` when there is none. Raises ServiceError."""
        return await get(self._api, f"/apis/events.k8s.io/v1/namespaces/{namespace}/events/{name}")

    async def tell(self, event: dict[str, Any]) -> dict[str, Any]:
        """Make an Event unless it is there, and return it as it is kept. Raises ServiceError."""
        self._require_lead()
        metadata = event["metadata"]
        path = f"/apis/events.k8s.io/v1/namespaces/{metadata['namespace']}/events"
        code, body = await send(self._api, "POST", path, (), event)
        if code == 409:
            path = f"{path}/{metadata['name']}"
            code, body = await send(self._api, "GET", path)
        if code not in (200, 201):
            raise ServiceError(refusal("create", path, code, body))
        return body
