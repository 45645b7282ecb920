"""The API server, spoken to by HTTP and nothing more: the only importer of the ``kubernetes`` package.

That package finds the server, the certificates and the credentials (in the cluster, or from a kubeconfig); requests go through
its REST client and come back as status, headers and bytes. Its models are never used: they drop what they do not know. Every
request has a time limit. What an answer means is not judged here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, TypeAlias
from urllib.parse import urlencode

import aiohttp
import yaml
from kubernetes.aio import client as kubernetes_client
from kubernetes.aio import config as kubernetes_config

from sickbay.cluster.apistatus import read_status
from sickbay.cluster.requests import Method
from sickbay.errors import ServiceError

#: Time limits of one request, in seconds.
CONNECT_S: Final = 10
#: Until the headers of an answer, and between two pieces of a body.
READ_S: Final = 30
#: For the whole of a body.
WHOLE_S: Final = 300
#: A second line behind the reflector's own idle deadline.
STREAM_READ_S: Final = 300
#: Loading credentials may run a plugin.
_LOAD_S: Final = 60
#: How often credentials that come from a file or a plugin are read anew without being asked to.
_RELOAD_S: Final = 300
#: The longest answer to a request for one object.
_DOCUMENT_BYTES_MAX: Final = 8 << 20

#: The longest message of a websocket.
_MESSAGE_BYTES_MAX: Final = 1 << 20

_loading: Final[Any] = kubernetes_config  # its functions have no types
Query: TypeAlias = Sequence[tuple[str, str]]
Headers: TypeAlias = Mapping[str, str]


class UnreachableError(ServiceError):
    """One request had no answer, or not a whole one; the next may have."""


class BodyTooLargeError(UnreachableError):
    """The body was longer than the limit."""


class Stream(Protocol):
    """An answer whose body is read piece by piece."""

    status: int
    headers: Headers

    async def read(self) -> bytes:
        """Return the next bytes, b"" at the orderly end. Raises UnreachableError when the connection broke."""
        ...

    async def read_all(self, limit_bytes: int) -> bytes:
        """Return the whole body. Raises BodyTooLargeError, and UnreachableError."""
        ...


class ApiClient:
    """A connection to one API server; open it with ``connect``, close it with ``close``.

    ``reload`` reads the configuration and the credentials anew. Streams that are open go on with the old ones.
    """

    def __init__(self, session: _Session, kubeconfig: str | None, context: str | None) -> None:
        self._session = session
        self._kubeconfig, self._context = kubeconfig, context
        self._loaded_at = asyncio.get_running_loop().time()
        self._reloading = asyncio.Lock()

    @classmethod
    async def connect(cls, kubeconfig: str | None = None, context: str | None = None) -> ApiClient:
        """Load the configuration: that of ``kubeconfig`` if given, of the cluster this runs in, or of the user.

        Nothing is sent yet. Raises ServiceError, naming what to do, when there is none that can be used.
        """
        return cls(await _load(kubeconfig, context), kubeconfig, context)

    @property
    def host(self) -> str:
        """The server, as a URL."""
        return self._session.host

    async def close(self) -> None:
        """Close the connections, also those of open streams."""
        await self._session.close()

    async def reload(self) -> None:
        """Read the configuration and the credentials anew. Raises ServiceError, and keeps the old ones, when that fails."""
        before = self._session
        async with self._reloading:
            if self._session is before:
                self._loaded_at = asyncio.get_running_loop().time()
                self._session = await _load(self._kubeconfig, self._context)
                await before.retire()

    async def _current(self) -> _Session:
        session = self._session
        old = asyncio.get_running_loop().time() - self._loaded_at > _RELOAD_S
        if session.is_distrusted or (session.renewable and old):
            try:
                await self.reload()
            except ServiceError as error:
                raise UnreachableError(f"the credentials cannot be read anew: {error}") from error
        return self._session

    @asynccontextmanager
    async def stream(self, path: str, query: Query = ()) -> AsyncIterator[Stream]:
        """GET a path and hand its answer out for reading. Raises UnreachableError."""
        session = await self._current()
        async with session.request("GET", path, query, None, STREAM_READ_S) as answer:
            yield answer

    @asynccontextmanager
    async def connect_websocket(
        self, path: str, query: Query, protocols: Sequence[str]
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a websocket, for ``pods/exec``, with the same TLS and credentials. Raises UnreachableError, also for a refusal."""
        session = await self._current()
        async with session.websocket(path, query, protocols) as socket:
            yield socket

    async def get(self, path: str, query: Query, limit_bytes: int) -> tuple[int, Headers, bytes]:
        """GET a path: status, headers and the whole body. Raises UnreachableError, and BodyTooLargeError."""
        session = await self._current()
        async with session.request("GET", path, query, None, READ_S) as answer:
            return answer.status, answer.headers, await _in_time(answer.read_all(limit_bytes))

    async def request_json(
        self,
        method: Method,
        path: str,
        query: Query = (),
        body: dict[str, Any] | None = None,
    ) -> tuple[int, Headers, dict[str, Any]]:
        """Send one object, or none, and return status, headers and the object that came back.

        A body that is no JSON object, as proxies send it, is ``{}``. Raises UnreachableError; a write may have been carried out
        even then.
        """
        session = await self._current()
        async with session.request(method, path, query, body, READ_S) as answer:
            return (
                answer.status,
                answer.headers,
                read_status(await _in_time(answer.read_all(_DOCUMENT_BYTES_MAX))),
            )


