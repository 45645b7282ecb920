"""Reading a stretch of a topic to its end, also where nothing stands at the end, and never for ever."""

import asyncio
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition

from ingest.kafka_recall import _read
from sickbay.errors import ServiceError

PLACE = TopicPartition("t", 0)


class Consumer:
    """Answers with what stands at the position, which stays where nothing does."""

    def __init__(self, offsets, *, answers=True, high=None):
        self.offsets = offsets
        self.answers = answers
        self.high = high or [99]
        self.at = 0
        self.polls = 0

    def assign(self, places):
        assert places == [PLACE]

    def seek(self, _place, offset):
        self.at = offset

    def pause(self, place):
        assert place == PLACE

    async def getmany(self, *, timeout_ms):
        await asyncio.sleep(0.01)
        assert timeout_ms > 0
        self.polls += self.answers
        found = [SimpleNamespace(offset=offset) for offset in self.offsets if offset >= self.at]
        if not found or not self.answers or self.highwater(PLACE) < found[0].offset:
            return {}
        self.at = found[-1].offset + 1
        return {PLACE: found}

    async def position(self, _place):
        return self.at

    def last_poll_timestamp(self, _place):
        return self.polls

    def highwater(self, _place):
        return self.high[min(self.polls, len(self.high) - 1)]


def read(consumer, begin, end, stall_s=5.0):
    async def main():
        return [
            record.offset
            async for _, records in _read(consumer, "t", {0: (begin, end)}, stall_s)
            for record in records
        ]

    return asyncio.run(asyncio.wait_for(main(), 10))


def test_a_stretch_is_read_up_to_its_end_and_not_further():
    assert read(Consumer([1, 2, 5, 6, 9]), 2, 6) == [2, 5]


def test_an_empty_stretch_is_not_asked_for():
    consumer = Consumer([])
    assert read(consumer, 7, 7) == []
    assert not consumer.polls


@pytest.mark.case("C51")
def test_the_end_is_reached_where_the_last_records_are_gone():
    assert read(Consumer([1, 2]), 0, 90) == [1, 2]
    assert read(Consumer([]), 40, 90) == []


def test_a_leader_that_does_not_know_yet_what_is_committed_is_waited_for():
    assert read(Consumer([6], high=[5, 5, 5, 5, 5, 5, 7]), 0, 7) == [6]


def test_a_broker_that_stops_answering_is_a_failure():
    with pytest.raises(ServiceError, match="stood still"):
        read(Consumer([1], answers=False), 0, 2, stall_s=0.1)
