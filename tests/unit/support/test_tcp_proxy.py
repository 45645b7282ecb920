"""The proxy does to connections what its tests believe it does."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import pytest
from tcp_proxy import TcpProxy


class Echo:
    """A server that sends back what it gets, and remembers it."""

    def __init__(self):
        self.heard = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self._open = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.append(client)
                self._threads.append(threading.Thread(target=self._echo, args=(client,), daemon=True))
                self._threads[-1].start()

    def _echo(self, client):
        with suppress(OSError):
            while data := client.recv(65_536):
                self.heard += data
                client.sendall(data)
        with suppress(OSError):
            client.shutdown(socket.SHUT_WR)

    def close(self):
        for end in (self._listener, *self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for end in (self._listener, *self._open):
            end.close()


@pytest.fixture
def echo():
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo):
    with TcpProxy(echo.address) as made:
        yield made


@pytest.fixture
def connect(proxy):
    clients = []

    def one(timeout_s=5.0):
        clients.append(socket.create_connection(("127.0.0.1", proxy.port), timeout=timeout_s))
        return clients[-1]

    yield one
    for client in clients:
        client.close()


def exchange(client, data):
    client.sendall(data)
    return receive(client, len(data))


def receive(client, count):
    got = b""
    while len(got) < count:
        piece = client.recv(count - len(got))
        if not piece:
            break
        got += piece
    return got


def within(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_bytes_pass_in_their_order(connect):
    data = bytes(range(256)) * 4_000
    client = connect()
    sender = threading.Thread(target=client.sendall, args=(data,))
    sender.start()
    assert data == receive(client, len(data))
    sender.join(5)


def test_an_end_of_one_side_reaches_the_other_and_answers_still_come(connect):
    client = connect()
    client.sendall(b"last words")
    client.shutdown(socket.SHUT_WR)
    assert b"last words" == receive(client, 100)


def test_a_cut_resets_open_connections_and_lets_new_ones_in(proxy, connect):
    client = connect()
    assert b"one" == exchange(client, b"one")
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert b"two" == exchange(connect(), b"two")
    assert 1 == proxy.cuts


def test_a_server_that_is_down_refuses_until_it_is_healed(proxy, connect):
    proxy.cut(refuse=True)
    assert b"" == closed(connect())
    proxy.heal()
    assert b"back" == exchange(connect(), b"back")


def closed(client):
    try:
        return client.recv(1)
    except ConnectionResetError:
        return b""


def test_without_a_server_a_client_is_refused(proxy, connect):
    proxy.target = None
    assert b"" == closed(connect())


def test_a_server_that_cannot_be_reached_ends_the_connection(proxy, connect):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        proxy.target = nobody.getsockname()
    assert b"" == closed(connect())


def test_a_delay_holds_bytes_back_each_way(proxy, connect):
    client = connect()
    proxy.delay(0.15)
    started = time.monotonic()
    assert b"slow" == exchange(client, b"slow")
    assert time.monotonic() - started >= 0.3


def test_swallowed_bytes_reach_nobody_while_connections_stay_open(proxy, connect, echo):
    client = connect(timeout_s=0.3)
    proxy.swallow()
    client.sendall(b"nobody hears")
    with pytest.raises(TimeoutError):
        client.recv(1)
    fresh = connect(timeout_s=0.3)
    fresh.sendall(b"nor this")
    with pytest.raises(TimeoutError):
        fresh.recv(1)
    assert b"" == echo.heard
    assert within(lambda: proxy.connections == 2)


def test_healing_resets_the_connections_that_lost_bytes_and_no_other(proxy, connect):
    loser, keeper = connect(), connect()
    assert b"k" == exchange(keeper, b"k")
    assert b"l" == exchange(loser, b"l")
    proxy.swallow()
    loser.sendall(b"lost")
    assert within(lambda: any(link.has_lost for link in proxy._links))
    proxy.heal()
    assert b"" == closed(loser)
    assert b"fine" == exchange(keeper, b"fine")


def test_swallowed_replies_leave_the_server_informed(proxy, connect, echo):
    client = connect(timeout_s=0.3)
    proxy.swallow_replies()
    client.sendall(b"done?")
    with pytest.raises(TimeoutError):
        client.recv(1)
    assert within(lambda: echo.heard == b"done?")


def test_swallowed_requests_leave_the_server_silent(proxy, connect, echo):
    client = connect(timeout_s=0.3)
    proxy.swallow("requests")
    client.sendall(b"hello")
    with pytest.raises(TimeoutError):
        client.recv(1)
    assert b"" == echo.heard


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_connection_is_cut_within_a_request_once(proxy, connect, echo, count):
    client = connect()
    proxy.cut_after(count)
    client.sendall(b"12345678")
    with suppress(ConnectionResetError):
        while client.recv(8):
            pass
    assert within(lambda: len(echo.heard) == count)
    assert b"12345678"[:count] == echo.heard
    assert b"again" == exchange(connect(), b"again")


def test_a_connection_is_cut_within_a_reply(proxy, connect, echo):
    client = connect()
    proxy.cut_after(3, "replies")
    client.sendall(b"12345678")
    got = b""
    with suppress(ConnectionResetError):
        while piece := client.recv(8):
            got += piece
    assert b"123" == got
    assert b"12345678" == echo.heard


def test_the_bytes_before_a_cut_are_counted_over_all_connections(proxy, connect, echo):
    first, second = connect(), connect()
    proxy.cut_after(6)
    assert b"abcd" == exchange(first, b"abcd")
    second.sendall(b"efgh")
    assert within(lambda: echo.heard == b"abcdef")
    assert b"more" == exchange(first, b"more")


def test_closing_ends_connections_and_may_be_repeated(echo):
    proxy = TcpProxy(echo.address)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as client:
        assert b"x" == exchange(client, b"x")
        proxy.close()
        proxy.close()
        assert b"" == closed(client)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), timeout=5)
