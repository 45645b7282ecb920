"""The objects of verification over HTTP: paths and answers, nothing of what they mean. The permissions are named in each error."""

from __future__ import annotations

from typing import Any, Final

from responders.labels import INSTALLATION
from responders.verification.jobs import OURS
from responders.verification.plan import Resource
from sickbay.cluster.apistatus import told
from sickbay.cluster.objects import list_all, refusal, send
from sickbay.cluster.requests import Requests
from sickbay.errors import ServiceError

#: A slice has up to 128 devices, and an answer is read up to 8 MiB.
_SLICES_PAGE: Final = 50
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
        # a Pod is known by the labels of its template, which say nothing of the installation
        selector = OURS if resource == "pods" else f"{OURS},{INSTALLATION}={self._installation}"
        return await list_all(
            self._requests,
            self._path(resource),
            [("labelSelector", selector)],
            needs=f"{_PATHS[resource][1]} in {self._name}",
        )

    async def slices(self, node: str, driver: str) -> list[dict[str, Any]]:
        """Return the slices of a driver for a node, and those that are for no node alone."""
        found: list[dict[str, Any]] = []
        for name in (node, ""):
            selector = f"spec.driver={driver},spec.nodeName={name}"
            found += await list_all(
                self._requests,
                _SLICES,
                [("fieldSelector", selector)],
                page=_SLICES_PAGE,
                needs="list on resourceslices (resource.k8s.io)",
            )
        return found

    async def create(self, resource: Resource, body: dict[str, Any]) -> None:
        """Make an object. Raises RefusedError when it is not a good one, and ServiceError when it may be taken later."""
        path = self._path(resource)
        metadata = body["metadata"]
        labels = metadata["labels"] | {INSTALLATION: self._installation}
        body = body | {"metadata": metadata | {"labels": labels}}
        code, answer = await send(self._requests, "POST", path, (), body)
        if code in (400, 422):
            raise RefusedError(told(code, answer))
        if code == 409:
            raise ServiceError(
                f"{path}/{body['metadata']['name']} is there already and is not of this"
                " installation; delete it, or give each installation a namespace of its own"
            )
        if code not in (200, 201, 202):
            needs = f"{_PATHS[resource][1]}, and the namespace room in its quota"
            missing = f"; make the namespace {self._name}" if code == 404 else ""
            raise ServiceError(refusal("create", path, code, answer, needs) + missing)

    async def delete(self, resource: Resource, name: str, uid: str) -> None:
        """Take this very object away, and what it owns; one that is gone or another by now is left alone."""
        path = f"{self._path(resource)}/{name}"
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        code, answer = await send(self._requests, "DELETE", path, (), options)
        if code not in (200, 202, 404, 409):
            raise ServiceError(refusal("delete", path, code, answer, _PATHS[resource][1]))
