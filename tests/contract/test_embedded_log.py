"""The store as a fact log: repeats, strangers who write meanwhile, and a breaker that survives."""

import asyncio

import pytest
from facts_of import SECOND, T0, word
from msgspec.structs import replace

from projections.engine import EMBEDDED, Store
from sickbay.cli.embedded_log import EmbeddedLog
from sickbay.cli.requesting import append
from sickbay.cli.verifying import verify_fold
from sickbay.deadletters import DeadLetter
from sickbay.decisions import BreakerOpened
from sickbay.envelope import partition_of
from sickbay.errors import StoreError
from sickbay.facts import HoldRequested, NodeObserved, PolicyChanged, Tick
from sickbay.policy import Policy
from streams.breaker import BreakerState

PARTITIONS = 2


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "x.db", create=True, partitions=PARTITIONS, source_id=EMBEDDED) as opened:
        opened.end_source()
        yield opened


def play(log, *batches):
    async def scene():
        memory = await log.recall()
        for batch in batches:
            await log.publish(batch)
        await log.drain()
        return memory

    return asyncio.run(scene())


def policy():
    return [PolicyChanged.to(Policy(), T0, number) for number in range(PARTITIONS)]


def ticks(at_ms):
    return [Tick(node="", observed_at_ms=at_ms, partition=number) for number in range(PARTITIONS)]


def storm(at_ms, health, rv):
    """Twelve cards on as many nodes say the same."""
    return [
        replace(word(f"plugin:nvidia.com/gpu/GPU-{n}", health, at_ms, rv + n, pod=f"pod-{n}"), node=f"n{n}")
        for n in range(12)
    ]


def log_of(store):
    return [(r.partition, r.offset, r.data) for number in range(PARTITIONS) for r in store.read(number)]


HISTORY = (
    policy(),
    storm(T0 + 1 * SECOND, "Healthy", 100),
    ticks(T0 + 5 * SECOND),
    storm(T0 + 60 * SECOND, "Unhealthy", 200),
    ticks(T0 + 65 * SECOND),
    storm(T0 + 120 * SECOND, "Healthy", 300),
    ticks(T0 + 125 * SECOND),
    ticks(T0 + 1_500 * SECOND),
    ticks(T0 + 1_505 * SECOND),
)


def test_what_is_told_again_is_one_event(store):
    play(EmbeddedLog(store), *HISTORY)
    before = log_of(store)
    play(EmbeddedLog(store), *HISTORY, [*HISTORY[1], *HISTORY[1]])
    assert log_of(store) == before


@pytest.mark.parametrize("cut", range(1, len(HISTORY)))
def test_a_restart_between_two_batches_changes_nothing(store, tmp_path, cut):
    play(EmbeddedLog(store), *HISTORY)
    with Store.open(tmp_path / "y.db", create=True, partitions=PARTITIONS, source_id=EMBEDDED) as other:
        play(EmbeddedLog(other), *HISTORY[:cut])
        play(EmbeddedLog(other), *HISTORY[cut:])
        assert log_of(other) == log_of(store)
        assert verify_fold(other)["facts"] > 0


def test_the_breaker_opens_in_process_and_every_partition_hears_of_it(store):
    play(EmbeddedLog(store), *HISTORY[:5])
    kinds = {number: [r.envelope.kind for r in store.read(number)] for number in range(PARTITIONS)}
    assert kinds[partition_of("", PARTITIONS)].count(BreakerOpened.KIND) == 2
    for number in range(PARTITIONS):
        assert kinds[number].count("breaker_state_changed") == 2


def test_a_restored_breaker_is_the_one_that_lived(store):
    lived = EmbeddedLog(store)
    play(lived, *HISTORY[:7])
    restored = EmbeddedLog(store)
    asyncio.run(restored.recall())
    assert lived._breaker == restored._breaker
    assert lived._breaker != BreakerState()


def test_a_request_that_somebody_writes_meanwhile_is_decided_over(store):
    log = EmbeddedLog(store)
    play(log, *HISTORY[:3])
    device = "plugin:nvidia.com/gpu/GPU-0"
    request = HoldRequested(
        node="n0", observed_at_ms=T0 + 6 * SECOND, request_id="r1", device_id=device, actor="eve", reason="noise",
        until_ms=T0 + 10**9,
    )  # fmt: skip
    append(store, {partition_of("n0", PARTITIONS): request})

    async def scene():
        for batch in HISTORY[3:]:
            await log.publish(batch)

    asyncio.run(scene())
    kinds = [r.envelope.kind for r in store.read(partition_of("n0", PARTITIONS))]
    assert kinds.count("hold_requested") == 1
    assert kinds.count("tick") >= 5
    verify_fold(store)


def test_two_that_write_the_same_store_do_not_break_its_log(store):
    one, two = EmbeddedLog(store), EmbeddedLog(store)

    async def scene():
        await one.recall()
        await two.recall()
        for batch in HISTORY:
            await one.publish(batch)
            await two.publish(batch)

    asyncio.run(scene())
    assert len({data for *_, data in log_of(store)}) == len(log_of(store))
    verify_fold(store)


def test_a_store_that_cannot_be_written_says_so_and_holds_nothing_of_the_batch(store, monkeypatch):
    log = EmbeddedLog(store)
    play(log, *HISTORY[:2])
    before = log_of(store)

    def fail(*_args, **_kwargs):
        raise StoreError("the disk is full")

    monkeypatch.setattr(store, "write", fail)
    with pytest.raises(StoreError, match="the disk is full"):
        asyncio.run(log.publish(HISTORY[2]))
    monkeypatch.undo()
    assert log_of(store) == before


def test_it_recalls_the_newest_fact_of_every_subject_in_the_order_of_the_log(store):
    told = [
        NodeObserved(node="n1", node_uid="u1", observed_at_ms=T0 + at, rv=rv, ready="True") for at, rv in ((1, 5), (2, 9), (3, 7))
    ]  # fmt: skip
    play(EmbeddedLog(store), policy(), told)
    memory = play(EmbeddedLog(store))
    nodes = [fact for fact in memory.facts if isinstance(fact, NodeObserved)]
    assert [fact.rv for fact in nodes] == [9]
    assert (memory.last_ms, memory.ingest_epoch) == (T0 + 2, 0)


def test_parked_things_are_kept_once(store):
    log = EmbeddedLog(store)
    letter = DeadLetter(place="watch:pods@7", reason="broken", value=b"{", value_bytes=1, at_ms=T0)

    async def scene():
        await log.park([letter])
        await log.park([letter])
        await log.close()

    asyncio.run(scene())
    with store.reading() as connection:
        from projections.audit import audit_view

        assert len(list(audit_view("parked").rows(connection))) == 1
