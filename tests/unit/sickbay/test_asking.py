"""A request to a store that follows Kafka: its answer is found whenever it comes, and a broker that hangs is not waited for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from unittest.mock import AsyncMock

import facts_of as f
import pytest

from projections.records import LogRecord
from sickbay.cli import asking
from sickbay.codec import encode, wrap_decision, wrap_fact
from sickbay.decisions import CensusTaken
from sickbay.errors import ServiceError, StoreError

REQUEST = f.tick(f.T0)


def answered():
    cause = wrap_fact(REQUEST)
    decision = wrap_decision(
        CensusTaken(node="", at_ms=f.T0, partition=0, known={}, adverse=()), cause, 0, "p"
    )
    return [
        LogRecord(0, offset, envelope, encode(envelope)) for offset, envelope in enumerate((cause, decision))
    ]


class Store:
    """A store that gets the answer between two questions: ``after`` questions from now."""

    place = "store"

    def __init__(self, after):
        self._left = after

    def _records(self):
        self._left -= 1
        return answered() if self._left < 0 else []

    def positions(self):
        return {}

    def read(self, _number, from_offset):
        return iter([record for record in self._records() if record.offset >= from_offset])

    def held(self, event_ids):
        held = {record.envelope.event_id for record in self._records()}
        return held & {event_id for ids in event_ids.values() for event_id in ids}


@pytest.fixture
def ask(monkeypatch):
    async def write(*_):
        return

    monkeypatch.setenv("SICKBAY_KAFKA_BOOTSTRAP", "localhost:1")
    monkeypatch.setattr(asking, "_write", write)
    monkeypatch.setattr(asking, "_PAUSE_S", 0.0)
    return lambda store: asking.ask_kafka(store, {0: REQUEST})


@pytest.mark.parametrize("after", range(1, 6))
def test_an_answer_that_comes_between_any_two_questions_is_told(ask, after):
    assert [record.envelope.kind for record in ask(Store(after))] == ["census_taken"]


def test_a_request_that_was_made_before_is_answered_by_nothing(ask):
    class Old(Store):
        def positions(self):
            return {0: SimpleNamespace(next_offset=2)}

    assert ask(Old(0)) == []


def test_a_request_that_nobody_answers_is_told_after_a_while(ask, monkeypatch):
    monkeypatch.setattr(asking, "_PATIENCE_S", 0.01)
    with pytest.raises(StoreError, match="the request is recorded"):
        ask(Store(10**9))


def test_a_broker_that_does_not_acknowledge_is_not_waited_for_without_end(monkeypatch):
    class Producer:
        async def send_and_wait(self, *_, **__):
            await asyncio.Event().wait()

        stop = send_and_wait

    monkeypatch.setenv("SICKBAY_KAFKA_BOOTSTRAP", "localhost:1")
    monkeypatch.setattr(asking, "started_producer", AsyncMock(return_value=Producer()))
    monkeypatch.setattr(asking, "_PATIENCE_S", 0.01)
    monkeypatch.setattr("sickbay.kafka._STOP_S", 0.01)
    with pytest.raises(ServiceError, match="cannot be used"):
        asking.ask_kafka(Store(10**9), {0: REQUEST})
