"""Hooks of workloads over real sockets: what succeeds, what fails, and what none of them may do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import zlib
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from responders.moves.declared import ExecHook, HttpHook
from responders.moves.hooks import PROTOCOLS, Hooks
from sickbay.cluster.client import ApiClient


@asynccontextmanager
async def serving(routes, host="127.0.0.1"):
    app = web.Application()
    for method, path, handler in routes:
        app.router.add_route(method, path, handler)
    # handlers that never end are not waited for
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def http(handler, *, host="127.0.0.1", ip=None, timeout_ms=5_000):
    """Call an HTTP hook that this handler serves."""

    async def run():
        hooks = Hooks(None)
        try:
            async with serving([("POST", "/save", handler)], host) as port:
                return await hooks.call(
                    hook=HttpHook(port, "/save"),
                    ip=ip or host,
                    namespace="ml",
                    pod="p",
                    key="move-1",
                    timeout_ms=timeout_ms,
                )
        finally:
            await hooks.close()

    return asyncio.run(run())


def test_a_hook_that_answers_2xx_went_well_and_was_told_the_key():
    seen = {}

    async def handler(request):
        seen.update(key=request.headers["Idempotency-Key"], body=await request.json())
        return web.Response(text="saved\nat step 7")

    assert (True, "200 saved at step 7") == http(handler)
    assert {"key": "move-1", "body": {}} == seen


def test_an_ipv6_address_stands_in_brackets():
    """Whether this machine has IPv6 or not, it is that address that is tried."""

    async def run():
        hooks = Hooks(None)
        try:
            return await hooks.call(
                hook=HttpHook(1, "/"), ip="::1", namespace="ml", pod="p", key="k", timeout_ms=5_000
            )
        finally:
            await hooks.close()

    called = asyncio.run(run())
    assert (False, True) == (called.ok, "::1" in called.told)


@pytest.mark.parametrize("status", [302, 307, 404, 500])
def test_any_other_answer_is_a_failure_and_no_redirect_is_followed(status):
    followed = []

    async def handler(request):
        followed.append(request.path)
        return web.Response(status=status, headers={"Location": "/save"}, text="no")

    called = http(handler)
    assert (False, 1) == (called.ok, len(followed))
    assert called.told.startswith(str(status))


def test_what_takes_too_long_or_says_too_much_is_bounded():
    async def slow(_):
        await asyncio.sleep(30)

    async def huge(_):
        return web.Response(text="x" * 1_000_000)

    assert (False, "it took longer than 50 ms") == http(slow, timeout_ms=50)
    called = http(huge)
    assert (True, True) == (called.ok, len(called.told) <= 300)


def test_a_hook_is_done_when_its_answer_is_and_not_when_it_begins():
    async def told_in_pieces(request):
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"saving ")
        await asyncio.sleep(0.05)
        await answer.write(b"saved")
        return answer

    async def broken_off(request):
        answer = web.StreamResponse(headers={"Content-Length": "100"})
        await answer.prepare(request)
        await answer.write(b"saving")
        request.transport.close()
        return answer

    async def never_done(request):
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"saving")
        await asyncio.sleep(30)
        return answer

    assert (True, "200 saving saved") == http(told_in_pieces)
    assert not http(broken_off).ok
    assert (False, "it took longer than 200 ms") == http(never_done, timeout_ms=200)


def test_an_answer_is_read_up_to_64_kib_and_never_unpacked():
    asked = {}

    async def endless(request):
        answer = web.StreamResponse()
        await answer.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await answer.write(b"x" * 10_000)
        return answer

    async def packed(request):
        asked.update(request.headers)
        return web.Response(body=zlib.compress(b"x" * 100_000), headers={"Content-Encoding": "deflate"})

    assert (True, "200 xx") == (http(endless).ok, http(endless).told[:6])
    called = http(packed)
    assert (True, False) == (called.ok, "xx" in called.told)
    assert "identity" == asked["Accept-Encoding"]


def test_what_a_hook_says_is_told_as_one_line_without_control_characters():
    async def handler(_):
        return web.Response(text="a\x00\x1b[31m\u202eb\x85c\r\nd")

    assert (True, "200 a [31m b c d") == http(handler)


@pytest.mark.parametrize(
    "ip", ["", "example.com", "127.0.0.1:80", "169.254.169.254/x", "::1%]@127.0.0.1", "fe80::1%eth0"]
)
def test_a_hook_reaches_an_ip_address_and_nothing_else(ip):
    async def handler(_):
        return web.Response()

    called = http(handler, ip=ip) if ip else http(handler, ip=" ")
    assert (False, True) == (called.ok, "no IP address" in called.told)


def test_a_pod_that_does_not_listen_is_a_failure():
    async def run():
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            hooks = Hooks(None)
            try:
                return await hooks.call(
                    hook=HttpHook(held.getsockname()[1], "/"),
                    ip="127.0.0.1",
                    namespace="ml",
                    pod="p",
                    key="k",
                    timeout_ms=5_000,
                )
            finally:
                await hooks.close()

    assert not asyncio.run(run()).ok


# --- exec ---


def execute(
    tmp_path, talk, *, argv=("save", "--key", "$(SICKBAY_IDEMPOTENCY_KEY)"), timeout_ms=5_000, refuse=0
):
    """Run an exec hook against an API server that talks like this; return what came of it and what was asked."""
    asked = {}

    async def handler(request):
        asked.update(query=list(request.query.items()))
        if refuse:
            return web.json_response({"kind": "Status", "code": refuse}, status=refuse)
        stream = web.WebSocketResponse(protocols=PROTOCOLS)
        await stream.prepare(request)
        asked.update(protocol=stream.ws_protocol)
        await talk(stream)
        return stream

    async def run():
        async with serving([("GET", "/api/v1/namespaces/ml/pods/p/exec", handler)]) as port:
            path = tmp_path / "kubeconfig"
            path.write_text(
                json.dumps({
                    "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
                    "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                })
            )  # fmt: skip
            client = await ApiClient.connect(str(path))
            hooks = Hooks(client)
            try:
                return await hooks.call(
                    hook=ExecHook("main", argv),
                    ip="",
                    namespace="ml",
                    pod="p",
                    key="move-1",
                    timeout_ms=timeout_ms,
                )
            finally:
                await hooks.close()
                await client.close()

    return asyncio.run(run()), asked


def status(**fields):
    return b"\x03" + json.dumps({"kind": "Status"} | fields).encode()


def test_a_command_that_ends_with_0_went_well_and_its_arguments_have_the_key(tmp_path):
    async def talk(stream):
        await stream.send_bytes(b"\x01saved\n")
        await stream.send_bytes(status(status="Success"))

    called, asked = execute(tmp_path, talk)
    assert (True, "exit code 0: saved") == called
    assert ["save", "--key", "move-1"] == [value for name, value in asked["query"] if name == "command"]
    assert ("container", "main") in asked["query"]
    assert "v5.channel.k8s.io" == asked["protocol"]


def test_a_command_that_fails_says_its_exit_code_and_its_last_words(tmp_path):
    async def talk(stream):
        await stream.send_bytes(b"\x02" + b"x" * 500_000)
        await stream.send_bytes(b"\x02disk full")
        await stream.send_bytes(status(status="Failure", reason="NonZeroExitCode", message="exit code 3"))

    called, _ = execute(tmp_path, talk)
    assert (False, True, 300) == (called.ok, called.told.startswith("exit code 3: xx"), len(called.told))
    assert called.told.endswith("xdisk full")


def test_a_command_that_went_well_did_so_even_if_the_stream_is_not_closed(tmp_path):
    async def talk(stream):
        await stream.send_bytes(status(status="Success"))
        await asyncio.sleep(30)

    assert (True, "exit code 0") == execute(tmp_path, talk, timeout_ms=1_000)[0]


def test_a_character_that_is_split_over_two_messages_is_whole(tmp_path):
    async def talk(stream):
        await stream.send_bytes(b"\x01gespeichert f\xc3")
        await stream.send_bytes(b"\x01\xbcr immer")
        await stream.send_bytes(status(status="Success"))

    assert (True, "exit code 0: gespeichert f\u00fcr immer") == execute(tmp_path, talk)[0]


@pytest.mark.parametrize("end", [b"{", b"", b"[]", b"\xff", b"[" * 100_000])
def test_a_command_that_ends_with_no_status_is_a_failure_that_keeps_its_output(tmp_path, end):
    async def talk(stream):
        await stream.send_bytes(b"\x01half")
        await stream.send_bytes(b"\x03" + end)

    called, _ = execute(tmp_path, talk)
    assert (False, "it ended with what is no Status: half") == called


def test_a_stream_that_ends_or_never_does_is_a_failure(tmp_path):
    async def ends(stream):
        await stream.send_bytes(b"\x01half")

    async def never(stream):
        await stream.receive()

    called, _ = execute(tmp_path, ends)
    assert (False, "the stream ended before the command did: half") == called
    assert (False, "it took longer than 100 ms") == execute(tmp_path, never, timeout_ms=100)[0]


@pytest.mark.parametrize("code", [403, 404, 500])
def test_an_api_server_that_refuses_the_command_is_a_failure_with_its_code(tmp_path, code):
    async def talk(_):
        raise AssertionError

    called, _ = execute(tmp_path, talk, refuse=code)
    assert (False, True) == (called.ok, str(code) in called.told)
