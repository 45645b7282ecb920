"""A state out of Kafka's own log: as far as records are answered, and never over a hole or a silence."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import facts_of as f
import msgspec
import pytest
from live_feed import begin, feed, snapshot_of, state_of, tick

from sickbay.cli import refolding
from sickbay.cloudevents import FACTS_OFFSET, OUTCOME, PART
from sickbay.envelope import partition_of
from sickbay.errors import CodecError, ServiceError, VerifyError
from sickbay.policy import Policy
from sickbay.settings import KafkaSettings
from streams.testing import Driver, Written

TOTAL = 4
NUMBER = partition_of(f.NODE, TOTAL)
T0 = f.T0


class Consumer:
    """What the client gives of the topics of a driver; ``silent`` ones give nothing."""

    def __init__(self, driver, silent=()):
        self._driver, self._silent, self._at = driver, silent, {}
        self.gone = 0

    async def start(self):
        pass

    async def stop(self):
        pass

    def assign(self, tps):
        self._at = dict.fromkeys(tps, 0)

    def seek(self, tp, offset):
        self._at[tp] = offset

    async def position(self, tp):
        return self._at[tp]

    async def beginning_offsets(self, tps):
        return dict.fromkeys(tps, 0)

    async def end_offsets(self, tps):
        return {tp: len(self._records(tp)) for tp in tps}

    def _records(self, tp):
        return self._driver.log[tp.topic, tp.partition]

    async def getmany(self, *tps, timeout_ms, max_records):
        assert timeout_ms
        assert max_records
        await asyncio.sleep(0)
        found = {}
        for tp in tps or self._at:
            at = self._at[tp]
            records = [] if tp.topic in self._silent else self._records(tp)[at : at + 3]
            if records:
                self._at[tp] = at + len(records)
                found[tp] = [
                    SimpleNamespace(
                        topic=tp.topic,
                        partition=tp.partition,
                        offset=number,
                        value=r.value,
                        headers=r.headers,
                    )
                    for number, r in enumerate(records, at + (at > 0) * self.gone)
                ]
        return found


def worked():
    driver = Driver(TOTAL)
    begin(driver, Policy(), T0)
    for index in range(6):
        fact = f.word(f.plugin(index), "Unhealthy", T0 + 1_000 + index, 10 + index)
        feed(driver, [msgspec.structs.replace(fact, node=f.NODE)])
    feed(driver, [tick(T0 + 10_000, NUMBER)])

    async def run():
        await driver.work()
        driver.now_ms += 1_000
        await driver.work()
        await driver.worker.snapshot()

    asyncio.run(run())
    return driver


@pytest.fixture
def follow(monkeypatch):
    def run(driver, to_position=None, **options):
        consumer = Consumer(driver, options.pop("silent", ()))
        for name, value in options.items():
            setattr(consumer, name, value)
        monkeypatch.setattr(refolding, "AIOKafkaConsumer", lambda **_: consumer)
        settings = KafkaSettings(bootstrap="localhost:9092", security="plaintext", partitions=TOTAL)
        return asyncio.run(asyncio.wait_for(refolding.follow(settings, NUMBER, to_position), 20))

    return run


def said(driver, offset, part=None, outcome="taken"):
    headers = [(FACTS_OFFSET, b"%d" % offset), (OUTCOME, outcome.encode())]
    if part:
        headers.append((PART, part.encode()))
    driver.log[driver.topics.decisions, NUMBER].append(Written(b"k", b"[]" if part else b"", tuple(headers)))


def test_the_log_leads_to_the_state_of_the_worker(follow):
    driver = worked()
    assert state_of(follow(driver)) == state_of(snapshot_of(driver, NUMBER))
    assert follow(driver, 3).position == 3


def test_facts_that_nobody_answered_are_left_to_the_workers_however_many_they_are(follow, monkeypatch):
    monkeypatch.setattr(refolding, "_WAITING_MAX", 4)
    driver = worked()
    feed(driver, [tick(T0 + 20_000 + n, NUMBER) for n in range(20)])
    assert state_of(follow(driver)) == state_of(snapshot_of(driver, NUMBER))


def test_a_snapshot_beyond_what_is_answered_is_told(follow):
    driver = worked()
    with pytest.raises(VerifyError, match="answers up to 8 only"):
        follow(driver, 9)


def test_a_broker_that_gives_nothing_is_not_waited_for_without_end(follow, monkeypatch):
    monkeypatch.setattr(refolding, "_SILENCE_S", 0.05)
    driver = worked()
    with pytest.raises(ServiceError, match="gave nothing"):
        follow(driver, silent=[driver.topics.decisions])


def test_an_answer_of_which_a_part_is_gone_is_no_answer(follow):
    driver = worked()
    feed(driver, [tick(T0 + 20_000, NUMBER), tick(T0 + 30_000, NUMBER)])
    said(driver, 8, "1/2")
    assert follow(driver).position == 8
    said(driver, 9)
    with pytest.raises(ServiceError, match="has 1 of 2 parts"):
        follow(driver)


def test_another_attempt_that_says_something_else_replaces_the_parts_of_the_first(follow):
    driver = worked()
    feed(driver, [tick(T0 + 20_000, NUMBER)])
    said(driver, 8, "1/2")
    said(driver, 8)
    assert follow(driver).position == 9


@pytest.mark.parametrize("part", ["x/y", "1", "3/2", "0/1"])
def test_a_part_that_is_none_is_refused(follow, part):
    driver = worked()
    said(driver, 8, part)
    with pytest.raises(CodecError, match="no worker wrote it"):
        follow(driver)


def test_records_that_are_gone_are_told(follow):
    driver = worked()
    with pytest.raises(ServiceError, match="where offset 3 is due"):
        follow(driver, gone=2)
    said(driver, 12, outcome="progress")
    with pytest.raises(ServiceError, match="facts were lost"):
        follow(driver)


def test_a_fact_among_the_decisions_is_refused(follow):
    driver = worked()
    fact = driver.log[driver.topics.facts, NUMBER][1]
    feed(driver, [tick(T0 + 20_000, NUMBER)])
    answer = ((FACTS_OFFSET, b"8"), (OUTCOME, b"taken"))
    driver.log[driver.topics.decisions, NUMBER].append(Written(b"k", fact.value, answer))
    with pytest.raises(CodecError, match="holds a fact"):
        follow(driver)
