"""How a process listens for HTTP, for its health and for a scheduler alike. What is answered is the caller's application.

No access log, and signals are the process's own. It must not be moved into a thread: what it serves is on the event loop.
"""

from __future__ import annotations

import ssl
from typing import Final

from aiohttp import web

from sickbay.errors import InputError

#: How long an answer that is being written may take when the process stops.
STOP_S: Final = 2.0


class Listener:
    """Listens from ``start`` to ``stop``."""

    def __init__(self, host: str, port: int, *, remedy: str) -> None:
        """Take where; port 0 is any free one. ``remedy`` ends the error for an address that cannot be had: ``give another …``."""
        self._host, self._port, self._remedy = host, port, remedy
        self._runner: web.AppRunner | None = None

    @property
    def address(self) -> dict[str, str | int]:
        """Where it listens, for a log: ``host``, ``port``."""
        return {"host": self._host, "port": self.port}

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._runner is not None, "asked before start"
        return int(self._runner.addresses[0][1])

    async def start(
        self,
        app: web.Application,
        *,
        keep_alive_s: float,
        backlog: int,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Listen; with a context, for TLS only. Raises InputError when the address cannot be had."""
        runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=keep_alive_s,
            shutdown_timeout=STOP_S,
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port, backlog=backlog, ssl_context=context).start()
        except OSError as error:
            await runner.cleanup()
            raise InputError(
                f"{self._host}:{self._port} cannot be listened on ({error.strerror or error}); {self._remedy}"
            ) from error
        self._runner = runner

    async def stop(self) -> None:
        """Close, waiting ``STOP_S`` at most for answers under way. May be called again."""
        if self._runner is not None:
            await self._runner.cleanup()
