"""What is asked of a connection to the API server, so that nobody who asks needs to know how it is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol, TypeAlias

Method: TypeAlias = Literal["GET", "POST", "PUT", "DELETE"]


class Requests(Protocol):
    """What is needed of ``sickbay.cluster.client.ApiClient``."""

    async def request_json(
        self,
        method: Method,
        path: str,
        query: Any = (),
        body: dict[str, Any] | None = None,
    ) -> tuple[int, Mapping[str, str], dict[str, Any]]:
        """Send one object, or none, and return status, headers and the object that came back. Raises ServiceError."""
        ...
