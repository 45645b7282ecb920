"""How alerts are told: to real HTTP receivers on this machine, whatever those answer; and how the couriers behave, in virtual time."""

from __future__ import annotations

import asyncio
import base64
import logging

import alerting as a
import facts_of as f
import msgspec
import pytest
from prometheus_client import CollectorRegistry
from virtual_time import LoopTimes, run_virtually

from responders.alerts.book import Book
from responders.alerts.plan import plan
from responders.alerts.posting import new_session
from responders.alerts.sending import AFTER_FAILURE_S, PAUSES_S, Courier, Teller
from responders.alerts.sinks import BATCH, Alertmanager, Sent, Webhook
from sickbay.clock import SystemClock
from sickbay.errors import ServiceError
from sickbay.operations.respond_metrics import RespondMetrics
from sickbay.policy import AlertPolicy

POLICY = AlertPolicy()
KEY = base64.b64encode(bytes(range(32))).decode()


def notices(count=1):
    book = Book(POLICY, ())
    view = a.view_of(*(a.quarantined(n) for n in range(count)))
    return book.look(plan(view, POLICY, a.NOW), a.NOW)


@pytest.fixture
def secret(tmp_path):
    file = tmp_path / "secret"
    file.write_text(KEY)
    return file


def send(make, told, prepare=None, times=1):
    """Send to a receiver so often; return it and what came of each."""

    async def run():
        async with a.listening() as receiver, new_session() as session:
            if prepare is not None:
                prepare(receiver)
            sink = make(session, receiver)
            return receiver, [await sink.send(told) for _ in range(times)]

    return asyncio.run(run())


def alertmanager(session, receiver):
    return Alertmanager(session, receiver.url, SystemClock(), 60_000)


def test_an_alertmanager_gets_alerts_in_batches_at_its_path():
    told = notices(BATCH + 1)
    receiver, (sent,) = send(alertmanager, told)
    assert Sent(told) == sent
    assert [BATCH, 1] == [len(document) for document in receiver.documents]
    assert {"/api/v2/alerts"} == {path for path, _, _ in receiver.got}


@pytest.mark.parametrize("status", [302, 400, 401, 429, 500, 503])
def test_an_answer_that_is_no_success_is_a_failure_and_a_redirect_is_not_followed(status, secret):
    told = notices(3)
    receiver, (sent,) = send(alertmanager, told, lambda receiver: setattr(receiver, "status", status))
    assert [] == sent.taken
    assert f"answers {status}" in sent.problem
    assert [] == receiver.got
    _, (sent,) = send(
        lambda session, receiver: Webhook(session, receiver.url, secret, SystemClock()),
        told,
        lambda receiver: setattr(receiver, "status", status),
    )
    assert [] == sent.taken


def test_nobody_at_the_address_is_a_failure_that_shows_no_secret(secret):
    async def run():
        async with a.listening() as receiver:
            url = receiver.url.replace("http://", "http://ann:hunter2@") + "/x?token=hunter3"
        async with new_session() as session:
            return await Webhook(session, url, secret, SystemClock()).send(notices(20))

    sent = asyncio.run(run())
    assert [] == sent.taken
    assert "cannot be reached" in sent.problem
    assert "hunter" not in sent.problem


def test_an_event_that_a_webhook_refuses_keeps_no_other_back(secret):
    told = notices(20)
    _, (sent,) = send(
        lambda session, receiver: Webhook(session, receiver.url, secret, SystemClock()),
        told,
        lambda receiver: receiver.answers.extend([422]),
    )
    assert 19 == len(sent.taken)
    assert "answers 422" in sent.problem


def test_keys_that_are_changed_sign_from_then_on(secret):
    async def run():
        async with a.listening() as receiver, new_session() as session:
            sink = Webhook(session, receiver.url, secret, SystemClock())
            await sink.send(notices())
            secret.write_text(f"{base64.b64encode(b'y' * 32).decode()}\n{KEY}")
            await sink.send(notices())
            secret.unlink()
            return receiver, await sink.send(notices())

    receiver, sent = asyncio.run(run())
    assert [1, 2] == [len(headers["webhook-signature"].split()) for _, headers, _ in receiver.got]
    assert [] == sent.taken
    assert "cannot be read" in sent.problem


