"""What a mover asks of the API server: Pods and claims to read, evictions and Events to write. Nothing is judged here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from responders.exclusion.rules import VERSIONS, read_effect
from responders.moves.pods import Pod, read_pod
from sickbay.cluster.requests import Method, Requests
from sickbay.errors import ServiceError

_PAGE: Final = 500
#: Pages of one namespace: 50,000 Pods.
_PAGES_MAX: Final = 100
_ANSWER_S: Final = 15.0


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

    async def _send(
        self, method: Method, path: str, query: Any = (), body: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        try:
            async with asyncio.timeout(_ANSWER_S):
                code, _, answer = await self._api.request_json(method, path, query, body)
        except TimeoutError as error:
            raise ServiceError(
                f"the API server did not answer {method} {path} within {_ANSWER_S:.0f} s"
            ) from error
        return code, answer

    async def pods(self, namespace: str) -> dict[str, Pod]:
        """Return the Pods of a namespace by uid. Raises ServiceError."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        found: dict[str, Pod] = {}
        page = ""
        for _ in range(_PAGES_MAX):
            query = [("limit", str(_PAGE)), *([("continue", page)] if page else [])]
            code, body = await self._send("GET", path, query)
            if code != 200:
                raise ServiceError(_refusal("list", path, code, body))
            for item in body.get("items") or ():
                pod = read_pod(item)
                if pod is not None:
                    found[pod.uid] = pod
            page = str((body.get("metadata") or {}).get("continue") or "")
            if not page:
                return found
        raise ServiceError(f"{path} has more than {_PAGE * _PAGES_MAX} Pods; they cannot be looked through")

    async def claim(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return a ResourceClaim, ``None`` when there is none. Raises ServiceError."""
        path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"
        code, body = await self._send("GET", path)
        if code not in (200, 404):
            raise ServiceError(_refusal("get", path, code, body))
        return body if code == 200 else None

    async def taint_effect(self, rule: str) -> str:
        """Return the effect of a DeviceTaintRule, "" when there is none. Raises ServiceError."""
        for version in VERSIONS:
            path = f"/apis/resource.k8s.io/{version}/devicetaintrules/{rule}"
            code, body = await self._send("GET", path)
            if code == 200:
                found = read_effect(body)
                if found:
                    return found
            elif code != 404:
                raise ServiceError(_refusal("get", path, code, body))
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
        code, answer = await self._send("POST", path, (), body)
        if code in (200, 201):
            return Evicted("done")
        if code in (404, 409):
            return Evicted("changed")
        # 500 is the answer for a Pod with more than one budget, which the Eviction API cannot weigh
        if code in (403, 429) or (code == 500 and "PodDisruptionBudget" in str(answer.get("message"))):
            return Evicted("refused", _refusal("create", path, code, answer))
        raise ServiceError(_refusal("create", path, code, answer))

    async def event(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return an Event, ``None`` when there is none. Raises ServiceError."""
        path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events/{name}"
        code, body = await self._send("GET", path)
        if code not in (200, 404):
            raise ServiceError(_refusal("get", path, code, body))
        return body if code == 200 else None

    async def tell(self, event: dict[str, Any]) -> dict[str, Any]:
        """Make an Event unless it is there, and return it as it is kept. Raises ServiceError."""
        self._require_lead()
        metadata = event["metadata"]
        path = f"/apis/events.k8s.io/v1/namespaces/{metadata['namespace']}/events"
        code, body = await self._send("POST", path, (), event)
        if code == 409:
            path = f"{path}/{metadata['name']}"
            code, body = await self._send("GET", path)
        if code not in (200, 201):
            raise ServiceError(_refusal("create", path, code, body))
        return body


def _refusal(verb: str, path: str, code: int, body: dict[str, Any]) -> str:
    told = " ".join(_words(body).split())[:400]
    return f"the API server answers {code} to {verb} {path}: {told}"


def _words(body: dict[str, Any]) -> str:
    """Return what a Status says, and its causes: of a disruption budget only they name it and its counts."""
    details = body.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    told = [str(body.get("message") or body.get("reason") or "no reason given")]
    told += [
        str(each.get("message"))
        for each in (causes if isinstance(causes, list) else ())
        if isinstance(each, dict) and each.get("message")
    ]
    return " ".join(told)
