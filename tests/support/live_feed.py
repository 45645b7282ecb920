"""What the tests of the live worker write into the facts topic, and what they read out of the decisions."""

from __future__ import annotations

from sickbay.cloudevents import (
    FACTS_OFFSET,
    INGEST_EPOCH,
    OUTCOME,
    PART,
    batches,
    header,
    single,
    unpack,
)
from sickbay.codec import decode_envelope, encode, open_envelope, wrap_fact
from sickbay.envelope import partition_of
from sickbay.facts import PolicyChanged, Tick
from streams.pieces import load_snapshot
from streams.snapshot import dump_manifest, dump_node


def tick(at_ms, partition):
    return Tick(node="", observed_at_ms=at_ms, partition=partition)


def number_of(fact, total):
    own = getattr(fact, "partition", None)
    return partition_of(fact.node, total) if own is None else own


def message_of(fact, epoch=1):
    return single(wrap_fact(fact), extra=[(INGEST_EPOCH, b"%d" % epoch)])


def batch_of(facts, epoch=1):
    events = [(envelope, encode(envelope)) for envelope in map(wrap_fact, facts)]
    return batches(facts[0].node, events, [(INGEST_EPOCH, b"%d" % epoch)])


def begin(driver, policy, at_ms=1):
    """Write the policy into every partition, as an ingester does before anything else."""
    for number in range(driver.total):
        driver.write(number, message_of(PolicyChanged.to(policy, at_ms, number)))


def feed(driver, facts, epoch=1):
    """Write facts one by one."""
    for fact in facts:
        driver.write(number_of(fact, driver.total), message_of(fact, epoch))


def everybody(driver, at_ms):
    """Write a tick into every partition."""
    feed(driver, [tick(at_ms, number) for number in range(driver.total)])


def answers(driver, number):
    """Return offset to (outcome, decisions as bytes), every repeat checked to be the same."""
    found, parts = {}, {}
    for record in driver.log[driver.topics.decisions, number]:
        offset = int(header(record.headers, FACTS_OFFSET))
        outcome = header(record.headers, OUTCOME)
        if outcome == "progress":
            continue
        part = header(record.headers, PART) or "1/1"
        data = [opened.data for opened in unpack(record.value, record.headers)] if record.value else []
        known = parts.setdefault((offset, part), (outcome, data))
        assert known == (outcome, data), f"offset {offset} was answered in two ways"
    for (offset, _), (outcome, data) in sorted(parts.items(), key=_place):
        before = found.get(offset, (outcome, []))[1]
        found[offset] = (outcome, before + data)
    return found


def _place(item):
    (offset, part), _ = item
    return offset, int(part.split("/")[0])


def decisions(driver, number):
    """Return the decisions of a partition in the order of the facts that caused them."""
    return [
        open_envelope(decode_envelope(data))
        for _, (_, datas) in sorted(answers(driver, number).items())
        for data in datas
    ]


def state_of(live):
    """Return everything a partition holds, as bytes."""
    nodes = {name: dump_node(live, name) for name in sorted(live.partition.nodes)}
    return nodes, dump_manifest(live, dict.fromkeys(nodes, 0))


def snapshot_of(driver, number):
    """Return the state that a new worker would begin with."""
    found = load_snapshot(driver.pieces[number], number)
    return None if found is None else found[0]