class _Answer:
    """A Stream over aiohttp's response."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Headers = response.headers

    async def read(self) -> bytes:
        try:
            return await self._response.content.readany()
        except _BROKEN as error:
            raise UnreachableError(_told(error)) from error

    async def read_all(self, limit_bytes: int) -> bytes:
        parts, size = [], 0
        while part := await self.read():
            size += len(part)
            if size > limit_bytes:
                raise BodyTooLargeError(f"the answer has more than {limit_bytes} bytes")
            parts.append(part)
        return b"".join(parts)


async def _in_time(reading: Coroutine[Any, Any, bytes]) -> bytes:
    """Read a whole body. Raises UnreachableError when it comes so slowly that it has no end."""
    try:
        async with asyncio.timeout(WHOLE_S):
            return await reading
    except TimeoutError as error:
        raise UnreachableError(f"the answer was not whole after {WHOLE_S} s") from error


class _Session:
    """One loaded configuration with its connections; a retired one closes with its last request."""

    def __init__(self, configuration: Any, *, renewable: bool) -> None:
        self._configuration = configuration
        self._api: Any = kubernetes_client.ApiClient(configuration)
        self.host = str(configuration.host)
        #: Whether loading again may give other credentials.
        self.renewable = renewable
        #: Whether TLS failed: the certificates may have been replaced since they were loaded (I16).
        self.is_distrusted = False
        self._users = 0
        self._retired = False

    async def close(self) -> None:
        await self._api.close()

    async def retire(self) -> None:
        self._retired = True
        if not self._users:
            await self.close()

    @asynccontextmanager
    async def request(
        self, method: str, path: str, query: Query, body: dict[str, Any] | None, read_s: float
    ) -> AsyncIterator[_Answer]:
        self._users += 1
        response: aiohttp.ClientResponse | None = None
        try:
            try:
                async with asyncio.timeout(CONNECT_S + READ_S):
                    response = await self._send(method, path, query, body, read_s)
            except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
                raise ServiceError(
                    f"{self.host} is no URL of an API server; mend `server` in the kubeconfig"
                ) from error
            except _BROKEN as error:
                self.is_distrusted = isinstance(error, aiohttp.ClientSSLError)
                raise UnreachableError(f"{self.host} cannot be reached: {_told(error)}") from error
            yield _Answer(response)
        finally:
            if response is not None:
                # an unread rest is not waited for
                response.close()
            self._users -= 1
            if self._retired and not self._users:
                await self.close()

    async def _send(
        self, method: str, path: str, query: Query, body: dict[str, Any] | None, read_s: float
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json"} | await self._headers()
        url = f"{self.host}{path}" + (f"?{urlencode(query)}" if query else "")
        limits = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=read_s)
        answer = await self._api.rest_client.request(
            method, url, headers=headers, body=body, _request_timeout=limits
        )
        response: aiohttp.ClientResponse = answer.response
        return response

    async def _headers(self) -> dict[str, str]:
        headers = {"User-Agent": "sickbay"}
        for setting in (await self._configuration.auth_settings()).values():
            if setting["value"]:
                # a token file may end in a newline
                headers[setting["key"]] = setting["value"].strip()
        return headers

    @asynccontextmanager
    async def websocket(
        self, path: str, query: Query, protocols: Sequence[str]
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        rest = self._api.rest_client
        connector = aiohttp.TCPConnector(ssl=rest.ssl_context)
        # a proxy and a server name count here as they do for requests
        async with aiohttp.ClientSession(connector=connector, trust_env=True) as session:
            try:
                async with asyncio.timeout(CONNECT_S + READ_S):
                    socket = await session.ws_connect(
                        f"{self.host}{path}?{urlencode(query)}",
                        headers=await self._headers(),
                        protocols=protocols,
                        max_msg_size=_MESSAGE_BYTES_MAX,
                        # who has read what it wanted does not wait for the other side to say goodbye
                        timeout=aiohttp.ClientWSTimeout(ws_close=0),
                        proxy=rest.proxy,
                        proxy_headers=rest.proxy_headers,
                        server_hostname=self._configuration.tls_server_name or None,
                    )
            except aiohttp.WSServerHandshakeError as error:
                raise UnreachableError(
                    f"{self.host}{path} answers {error.status} and no websocket"
                ) from error
            except _BROKEN as error:
                self.is_distrusted = isinstance(error, aiohttp.ClientSSLError)
                raise UnreachableError(f"{self.host} cannot be reached: {_told(error)}") from error
            async with socket:
                yield socket


#: What a request can die of that says nothing of the next one.
_BROKEN: Final = (
    aiohttp.ClientError,
    OSError,
    TimeoutError,
    ValueError,
    kubernetes_config.ConfigException,
)


async def _load(kubeconfig: str | None, context: str | None) -> _Session:
    configuration = kubernetes_client.Configuration()
    try:
        if kubeconfig is None and context is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
            # its token file is read anew every minute by the package itself
            _loading.load_incluster_config(client_configuration=configuration)
            return _Session(configuration, renewable=False)
        async with asyncio.timeout(_LOAD_S):
            loader = await _loading.load_kube_config(
                config_file=kubeconfig,
                context=context,
                client_configuration=configuration,
                persist_config=False,
            )
        user = loader._user  # noqa: SLF001 - the package has no public way to ask how a user authenticates
        return _Session(configuration, renewable=bool(user) and ("tokenFile" in user or "exec" in user))
    except TimeoutError as error:
        raise ServiceError(
            f"the credentials were not there after {_LOAD_S} s; run the plugin that the kubeconfig names by hand"
        ) from error
    except (
        kubernetes_config.ConfigException,
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        yaml.YAMLError,
    ) as error:
        place = kubeconfig or os.environ.get("KUBECONFIG") or "the kubeconfig of this user"
        told = " ".join(str(error).split())[:300] or type(error).__name__
        raise ServiceError(
            f"{place} cannot be used: {told}; give a kubeconfig that kubectl works with, and a context of it"
        ) from error


def _told(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
