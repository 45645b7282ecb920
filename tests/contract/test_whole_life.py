"""A whole life as the real fold decides it: fault, exclusion, move, probe, canary, observation, release; told in one order of time."""

from __future__ import annotations

import json

import facts_of as f
import pytest
from click.testing import CliRunner
from custody_run import Run
from log_builder import History

from projections.audit import AUDIT_VIEWS
from projections.engine import CUSTODY
from projections.explain import explain as explain_episode
from projections.rebuild import rebuild
from sickbay.cli.questions import explain
from sickbay.policy import policy_from_yaml
from sickbay.timestamps import parse_time_ms

POLICY = policy_from_yaml(
    """
version: life
quarantine: {min_hold_ms: 20000, hold_max_ms: 200000, lease_ms: 100000, flap_window_ms: 120000}
staged_return: {prober: job, probe_timeout_ms: 60000, canary_timeout_ms: 60000, observation_ms: 10000}
moves: {enabled: true, lease_ms: 15000, attempts: 2, hook_timeout_ms: 3000, replacement_timeout_ms: 9000}
""",
    place="life",
)
DEVICE = f.dra(0)
#: Seconds after the beginning, part and kind of everything that belongs to the episode.
LIFE = [
    (10, "fact", "device_health_observed"),
    (10, "decision", "quarantine_opened"),
    (10, "move", "move_planned"),
    (10, "move", "move_lease_granted"),
    (11, "exclusion", "exclusion_reported"),
    (12, "exclusion", "exclusion_reported"),
    (13, "move", "move_step_reported"),
    (14, "move", "move_step_reported"),
    (15, "move", "move_reported"),
    (15, "move", "move_finished"),
    (40, "request", "release_requested"),
    (40, "decision", "probe_started"),
    (50, "probe", "probe_reported"),
    (50, "decision", "canary_started"),
    (60, "canary", "canary_reported"),
    (60, "decision", "observation_started"),
    (65, "fact", "device_health_observed"),
    (75, "fact", "tick"),
    (75, "decision", "device_released"),
    (77, "exclusion", "exclusion_reported"),
]


def at(second):
    return f.T0 + second * f.SECOND


def lived():
    """The log of the life, and the id of the episode."""
    run, log = Run(POLICY), History(1)

    def go(fact):
        decided = run.step(fact)
        log.decide(log.fact(fact), *decided, policy=POLICY.hash())
        return decided

    go(f.published(0, at(0), 1))
    go(f.workload(at(0), 2))
    go(f.word(DEVICE, "Healthy", at(0), 2))
    *_, lease = go(f.word(DEVICE, "Unhealthy", at(10), 3))
    opened = run.episode(DEVICE).episode_id
    go(f.excluded(DEVICE, at(11), "applied", "x1", episode_id=opened))
    go(f.excluded(f.dra(1), at(11), "applied", "other"))
    go(f.excluded(DEVICE, at(12), "confirmed", "x2", episode_id=opened))
    go(f.move_step(lease, at(13), "s1", step="checkpointed"))
    go(f.move_step(lease, at(14), "s2", step="evicted"))
    go(f.move_report(lease, at(15), "m1"))
    go(f.pod_gone(at(16), 4))
    go(f.release(DEVICE, at(40), opened))
    go(f.step_report("probing", DEVICE, at(50), run.episode(DEVICE), True, "p1"))
    go(f.step_report("canary", DEVICE, at(60), run.episode(DEVICE), True, "c1"))
    go(f.word(DEVICE, "Healthy", at(65), 9, pod="pod-b"))
    go(f.tick(at(75)))
    go(f.excluded(DEVICE, at(77), "removed", "x3", episode_id=opened, effect=""))
    return log.records, opened


@pytest.fixture
def store(open_store):
    opened = open_store(partitions=1)
    opened.write(lived()[0])
    return opened


def asked(store, *options):
    done = CliRunner().invoke(explain, ["last", "--db", store.place.opens, *options])
    assert 0 == done.exit_code, done.output
    return done.stdout


def rows(store, name):
    view = AUDIT_VIEWS[name]
    with store.reading() as connection:
        return [dict(zip(view.columns, row, strict=True)) for row in view.rows(connection)]


def test_a_life_is_told_in_one_order_of_time(store):
    """Everything once, what is said of another device not at all."""
    told = json.loads(asked(store, "--output", "json"))["life"]
    assert LIFE == [((parse_time_ms(row["at"]) - f.T0) // f.SECOND, row["part"], row["kind"]) for row in told]


def test_a_life_as_of_an_instant_ends_there(store):
    """What came later is not in it, in either form."""
    until = ("--as-of", "1970-01-02T03:46:52Z")
    told = json.loads(asked(store, *until, "--output", "json"))["life"]
    assert [(part, kind) for second, part, kind in LIFE if second <= 12] == [
        (row["part"], row["kind"]) for row in told
    ]
    assert "move_step_reported" not in asked(store, *until)


def test_the_text_tells_each_part_between_the_steps(store):
    """A report that caused a step is told with it, and not a second time."""
    text = asked(store)
    places = [
        text.index(words)
        for words in (
            "decision  1970-01-02T03:46:50", "quarantine_opened", "state applied", "state confirmed", "step checkpointed",
            "step evicted", "outcome done", "release_requested", "probe_reported", "canary_started", "canary_reported",
            "observation_started", "device_released", "state removed",
        )
    ]  # fmt: skip
    assert sorted(places) == places
    assert [1, 1, 1] == [
        text.count(kind) for kind in ("probe_reported", "canary_reported", "release_requested")
    ]
    assert 3 == text.count("exclusion_reported")


def test_the_life_of_an_explanation_is_in_order_and_has_nothing_twice(store):
    """By event time, and by place where times are equal."""
    with store.reading() as connection:
        life = explain_episode(connection, lived()[1]).life
    assert LIFE == [
        ((record.envelope.at_ms - f.T0) // f.SECOND, part, record.envelope.kind)
        for record, (_, part, _) in zip(life, LIFE, strict=True)
    ]


def test_the_views_say_the_same_of_it(store):
    """One rule that is gone, one of another device that stands; two steps; one move of one lease that was done."""
    assert [("sickbay-gpu-0", "removed", at(77), 0), ("sickbay-gpu-1", "applied", at(11), 0)] == [
        (row["rule"], row["state"], row["since_ms"], row["repairs"]) for row in rows(store, "exclusions")
    ]
    assert ["checkpointed", "evicted"] == [row["step"] for row in rows(store, "move-steps")]
    assert [("done", 1, 1)] == [(row["outcome"], row["token"], row["leases"]) for row in rows(store, "moves")]
    (timed,) = rows(store, "time-to-quarantine")
    assert (0, 1_000, 2_000) == tuple(
        timed[f"to_{until}_ms"] for until in ("decision", "applied", "confirmed")
    )
    assert {"quarantined": 30_000, "probing": 10_000, "canary": 10_000, "observing": 15_000} == {
        row["phase"]: row["idle_ms"] for row in rows(store, "idle-time")
    }


def test_a_rebuild_comes_to_the_same_rows(store):
    """Rules and steps are read models like the rest."""
    before = store.digests()
    assert () == tuple(rebuild(store, CUSTODY).differing)
    assert before == store.digests()
