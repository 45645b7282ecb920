"""The ingester over a log in memory: order, policy, parking, failure, and recordings that are read again."""

import asyncio
import json
import re
from itertools import pairwise
from typing import Any

import pytest
from fact_logs import MemoryLog
from prometheus_client import CollectorRegistry

from ingest.frames import FactFrame, Frame, Parked
from ingest.ingester import Ingester
from ingest.recorded import recorded_items
from ingest.ticker import Beat
from sickbay.clock import SystemClock
from sickbay.codec import encode_payload, fact_id
from sickbay.errors import ServiceError
from sickbay.facts import NodeObserved, PolicyChanged, Tick
from sickbay.operations.stage_metrics import IngestMetrics
from sickbay.policy import Policy, policy_from_yaml

T0 = 1_790_000_000_000
STRICTER = policy_from_yaml("version: stricter\nunknown:\n  window_ms: 60000\n", place="stricter.yaml")


def node(number: int, rv: int, ready: str = "True") -> dict[str, Any]:
    return {
        "metadata": {"name": f"n{number}", "uid": f"uid-{number}", "resourceVersion": str(rv)},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": ready, "reason": f"At{rv}"}]},
    }


def frame(
    at_ms: int, obj: dict[str, Any] | None = None, kind: str = "MODIFIED", place: str = "watch"
) -> Frame:
    return Frame(at_ms=at_ms, resource="nodes", type=kind, object=obj, place=place)


def metrics(registry=None) -> IngestMetrics:
    return IngestMetrics(registry or CollectorRegistry(), SystemClock())


async def given(*items):
    for item in items:
        yield item


def ingest(log, *items, policy=None, guard=lambda: None):
    ingester = Ingester(log, policy or Policy(), metrics(), guard=guard)

    async def scene():
        await ingester.recall(live=False)
        await ingester.run(given(*items))

    asyncio.run(scene())
    return ingester


def test_facts_are_told_in_the_order_of_their_frames_after_the_policy():
    log = MemoryLog()
    ingest(log, frame(T0, node(1, 5)), frame(T0 + 1, node(2, 6)), frame(T0 + 2, node(1, 7, "False")))
    assert [type(fact) for fact in log.kept] == [PolicyChanged, PolicyChanged, *[NodeObserved] * 3]
    assert [fact.partition for fact in log.kept[:2]] == [0, 1]
    assert [(fact.node, fact.rv) for fact in log.kept[2:]] == [("n1", 5), ("n2", 6), ("n1", 7)]


def test_the_policy_that_is_in_force_is_not_told_again():
    log = MemoryLog()
    ingest(log, frame(T0, node(1, 5)))
    told = len(log.kept)
    ingest(log, frame(T0 + 9, node(1, 6, "False")))
    assert not any(isinstance(fact, PolicyChanged) for fact in log.kept[told:])


def test_another_policy_is_told_after_everything_before_it_and_to_whom_it_misses():
    before = [PolicyChanged.to(Policy(), T0, 0), PolicyChanged.to(STRICTER, T0 + 5_000, 1)]
    log = MemoryLog([*before, Tick(node="", observed_at_ms=T0 + 9_000, partition=0)])
    ingest(log, frame(T0 + 1, node(1, 5)), policy=STRICTER)
    told = [fact for fact in log.kept[3:] if isinstance(fact, PolicyChanged)]
    assert [(fact.partition, fact.policy_version, fact.observed_at_ms) for fact in told] == [
        (0, "stricter", T0 + 9_001)
    ]


def test_a_policy_that_was_in_force_once_comes_back():
    before = [PolicyChanged.to(Policy(), T0, 0), PolicyChanged.to(STRICTER, T0 + 5_000, 0)]
    log = MemoryLog(before, partitions=1)
    ingest(log, frame(T0 + 9_000, node(1, 5)))
    assert [fact.policy_version for fact in log.kept if isinstance(fact, PolicyChanged)] == [
        Policy().version, "stricter", Policy().version,
    ]  # fmt: skip


