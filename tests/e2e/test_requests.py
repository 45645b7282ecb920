"""Holds and releases by people, written into a store that a replay left."""

from __future__ import annotations

import pytest
from cli import example, log_of, misused, ok, phases, refused, replay, rows, verified

from projections.engine import Store
from sickbay.events import KINDS
from sickbay.facts import Fact

GPU_2 = "dra:gpu.nvidia.com/gpu-a1/gpu-2"
GPU_3 = "dra:gpu.nvidia.com/gpu-a1/gpu-3"
AT = ("--at", "2026-07-01T12:30:00Z")
LATER = ("--at", "2026-07-01T12:31:00Z")
UNTIL = ("--until", "2026-07-01T14:00:00Z")
ANN = ("--actor", "ann", "--reason", "fan noise, ticket 4711")


@pytest.fixture
def store(copy_of):
    return copy_of("one-card")


def changes(done):
    return [(row["kind"], row["phase_before"], row["phase_after"]) for row in done.json_lines()]


def ask(*arguments, store):
    return ok(*arguments, "--db", store, "-o", "json")


def test_a_hold_takes_a_device_out_of_use(store):
    """The device is quarantined by its own episode, held until the end that was given; the others stay where they were."""
    before = phases(store)
    assert [("quarantine_opened", "in_service", "quarantined")] == changes(
        ask("hold", GPU_2, *UNTIL, *AT, *ANN, store=store)
    )
    assert before | {GPU_2: "quarantined"} == phases(store)
    (episode,) = rows("episodes", "--device", GPU_2, db=store)
    assert ("hold", "ann", '["hold"]', "2026-07-01T14:00:00.000Z", None) == tuple(
        episode[k] for k in ("cause", "actor", "open_causes", "hold_until", "closed_at")
    )
    verified(store)


def test_a_release_begins_the_way_back_and_never_ends_it(store):
    """Nobody can force a release: asked for, it starts an observation, and asked for again, it changes nothing."""
    ask("hold", GPU_2, *UNTIL, *AT, *ANN, store=store)
    assert [("observation_started", "quarantined", "observing")] == changes(
        ask("release", "last", *LATER, *ANN, store=store)
    )
    assert "observing" == phases(store)[GPU_2]
    again = ("--at", "2026-07-01T12:32:00Z")
    assert "in_service" not in {
        after for _, _, after in changes(ask("release", "last", *again, *ANN, store=store))
    }
    assert "observing" == phases(store)[GPU_2]
    (episode,) = rows("episodes", "--open", db=store)
    assert ("ann", "observation_only", None) == tuple(
        episode[k] for k in ("release_actor", "verification", "closed_at")
    )
    verified(store)


def test_a_request_for_a_closed_episode_is_recorded_and_does_nothing(store):
    """It stands in the audit, and no device moves."""
    before = phases(store)
    (episode,) = rows("episodes", db=store)
    assert [] == changes(ask("release", episode["episode_id"], *AT, *ANN, store=store))
    assert "recorded; nothing changes" in ok("release", "last", *LATER, *ANN, "--db", store).out
    assert before == phases(store)
    asked = rows("audit", "requests", db=store)
    assert [("release_requested", GPU_3, episode["episode_id"])] * 2 == [
        (row["kind"], row["device_id"], row["episode_id"]) for row in asked
    ]
    verified(store)


def test_the_audit_says_who_asked_for_what(store):
    """Actor, time, words and end of each request, in order."""
    ask("hold", GPU_2, *UNTIL, *AT, *ANN, store=store)
    ask("release", "last", *LATER, "--actor", "bob", "--reason", "card replaced", store=store)
    assert [
        (
            "2026-07-01T12:30:00.000Z",
            "ann",
            "hold_requested",
            GPU_2,
            "fan noise, ticket 4711",
            "2026-07-01T14:00:00.000Z",
        ),
        ("2026-07-01T12:31:00.000Z", "bob", "release_requested", GPU_2, "card replaced", None),
    ] == [
        tuple(row[k] for k in ("at", "actor", "kind", "device_id", "reason", "until"))
        for row in rows("audit", "requests", db=store)
    ]


