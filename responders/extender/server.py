"""The HTTP side of the extender: ``POST /filter`` from kube-scheduler. It answers from memory and asks nobody.

The scheduler waits for the answer while it schedules one Pod, so everything here has a limit: the body, the time that it may take
to come, and how many are under way. What cannot be answered is refused in one sentence; whether the scheduler then goes on is said
by ``ignorable`` of its configuration. It must not be moved into a thread: it reads what the event loop folds.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from aiohttp import web

from responders.extender.answers import Answer, Arguments, read_arguments, write_answer
from sickbay.errors import InputError
from sickbay.operations.listening import Listener
from sickbay.operations.redaction import escaped, redacted

#: The largest body: 5,000 names and a Pod are less than one MiB; whole Nodes (``nodeCacheCapable: false``) some KiB each.
BODY_BYTES_MAX: Final = 16 * 1024 * 1024
#: How long a body may take to come; the scheduler waits five seconds by default.
BODY_S: Final = 4.0
#: Requests under way: a scheduler asks for one Pod at a time, and there are few schedulers.
UNDER_WAY_MAX: Final = 32
#: Idle connections stay open, so that not every Pod costs a handshake.
_KEEP_ALIVE_S: Final = 120.0
_HEADERS: Final = {
    "Content-Type": "application/json",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}

_log: Final = logging.getLogger(__name__)

#: From arguments to an answer; at once, from memory.
Decide = Callable[[Arguments], Answer]


class Figures(Protocol):
    """Where answers are counted."""

    def answered(self, outcome: str, seconds: float, nodes: Iterable[tuple[str, str, int]]) -> None:
        """Count a request: what came of it, how long it took, and ``(reason, mode, nodes)``."""
        ...


class Certificate:
    """The server's certificate and key; a renewed file is taken up for new connections."""

    def __init__(self, cert_file: str, key_file: str) -> None:
        """Load both. Raises InputError."""
        self._files = (Path(cert_file), Path(key_file))
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded: tuple[int, ...] = ()
        self.refresh()

    def refresh(self) -> None:
        """Load the files again if they changed. Raises InputError, and what was loaded before is served on."""
        cert_file, key_file = self._files
        try:
            state = tuple(file.stat().st_mtime_ns for file in self._files)
            if state != self._loaded:
                self.context.load_cert_chain(cert_file, key_file)
                self._loaded = state
        except (OSError, ssl.SSLError) as error:
            raise InputError(
                f"the certificate {cert_file} with the key {key_file} cannot be used: {error}; give PEM files that belong together"
            ) from error


class ExtenderServer:
    """Serves from ``__aenter__`` to ``__aexit__``."""

    def __init__(
        self,
        decide: Decide,
        figures: Figures,
        *,
        host: str,
        port: int,
        certificate: Certificate | None = None,
    ) -> None:
        """Take who decides; port 0 is any free one, told by ``port`` once it serves."""
        self._decide, self._figures = decide, figures
        self._certificate = certificate
        self._under_way = 0
        self._listener = Listener(host, port, remedy="give another --listen-port or --listen-host")

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._listener.port

    async def __aenter__(self) -> Self:
        """Listen. Raises InputError when the address cannot be had."""
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_post("/filter", self._filter)
        context = self._certificate.context if self._certificate is not None else None
        await self._listener.start(app, keep_alive_s=_KEEP_ALIVE_S, backlog=64, context=context)
        _log.info("the scheduler is answered", extra={**self._listener.address, "tls": context is not None})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, waiting a little for answers under way."""
        await self._listener.stop()

    async def _filter(self, request: web.Request) -> web.Response:
        if self._under_way >= UNDER_WAY_MAX:
            self._figures.answered("busy", 0.0, ())
            return _refused(503, f"{UNDER_WAY_MAX} requests are under way")
        self._under_way += 1
        begun = time.perf_counter()
        try:
            async with asyncio.timeout(BODY_S):
                body = await request.read()
            arguments = read_arguments(body)
            answer = self._decide(arguments)
            response = web.Response(body=write_answer(arguments, answer), headers=_HEADERS)
        except web.HTTPRequestEntityTooLarge:
            most = BODY_BYTES_MAX >> 20
            response = _refused(
                413, f"a body of more than {most} MiB; set nodeCacheCapable, so that names are sent"
            )
        except TimeoutError:
            response = _refused(408, f"the body did not come within {BODY_S:.0f} s")
        except InputError as error:
            response = _refused(400, str(error))
        except Exception:  # noqa: BLE001 - whatever it is, the scheduler is told in one sentence, and the log has the rest
            _log.exception("a Pod could not be judged")
            response = _refused(500, "the extender failed; its log says why")
        finally:
            self._under_way -= 1
        seconds = time.perf_counter() - begun
        if response.status != 200:
            self._figures.answered("refused" if response.status < 500 else "failed", seconds, ())
            return response
        told = [(reason, mode, number) for (reason, mode), number in answer.counts.items()]
        self._figures.answered("answered", seconds, told)
        for reason, mode, number in told:
            _log.info(
                "nodes are removed" if mode == "enforce" else "nodes would be removed, and pass",
                extra={
                    "pod": arguments.pod.pod, "reason": reason, "nodes": number, "of": len(arguments.names),
                    "example": answer.examples[reason, mode],
                },
            )  # fmt: skip
        return response


def _refused(status: int, said: str) -> web.Response:
    return web.Response(status=status, text=escaped(redacted(said, 500)) + "\n")
