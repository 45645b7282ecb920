"""A port of a test stays its own while what listened on it is down."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import ports
import pytest
from ports import Ports, free_port

#: Takes ports without listening on them, tells which, and lives until it is told to end.
OTHER = """
import sys
from pathlib import Path
from ports import Ports
ports = Ports(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
print([ports.take() for _ in range(int(sys.argv[4]))], flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process(file, first, last, count):
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER, file, str(first), str(last), str(count)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(ports.__file__).parent,
    )  # fmt: skip
    with process:
        yield process.stdout.readline().strip()
        process.stdin.close()


@pytest.fixture
def span():
    """Return the ends of ten ports that only this process has; nobody listens there."""
    taken = [free_port()]
    while len(taken) < 10:
        port = free_port()
        taken = [*taken, port] if port == taken[-1] + 1 else [port]
    return taken[0], taken[-1] + 1


def test_what_one_process_has_no_other_is_given_though_nobody_listens_there(tmp_path, span):
    file, (first, last) = tmp_path / "ports", span
    with another_process(file, first, last, 6) as told:
        assert told == str(list(range(first, first + 6)))
        mine = Ports(file, first, last)
        assert [mine.take() for _ in range(4)] == list(range(first + 6, last))
        with pytest.raises(OSError, match="no port is left"):
            mine.take()
    assert Ports(file, first, last).take() == first


def test_a_port_on_which_somebody_listens_is_passed_over(tmp_path, span):
    first, last = span
    with socket.create_server(("127.0.0.1", first + 1)):
        mine = Ports(tmp_path / "ports", first, last)
        assert [mine.take(), mine.take()] == [first, first + 2]


def test_the_ports_before_the_start_come_after_the_others(tmp_path, span):
    first, last = span
    mine = Ports(tmp_path / "ports", first, last, start=last - 1)
    assert [mine.take(), mine.take()] == [last - 1, first]


def test_no_port_is_given_twice():
    taken = [free_port() for _ in range(20)]
    assert len(set(taken)) == 20
