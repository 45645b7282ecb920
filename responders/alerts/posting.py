"""One HTTP request to somebody else's address: with a limit, without redirects, and without its secrets in any text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

import aiohttp

from sickbay.errors import InputError, ServiceError

#: A receiver that takes longer is not there: the answer to one alert takes milliseconds.
TIMEOUT_S: Final = 10.0
#: From here on a status is a failure.
_REDIRECT: Final = 300


class UnreachableError(ServiceError):
    """Nobody answered, or not in time, or the receiver is not well: the next event would fare the same."""


class Target(NamedTuple):
    """An address to post to."""

    url: str
    #: Without user, password and query: what may be shown.
    shown: str


def target_of(option: str, url: str, path: str = "") -> Target:
    """Read an address, and add a path unless it ends so. Raises InputError that does not repeat what was given."""
    try:
        parts = urlsplit(url.strip())
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine:
        raise InputError(
            f"{option} needs an address with http:// or https:// and a host, such as https://alerts.example"
        )
    if not parts.path.endswith(path):
        parts = parts._replace(path=parts.path.rstrip("/") + path)
    return Target(parts._replace(fragment="").geturl(), _shown(parts))


def _shown(parts: SplitResult) -> str:
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def new_session() -> aiohttp.ClientSession:
    """Return a session for all requests of a process; to be closed."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S))


async def post(
    session: aiohttp.ClientSession, target: Target, body: bytes, headers: Mapping[str, str]
) -> None:
    """Post, and return when it was taken.

    Raises UnreachableError, or ServiceError for an answer that is about this request. Nothing that came back is told but its status.
    """
    try:
        async with session.post(target.url, data=body, headers=headers, allow_redirects=False) as answer:
            status = answer.status
    except TimeoutError as error:
        raise UnreachableError(f"{target.shown} does not answer within {TIMEOUT_S:.0f} s") from error
    except (aiohttp.ClientError, OSError) as error:
        # the text of the error may hold the address whole
        raise UnreachableError(f"{target.shown} cannot be reached: {type(error).__name__}") from None
    if status >= _REDIRECT:
        told = f"{target.shown} answers {status}"
        if status in (408, 429) or status >= 500:
            raise UnreachableError(told)
        raise ServiceError(f"{told}: see that it is the right address and takes this event")