def test_a_beat_is_told_to_every_partition_when_what_came_before_it_is_kept():
    log = MemoryLog(eager=False, partitions=3)
    ingest(log, frame(T0, node(1, 5)), Beat(T0 + 5_000))
    assert [(fact.partition, fact.observed_at_ms) for fact in log.kept if isinstance(fact, Tick)] == [
        (0, T0 + 5_000), (1, T0 + 5_000), (2, T0 + 5_000),
    ]  # fmt: skip
    assert log.calls == [("publish", 3), ("publish", 1), ("drain", 4), ("publish", 3), ("drain", 3)]


def test_no_frame_is_read_that_comes_after_one_that_the_log_did_not_take():
    log = MemoryLog()
    log.fails_after = 3
    seen = []

    async def frames():
        for number in range(1, 9):
            seen.append(number)
            yield frame(T0 + number, node(number, number))

    async def scene():
        await Ingester(log, Policy(), metrics()).run(frames())

    with pytest.raises(ServiceError, match="the log is gone"):
        asyncio.run(scene())
    assert seen == [1, 2]
    assert [fact.node for fact in log.kept[2:]] == ["n1"]


def test_nobody_writes_who_may_not():
    log = MemoryLog()
    allowed = iter([True, True, False])

    def guard():
        if not next(allowed):
            raise ServiceError("not the leader")

    with pytest.raises(ServiceError, match="not the leader"):
        ingest(log, frame(T0, node(1, 5)), frame(T0 + 1, node(2, 6)), guard=guard)
    assert [fact.node for fact in log.kept[2:]] == ["n1"]


def test_what_cannot_be_used_is_parked_and_the_rest_goes_on():
    log = MemoryLog()
    bad = {"metadata": {"name": "n1", "uid": "", "resourceVersion": "5"}}
    note = Parked(place="file.jsonl:3", reason="not JSON", raw="{\\udc80", at_ms=None)
    ingester = ingest(log, frame(T0, bad, place="watch:nodes"), note, frame(T0 + 1, node(2, 6)))
    assert [(letter.place, letter.at_ms) for letter in log.letters] == [
        ("watch:nodes", T0),
        ("file.jsonl:3", None),
    ]
    assert (log.letters[1].reason, log.letters[1].value) == ("not JSON", b"{\\udc80")
    assert ingester.parked == 2
    assert log.kept[-1].node == "n2"


def test_facts_of_a_dump_are_told_as_this_runs_own():
    log = MemoryLog(partitions=2)
    observed = NodeObserved(node="n1", node_uid="u1", observed_at_ms=T0, rv=4, ready="True")
    passed = [
        Tick(node="", observed_at_ms=T0),
        PolicyChanged.to(STRICTER, T0),
        observed,
    ]
    ingest(log, *(FactFrame(at_ms=T0, fact=fact, place="dump") for fact in passed))
    assert log.kept[2:] == [observed]


def test_more_facts_than_the_log_takes_at_a_time_come_in_parts():
    log = MemoryLog()
    nodes = {"metadata": {"resourceVersion": "9000"}, "items": [node(n, n + 1) for n in range(4_500)]}
    ingest(log, frame(T0, nodes, "LIST"))
    assert [count for verb, count in log.calls if verb == "publish"] == [2, 2_000, 2_000, 502]


def test_facts_count_when_they_are_kept():
    registry = CollectorRegistry()
    log = MemoryLog(eager=False)

    def kept():
        return registry.get_sample_value("sickbay_ingest_facts_total", {"kind": "node_observed"})

    async def scene():
        seen = []

        async def items():
            yield frame(T0, node(1, 5))
            seen.append(kept())
            yield Beat(T0 + 5_000)
            seen.append(kept())

        await Ingester(log, Policy(), metrics(registry)).run(items())
        return seen

    assert asyncio.run(scene()) == [None, 1]


# --- recordings ------------------------------------------------------------------------------------------------------


