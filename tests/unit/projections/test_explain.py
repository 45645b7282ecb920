"""Explanations: every link from fact to decision to consequence is one that the log names."""

from __future__ import annotations

import msgspec
import pytest
from log_builder import History, custody, health, open_episode, released
from log_scenarios import MINUTE, gpu

from projections.engine import Store
from projections.explain import explain, timeline
from projections.records import LogRecord
from sickbay.codec import encode
from sickbay.decisions import AlertRaised, DeviceReleased, DeviceSuspected, QuarantineOpened
from sickbay.errors import NotFoundError

RETURNED = open_episode(gpu("node-a", 0), 10 * MINUTE).episode_id
ABSORBED = open_episode(gpu("node-b", 0), 10 * MINUTE).episode_id


def test_each_decision_has_its_cause_and_the_record_before_and_after(connection):
    """The seven decisions of the returned episode, in log order, each from the phase that the one before it left."""
    steps = explain(connection, RETURNED).steps
    assert [
        ("device_health_observed", "quarantine_opened", None, "quarantined"),
        ("device_health_observed", "quarantine_extended", "quarantined", "quarantined"),
        ("device_health_observed", "quarantine_review_due", "quarantined", "quarantined"),
        ("device_health_observed", "probe_started", "quarantined", "probing"),
        ("probe_reported", "canary_started", "probing", "canary"),
        ("canary_reported", "observation_started", "canary", "observing"),
        ("tick", "device_released", "observing", "in_service"),
    ] == [
        (
            step.cause.envelope.kind,
            step.decision.envelope.kind,
            step.before.phase if step.before else None,
            step.after.phase,
        )
        for step in steps
    ]
    assert ("custody.probing", "quarantined to probing", "policy-hash") == (
        steps[3].clause,
        steps[3].reason,
        steps[3].policy,
    )


def test_consequences_and_facts_come_with_it(connection):
    """The move, the alert, and every fact that caused or was cited, decoded and in log order."""
    found = explain(connection, RETURNED)
    assert ("returned", 60 * MINUTE) == (found.episode["outcome"], found.episode["closed_at_ms"])
    assert ["done"] == [move["outcome"] for move in found.moves]
    assert ["alert-1"] == [alert["alert_id"] for alert in found.alerts]
    assert () == found.incidents
    assert sorted(fact.offset for fact in found.facts) == [fact.offset for fact in found.facts]
    assert ["Unhealthy", "Unhealthy", "Healthy"] == [
        fact.event.health for fact in found.facts if hasattr(fact.event, "health")
    ]


def test_the_incident_that_absorbed_an_episode_is_named(connection):
    """It comes through the device's record."""
    found = explain(connection, ABSORBED)
    assert [("incident-1", "plugin_down")] == [(row["incident_id"], row["cause"]) for row in found.incidents]
    assert ["quarantine_opened", "device_released"] == [step.decision.envelope.kind for step in found.steps]


def test_an_episode_that_does_not_exist_is_an_error(connection):
    """The error says where ids come from."""
    with pytest.raises(NotFoundError, match="there is no episode 'nope'; `sickbay episodes`"):
        explain(connection, "nope")


def test_facts_beyond_the_newest_sixteen_are_explained(tmp_path):
    """An episode keeps sixteen ids; the explanation has all twenty, and the cited ones of each step."""
    log, device = History(1), gpu("node-a", 0)
    episode = open_episode(device, 0)
    before = "in_service"
    for number in range(20):
        fact = log.fact(health("node-a", device, number, "Unhealthy", rv=number))
        episode = msgspec.structs.replace(episode, evidence=(*episode.evidence, fact.event_id)[-16:])
        opened = custody(
            QuarantineOpened,
            "node-a",
            device,
            number,
            before,
            "quarantined",
            episode=episode,
            evidence=(fact.event_id,),
        )
        log.decide(fact, opened)
        before = "quarantined"
    with Store.open(tmp_path / "long.db", create=True, partitions=1) as store:
        store.write(log.records)
        with store.reading() as connection:
            found = explain(connection, episode.episode_id)
    assert list(range(20)) == [fact.event.observed_at_ms for fact in found.facts]
    assert [[number] for number in range(20)] == [
        [fact.event.observed_at_ms for fact in step.evidence] for step in found.steps
    ]
    assert 20 == found.episode["evidence_facts"]


def test_a_decision_that_ends_one_episode_and_opens_another_explains_both(tmp_path):
    """It is the last step of the one and the first of the other."""
    log, device = History(1), gpu("node-a", 0)
    first, second = open_episode(device, 1), open_episode(device, 2, cause="hold")
    fact = log.fact(health("node-a", device, 1, "Unhealthy", rv=1))
    log.decide(
        fact, custody(QuarantineOpened, "node-a", device, 1, "in_service", "quarantined", episode=first)
    )
    again = log.fact(health("node-a", device, 2, "Unhealthy", rv=2))
    both = released(
        "node-a", device, 2, "quarantined", msgspec.structs.replace(first, closed_at_ms=2, outcome="returned")
    )
    record = msgspec.structs.replace(both.record, phase="quarantined", episode=second)
    log.decide(again, msgspec.structs.replace(both, record=record))
    with Store.open(tmp_path / "both.db", create=True, partitions=1) as store:
        store.write(log.records)
        with store.reading() as connection:
            kinds = [
                [type(step.decision.event) for step in explain(connection, episode.episode_id).steps]
                for episode in (first, second)
            ]
    assert [[QuarantineOpened, DeviceReleased], [DeviceReleased]] == kinds