class FakeSink:
    """A sink that takes what it is given while it is up."""

    effect = "webhook"

    def __init__(self, name="fake", *, repeats=False):
        self.name, self.repeats = name, repeats
        self.up, self.got, self.asked_at = True, [], []

    async def send(self, told):
        self.asked_at.append(asyncio.get_running_loop().time())
        if not self.up:
            return Sent([], "it is down")
        self.got += told
        return Sent(list(told))


class World:
    """A teller with sinks and a memory, on a virtual clock."""

    def __init__(self, *sinks, memory=None):
        self.sinks, self.memory = sinks, memory or a.Kept()
        self.view = a.view_of()
        self.registry = CollectorRegistry()
        self.times, metrics = LoopTimes(), RespondMetrics(self.registry)
        self.book = self.memory.book(POLICY, [sink.name for sink in sinks])
        self.pokes = 0
        self.couriers = [
            Courier(sink, self.book, self.times, metrics, POLICY.resend_ms, self._poke) for sink in sinks
        ]
        self.teller = Teller(
            lambda now_ms: plan(self.view, POLICY, now_ms),
            self.book,
            self.memory,
            self.couriers,
            self.times,
            metrics,
        )

    def _poke(self):
        self.pokes += 1

    async def __aenter__(self):
        self.teller.start()
        return self

    async def __aexit__(self, *_):
        await self.teller.close()

    async def look(self, *decisions, rest_s=0.01):
        for decision in decisions:
            self.view.fold(decision)
        wait_s = await self.teller.act()
        await asyncio.sleep(rest_s)
        return wait_s

    def count(self, outcome):
        labels = {"effect": "webhook", "outcome": outcome}
        return self.registry.get_sample_value("sickbay_respond_effects_total", labels) or 0


def test_nothing_is_told_before_the_first_look():
    """What was kept may be over: history is read to its end first."""

    async def run():
        memory = a.Kept()
        async with World(FakeSink(), memory=memory) as world:
            world.sinks[0].up = False
            await world.look(a.quarantined())
        async with World(FakeSink(), memory=memory) as again:
            await asyncio.sleep(1_000)
            assert [] == again.sinks[0].got
            await again.look()  # the view says that nothing stands
            assert ["cleared"] == [notice.change for notice in again.sinks[0].got]

    run_virtually(run())


def test_a_restart_repeats_nothing_and_clears_what_ended_meanwhile():
    async def run():
        memory = a.Kept()
        async with World(FakeSink(), memory=memory) as world:
            await world.look(a.quarantined(1), a.quarantined(2))
            await world.look()
        async with World(FakeSink(), memory=memory) as again:
            await again.look(a.quarantined(1))
            assert [("cleared", "quarantine/episode-2")] == [
                (notice.change, notice.alert_id) for notice in again.sinks[0].got
            ]
            await again.look()
            assert {"quarantine/episode-1"} == memory.entries.keys()

    run_virtually(run())


def test_a_sink_that_is_down_is_tried_a_few_times_told_of_and_stops_no_other():
    async def run():
        down, up = FakeSink("down"), FakeSink("up")
        down.up = False
        async with World(down, up) as world:
            await world.look(a.quarantined(), rest_s=sum(PAUSES_S) + 1)
            assert 1 + len(PAUSES_S) == len(down.asked_at)
            assert ["raised"] == [notice.change for notice in up.got]
            assert "1 alerts were not told: it is down" in world.couriers[0].check.problem()
            assert world.couriers[1].check.problem() is None
            assert (1, 1) == (world.count("failed"), world.count("sent"))
            for _ in range(50):  # looks do not make it try more often
                await world.look(rest_s=0.1)
            assert 1 + len(PAUSES_S) == len(down.asked_at)
            down.up = True
            await asyncio.sleep(AFTER_FAILURE_S)
            assert up.got == down.got
            assert world.couriers[0].check.problem() is None

    run_virtually(run())


