"""The objects of verification over HTTP: paths and answers, nothing of what they mean. The permissions are named in each error."""

from __future__ import annotations

from typing import Any, Final

from responders.verification.jobs import INSTALLATION, OURS
from responders.verification.plan import Resource
from sickbay.cluster.apistatus import told
from sickbay.cluster.requests import Requests
from sickbay.errors import ServiceError

#: Steps are few; whoever has more objects than this in one namespace has another problem.
_PAGE: Final = 250
#: A slice has up to 128 devices, and an answer is read up to 8 MiB.
_SLICES_PAGE: Final = 50
_PAGES_MAX: Final = 100
_PATHS: Final[dict[str, tuple[str, str]]] = {
    "jobs": ("/apis/batch/v1", "list, create and delete on jobs (batch)"),
    "pods": ("/api/v1", "list on pods"),
    "resourceclaims": (
        "/apis/resource.k8s.io/v1",
        "list, create and delete on resourceclaims (resource.k8s.io)",
    ),
}
_SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"


class RefusedError(Exception):
    """The API server will never take this object as it is."""


class Namespace:
    """The namespace that the Jobs run in. Every method raises ServiceError when the API server does not do it.

    Objects of another installation (the prefix of its topics) are not seen, so they are not taken for garbage.
    """

    def __init__(self, requests: Requests, name: str, installation: str) -> None:
        self._requests = requests
        self._name = name
        self._installation = installation

    def _path(self, resource: str) -> str:
        return f"{_PATHS[resource][0]}/namespaces/{self._name}/{resource}"

    async def ours(self, resource: str) -> list[dict[str, Any]]:
        """Return the objects of ours; of Pods those that Jobs made."""
        needs = f"the service account needs {_PATHS[resource][1]} in {self._name}"
        # a Pod is known by the labels of its template, which say nothing of the installation
        selector = OURS if resource == "pods" else f"{OURS},{INSTALLATION}={self._installation}"
        return await self._list(self._path(resource), (("labelSelector", selector),), _PAGE, needs)

    async def slices(self, node: str, driver: str) -> list[dict[str, Any]]:
        """Return the slices of a driver for a node, and those that are for no node alone."""
        found: list[dict[str, Any]] = []
        for name in (node, ""):
            selector = f"spec.driver={driver},spec.nodeName={name}"
            needs = "the service account needs list on resourceslices (resource.k8s.io)"
            found += await self._list(_SLICES, (("fieldSelector", selector),), _SLICES_PAGE, needs)
        return found

    async def _list(
        self, path: str, query: tuple[tuple[str, str], ...], page: int, needs: str
    ) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        more = ""
        for _ in range(_PAGES_MAX):
            asked = (*query, ("limit", str(page)), *((("continue", more),) if more else ()))
            code, _, body = await self._requests.request_json("GET", path, asked)
            if code != 200:
                remedy = f"; {needs}" if code in (401, 403) else ""
                raise ServiceError(f"the API server answers for {path}: {told(code, body)}{remedy}")
            found += body.get("items") or ()
            more = str((body.get("metadata") or {}).get("continue") or "")
            if not more:
                return found
        raise ServiceError(f"{path} has more than {_PAGES_MAX * page} objects; take away what is not needed")

    async def create(self, resource: Resource, body: dict[str, Any]) -> None:
        """Make an object. Raises RefusedError when it is not a good one, and ServiceError when it may be taken later."""
        path = self._path(resource)
        metadata = body["metadata"]
        labels = metadata["labels"] | {INSTALLATION: self._installation}
        body = body | {"metadata": metadata | {"labels": labels}}
        code, _, answer = await self._requests.request_json("POST", path, (), body)
        if code in (400, 422):
            raise RefusedError(told(code, answer))
        if code == 409:
            raise ServiceError(
                f"{path}/{body['metadata']['name']} is there already and is not of this"
                " installation; delete it, or give each installation a namespace of its own"
            )
        if code not in (200, 201, 202):
            remedy = (
                f"; the service account needs {_PATHS[resource][1]}, and the namespace room in its quota"
                if code == 403
                else ""
            )
            if code == 404:
                remedy = f"; make the namespace {self._name}"
            raise ServiceError(f"the API server answers for {path}: {told(code, answer)}{remedy}")

    async def delete(self, resource: Resource, name: str, uid: str) -> None:
        """Take this very object away, and what it owns; one that is gone or another by now is left alone."""
        path = f"{self._path(resource)}/{name}"
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        code, _, answer = await self._requests.request_json("DELETE", path, (), options)
        if code not in (200, 202, 404, 409):
            remedy = f"; the service account needs {_PATHS[resource][1]}" if code == 403 else ""
            raise ServiceError(f"the API server answers for {path}: {told(code, answer)}{remedy}")
