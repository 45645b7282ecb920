"""A TCP proxy on the loopback interface that behaves as a bad network does, when a test says so.

It serves in a thread of its own, so that it may be told from anywhere: a test, an event loop, another thread. What it does to a
connection is done to every one, the open and the new. Kafka is put behind it by ``KafkaServer(advertised_port=proxy.port)`` and
``proxy.target = server.behind``; the fixture ``proxied_kafka`` has done so.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Self, TypeVar

T = TypeVar("T")
#: ``requests``: what clients send; ``replies``: what the server sends.
Direction = Literal["requests", "replies"]
BOTH: frozenset[Direction] = frozenset(("requests", "replies"))

_WAIT_S = 10.0
_RESET = struct.pack("ii", 1, 0)


@dataclass(eq=False)
class _Link:
    """One client with its connection to the server."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    #: Whether bytes of it were swallowed: then neither end can make sense of what follows.
    has_lost: bool = False
    pumps: list[asyncio.Task[None]] = field(default_factory=list)

    def cut(self) -> None:
        """End it by a reset at both ends, without sending what waits."""
        for pump in self.pumps:
            pump.cancel()
        for writer in (self.client, self.server):
            with suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()


class TcpProxy:
    """Passes bytes on until it is told otherwise; ``heal`` makes it pass them on again."""

    def __init__(self, target: tuple[str, int] | None = None) -> None:
        #: Host and port of the server; ``None`` refuses everybody.
        self.target = target
        #: Connections that were cut or refused.
        self.cuts = 0
        self._delay_s = 0.0
        self._swallows: frozenset[Direction] = frozenset()
        self._refuses = False
        self._left: dict[Direction, int] = {}
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        ).result(_WAIT_S)
        #: The port that clients connect to, on 127.0.0.1.
        self.port: int = self._server.sockets[0].getsockname()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """``host:port`` for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._links)

    def cut(self, *, refuse: bool = False) -> None:
        """Reset every open connection; with ``refuse`` every new one too, as if the server were down."""

        def do() -> None:
            self._refuses = refuse
            for link in list(self._links):
                self._cut(link)

        self._tell(do)

    def cut_after(self, count: int, direction: Direction = "requests") -> None:
        """Pass on ``count`` more bytes of a direction, of all connections together; then reset the one that has more.

        That happens once. With 0 the next byte does it, and does not arrive.
        """
        self._tell(lambda: self._left.update({direction: count}))

    def delay(self, seconds: float) -> None:
        """Hold every piece back for a while; the order stays."""

        def do() -> None:
            self._delay_s = seconds

        self._tell(do)

    def swallow(self, *directions: Direction) -> None:
        """Take bytes and pass none on, with connections open: in one direction, or both when none is named.

        Connections are made as before, so nobody learns of it but by waiting.
        """

        def do() -> None:
            self._swallows = frozenset(directions) or BOTH

        self._tell(do)

    def swallow_replies(self) -> None:
        """Let the server hear its clients, and answer in vain."""
        self.swallow("replies")

    def heal(self) -> None:
        """Pass bytes on again. Connections of which bytes were lost are reset: nobody could read on there."""

        def do() -> None:
            self._delay_s, self._swallows, self._refuses = 0.0, frozenset(), False
            self._left.clear()
            for link in [link for link in self._links if link.has_lost]:
                self._cut(link)

        self._tell(do)

    def close(self) -> None:
        """End everything."""
        if self._loop.is_closed():
            return

        async def end() -> None:
            self._server.close()
            for link in list(self._links):
                link.cut()
            serving = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
            await asyncio.sleep(0)  # transports close in the turn after

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(_WAIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_WAIT_S)
        self._loop.close()

    def _tell(self, do: Callable[[], T]) -> T:
        async def told() -> T:
            return do()

        return asyncio.run_coroutine_threadsafe(told(), self._loop).result(_WAIT_S)

    def _cut(self, link: _Link) -> None:
        self.cuts += 1
        link.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses or self.target is None:
            self.cuts += 1
            writer.transport.abort()
            return
        try:
            from_server, to_server = await asyncio.wait_for(asyncio.open_connection(*self.target), _WAIT_S)
        except (OSError, TimeoutError, asyncio.CancelledError):
            writer.transport.abort()
            return
        for sink in (writer, to_server):
            sink.transport.set_write_buffer_limits(
                0
            )  # what is drained has left, and a cut does not take it back
        link = _Link(writer, to_server)
        self._links.add(link)
        link.pumps = [
            asyncio.create_task(self._pump(link, reader, to_server, "requests")),
            asyncio.create_task(self._pump(link, from_server, writer, "replies")),
        ]
        with suppress(asyncio.CancelledError):  # closing ends this too, and asyncio would report it
            await asyncio.gather(*link.pumps, return_exceptions=True)
        for end in (writer, to_server):
            end.transport.abort()
        self._links.discard(link)

    async def _pump(
        self, link: _Link, source: asyncio.StreamReader, sink: asyncio.StreamWriter, direction: Direction
    ) -> None:
        try:
            while data := await source.read(65_536):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                if direction in self._swallows:
                    link.has_lost = True
                    continue
                left = self._left.get(direction)
                if left is not None and len(data) > left:
                    del self._left[direction]
                    sink.write(data[:left])
                    await sink.drain()
                    break
                if left is not None:
                    self._left[direction] = left - len(data)
                sink.write(data)
                await sink.drain()
            else:
                sink.write_eof()
                return
        except OSError:
            pass
        self._cut(link)