def test_alerts_about_the_device_count_only_while_the_episode_lasted(tmp_path):
    """An alert before it, after it, or about the same id on another node does not belong to it."""
    log, device = History(1), "plugin:r/0"
    episode = open_episode(device, 100)
    for at_ms, node, about in (
        (50, "n", device), (150, "n", device), (160, "n", f"n/{device}"), (170, "m", device), (250, "n", device)
    ):  # fmt: skip
        fact = log.fact(health(node, device, at_ms, "Unhealthy", rv=at_ms))
        if at_ms == 50:
            log.decide(
                fact,
                custody(QuarantineOpened, "n", device, 100, "in_service", "quarantined", episode=episode),
            )
        log.decide(fact, AlertRaised(node=node, at_ms=at_ms, alert_id=str(at_ms), alert="flap", about=about))
    closed = msgspec.structs.replace(episode, closed_at_ms=200, outcome="returned")
    log.decide(
        log.fact(health("n", device, 200, "Healthy", rv=200)), released("n", device, 200, "observing", closed)
    )
    with Store.open(tmp_path / "alerts.db", create=True, partitions=1) as store:
        store.write(log.records)
        with store.reading() as connection:
            assert ["150", "160"] == [
                row["alert_id"] for row in explain(connection, episode.episode_id).alerts
            ]


def test_a_timeline_is_everything_that_names_the_device_in_log_order(connection, history):
    """Facts, requests, decisions and moves, decoded."""
    device = gpu("node-a", 0)
    expected = [r.envelope.event_id for r in history.records if getattr(r.event, "device_id", "") == device]
    found = list(timeline(connection, device))
    assert expected == [record.envelope.event_id for record in found]
    assert {"device_published", "move_lease_granted", "release_requested", "device_released"} <= {
        record.event.KIND for record in found
    }


def test_a_timeline_as_of_an_instant_and_known_at_a_position(connection, history):
    """Both axes narrow it."""
    device = gpu("node-b", 0)
    late = next(
        record
        for record in history.records
        if record.event.KIND == "device_suspected" and record.event.node == "node-b"
    )
    whole = [record.offset for record in timeline(connection, device)]
    at_11 = [record.event.KIND for record in timeline(connection, device, as_of_ms=11 * MINUTE)]
    assert [
        "device_published",
        "device_health_observed",
        "quarantine_opened",
        "device_health_observed",
        "device_suspected",
    ] == at_11
    known = [record.offset for record in timeline(connection, device, known_at={late.partition: late.offset})]
    assert [offset for offset in whole if offset < late.offset] == known


def test_a_timeline_is_of_one_node_when_asked(tmp_path):
    """A plugin's id may exist on several nodes."""
    log = History(1)
    for node in ("node-a", "node-b"):
        fact = log.fact(health(node, "plugin:r/0", 1, "Unknown", rv=1))
        log.decide(fact, custody(DeviceSuspected, node, "plugin:r/0", 1, "in_service", "suspect"))
    with Store.open(tmp_path / "two.db", create=True, partitions=1) as store:
        store.write(log.records)
        with store.reading() as connection:
            assert 4 == len(list(timeline(connection, "plugin:r/0")))
            assert {"node-b"} == {r.event.node for r in timeline(connection, "plugin:r/0", "node-b")}
            with pytest.raises(NotFoundError, match="never names the device 'plugin:r/0' of node 'node-c'"):
                timeline(connection, "plugin:r/0", "node-c")
            with pytest.raises(NotFoundError, match="`sickbay audit devices`"):
                timeline(connection, "plugin:r/1")


def test_an_event_of_an_unknown_kind_is_shown_undecoded(tmp_path):
    """A cause that a newer build wrote is in the explanation, without its inside."""
    log, device = History(1), gpu("node-a", 0)
    fact = log.fact(health("node-a", device, 1, "Unhealthy", rv=1))
    log.decide(
        fact,
        custody(
            QuarantineOpened,
            "node-a",
            device,
            1,
            "in_service",
            "quarantined",
            episode=open_episode(device, 1),
        ),
    )
    envelope = msgspec.structs.replace(fact, kind="device_dreamed")
    with Store.open(tmp_path / "new-kind.db", create=True, partitions=1) as store:
        store.write([LogRecord(0, 0, envelope, encode(envelope)), log.records[1]._replace(chain=b"")])
        with store.reading() as connection:
            (step,) = explain(connection, open_episode(device, 1).episode_id).steps
    assert ("device_dreamed", None) == (step.cause.envelope.kind, step.cause.event)


def test_a_fact_that_only_the_episode_names_is_explained_too(tmp_path):
    """What renewed an episode without causing or being cited by a decision of its own is among the facts."""
    log, device = History(1), gpu("node-a", 0)
    quiet = log.fact(health("node-a", device, 1, "Unhealthy", rv=1))
    loud = log.fact(health("node-a", device, 2, "Unhealthy", rv=2))
    episode = open_episode(device, 1, evidence=(quiet.event_id,))
    log.decide(
        loud, custody(QuarantineOpened, "node-a", device, 2, "in_service", "quarantined", episode=episode)
    )
    with Store.open(tmp_path / "quiet.db", create=True, partitions=1) as store:
        store.write(log.records)
        with store.reading() as connection:
            found = explain(connection, episode.episode_id)
    assert [1, 2] == [fact.event.observed_at_ms for fact in found.facts]
