"""The little HTTP server of a process: ``/livez``, ``/readyz``, ``/metrics``. It changes nothing and is told nothing.

It answers from memory on the event loop whose life it shows, so it must not be moved into a thread. It has no authentication:
it listens on this machine only, unless an operator names another address.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from aiohttp import web
from prometheus_client import CollectorRegistry

from sickbay.operations.health import Check, Progress
from sickbay.operations.listening import Listener
from sickbay.operations.metrics import exposition
from sickbay.operations.redaction import escaped, redacted

HOST_DEFAULT: Final = "127.0.0.1"
#: How long an idle connection stays open: longer than the interval of probes.
_KEEP_ALIVE_S: Final = 30.0
_PROBLEM_CHARACTERS_MAX: Final = 500

_log: Final = logging.getLogger(__name__)


class HealthServer:
    """Serves from ``start`` to ``stop``, or as an asynchronous context manager."""

    def __init__(
        self,
        registry: CollectorRegistry,
        checks: Sequence[Check] = (),
        progress: Sequence[Progress] = (),
        *,
        host: str = HOST_DEFAULT,
        port: int = 0,
    ) -> None:
        """Take what is served; port 0 is any free one, told by ``port`` once it serves."""
        self._registry, self._checks, self._progress = registry, list(checks), list(progress)
        self._stopping = False
        self._listener = Listener(
            host, port, remedy="give another --http-port or --http-host, or port 0 for no server"
        )

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._listener.port

    async def start(self) -> None:
        """Listen. Raises InputError when the address cannot be had."""
        app = web.Application(client_max_size=0)
        app.router.add_get("/livez", self._live)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/metrics", self._metrics)
        await self._listener.start(app, keep_alive_s=_KEEP_ALIVE_S, backlog=16)
        _log.info("health and metrics are served", extra=self._listener.address)

    def drain(self) -> None:
        """Say from here on that the process is not ready because it stops."""
        self._stopping = True

    async def stop(self) -> None:
        """Close, waiting a little for answers under way. May be called again."""
        self.drain()
        await self._listener.stop()

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        await self.stop()

    async def _live(self, _request: web.Request) -> web.Response:
        stuck = _problems(self._progress)
        return _answer({"live": not stuck, "problems": stuck}, ok=not stuck)

    async def _ready(self, _request: web.Request) -> web.Response:
        problems = _problems([*self._checks, *self._progress])
        if self._stopping:
            problems.append({"name": "process", "problem": "it is stopping"})
        passed = sorted({check.name for check in self._checks} - {found["name"] for found in problems})
        return _answer({"ready": not problems, "problems": problems, "passed": passed}, ok=not problems)

    async def _metrics(self, request: web.Request) -> web.Response:
        body, content_type = exposition(self._registry, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type, **_HEADERS})


_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def _problems(checks: Sequence[Check | Progress]) -> list[dict[str, str]]:
    found = []
    for check in checks:
        try:
            problem = check.problem()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is no reason to answer nothing
            _log.exception("the check %s cannot be asked", check.name)
            problem = f"it cannot be checked: {type(error).__name__}"
        if problem is not None:
            found.append({"name": check.name, "problem": escaped(redacted(problem, _PROBLEM_CHARACTERS_MAX))})
    return found


def _answer(body: dict[str, Any], *, ok: bool) -> web.Response:
    return web.Response(
        text=json.dumps(body) + "\n",
        status=200 if ok else 503,
        content_type="application/json",
        headers=_HEADERS,
    )


async def watch_loop(lag_limit_s: float = 1.0) -> None:
    """Log when the event loop stood still for longer than the limit, until cancelled: what it served was late by as much."""
    while True:
        before = time.monotonic()
        await asyncio.sleep(lag_limit_s)
        late_s = time.monotonic() - before - lag_limit_s
        if late_s > lag_limit_s:
            _log.warning("the event loop stood still", extra={"late_s": round(late_s, 3)})
