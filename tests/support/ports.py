"""Ports on the loopback interface for what tests start."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

#: Below those that the kernel gives to clients.
FIRST: Final = 20_000
LAST: Final = 32_000


class Ports:
    """Ports from ``first`` up to ``last``, each given once, and to one process while that lives.

    A port stays with the process also while nobody listens on it, so what is started again finds it free: the kernel keeps a
    lock on the byte of ``file`` that has the number of the port, and lets it go with the process.
    """

    def __init__(self, file: Path, first: int = FIRST, last: int = LAST, *, start: int | None = None) -> None:
        self._file = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        start = first if start is None else start
        self._left: Iterator[int] = iter([*range(start, last), *range(first, start)])

    def take(self) -> int:
        """Return a port on which nobody listens. Raises OSError when there is none left."""
        for port in self._left:
            with suppress(OSError), socket.socket() as probe:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
                return port
        raise OSError(errno.EADDRINUSE, "no port is left for tests on the loopback interface")


_ports: Final = Ports(
    Path(tempfile.gettempdir()) / f"sickbay-test-ports-{os.getuid()}", start=FIRST + os.getpid() % 1_000 * 10
)


def free_port() -> int:
    """Return a port for a process that a test starts, and starts again. Raises OSError when there is none left."""
    return _ports.take()
