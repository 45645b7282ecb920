"""Objects of the API server, asked for within limits: one answer has a time, one list has pages and an end, a refusal has words.

What the objects mean, and what is done about a refusal, is the business of whoever asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from sickbay.cluster.requests import Method, Requests
from sickbay.errors import ServiceError

#: For one answer. Requests for objects are small; a list comes in pages.
ANSWER_S: Final = 15.0
#: Pages of one list at most.
PAGES_MAX: Final = 100
_TOLD_MAX: Final = 400

Object = dict[str, Any]


async def send(
    api: Requests, method: Method, path: str, query: Any = (), body: Object | None = None
) -> tuple[int, Object]:
    """Send a request and return code and body. Raises ServiceError when there is no answer in time."""
    try:
        async with asyncio.timeout(ANSWER_S):
            code, _, answer = await api.request_json(method, path, query, body)
    except TimeoutError as error:
        raise ServiceError(
            f"the API server did not answer {method} {path} within {ANSWER_S:.0f} s"
        ) from error
    return code, answer


async def get(api: Requests, path: str) -> Object | None:
    """Return an object, ``None`` when there is none. Raises ServiceError."""
    code, body = await send(api, "GET", path)
    if code not in (200, 404):
        raise ServiceError(refusal("get", path, code, body))
    return body if code == 200 else None


async def list_all(
    api: Requests, path: str, query: Sequence[tuple[str, str]] = (), *, page: int = 500, needs: str = ""
) -> list[Object]:
    """Return every object of a list, read in pages. An object of a list does not say what kind it is.

    ``needs`` are the permissions, for a refusal. Raises ServiceError, also for a list that does not end: half a list is another list.
    """
    found: list[Object] = []
    more = ""
    for _ in range(PAGES_MAX):
        asked = (*query, ("limit", str(page)), *((("continue", more),) if more else ()))
        code, body = await send(api, "GET", path, asked)
        if code != 200:
            raise ServiceError(refusal("list", path, code, body, needs))
        found += body.get("items") or ()
        more = str((body.get("metadata") or {}).get("continue") or "")
        if not more:
            return found
    raise ServiceError(f"{path} has more than {PAGES_MAX * page} objects; take away what is not needed")


def refusal(verb: str, path: str, code: int, body: Object, needs: str = "") -> str:
    """Return what a refusal says, its causes too: of a disruption budget only they name it and its counts.

    ``needs`` are the permissions that the account must have, told with a 401 or 403.
    """
    details = body.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    told = [str(body.get("message") or body.get("reason") or "no reason given")]
    told += [
        str(each["message"])
        for each in (causes if isinstance(causes, list) else ())
        if isinstance(each, dict) and each.get("message")
    ]
    words = " ".join(" ".join(told).split())[:_TOLD_MAX]
    remedy = f"; the service account needs {needs}" if needs and code in (401, 403) else ""
    return f"the API server answers {code} to {verb} {path}: {words}{remedy}"
