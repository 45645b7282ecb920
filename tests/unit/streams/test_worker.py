"""The live worker: what it says of each record, what it parks, and what it refuses to go on from."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import facts_of as f
import msgspec
import pytest
from live_feed import (
    answers,
    batch_of,
    begin,
    decisions,
    everybody,
    feed,
    message_of,
    snapshot_of,
    state_of,
    tick,
)

from sickbay.cloudevents import Message, header, single
from sickbay.codec import encode, wrap_decision, wrap_fact
from sickbay.deadletters import RETRIED, read_letter
from sickbay.decisions import (
    BreakerClosed,
    BreakerOpened,
    CensusTaken,
    DeviceCleared,
    DeviceRestricted,
    DeviceSuspected,
    QuarantineOpened,
)
from sickbay.envelope import partition_of
from sickbay.errors import CodecError, ServiceError
from sickbay.facts import BreakerStateChanged
from sickbay.policy import Policy, policy_from_yaml
from streams import worker as module
from streams.live import Live, home_of
from streams.partition import Partition
from streams.pieces import manifest_key, pack
from streams.snapshot import dump_manifest
from streams.testing import CrashedError, Driver

POLICY = Policy()
TOTAL = 4
T0 = f.T0


def begun(**options):
    driver = Driver(TOTAL, **options)
    begin(driver, POLICY, T0)
    work(driver)
    return driver


def work(driver, **options):
    return asyncio.run(driver.work(**options))


def all_of(driver):
    async def run():
        while await driver.work():
            pass
        await driver.worker.snapshot()

    asyncio.run(run())


def on(node, fact):
    return msgspec.structs.replace(fact, node=node)


def sick(index=0, rv=10, at_ms=T0 + 1_000, node=f.NODE):
    return on(node, f.word(f.plugin(index), "Unhealthy", at_ms, rv))


def partition(node=f.NODE):
    return partition_of(node, TOTAL)


def letters(driver):
    return [read_letter(record.value) for record in driver.log[driver.topics.parked, 0]]


def outcomes(driver, number):
    return {offset: outcome for offset, (outcome, _) in answers(driver, number).items()}


def test_a_fault_is_answered_by_a_quarantine_that_names_its_fact():
    driver = begun()
    feed(driver, [sick()])
    work(driver)
    opened = decisions(driver, partition())[-1]
    assert isinstance(opened, QuarantineOpened)
    assert opened.device_id == f.plugin(0)


def test_a_record_without_decisions_is_answered_by_a_word_on_progress_after_a_while():
    driver = begun()
    feed(driver, [on(f.NODE, f.word(f.plugin(0), "Healthy", T0 + 1_000, 10))])
    work(driver)
    driver.now_ms += 10_000
    work(driver)
    last = driver.log[driver.topics.decisions, partition()][-1]
    assert header(last.headers, "sickbay-outcome") == "progress"
    assert header(last.headers, "sickbay-facts-offset") == "1"
    said = len(driver.log[driver.topics.decisions, partition()])
    driver.now_ms += 10_000
    work(driver)
    assert len(driver.log[driver.topics.decisions, partition()]) == said


def test_what_a_snapshot_holds_is_told_before_so_that_a_stop_leaves_no_record_without_an_answer():
    driver = begun()
    feed(driver, [on(f.NODE, f.word(f.plugin(0), "Healthy", T0 + 1_000, 10))])
    all_of(driver)
    for number in range(TOTAL):
        last = driver.log[driver.topics.decisions, number][-1]
        assert int(header(last.headers, "sickbay-facts-offset")) + 1 == snapshot_of(driver, number).position


GARBAGE = {
    "no json": b"\x00\xff garbage",
    "empty": b"",
    "another shape": b'{"a": 1}',
    "a batch of nothing": b"[]",
    "deep": b"[" * 100_000,
    "an unknown kind": b'{"actor":"x","at_ms":1,"causation_id":"","correlation_id":"","event_id":"e","key":"k","kind":"never_heard","payload":{},"policy":"","schema_version":1,"stream_id":"n"}',
}


@pytest.mark.parametrize("name", GARBAGE)
def test_a_record_that_cannot_be_read_is_parked_with_its_bytes_and_the_partition_goes_on(name):
    driver = begun()
    headers = [("content-type", b"application/cloudevents-batch+json")] if GARBAGE[name][:1] == b"[" else []
    driver.write(partition(), Message(b"k", GARBAGE[name], headers))
    feed(driver, [sick()])
    work(driver)
    assert outcomes(driver, partition())[1] == "parked"
    letter = letters(driver)[0]
    assert (letter.topic, letter.partition, letter.offset) == (driver.topics.facts, partition(), 1)
    assert letter.value == GARBAGE[name]
    assert letter.reason
    assert any(isinstance(d, QuarantineOpened) for d in decisions(driver, partition()))


def test_a_decision_in_the_facts_topic_is_parked():
    driver = begun()
    fact = wrap_fact(sick())
    decision = wrap_decision(
        BreakerOpened(node="", at_ms=1, scope="cluster", adverse=1, known=1, threshold=1), fact, 0, "p"
    )
    driver.write(home_of(TOTAL), single(decision))
    work(driver)
    assert "is a decision" in letters(driver)[0].reason


def test_a_fact_in_the_wrong_partition_is_parked_and_the_reason_names_the_right_one():
    driver = begun()
    wrong = (partition() + 1) % TOTAL
    driver.write(wrong, message_of(sick()))
    work(driver)
    assert f"belongs to partition {partition()} of {TOTAL}" in letters(driver)[0].reason
    assert not driver.worker._held[wrong].live.partition.nodes


@pytest.mark.parametrize(
    "forged", [{"event_id": "another's"}, {"stream_id": "n9"}, {"at_ms": T0}, {"at_ms": -1}, {"at_ms": 2**70}]
)
def test_a_fact_whose_outside_is_not_its_own_or_whose_time_is_none_is_parked(forged):
    driver = begun()
    fact = sick()
    if not 0 <= forged.get("at_ms", 0) <= T0:
        fact = msgspec.structs.replace(fact, observed_at_ms=forged["at_ms"])
    envelope = msgspec.structs.replace(wrap_fact(fact), **forged)
    driver.write(partition(), Message(b"k", encode(envelope), []))
    feed(driver, [sick(1, 11)])
    work(driver)
    assert outcomes(driver, partition())[1] == "parked"
    assert [d.device_id for d in decisions(driver, partition()) if isinstance(d, QuarantineOpened)] == [
        f.plugin(1)
    ]


def test_what_comes_before_any_policy_is_parked_and_may_be_tried_again():
    driver = Driver(TOTAL)
    feed(driver, [sick()])
    begin(driver, POLICY, T0)
    work(driver)
    letter = letters(driver)[0]
    assert "no policy is in force" in letter.reason
    driver.write(partition(), Message(letter.key, letter.value, [*letter.headers, (RETRIED, b"x")]))
    work(driver)
    assert any(isinstance(d, QuarantineOpened) for d in decisions(driver, partition()))


def break_fold_at(monkeypatch, device, *, halfway=True):
    """Let the fold change the state and then fail, for facts on one device."""
    step = Partition.step

    def broken(self, fact):
        if getattr(fact, "device_id", "") == device:
            if halfway:
                step(self, fact)
            raise RuntimeError("broken on purpose")
        return step(self, fact)

    monkeypatch.setattr(Partition, "step", broken)


@pytest.mark.parametrize("every", [1, 3, 1_000])
def test_a_record_that_breaks_the_fold_halfway_is_parked_and_leaves_no_trace_in_the_state(monkeypatch, every):
    facts = [sick(index, 10 + index, T0 + 1_000 * (index + 1)) for index in range(6)]
    clean = begun()
    feed(clean, [fact for fact in facts if fact.device_id != f.plugin(3)])
    all_of(clean)
    break_fold_at(monkeypatch, f.plugin(3))
    driver = begun(snapshot_records=every)
    feed(driver, facts)
    all_of(driver)
    assert outcomes(driver, partition())[4] == "parked"
    assert "broken on purpose" in letters(driver)[0].reason
    assert state_of(snapshot_of(driver, partition()))[0] == state_of(snapshot_of(clean, partition()))[0]
    assert [str(d) for d in decisions(driver, partition())] == [str(d) for d in decisions(clean, partition())]
    assert driver.counts.outcomes.count("parked") == 1


def test_a_build_that_breaks_on_everything_ends_the_worker_instead_of_parking_the_topic(monkeypatch):
    monkeypatch.setattr(module, "FAILURES_MAX", 3)
    driver = begun()
    break_fold_at(monkeypatch, f.plugin(0))
    feed(driver, [sick(0, rv) for rv in range(10, 20)])
    with pytest.raises(ServiceError, match="it is the build that is broken"):
        work(driver)


def test_what_a_replaced_ingester_still_writes_is_discarded_and_said_to_be():
    driver = begun()
    feed(driver, [on(f.NODE, f.word(f.plugin(0), "Healthy", T0 + 1_000, 10))], epoch=2)
    feed(driver, [sick(rv=11)], epoch=1)
    feed(driver, [sick(1, rv=12)], epoch=2)
    work(driver)
    assert outcomes(driver, partition())[2] == "superseded"
    assert [d.device_id for d in decisions(driver, partition()) if isinstance(d, QuarantineOpened)] == [
        f.plugin(1)
    ]


def test_the_epoch_of_the_ingester_survives_a_restart():
    driver = begun()
    feed(driver, [sick()], epoch=5)
    all_of(driver)
    driver.start()
    feed(driver, [sick(1, rv=12)], epoch=4)
    work(driver)
    assert outcomes(driver, partition())[2] == "superseded"


def test_a_retried_record_is_folded_whatever_epoch_wrote_it():
    driver = begun()
    feed(driver, [on(f.NODE, f.word(f.plugin(0), "Healthy", T0 + 1_000, 10))], epoch=2)
    message = message_of(sick(rv=11), epoch=1)
    driver.write(partition(), Message(message.key, message.value, [*message.headers, (RETRIED, b"place")]))
    work(driver)
    assert any(isinstance(d, QuarantineOpened) for d in decisions(driver, partition()))


@pytest.mark.case("C50")
def test_c50_records_that_come_again_after_newer_ones_change_nothing():
    facts = [sick(index, 10 + index, T0 + 1_000 * (index + 1)) for index in range(8)]
    calm = begun()
    feed(calm, facts)
    all_of(calm)
    driver = begun()
    feed(driver, facts)
    work(driver)
    driver._read[partition()] = 3
    driver.worker.forget([0])
    all_of(driver)
    assert state_of(snapshot_of(driver, partition())) == state_of(snapshot_of(calm, partition()))
    assert answers(driver, partition()) == answers(calm, partition())
    assert driver.committed[partition()] == 9


def test_a_record_that_came_again_is_acknowledged_by_its_last_delivery():
    driver = begun()
    feed(driver, [sick(index, 10 + index) for index in range(3)])
    work(driver)
    first = driver.worker._held[partition()].held[-1].acknowledge
    driver._read[partition()] = 1
    work(driver)
    assert driver.worker._held[partition()].held[-1].acknowledge is not first
    all_of(driver)
    driver._read[partition()] = 1
    work(driver)
    assert not driver.worker._held[partition()].held


@pytest.mark.case("C53")
@pytest.mark.parametrize("effects", range(0, 40, 3))
def test_c53_a_kill_between_the_state_and_the_offset_counts_nothing_twice(effects):
    nodes = [name for name in (f"n{i}" for i in range(60)) if partition(name) == partition()][:6]
    driver = begun(snapshot_records=2)
    feed(driver, [sick(0, 10, T0 + 1_000 * index, node=name) for index, name in enumerate(nodes, 1)])

    async def run():
        driver.crash_after = effects
        await driver.work()

    with suppress(CrashedError):
        asyncio.run(run())
    driver.start()
    all_of(driver)
    assert [d.node for d in decisions(driver, partition()) if isinstance(d, QuarantineOpened)] == nodes


@pytest.mark.case("C54")
def test_c54_a_worker_that_loses_a_partition_drops_its_state_and_loads_what_the_next_owner_wrote():
    driver = begun()
    feed(driver, [sick(0, 10)])
    work(driver)
    old = driver.worker
    driver.start()  # another process has the partition now
    feed(driver, [sick(1, 11)])
    all_of(driver)
    old.forget([partition()])
    driver.worker, driver._read = old, dict(driver.committed)
    feed(driver, [sick(0, 12, T0 + 9_000)])
    all_of(driver)
    opened = [d.device_id for d in decisions(driver, partition()) if isinstance(d, QuarantineOpened)]
    assert opened == [f.plugin(0), f.plugin(1)]
    assert snapshot_of(driver, partition()).position == 4


def test_records_that_the_broker_left_out_are_asked_for_again_and_none_is_folded_before_them():
    facts = [sick(0, 10 + index, T0 + 1_000 * index) for index in range(5)]
    calm = begun()
    feed(calm, facts)
    all_of(calm)
    driver = begun()
    feed(driver, facts)
    driver._read[partition()] = 3
    all_of(driver)
    assert answers(driver, partition()) == answers(calm, partition())
    assert state_of(snapshot_of(driver, partition())) == state_of(snapshot_of(calm, partition()))


def test_a_question_for_missing_records_that_was_lost_is_asked_again_although_nothing_more_comes():
    driver, lost = begun(), []
    feed(driver, [sick(0, 10 + index) for index in range(3)])
    rewind, driver.rewind = driver.rewind, lambda *asked: _none(lost.append(asked))
    driver._read[partition()] = 3
    work(driver)
    assert lost == [(partition(), 0)]
    driver.rewind = rewind
    asyncio.run(driver.worker.tell_progress())
    work(driver)
    assert driver.worker.positions[partition()] == 0
    driver.now_ms += module.SEEK_AGAIN_MS
    asyncio.run(driver.worker.tell_progress())
    work(driver)
    assert driver.worker.positions[partition()] == 4


async def _none(_):
    """Do nothing, as a seek that is lost."""


def test_a_hole_in_the_topic_ends_the_worker_instead_of_folding_on():
    driver = begun()
    feed(driver, [sick(0, 10 + index) for index in range(3)])
    driver.first[partition()] = driver._read[partition()] = 2

    async def run():
        for _ in range(20):
            driver.now_ms += module.REWIND_EVERY_MS
            await driver.work(limit=1)

    with pytest.raises(ServiceError, match="records between them are gone"):
        asyncio.run(run())


def test_a_topic_that_was_made_again_ends_the_worker_instead_of_being_taken_for_repeats():
    driver = begun()
    feed(driver, [sick()])
    all_of(driver)
    driver.source = "cluster/again"
    driver.log[driver.topics.facts, partition()].clear()
    driver.committed[partition()] = 0
    feed(driver, [sick()] * 9)
    driver.start()
    with pytest.raises(ServiceError, match="made again"):
        work(driver)


def test_a_topic_that_lost_its_end_ends_the_worker_instead_of_being_taken_for_repeats():
    driver = begun()
    feed(driver, [sick(), sick(1, 11)])
    all_of(driver)
    del driver.log[driver.topics.facts, partition()][1:]
    driver.committed[partition()] = 0
    feed(driver, [sick(2, 12)])
    driver.start()
    with pytest.raises(ServiceError, match="holds up to 3, and the topic ends at 2"):
        work(driver)


def test_a_snapshot_of_another_partition_count_is_refused():
    driver = begun()
    all_of(driver)
    driver.total = TOTAL + 1
    driver.start()
    driver._read = dict.fromkeys(range(TOTAL + 1), 0)
    feed(driver, [tick(T0 + 5_000, 0)])
    with pytest.raises(ServiceError, match="a change of partitions needs a new prefix"):
        work(driver)


def test_a_snapshot_of_another_fold_version_is_refused_with_the_way_out(monkeypatch):
    driver = begun()
    monkeypatch.setattr("streams.snapshot.FOLD_VERSION", "0.old")
    all_of(driver)
    monkeypatch.undo()
    driver.start()
    feed(driver, [tick(T0 + 5_000, 0)])
    with pytest.raises(CodecError, match=r"fold version 0.old.*--rebuild"):
        work(driver)


@pytest.mark.case("C52")
def test_c52_a_manifest_whose_piece_is_missing_is_refused_and_no_half_state_is_used():
    driver = begun()
    feed(driver, [sick()])
    all_of(driver)
    piece = next(key for key in driver.pieces[partition()] if "/node/" in key)
    del driver.pieces[partition()][piece]
    driver.start()
    feed(driver, [sick(1, 12)])
    with pytest.raises(CodecError, match="is missing or cannot be read"):
        work(driver)


def test_only_nodes_that_changed_are_written_again_and_old_pieces_go_away():
    driver = begun()
    nodes = [name for name in (f"n{i}" for i in range(40)) if partition(name) == partition()][:3]
    feed(driver, [sick(0, 10, node=name) for name in nodes])
    all_of(driver)
    before = {key for key in driver.pieces[partition()] if "/node/" in key}
    feed(driver, [sick(1, 11, node=nodes[0])])
    all_of(driver)
    after = {key for key in driver.pieces[partition()] if "/node/" in key}
    assert len(before) == len(after) == 3
    assert len(before & after) == 2
    assert sum("/manifest/" in key for key in driver.pieces[partition()]) == 1


@pytest.mark.case("C49")
def test_c49_a_key_of_the_table_has_one_value_and_none_after_its_tombstone():
    driver = begun(snapshot_records=1)
    history, put = {}, driver.put_state

    def watched(number, key, value):
        history.setdefault((number, key), []).append(value)
        return put(number, key, value)

    driver.put_state = watched
    for index in range(6):
        feed(driver, [sick(index, 10 + index, T0 + 1_000 * (index + 1))])
        work(driver)
        if index % 2:
            driver.start()
    ends = {key: values for key, values in history.items() if key[1].endswith("/end")}
    rest = [values for key, values in history.items() if key not in ends]
    assert any(len(values) == 2 for values in rest)
    assert all(None not in values[:-1] and len(values) <= 2 for values in rest)
    assert all(None not in values for values in ends.values())
    assert snapshot_of(driver, partition()).position == 7


@pytest.mark.case("C51")
def test_c51_the_last_record_of_a_snapshot_is_none_that_compaction_takes_away():
    driver = begun()
    written = []
    put = driver.put_state
    driver.put_state = lambda *args: written.append(args) or put(*args)
    feed(driver, [sick()])
    all_of(driver)
    last = {number: (key, value) for number, key, value in written}
    assert all(key == f"{number}/end" and value for number, (key, value) in last.items())


STORM = policy_from_yaml(
    "breaker: {floor: 3, ratio_percent: 10, window_ms: 300000, quiet_ms: 60000}", place="storm"
)


def storm(driver, at_ms, through=None, health="Unhealthy"):
    """Four devices each on twelve nodes, on every partition, healthy and then adverse."""
    through = through or all_of
    names = [f"n{i}" for i in range(12)]
    for name in names:
        feed(driver, [on(name, f.word(f.plugin(i), "Healthy", at_ms, 10 + i)) for i in range(2)])
    everybody(driver, at_ms + 10_000)
    through(driver)
    for name in names:
        feed(driver, [on(name, f.word(f.plugin(0), health, at_ms + 60_000, 90))])
    everybody(driver, at_ms + 70_000)
    through(driver)
    everybody(driver, at_ms + 80_000)
    through(driver)


def test_the_breaker_hears_every_partition_and_every_partition_hears_the_breaker():
    driver = Driver(TOTAL)
    begin(driver, STORM, T0)
    storm(driver, T0 + 1_000)
    home = decisions(driver, home_of(TOTAL))
    assert {d.scope for d in home if isinstance(d, BreakerOpened)} == {"cluster", "driver:nvidia.com/gpu"}
    for number in range(TOTAL):
        live = snapshot_of(driver, number)
        assert set(live.partition.header().breakers) == {"cluster", "driver:nvidia.com/gpu"}
    everybody(driver, T0 + 1_000_000)
    all_of(driver)
    everybody(driver, T0 + 1_100_000)
    all_of(driver)
    assert any(isinstance(d, BreakerClosed) for d in decisions(driver, home_of(TOTAL)))
    assert not snapshot_of(driver, 0).partition.header().breakers


def test_a_fleet_that_stays_unknown_is_not_restricted_when_the_storm_is_long_over():
    """The breaker waits until the fleet is known again, through a restart too; only then its quiet time runs."""
    driver = Driver(TOTAL)
    begin(driver, STORM, T0)
    storm(driver, T0, health="Unknown")
    for hours in (1, 2, 3):
        shown = []
        driver.counts.breaker = shown.append
        everybody(driver, T0 + hours * f.HOUR)
        all_of(driver)
        assert 12 == shown[-1]["driver:nvidia.com/gpu"]
        driver.start()
    for index in range(12):
        feed(driver, [on(f"n{index}", f.word(f.plugin(0), "Healthy", T0 + 3 * f.HOUR + 1, 91))])
    everybody(driver, T0 + 4 * f.HOUR)
    all_of(driver)
    said = [d for number in range(TOTAL) for d in decisions(driver, number)]
    assert {"cluster"} == {d.scope for d in said if isinstance(d, BreakerClosed)}, (
        "the driver's own is enough"
    )

    # by the second tick the home has heard all partitions
    for at_ms in (10_000, 20_000, 100_000):
        everybody(driver, T0 + 4 * f.HOUR + at_ms)
        all_of(driver)
    said = [d for number in range(TOTAL) for d in decisions(driver, number)]
    assert {d.scope for d in said if isinstance(d, BreakerClosed)} == {"cluster", "driver:nvidia.com/gpu"}
    assert 12 == sum(isinstance(d, DeviceSuspected) for d in said) == sum(isinstance(d, DeviceCleared) for d in said)  # fmt: skip
    assert not any(isinstance(d, DeviceRestricted) for d in said)


@pytest.mark.parametrize("effects", [1, 5, 20, 50, 100, 150])
def test_a_storm_that_a_kill_interrupts_opens_the_breaker_once(effects):
    calm = Driver(TOTAL)
    begin(calm, STORM, T0)
    storm(calm, T0 + 1_000)
    driver = Driver(TOTAL, snapshot_records=7)
    begin(driver, STORM, T0)
    driver.crash_after = effects
    killed = []

    def through(driver):
        try:
            all_of(driver)
        except CrashedError:
            killed.append(effects)
            driver.start()
            all_of(driver)

    storm(driver, T0 + 1_000, through)
    assert killed

    def breakers(run, number):
        return [d for d in decisions(run, number) if isinstance(d, BreakerOpened | BreakerClosed)]

    assert [breakers(driver, n) for n in range(TOTAL)] == [breakers(calm, n) for n in range(TOTAL)]


def test_an_old_word_of_the_breaker_that_comes_again_does_not_open_it_anew():
    partition_ = Partition(0)
    partition_.step(f.policy_changed(T0, POLICY, partition=0))
    opened = BreakerStateChanged(node="", observed_at_ms=T0 + 1, partition=0, scope="cluster", open=True)
    closed = msgspec.structs.replace(opened, observed_at_ms=T0 + 2, open=False)
    for fact in (opened, closed, opened):
        partition_.step(fact)
    assert not partition_.header().breakers


def test_a_policy_that_lowers_the_threshold_opens_the_breaker_at_the_next_tick_and_says_so():
    driver = Driver(TOTAL)
    begin(driver, policy_from_yaml("breaker: {floor: 50, ratio_percent: 90}", place="loose"), T0)
    storm(driver, T0 + 1_000)
    begin(driver, STORM, T0 + 82_000)
    all_of(driver)
    home = home_of(TOTAL)
    assert not snapshot_of(driver, home).breaker.open
    everybody(driver, T0 + 90_000)
    all_of(driver)
    opened = {d.scope: d.at_ms for d in decisions(driver, home) if isinstance(d, BreakerOpened)}
    assert opened == snapshot_of(driver, home).breaker.open == dict.fromkeys(opened, T0 + 90_000)
    assert "cluster" in opened


def test_a_tick_that_comes_again_after_newer_facts_says_nothing_under_an_id_that_was_used():
    names = [name for name in (f"n{i}" for i in range(99)) if partition(name) == partition()][:6]
    driver = Driver(TOTAL)
    begin(driver, STORM, T0)
    feed(driver, [on(name, f.word(f.plugin(0), "Healthy", T0 + 1_000, 10)) for name in names])
    feed(driver, [tick(T0 + 10_000, partition())])
    feed(driver, [sick(0, 20, T0 + 11_000, node=name) for name in names[:2]])
    feed(driver, [tick(T0 + 20_000, partition())])
    feed(driver, [sick(0, 20, T0 + 21_000, node=name) for name in names[2:]])
    feed(driver, [tick(T0 + 20_000, partition())])
    all_of(driver)
    driver.start()
    feed(driver, [tick(T0 + 20_000, partition())])
    all_of(driver)
    feed(driver, [tick(T0 + 30_000, partition())])
    all_of(driver)
    taken = [d for d in decisions(driver, partition()) if isinstance(d, CensusTaken)]
    assert [(d.at_ms, len(d.adverse)) for d in taken] == [
        (T0 + 10_000, 0),
        (T0 + 20_000, 2),
        (T0 + 30_000, 4),
    ]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_census_that_comes_again_after_a_newer_one_is_passed_over(restarted):
    driver, home = Driver(TOTAL), home_of(TOTAL)
    begin(driver, STORM, T0)
    all_of(driver)
    other = next(number for number in range(TOTAL) if number != home)
    adverse = tuple((f.DRIVER, f"n{i}|{f.plugin(0)}", T0 + 1_000, "") for i in range(4))
    old = CensusTaken(node="", at_ms=T0 + 10_000, partition=other, known={f.DRIVER: 10}, adverse=adverse)
    new = msgspec.structs.replace(old, at_ms=T0 + 20_000, known={f.DRIVER: 1_000}, adverse=())

    def send(census):
        cause = wrap_fact(tick(census.at_ms, other))
        driver.write(home, single(wrap_decision(census, cause, 0, "p")))
        all_of(driver)

    send(old)
    send(new)
    for at_ms in (T0 + 30_000, T0 + 200_000):
        feed(driver, [tick(at_ms, home)])
        all_of(driver)
    if restarted:
        driver.start()
    said = decisions(driver, home)
    assert {d.scope for d in said if isinstance(d, BreakerClosed)} == {"cluster", f"driver:{f.DRIVER}"}
    send(old)
    assert decisions(driver, home) == said
    assert snapshot_of(driver, home).breaker.known[other] == {f.DRIVER: 1_000}


def test_what_the_census_of_a_partition_that_lags_leads_to_is_heard_after_what_was_said_before():
    """The breaker closed, and a census of earlier opens it again: that word is the newer one for every partition."""
    driver, home = Driver(TOTAL), home_of(TOTAL)
    begin(driver, STORM, T0)
    all_of(driver)
    other = next(number for number in range(TOTAL) if number != home)

    def send(at_ms, known, count):
        adverse = tuple((f.DRIVER, f"n{i}|{f.plugin(0)}", at_ms - 1, "") for i in range(count))
        census = CensusTaken(node="", at_ms=at_ms, partition=other, known={f.DRIVER: known}, adverse=adverse)
        driver.write(home, single(wrap_decision(census, wrap_fact(tick(at_ms, other)), 0, "p")))
        all_of(driver)

    send(T0 + 10_000, 10, 4)
    send(T0 + 20_000, 1_000, 0)
    for at_ms in (T0 + 30_000, T0 + 200_000):
        feed(driver, [tick(at_ms, home)])
        all_of(driver)
    assert not snapshot_of(driver, other).partition.header().breakers
    send(T0 + 150_000, 1_000, 101)
    scopes = {"cluster", f"driver:{f.DRIVER}"}
    assert scopes == set(snapshot_of(driver, home).breaker.open)
    assert scopes == set(snapshot_of(driver, other).partition.header().breakers)


def test_a_census_after_a_restart_is_that_of_a_worker_that_never_stopped():
    names = [name for name in (f"n{i}" for i in range(60)) if partition(name) == partition()][:5]
    healthy = [on(name, f.word(f.plugin(0), "Healthy", T0 + 1_000, 10)) for name in names]
    turned = [sick(0, 20, T0 + 5_000, node=name) for name in reversed(names)]
    found = []
    for restarted in (False, True):
        driver = begun()
        feed(driver, [*healthy, *turned])
        all_of(driver)
        if restarted:
            driver.start()
        everybody(driver, T0 + 10_000)
        all_of(driver)
        found.append(answers(driver, partition()))
    assert found[0] == found[1]


def test_the_census_of_another_partition_is_the_breakers_business_alone():
    partition_ = Partition(0)
    census = CensusTaken(node="", at_ms=T0, partition=0, known={f.DRIVER: 4}, adverse=())
    partition_.replay(census)
    partition_.replay(msgspec.structs.replace(census, partition=1, known={f.DRIVER: 9}))
    assert partition_.header().reported == {f.DRIVER: 4}


def test_decisions_that_fit_no_single_record_are_written_in_parts(monkeypatch):
    monkeypatch.setattr("sickbay.cloudevents.BATCH_EVENTS_MAX", 2)
    driver = begun()
    driver.write(partition(), batch_of([sick(index, 10 + index) for index in range(5)])[0])
    for message in batch_of([sick(index, 10 + index) for index in range(5)])[1:]:
        driver.write(partition(), message)
    feed(driver, [f.node(T0 + 20_000, 50, allocatable="0")])
    work(driver)
    assert [d.device_id for d in decisions(driver, partition()) if isinstance(d, QuarantineOpened)]


def test_a_storm_that_no_census_can_name_in_one_record_is_told_in_several_and_stops_nothing():
    driver = begun()
    number = next(n for n in range(TOTAL) if n != home_of(TOTAL))
    devices = [f"n0|dra:gpu.example/pool-{i:05}/{'gpu' * 20}-{i:05}" for i in range(12_000)]
    live = Live(number, TOTAL)
    live.source = driver.source
    live.partition = Partition.restored(
        number,
        msgspec.structs.replace(
            snapshot_of_begun(number).partition.header(),
            adverse=tuple((device, (f.DRIVER, T0, "")) for device in devices),
        ),
        {},
        {},
    )
    live.position = 1
    driver.pieces[number] = {manifest_key(number, 1): pack(dump_manifest(live, {}))}
    for at_ms in (T0 + 5_000, T0 + 10_000, T0 + 15_000):
        feed(driver, [tick(at_ms, number)])
    driver.start()
    all_of(driver)
    taken = [d for d in decisions(driver, number) if isinstance(d, CensusTaken)]
    assert [device for census in taken for _, device, _, _ in census.adverse] == devices
    assert len(taken) == 3
    assert not letters(driver)
    followed = Partition.restored(number, live.partition.header(), {}, {})
    for census in taken:
        followed.replay(tick(census.at_ms, number))
        followed.replay(census)
    assert not followed.header().adverse


def snapshot_of_begun(number):
    driver = begun()
    all_of(driver)
    return snapshot_of(driver, number)


class Refusing(Driver):
    """A broker that does not take decisions: at once, or when it is asked for the acknowledgement."""

    refuses = ""

    async def send(self, topic, partition, message):
        if topic == self.topics.decisions and self.refuses:
            error = ServiceError("no room")
            if self.refuses == "at once":
                raise error
            refused = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused
        return await super().send(topic, partition, message)


@pytest.mark.parametrize("refuses", ["at once", "later"])
@pytest.mark.parametrize("then", ["tell_progress", "snapshot"])
def test_what_the_broker_did_not_take_is_neither_told_as_done_nor_kept_in_a_snapshot(refuses, then):
    driver = Refusing(TOTAL)
    begin(driver, POLICY, T0)
    all_of(driver)
    kept = dict(driver.pieces[partition()])
    told = len(driver.log[driver.topics.decisions, partition()])
    feed(driver, [sick()])

    async def run():
        driver.refuses = refuses
        driver.now_ms += 10_000
        with pytest.raises(ServiceError):
            await driver.work()
        driver.refuses = ""
        driver.now_ms += 10_000
        with suppress(ServiceError):
            await getattr(driver.worker, then)()

    asyncio.run(run())
    assert driver.log[driver.topics.decisions, partition()][told:] == []
    assert driver.pieces[partition()] == kept
    driver.start()
    all_of(driver)
    assert any(isinstance(d, QuarantineOpened) for d in decisions(driver, partition()))


def test_a_record_whose_answer_is_cut_off_is_answered_when_it_comes_again():
    driver = begun()
    feed(driver, [sick()])

    async def run():
        send, entered = driver.send, asyncio.Event()

        async def wait(*_):
            entered.set()
            await asyncio.Event().wait()

        driver.send = wait
        taking = asyncio.create_task(driver.work())
        await entered.wait()
        taking.cancel()
        with suppress(asyncio.CancelledError):
            await taking
        driver.send = send
        driver.now_ms += 10_000
        await driver.worker.tell_progress()

    asyncio.run(run())
    assert outcomes(driver, partition()) == {}
    feed(driver, [sick(1, 11)])
    all_of(driver)
    assert {d.device_id for d in decisions(driver, partition()) if isinstance(d, QuarantineOpened)} == {
        f.plugin(0),
        f.plugin(1),
    }


def test_a_snapshot_that_failed_between_its_pieces_is_not_finished_by_a_later_one():
    driver = begun()
    all_of(driver)
    feed(driver, [sick()])

    async def run():
        put = driver.put_state

        def refuse(number, key, value):
            if "/node/" in key:
                raise ServiceError("no room")
            return put(number, key, value)

        driver.put_state = refuse
        await driver.work()
        with pytest.raises(ServiceError):
            await driver.worker.snapshot()
        driver.put_state = put
        await driver.worker.snapshot()

    asyncio.run(run())
    whole = begun()
    feed(whole, [sick()])
    all_of(whole)
    driver.start()
    all_of(driver)
    assert state_of(snapshot_of(driver, partition())) == state_of(snapshot_of(whole, partition()))
