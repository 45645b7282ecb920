"""The law of the topic of known facts: whoever dies, sleeps or wakes when, a recall is what a fold of all facts leaves."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from told_facts import OF_NODE, breaker, naive_fold, pod, tick

from ingest.kafka_delivery import Outgoing
from ingest.known_writer import KnownWriter
from ingest.packing import pack
from ingest.remembering import ENDED_KEPT_MS, PartitionMemory
from sickbay.cloudevents import INGEST_EPOCH
from sickbay.facts import Fact


class Broker:
    """One partition of the two topics."""

    def __init__(self) -> None:
        self.facts: list[tuple[bytes, list[tuple[str, bytes]]]] = []
        self.known: list[tuple[int, bytes, bytes | None, list[tuple[str, bytes]]]] = []
        self.next = 0

    def append(self, record: Outgoing) -> int:
        message = record.message
        if record.topic == "facts":
            self.facts.append((message.value, message.headers))
            return len(self.facts) - 1
        self.known.append((self.next, message.key, message.value, message.headers))
        self.next += 1
        return self.next - 1

    def compact(self, *, tombstones: bool) -> None:
        last = {key: offset for offset, key, _, _ in self.known}
        self.known = [
            record for record in self.known
            if last[record[1]] == record[0] and (record[2] is not None or not tombstones)
        ]  # fmt: skip

    def recall(self) -> PartitionMemory:
        memory = PartitionMemory()
        for _, key, value, headers in self.known:
            memory.known(key, value, headers)
        for offset in range(memory.judge(len(self.facts)), len(self.facts)):
            memory.fact(offset, *self.facts[offset])
        memory.read_until(len(self.facts))
        return memory


def leading(broker: Broker, epoch: int, supply: Iterator[list[Fact]]) -> Iterator[bool]:
    """Lead, one acknowledged record at a time; true is yielded where a round is complete."""
    writer = KnownWriter("known", {0: broker.recall()})
    yield False
    writer.lead(epoch)

    def send(records: list[Outgoing]) -> Any:
        offsets = []
        for record in records:
            offsets.append(broker.append(record))
            yield False
        return offsets

    for chunk in writer.beginning(3):
        writer.acknowledged(chunk, (yield from send(chunk)), False)
    writer.begin()
    for facts in supply:
        packed, _ = pack(facts, 1, [(INGEST_EPOCH, str(epoch).encode())], single_max=2)
        behind = writer.take()
        offsets = yield from send([*behind, *(Outgoing("facts", 0, one.message) for one in packed)])
        writer.acknowledged(behind, offsets[: len(behind)], False)
        writer.covers()
        own = offsets[len(behind) :]
        for _, begin, end in writer.unread(packed, own):
            for offset in range(begin, end):
                writer.foreign(0, offset, *broker.facts[offset])
        writer.told(packed, own)
        yield True


def check(broker: Broker) -> None:
    expected = naive_fold(broker.facts)
    memory = broker.recall()
    now_ms = max((one.at_ms for one in expected.values()), default=0)
    # the Lease of a node that was gone for long is forgotten with it
    gone_with_it = {
        key
        for offset, record in enumerate(broker.facts)
        for one in PartitionMemory().open_fact(offset, *record)
        if one.ended
        for key in one.with_it
    }
    for key, one in expected.items():
        if one.ended or key in gone_with_it:
            # it may have been taken out, and a fact that comes later than that is as good as new
            continue
        assert memory.entries[key].noted == one, (key, memory.trusted)
    assert memory.entries.keys() <= expected.keys()
    recent = {key for key, one in expected.items() if one.ended and now_ms - one.at_ms < ENDED_KEPT_MS}
    assert now_ms == 0 or memory.trusted or not recent - memory.entries.keys()


def some_facts(random: Random, at_ms: int) -> list[Fact]:
    facts: list[Fact] = []
    for _ in range(random.randrange(4)):
        make = random.choice((*OF_NODE, tick, tick, breaker))
        if make in (tick, breaker):
            facts.append(make(0, at_ms))
        else:
            facts.append(
                make(random.choice("aab"), max(1, at_ms // 300_000 - random.randrange(3)), at_ms=at_ms)
            )
    return facts


@pytest.mark.parametrize("part", range(4))
def test_a_recall_is_a_fold_of_all_facts_whoever_dies_sleeps_or_wakes(part):
    for seed in range(part * 60, part * 60 + 60):
        history(Random(seed))  # noqa: S311 - a seed makes the history, no secret


def history(random: Random) -> None:
    broker = Broker()
    leaders: list[Iterator[bool]] = []
    waiting: list[list[Fact]] = []
    at_ms = 0

    def supply() -> Iterator[list[Fact]]:
        while True:
            yield waiting.pop() if waiting else []

    def rounds(leader: Iterator[bool], most: int) -> None:
        """Let a leader work until it finished that many rounds."""
        for _ in range(10_000):
            most -= next(leader)
            if not most:
                return
        raise AssertionError("a round does not end")

    epoch = 0
    for _ in range(60):
        at_ms += random.choice((60_000, 300_000, 300_000, 2_000_000))
        waiting[:] = [some_facts(random, at_ms) for _ in range(2)]
        chosen = random.random()
        if chosen < 0.12 or not leaders:
            epoch = max(epoch, broker.recall().ingest_epoch) + 1
            leaders.append(leading(broker, epoch, supply()))
            del leaders[:-3]
        elif chosen < 0.2:
            del leaders[-1]
        elif chosen < 0.3:
            broker.compact(tombstones=False)
        elif chosen < 0.4:
            # a day passes: the leader that works writes, sees what others wrote, and says so
            for _ in range(2):
                waiting.append([tick(0, at_ms)])
                rounds(leaders[-1], 2)
            broker.compact(tombstones=True)
        else:
            # the newest leader as a rule, an older one that woke now and then
            leader = leaders[-1] if random.random() < 0.6 else random.choice(leaders)
            for _ in range(random.choice((1, 3, 10, 40))):
                next(leader)
        check(broker)


def test_a_recall_reads_only_the_facts_of_the_last_rounds():
    broker = Broker()
    leader = leading(broker, 1, iter([[pod("a", rv, at_ms=rv)] for rv in range(1, 50)]))
    for _ in leader:
        pass
    memory = PartitionMemory()
    for _, key, value, headers in broker.known:
        memory.known(key, value, headers)
    assert memory.judge(len(broker.facts)) == len(broker.facts) - 2
    assert memory.trusted
