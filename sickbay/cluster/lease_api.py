"""The Lease of the election as the API server keeps it: paths and answers, nothing of what they mean for who leads."""

from __future__ import annotations

from typing import Any, Final

from sickbay.cluster.leading import Conflict
from sickbay.cluster.requests import Requests
from sickbay.errors import ServiceError

NAME_DEFAULT: Final = "sickbay-ingest"


class ApiLeases:
    """An ``sickbay.cluster.leading.Leases``."""

    def __init__(self, requests: Requests, namespace: str, name: str = NAME_DEFAULT) -> None:
        self._requests = requests
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name

    @property
    def name(self) -> str:
        """The name of the Lease."""
        return self._name

    async def read(self) -> dict[str, Any] | None:
        """Return the Lease, ``None`` when there is none. Raises ServiceError."""
        code, _, body = await self._requests.request_json("GET", f"{self._path}/{self._name}")
        if code == 404:
            return None
        return self._kept(code, body)

    async def create(self, lease: dict[str, Any]) -> dict[str, Any]:
        """Make the Lease. Raises Conflict when there is one, and ServiceError."""
        code, _, body = await self._requests.request_json("POST", self._path, (), lease)
        return self._kept(code, body)

    async def replace(self, lease: dict[str, Any]) -> dict[str, Any]:
        """Write the Lease over the version that it names. Raises Conflict when it is another or gone, and ServiceError."""
        code, _, body = await self._requests.request_json("PUT", f"{self._path}/{self._name}", (), lease)
        if code == 404:
            raise Conflict
        return self._kept(code, body)

    def _kept(self, code: int, body: dict[str, Any]) -> dict[str, Any]:
        if code == 409:
            raise Conflict
        if code not in (200, 201) or body.get("kind") != "Lease":
            told = body.get("message") or body.get("reason") or "no reason given"
            remedy = "; the service account needs get, create and update on leases" if code == 403 else ""
            raise ServiceError(f"the API server answers {code} for {self._path}: {told}{remedy}")
        return body
