"""Hooks of a workload, called: by HTTP on the Pod's own address, or as a command in one of its containers.

A hook is the workload's own, so whatever it does is an answer and no error of ours; what it may cost is bounded: time, bytes, and
whom it reaches. A redirect, a proxy or a host name would let a tenant send the mover elsewhere, so there are none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from ipaddress import IPv6Address, ip_address
from typing import Any, Final, NamedTuple, Protocol

import aiohttp

from responders.moves.declared import KEY_VARIABLE, ExecHook, Hook, HttpHook
from sickbay.cluster.wire import decode_json
from sickbay.errors import ServiceError

#: Of an answer so much is read, and so much is kept as evidence.
_READ_BYTES_MAX: Final = 65_536
_TOLD_MAX: Final = 300
#: Until a Pod takes the connection.
_CONNECT_S: Final = 10.0
#: Subprotocols of remote commands (KEP-4006), the newest first: a byte before each message says which stream it is of.
PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_STDOUT, _STDERR, _ERROR = 1, 2, 3
#: A character of UTF-8 has up to four bytes, and may be split over two messages: output is kept as bytes.
_OUTPUT_BYTES_MAX: Final = 4 * _TOLD_MAX


class Called(NamedTuple):
    """What became of a hook."""

    ok: bool
    #: Evidence, in a few words.
    told: str


class Sockets(Protocol):
    """What is needed of ``sickbay.cluster.client.ApiClient``."""

    def connect_websocket(
        self, path: str, query: Any, protocols: Sequence[str]
    ) -> AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
        """Open a websocket. Raises ServiceError."""
        ...


class Hooks:
    """Calls hooks; ``close`` it."""

    def __init__(self, api: Sockets) -> None:
        self._api = api
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Let go of the connections."""
        if self._session is not None:
            await self._session.close()

    async def call(
        self, *, hook: Hook, ip: str, namespace: str, pod: str, key: str, timeout_ms: int
    ) -> Called:
        """Call a hook of a Pod, with the idempotency ``key`` of its move. Never raises for what a hook does."""
        limit = asyncio.timeout(timeout_ms / 1000)
        try:
            async with limit:
                if isinstance(hook, HttpHook):
                    return await self._http(hook, ip, key)
                return await self._exec(hook, namespace, pod, key)
        except (aiohttp.ClientError, ServiceError, OSError, ValueError) as error:
            if limit.expired():
                return Called(False, f"it took longer than {timeout_ms} ms")
            return Called(False, _words(str(error) or type(error).__name__))

    async def _http(self, hook: HttpHook, ip: str, key: str) -> Called:
        try:
            address = ip_address(ip)
        except ValueError:
            return Called(False, f"the Pod has no IP address ({ip[:64]!a})")
        if isinstance(address, IPv6Address) and address.scope_id is not None:
            # a zone may hold any text, and means another interface on every machine
            return Called(False, f"the Pod has no IP address without a zone ({ip[:64]!a})")
        host = f"[{address}]" if isinstance(address, IPv6Address) else str(address)
        if self._session is None:
            self._session = aiohttp.ClientSession(
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
                # what is compressed is not blown up beyond what may be read
                auto_decompress=False,
            )
        async with self._session.post(
            f"http://{host}:{hook.port}{hook.path}",
            json={},
            headers={"Idempotency-Key": key, "Accept-Encoding": "identity"},
            allow_redirects=False,
        ) as answer:
            # to its end: a hook that tells its progress is done when the answer is
            body = b""
            while len(body) < _READ_BYTES_MAX and (
                part := await answer.content.read(_READ_BYTES_MAX - len(body))
            ):
                body += part
            text = body.decode("utf-8", "replace")
            return Called(200 <= answer.status < 300, _words(f"{answer.status} {text}"))

    async def _exec(self, hook: ExecHook, namespace: str, pod: str, key: str) -> Called:
        command = [("command", each.replace(KEY_VARIABLE, key)) for each in hook.argv]
        query = [("container", hook.container), *command, ("stdout", "true"), ("stderr", "true")]
        output = b""
        async with self._api.connect_websocket(
            f"/api/v1/namespaces/{namespace}/pods/{pod}/exec", query, PROTOCOLS
        ) as socket:
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                    continue
                channel, data = message.data[0], message.data[1:]
                if channel in (_STDOUT, _STDERR):
                    output = (output + data)[-_OUTPUT_BYTES_MAX:]
                elif channel == _ERROR:
                    return _ended(data, output)
        return Called(False, _last_words("the stream ended before the command did", output))


def _ended(data: bytes, output: bytes) -> Called:
    """Read the Status with which a remote command ends."""
    try:
        status = decode_json(data)
    except ValueError:
        status = None
    if not isinstance(status, dict):
        return Called(False, _last_words("it ended with what is no Status", output))
    if status.get("status") == "Success":
        return Called(True, _last_words("exit code 0", output))
    why = str(status.get("message") or status.get("reason") or "it failed")
    return Called(False, _last_words(_words(why)[: _TOLD_MAX // 2], output))


def _last_words(why: str, output: bytes) -> str:
    """Return why, and as much of the end of an output as there is room for: what went wrong stands there."""
    said = _line(output.decode("utf-8", "replace"))
    return f"{why}: {said[-(_TOLD_MAX - len(why) - 2) :]}" if said else why


def _words(text: str) -> str:
    """Return the beginning of a text for a report."""
    return _line(text)[:_TOLD_MAX].strip(": ")


def _line(text: str) -> str:
    """Return text as one line without control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
