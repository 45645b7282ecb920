"""Liveness tells of work that stands still, readiness of anything that cannot be relied on; both over real HTTP."""

from __future__ import annotations

import asyncio
import socket
import time

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from sickbay.errors import InputError
from sickbay.operations.health import SIGHT_S, STUCK_S, Fresh, Progress, Told
from sickbay.operations.http import HealthServer, watch_loop


class Hand:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def served(ask, *, checks=(), progress=(), registry=None):
    """Serve, and return what ``ask(get, server)`` returns; ``get(path)`` gives status and body."""

    async def main():
        server = HealthServer(registry or CollectorRegistry(), checks, progress)
        async with (
            server,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10)) as session,
        ):

            async def get(path, **headers):
                async with session.get(f"http://127.0.0.1:{server.port}{path}", headers=headers) as answer:
                    body = (
                        await answer.json()
                        if answer.content_type == "application/json"
                        else await answer.text()
                    )
                    return answer.status, body, answer.headers

            return await ask(get, server)

    return asyncio.run(main())


def stuck_progress(hand: Hand) -> Progress:
    progress = Progress("facts", monotonic=hand)
    progress.waits()
    hand.now += STUCK_S + 1
    progress.waits()
    return progress


def test_a_process_with_nothing_to_do_lives() -> None:
    async def ask(get, _server):
        return await get("/livez")

    status, body, headers = served(ask, progress=[Progress("facts")])
    assert (200, {"live": True, "problems": []}) == (status, body)
    assert headers["Cache-Control"] == "no-store"


def test_work_that_waits_and_does_not_move_is_503_with_the_reason() -> None:
    async def ask(get, _server):
        return await get("/livez"), await get("/readyz")

    live, ready = served(ask, progress=[stuck_progress(Hand())])
    problem = {
        "name": "facts",
        "problem": "work waits for 301 s and nothing moved, the limit is 300 s",
    }
    assert (503, {"live": False, "problems": [problem]}) == live[:2]
    assert (503, [problem]) == (ready[0], ready[1]["problems"])


@pytest.mark.parametrize("sign", ["moved", "failed", "idle"])
def test_any_sign_of_life_begins_the_waiting_anew(sign: str) -> None:
    hand = Hand()
    progress = stuck_progress(hand)
    assert progress.problem() is not None
    getattr(progress, sign)()
    assert progress.problem() is None
    progress.waits()
    hand.now += STUCK_S
    progress.waits()
    assert progress.problem() is None
    hand.now += 1
    progress.waits()
    assert progress.problem() is not None


def test_nobody_is_stuck_while_nobody_knows_whether_work_waits() -> None:
    """With Kafka down no end of a partition is seen, and a restart would mend nothing."""
    hand = Hand()
    progress = stuck_progress(hand)
    hand.now += SIGHT_S + 1
    assert progress.problem() is None
    progress.waits()
    assert progress.problem() is not None


def test_ready_tells_every_reason_why_not() -> None:
    kafka, store = Told("kafka"), Told("store", None)
    ages = [7_000]
    view = Fresh("view", lambda: ages[0], 5_000)

    async def ask(get, _server):
        first = await get("/readyz")
        kafka.ready()
        ages[0] = 5_000
        second = await get("/readyz")
        store.failed("no connection")
        third = await get("/readyz")
        live = await get("/livez")
        return first[:2], second[:2], third[:2], live[0]

    first, second, third, live = served(ask, checks=[kafka, store, view])
    assert first == (
        503,
        {
            "ready": False,
            "problems": [
                {"name": "kafka", "problem": "it has not started yet"},
                {"name": "view", "problem": "7 s behind, the limit is 5 s"},
            ],
            "passed": ["store"],
        },
    )
    assert second == (200, {"ready": True, "problems": [], "passed": ["kafka", "store", "view"]})
    assert (503, [{"name": "store", "problem": "no connection"}]) == (third[0], third[1]["problems"])
    assert live == 200


def test_a_view_that_does_not_exist_yet_is_not_ready() -> None:
    assert Fresh("view", lambda: None, 5_000).problem() == "there is nothing yet"


def test_a_reason_shows_no_secret_and_paints_nothing() -> None:
    async def ask(get, _server):
        return await get("/readyz")

    told = Told("store", "postgresql://a:c4nary@db/x \x1b[2J" + "x" * 10_000)
    (_, body, _) = served(ask, checks=[told])
    problem = body["problems"][0]["problem"]
    assert "c4nary" not in problem
    assert problem.isprintable()
    assert len(problem) < 600


def test_a_check_that_fails_is_a_reason() -> None:
    class Broken:
        name = "broken"

        def problem(self):
            raise ZeroDivisionError

    async def ask(get, _server):
        return await get("/readyz")

    status, body, _ = served(ask, checks=[Broken()])
    assert (503, "it cannot be checked: ZeroDivisionError") == (status, body["problems"][0]["problem"])


def test_a_process_that_stops_is_not_ready_and_lives() -> None:
    async def ask(get, server):
        server.drain()
        return (await get("/readyz"))[:2], (await get("/livez"))[0]

    (status, body), live = served(ask)
    assert (503, 200) == (status, live)
    assert body["problems"] == [{"name": "process", "problem": "it is stopping"}]


def test_metrics_are_served_in_the_format_that_is_asked_for() -> None:
    registry = CollectorRegistry()
    Counter("sickbay_test", "A test.", registry=registry).inc()

    async def ask(get, _server):
        return await get("/metrics"), await get(
            "/metrics", Accept="application/openmetrics-text; version=1.0.0"
        )

    plain, modern = served(ask, registry=registry)
    assert plain[0] == 200
    assert "sickbay_test_total 1.0" in plain[1]
    assert plain[2]["Content-Type"].startswith("text/plain")
    assert modern[2]["Content-Type"].startswith("application/openmetrics-text")
    assert modern[1].endswith("# EOF\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_changed(method: str) -> None:
    async def ask(_get, server):
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, f"http://127.0.0.1:{server.port}/livez") as answer,
        ):
            return answer.status

    assert served(ask) == 405


def test_other_paths_do_not_exist() -> None:
    async def ask(get, _server):
        return (await get("/"))[0], (await get("/debug"))[0]

    assert served(ask) == (404, 404)


def test_a_port_that_is_taken_is_an_error_with_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"127\.0\.0\.1:{port} cannot be listened on .*--http-port"):
            asyncio.run(HealthServer(CollectorRegistry(), port=port).start())


def test_stopping_waits_for_no_idle_connection() -> None:
    async def main() -> float:
        server = HealthServer(CollectorRegistry())
        await server.start()
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /livez HTTP/1.1\r\n")  # never ends its request
        await writer.drain()
        await asyncio.sleep(0.05)
        before = time.monotonic()
        await server.stop()
        await server.stop()
        writer.close()
        return time.monotonic() - before

    assert asyncio.run(main()) < 5


def test_a_loop_that_stood_still_is_logged(caplog) -> None:
    async def main() -> None:
        watching = asyncio.create_task(watch_loop(0.25))
        await asyncio.sleep(0.3)
        time.sleep(0.8)  # noqa: ASYNC251 - what is looked for
        await asyncio.sleep(0.3)
        watching.cancel()

    asyncio.run(main())
    assert ["the event loop stood still"] == [record.getMessage() for record in caplog.records]