def test_what_is_taken_is_noted_and_asks_for_a_look_that_keeps_it():
    async def run():
        async with World(FakeSink()) as world:
            await world.look(a.quarantined())
            assert 1 == world.pokes
            assert frozenset() == world.memory.entries["quarantine/episode-1"].told
            await world.look()
            assert {"fake"} == world.memory.entries["quarantine/episode-1"].told
            await world.look(a.released())
            await world.look()
            assert {} == world.memory.entries

    run_virtually(run())


def test_what_stands_is_repeated_to_a_sink_that_needs_it_and_counted_once():
    async def run():
        async with World(FakeSink(repeats=True)) as world:
            await world.look(a.quarantined(), rest_s=10 * POLICY.resend_ms / 1000 + 1)
            assert 11 == len(world.sinks[0].got)
            assert 1 == world.count("sent")
            await world.look(a.released(), rest_s=10 * POLICY.resend_ms / 1000)
            assert "cleared" == world.sinks[0].got[-1].change
            assert 12 == len(world.sinks[0].got)

    run_virtually(run())


def test_a_state_that_the_broker_may_have_taken_is_kept_again_as_it_was_and_ends_too():
    async def run():
        async with World(FakeSink()) as world:
            world.memory.refuse = ServiceError("Kafka does not answer")
            with pytest.raises(ServiceError):
                await world.look(a.quarantined())
            await asyncio.sleep(1)
            assert [] == world.sinks[0].got
            await world.look(a.released())
            (_, first), (_, second), (_, third), *_ = world.memory.writes
            assert first == second
            assert ("cleared", "quarantine/episode-1") == (third.notice.change, third.notice.alert_id)

    run_virtually(run())


def test_a_look_says_when_it_must_look_again():
    async def run():
        async with World(FakeSink()) as world:
            assert POLICY.group_wait_ms / 1000 == await world.look(a.adverse())
            assert POLICY.group_wait_ms / 1000 - 1 == pytest.approx(
                await world.look(a.adverse(), rest_s=0), abs=1.1
            )
            await asyncio.sleep(POLICY.group_wait_ms / 1000)
            assert await world.look() is None
            assert [f"restricted/n1/{f.DRIVER}"] == [notice.alert_id for notice in world.sinks[0].got]

    run_virtually(run())


def test_an_error_of_a_courier_ends_the_role():
    class Broken(FakeSink):
        async def send(self, told):
            raise AssertionError(f"a fault of the program with {len(told)}")

    async def run():
        async with World(Broken()) as world:
            await world.look(a.quarantined())
            with pytest.raises(AssertionError, match="a fault of the program"):
                await world.look()

    run_virtually(run())


def test_nothing_secret_is_logged(secret, caplog):
    caplog.set_level(logging.DEBUG)

    async def run():
        async with a.listening() as receiver, new_session() as session:
            receiver.status = 500
            url = receiver.url.replace("http://", "http://ann:hunter2@") + "/x?token=hunter3"
            sink = Webhook(session, url, secret, SystemClock())
            courier = Courier(
                sink, book_of(sink), SystemTimes(), RespondMetrics(CollectorRegistry()), 60_000, lambda: None
            )
            assert not await courier._deliver()
            return courier.check.problem()

    assert "answers 500" in asyncio.run(run())
    assert "not told" in caplog.text
    assert "hunter" not in caplog.text
    assert KEY not in caplog.text


class SystemTimes(SystemClock):
    def monotonic_ms(self):
        return 0


def book_of(sink):
    book = Book(POLICY, [sink.name])
    book.take(notices())
    return book


def test_events_are_whole_json():
    receiver, _ = send(alertmanager, notices())
    (_, headers, body) = receiver.got[0]
    assert "application/json" == headers["Content-Type"]
    assert isinstance(msgspec.json.decode(body), list)
