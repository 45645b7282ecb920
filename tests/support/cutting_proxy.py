"""A Unix socket before another one, that cuts the connection around a COMMIT: as a network does."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path

from sqlalchemy.engine import make_url

#: What psycopg sends to commit: a simple query.
_COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"


class CuttingProxy:
    """Passes bytes on; while ``cuts`` is above zero, each COMMIT costs one and the connection.

    ``delivers`` says whether the server still gets that COMMIT, so that only its answer is lost.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self.cuts = 0
        self.delivers = True
        #: Whether nobody is let in any more once a connection was cut.
        self.refuses_after_cut = False
        self._has_cut = False
        self._target = make_url(url)
        #: The same database, seen through the proxy.
        self.url = self._target.set(host=None, port=None, query={"host": str(folder)}).render_as_string(
            hide_password=False
        )
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen()
        self._open: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refuses_after_cut and self._has_cut:
                client.close()
                continue
            server = self._reach()
            self._open += [client, server]
            for source, sink, guards in ((client, server, True), (server, client, False)):
                thread = threading.Thread(target=self._pass, args=(source, sink, guards), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _reach(self) -> socket.socket:
        directory = self._target.query.get("host")
        if directory is None:
            return socket.create_connection((self._target.host, self._target.port or 5432), timeout=30)
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{directory}/.s.PGSQL.{self._target.port or 5432}")
        return server

    def _pass(self, source: socket.socket, sink: socket.socket, guards: bool) -> None:
        try:
            while data := source.recv(65_536):
                if guards and self.cuts and _COMMIT in data:
                    self.cuts -= 1
                    self._has_cut = True
                    if self.delivers:
                        # the client goes first, so that it never sees the answer
                        source.shutdown(socket.SHUT_RDWR)
                        sink.sendall(data)
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def close(self) -> None:
        """End everything."""
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for end in self._open:
            end.close()