def recording(path, seconds=60):
    """Write a recording in which a node changes every three seconds; return its path."""
    lines = []
    for number, second in enumerate(range(0, seconds, 3)):
        minute, rest = divmod(second, 60)
        lines.append(
            {
                "at": f"2026-09-21T14:{minute:02d}:{rest:02d}Z",
                "resource": "nodes",
                "type": "ADDED" if number < 4 else "MODIFIED",
                "object": {"apiVersion": "v1", "kind": "Node"}
                | node(number % 4, number + 1, "True" if number // 4 % 2 else "False"),
            }
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def ingest_recording(log, path, *, speed=0.0, policy=None):
    ingester = Ingester(log, policy or Policy(), metrics())

    async def scene():
        await ingester.recall(live=False)
        items = recorded_items(
            [path], interval_ms=10_000, speed=speed, paced_from_ms=None, monotonic_ms=lambda: 0
        )
        await ingester.run(items)

    try:
        asyncio.run(scene())
    except ServiceError:
        return None
    return ingester


def _facts(log):
    return [(fact_id(fact), encode_payload(fact)) for fact in log.kept]


def test_a_recording_has_ticks_on_the_grid_after_what_was_seen_by_then(tmp_path):
    log = MemoryLog(partitions=1)
    ingest_recording(log, recording(tmp_path / "r.jsonl"))
    told = [(type(fact).__name__, fact.observed_at_ms - 1_790_000_000_000) for fact in log.kept]
    ticks = [at for kind, at in told if kind == "Tick"]
    assert len(ticks) == 7
    assert {later - earlier for earlier, later in pairwise(ticks)} == {10_000}
    for index, (kind, at_ms) in enumerate(told):
        if kind == "Tick":
            assert all(other <= at_ms for _, other in told[:index])
            assert all(other > at_ms for _, other in told[index + 1 :])


def test_a_recording_that_was_stopped_anywhere_is_told_to_its_end_and_nothing_twice_but_exact_repeats(
    tmp_path,
):
    path = recording(tmp_path / "r.jsonl")
    whole = MemoryLog()
    ingest_recording(whole, path)
    expected = _facts(whole)
    for kill in range(2, len(expected)):
        log = MemoryLog()
        log.fails_after = kill
        assert ingest_recording(log, path) is None
        log.fails_after = None
        ingester = ingest_recording(log, path)
        again = _facts(log)
        assert set(again) == set(expected)
        assert list(dict.fromkeys(again)) == expected
        ticked = [index for index, fact in enumerate(log.kept[:kill]) if isinstance(fact, Tick)]
        if ticked:
            # nothing that stands before the newest tick comes again
            assert len(again) - len(expected) <= kill - ticked[0]
            assert ingester.passed_over > 0


def test_a_recording_that_the_log_does_not_know_is_told_whole(tmp_path):
    first, other = recording(tmp_path / "a.jsonl"), tmp_path / "b.jsonl"
    other.write_text(
        re.sub(r'"n(\d)"', r'"m\1"', (tmp_path / "a.jsonl").read_text()).replace("uid-", "other-")
    )
    log = MemoryLog()
    ingest_recording(log, first)
    ingest_recording(log, str(other))
    names = {fact.node for fact in log.kept if isinstance(fact, NodeObserved)}
    assert names == {f"{letter}{n}" for letter in "nm" for n in range(4)}
    assert sum(fact.node.startswith("m") for fact in log.kept) == sum(
        fact.node.startswith("n") for fact in log.kept
    )


@pytest.mark.parametrize(("speed", "seconds"), [(1, 60), (4, 15), (0, 0)])
def test_a_recording_takes_its_own_time_divided_by_the_speed(tmp_path, speed, seconds):
    path = recording(tmp_path / "r.jsonl")
    now_ms = 0.0

    async def sleep(for_s):
        nonlocal now_ms
        now_ms += for_s * 1000

    async def scene(paced_from_ms):
        items = recorded_items(
            [path], interval_ms=10_000, speed=speed, paced_from_ms=paced_from_ms,
            monotonic_ms=lambda: round(now_ms), sleep=sleep,
        )  # fmt: skip
        return [item async for item in items]

    items = asyncio.run(scene(None))
    assert now_ms == pytest.approx(seconds * 57 / 60 * 1000, abs=5)
    now_ms = 0.0
    middle = items[len(items) // 2].at_ms
    asyncio.run(scene(middle))
    assert now_ms <= seconds * 1000 * 0.55
