"""What the live benchmark folds: words on devices of nodes with eight devices each, and ticks.

Most words tell only a new text, one in eight turns a device bad, and the next one of that node turns it well again. The words of
a node are 200 s of event time apart, so two or three devices of a hundred turn in the five minutes of the breaker, and it stays
closed, as on an ordinary day. Equal numbers give equal facts. It must not measure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple
from zlib import crc32

from sickbay.cloudevents import INGEST_EPOCH, Message, batches
from sickbay.codec import encode, wrap_fact
from sickbay.envelope import partition_of
from sickbay.facts import DeviceHealthObserved, Fact, NodeObserved, PodObserved, PolicyChanged, Tick
from sickbay.policy import Policy

DEVICES: Final = 8
START_MS: Final = 1_782_892_800_000
#: Event time between two words of a node.
_APART_MS: Final = 200_000
#: Words of a node from one turn to the next.
_CYCLE: Final = 8
#: One word in this many that turn bad is Unknown instead of Unhealthy.
_UNKNOWN_ONE_IN: Final = 4
_RESOURCE: Final = "nvidia.com/gpu"
_NAMESPACE: Final = "ml"


class Log(NamedTuple):
    """Records of the facts topic in the order in which they are written."""

    records: list[tuple[int, Message]]
    #: Events of all records.
    facts: int


def beginning(nodes: int, total: int) -> list[Fact]:
    """Return the policy for each partition, and each node with its Pods and their first words."""
    facts: list[Fact] = [PolicyChanged.to(Policy(), START_MS, number) for number in range(total)]
    for index in range(nodes):
        name = _node(index)
        facts.append(
            NodeObserved(
                node=name,
                observed_at_ms=START_MS,
                rv=1,
                node_uid=f"uid-{name}",
                ready="True",
                capacity={_RESOURCE: str(DEVICES), "cpu": "192"},
                allocatable={_RESOURCE: str(DEVICES), "cpu": "192"},
            )
        )
        for device in range(DEVICES):
            facts.append(
                PodObserved(
                    node=name,
                    observed_at_ms=START_MS,
                    rv=2,
                    pod_uid=f"uid-{name}-{device}",
                    namespace=_NAMESPACE,
                    pod=f"{name}-{device}",
                    phase="Running",
                )
            )
            facts.append(_word(name, device, "Healthy", START_MS, 2, ""))
    return facts


def words_of(nodes: int, begin: int = 0) -> Iterator[Fact]:
    """Yield words without end, node after node. ``begin`` is the number of words that came before."""
    step = begin
    while True:
        index = step % nodes
        turn = step // nodes + index % _CYCLE
        name = _node(index)
        throw = crc32(f"{name}/{turn // _CYCLE}".encode())
        device, word = throw % DEVICES, "Healthy"
        if turn % _CYCLE == 0:
            word = "Unknown" if throw // DEVICES % _UNKNOWN_ONE_IN == 0 else "Unhealthy"
        elif turn % _CYCLE > 1:
            device = (device + turn % _CYCLE - 1) % DEVICES
        yield _word(
            name, device, word, START_MS + (step + 1) * _APART_MS // nodes, step + 10, f"seen {step} times"
        )
        step += 1


def log_of(nodes: int, words: int, total: int, size: int, begin: int = 0) -> Log:
    """Return the records of a history of so many words, ``size`` of one node to a record.

    Words are packed inside stretches in which each node has ``size`` of them, so the same words are written whatever the size; a
    stretch ends with one tick for each partition. With ``begin`` it is the continuation of a history of so many words.
    """
    records: list[tuple[int, Message]] = []
    facts = 0

    def write(events: Sequence[Fact]) -> None:
        nonlocal facts
        facts += len(events)
        records.extend(messages_of(events, total))

    if not begin:
        start = beginning(nodes, total)
        by_place: dict[str, list[Fact]] = {}
        for fact in start:
            by_place.setdefault(fact.node or f"{getattr(fact, 'partition', 0)}", []).append(fact)
        for several in by_place.values():
            for at in range(0, len(several), size):
                write(several[at : at + size])
    source = words_of(nodes, begin)
    done = 0
    while done < words:
        stretch = list(islice(source, min(nodes * size, words - done)))
        by_node: dict[str, list[Fact]] = {}
        for fact in stretch:
            by_node.setdefault(fact.node, []).append(fact)
        for several in by_node.values():
            write(several)
        done += len(stretch)
        at_ms = START_MS + (begin + done) * _APART_MS // nodes
        for number in range(total):
            write([Tick(node="", observed_at_ms=at_ms, partition=number)])
    return Log(records, facts)


def messages_of(facts: Sequence[Fact], total: int) -> list[tuple[int, Message]]:
    """Return the records of facts that belong together, as the publisher writes them."""
    events = [(envelope, encode(envelope)) for envelope in map(wrap_fact, facts)]
    own: int | None = getattr(facts[0], "partition", None)
    number = partition_of(facts[0].node, total) if own is None else own
    key = events[0][0].key
    return [(number, message) for message in batches(key, events, [(INGEST_EPOCH, b"1")])]


def _node(index: int) -> str:
    return f"node-{index:05d}"


def _word(node: str, device: int, word: str, at_ms: int, rv: int, message: str) -> DeviceHealthObserved:
    return DeviceHealthObserved(
        node=node,
        device_id=f"plugin:{_RESOURCE}/GPU-{node}-{device}",
        observed_at_ms=at_ms,
        rv=rv,
        health=word,  # type: ignore[arg-type]
        health_raw=word,
        message=message or None,
        pod_uid=f"uid-{node}-{device}",
        namespace=_NAMESPACE,
        pod=f"{node}-{device}",
        reported_as=_RESOURCE,
    )