def test_the_same_request_again_is_one_request(store):
    """What has the same words and time has the same id, and is in the log once."""
    for _ in range(2):
        ask("hold", GPU_2, *UNTIL, *AT, *ANN, store=store)
    assert 1 == len(rows("audit", "requests", db=store))
    verified(store)


def test_the_same_replay_again_is_a_no_op(store, tmp_path):
    """A replay that finds its own log does nothing to it, nor to what people asked for since."""
    recorded = verified(store)
    summary = replay(example("one-card"), db=store)
    assert recorded == verified(store)
    ask("hold", GPU_2, *UNTIL, *AT, *ANN, store=store)
    asked = verified(store)
    assert recorded["event_log"] != asked["event_log"]
    assert summary["facts"] == replay(example("one-card"), "--workers", 2, db=store)["facts"]
    assert asked == verified(store)


@pytest.fixture
def halfway(stores, tmp_path):
    """A store that holds the first half of each partition, as a replay leaves it that was killed."""
    path = tmp_path / "halfway.db"
    with (
        Store.open(stores["one-card"], read_only=True) as whole,
        Store.open(path, create=True, partitions=whole.partitions, source_id=whole.source_id) as half,
    ):
        for partition, position in whole.positions().items():
            half.write(first_half(list(whole.read(partition)), position.next_offset // 2))
    return path


def first_half(records, size):
    """So many records, and what the last fact among them led to: a batch never ends between the two."""
    while size < len(records) and not issubclass(KINDS[records[size].envelope.kind], Fact):
        size += 1
    return records[:size]


def test_a_replay_that_stopped_halfway_goes_on(stores, halfway):
    """Run again, it comes to the store of a replay that never stopped."""
    whole = verified(stores["one-card"])
    assert whole != verified(halfway)
    replay(example("one-card"), db=halfway)
    assert whole == verified(halfway)


def test_a_store_whose_replay_stopped_halfway_takes_no_request(halfway):
    """A request would stand where the replay goes on. After the replay was run to its end, it may be asked."""
    before = log_of(halfway)
    request = ("hold", GPU_2, *UNTIL, *AT, *ANN)
    assert "run the replay again to its end first" in refused(*request, "--db", halfway, code=5)
    assert before == log_of(halfway)
    replay(example("one-card"), db=halfway)
    assert [("quarantine_opened", "in_service", "quarantined")] == changes(ask(*request, store=halfway))
    verified(halfway)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ("hold", GPU_2, "--until", "2026-07-01T12:00:00Z", *AT, *ANN),
            "a hold needs an end that is still to come",
        ),
        (
            ("hold", GPU_2, "--until", "2026-07-01T12:30:00Z", *AT, *ANN),
            "a hold needs an end that is still to come",
        ),
        (
            ("hold", GPU_2, "--until", "2026-07-01T12:00:00Z", *ANN),
            "a hold needs an end that is still to come",
        ),
        (("hold", GPU_2, *UNTIL, *AT, "--reason", " "), "--reason is empty"),
        (("hold", GPU_2, *UNTIL, *AT, "--reason", "x", "--actor", ""), "--actor is empty"),
        (("release", "last", *AT, "--reason", "\t"), "--reason is empty"),
        (("hold", "dra:none", *UNTIL, *AT, *ANN), "the store knows no device"),
        (("release", "ffffffff", *AT, *ANN), "no episode begins with 'ffffffff'"),
    ],
)
def test_a_request_without_an_end_or_words_or_a_target_is_refused(store, arguments, problem):
    """The refusal names what is missing, and nothing is written."""
    before = verified(store)
    assert problem in refused(*arguments, "--db", store, code=2)
    assert before == verified(store)


def test_a_hold_without_an_end_is_no_command(store):
    """Every hold has an end, and every request a reason."""
    assert "Missing option '--until'" in misused("hold", GPU_2, "--reason", "x", "--db", store)
    assert "Missing option '--reason'" in misused("release", "last", "--db", store)
