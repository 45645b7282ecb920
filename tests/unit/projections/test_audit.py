"""The audit views, with answers that can be read off the small history."""

from __future__ import annotations

import msgspec
import pytest
from log_builder import History, custody, health, open_episode, released
from log_scenarios import GPU, MINUTE, SECOND, gpu
from sqlalchemy import text

from projections.audit import AUDIT_VIEWS, audit_view
from projections.engine import Store
from projections.records import ParkedItem
from sickbay.decisions import AlertCleared, AlertRaised, DeviceSuspected, QuarantineOpened
from sickbay.errors import NotFoundError
from sickbay.facts import Tick


def ask(connection, name, **moment):
    view = AUDIT_VIEWS[name]
    return [dict(zip(view.columns, row, strict=True)) for row in view.rows(connection, **moment)]


def only(connection, name, *columns, **moment):
    return [tuple(row[column] for column in columns) for row in ask(connection, name, **moment)]


@pytest.mark.parametrize("name", sorted(AUDIT_VIEWS))
def test_the_sql_view_and_the_question_agree_on_now(connection, name):
    """`audit_…` in SQL and the register give the same columns and rows."""
    view = AUDIT_VIEWS[name]
    result = connection.execute(text(f"SELECT * FROM {view.sql_name}"))
    assert list(view.columns) == list(result.keys())
    assert sorted(map(repr, view.rows(connection))) == sorted(repr(tuple(row)) for row in result)


@pytest.mark.parametrize("name", sorted(AUDIT_VIEWS.keys() - {"parked"}))
def test_far_in_the_future_everything_is_as_now_and_before_the_beginning_nothing_is(connection, name):
    """Both axes, alone and together, reach from nothing to everything; only what is counted up to the moment grows with it."""
    view, everything = AUDIT_VIEWS[name], dict.fromkeys(range(4), 10**9)
    columns = [column for column in view.columns if column not in ("duration_ms", "age_ms", "idle_ms")]
    now = only(connection, name, *columns)
    assert now, "the history has an answer to every question"
    for moment in (
        {"as_of_ms": 10**12},
        {"known_at": everything},
        {"as_of_ms": 10**12, "known_at": everything},
    ):
        assert now == only(connection, name, *columns, **moment)
    for moment in ({"as_of_ms": -1}, {"known_at": {}}, {"as_of_ms": 10**12, "known_at": {}}):
        assert [] == list(view.rows(connection, **moment))


def test_devices_stand_where_custody_or_their_slice_says(connection):
    """A quarantined device, one that returned, one that never faulted; a withdrawn one without custody is gone."""
    found = {
        row["device_id"]: (row["phase"], row["since_ms"], row["published"])
        for row in ask(connection, "devices")
    }
    assert ("quarantined", 5 * MINUTE, 1) == found[gpu("node-c", 0)]
    assert ("in_service", 60 * MINUTE, 1) == found[gpu("node-a", 0)]
    assert ("in_service", None, 1) == found[gpu("node-c", 1)]
    assert gpu("node-a", 2) not in found


def test_devices_as_of_an_instant(connection):
    """At minute 27 gpu-1 was restricted and gpu-2 was still published."""
    found = dict(only(connection, "devices", "device_id", "phase", as_of_ms=27 * MINUTE))
    assert "restricted" == found[gpu("node-a", 1)]
    assert "quarantined" == found[gpu("node-a", 0)]
    assert "in_service" == found[gpu("node-a", 2)]


def test_episodes_have_outcome_decisions_and_evidence(connection):
    """One returned with seven decisions, one absorbed, one hold still open."""
    columns = ("device_id", "outcome", "verification", "decisions", "evidence_facts", "closed_at_ms")
    assert {
        (gpu("node-a", 0), "returned", "prober", 7, 3, 60 * MINUTE),
        (gpu("node-b", 0), "absorbed", "", 2, 1, 12 * MINUTE),
        (gpu("node-c", 0), "", "", 1, 0, None),
    } == set(only(connection, "episodes", *columns))
    assert [(gpu("node-c", 0), "hold")] == only(connection, "open-episodes", "device_id", "cause")


def test_open_episodes_as_of_an_instant(connection):
    """At minute 11 three were open, at minute 4 none, at minute 30 the returning one was probing nothing yet."""
    assert 3 == len(ask(connection, "open-episodes", as_of_ms=11 * MINUTE))
    assert [] == ask(connection, "open-episodes", as_of_ms=4 * MINUTE)
    at_42 = dict(only(connection, "open-episodes", "device_id", "phase", as_of_ms=42 * MINUTE))
    assert {gpu("node-a", 0): "probing", gpu("node-c", 0): "quarantined"} == at_42


def test_evidence_is_every_fact_that_was_ever_cited(connection):
    """The three facts of the returned episode, in the order in which they were first cited."""
    rows = only(connection, "episode-evidence", "device_id", "at_ms", "kind")
    assert [(gpu("node-a", 0), minute * MINUTE, "device_health_observed") for minute in (10, 15, 40)] == [
        row for row in rows if row[0] == gpu("node-a", 0)
    ]


def test_transitions_say_clause_policy_cause_and_latency(connection):
    """The restriction was true at minute 25 and a tick found it nine seconds later."""
    (row,) = ask(connection, "transitions", where={"kind": "device_restricted"})
    assert ("suspect", "restricted", "custody.restricted", "policy-hash") == (
        row["phase_before"],
        row["phase_after"],
        row["clause"],
        row["policy"],
    )
    assert (25 * MINUTE, 25 * MINUTE + 9 * SECOND, 9 * SECOND) == (
        row["at_ms"],
        row["cause_at_ms"],
        row["latency_ms"],
    )


def test_latency_percentiles_are_values_that_occurred(tmp_path):
    """Of the latencies 1 to 200 ms the nearest ranks are 100, 180 and 198, the maximum 200."""
    log = History(1)
    for number in range(1, 201):
        tick = log.fact(Tick(node="", partition=0, observed_at_ms=1_000 * number + number))
        log.decide(
            tick,
            custody(DeviceSuspected, "node-a", f"dra:d/p/{number}", 1_000 * number, "in_service", "suspect"),
        )
    with Store.open(tmp_path / "latency.db", create=True, partitions=1) as store:
        store.write(log.records)
        with store.reading() as connection:
            assert [("device_suspected", 200, 100, 180, 198, 200)] == list(
                AUDIT_VIEWS["decision-latency"].rows(connection)
            )


def test_a_cause_in_another_partition_has_no_latency(tmp_path):
    """What cannot be seen is NULL, not zero, and is not counted."""
    log = History(2)
    tick = log.fact(Tick(node="", partition=0, observed_at_ms=7))
    log.decide(tick, custody(DeviceSuspected, "", "dra:d/p/x", 5, "in_service", "suspect"))
    moved = log.records[1]._replace(partition=1, offset=0, chain=b"")
    with Store.open(tmp_path / "elsewhere.db", create=True, partitions=2) as store:
        store.write([log.records[0], moved])
        with store.reading() as connection:
            assert [(None, None)] == only(connection, "transitions", "cause_at_ms", "latency_ms")
            assert [] == ask(connection, "decision-latency")


def test_the_false_quarantine_rate_counts_what_should_not_have_been(tmp_path):
    """Absorbed, retracted and unconfirmed of six closed ones are half; a flap, a failed step, no prober and holds are not."""
    closings = [
        {"outcome": "absorbed"},
        {"outcome": "retracted"},
        {"outcome": "returned", "verification": "prober"},
        {"outcome": "returned", "verification": "prober", "flap_count": 2},
        {"outcome": "returned", "verification": "prober", "failures": 1},
        {"outcome": "returned", "verification": "observation_only"},
        {"outcome": "hold_ended", "cause": "hold"},
    ]
    log = History(1)
    for number, closing in enumerate(closings):
        device = f"dra:{GPU}/p/{number}"
        fact = log.fact(health("node-a", device, number, "Unhealthy", rv=number))
        closed = msgspec.structs.replace(open_episode(device, number), closed_at_ms=number + 1, **closing)
        log.decide(fact, released("node-a", device, number + 1, "observing", closed))
    with Store.open(tmp_path / "rate.db", create=True, partitions=1) as store:
        store.write(log.records)
        with store.reading() as connection:
            assert [(GPU, 6, 1, 1, 1, 3, 500_000)] == list(
                AUDIT_VIEWS["false-quarantine-rate"].rows(connection)
            )


def test_unknown_duration_is_the_length_of_each_run(connection):
    """Ten minutes with a restriction and a watch gap on node-a, three without on node-b."""
    columns = ("node", "unknown_since_ms", "ended_ms", "duration_ms", "restricted", "lower_bound")
    assert [
        ("node-a", 20 * MINUTE, 30 * MINUTE, 10 * MINUTE, 1, 1),
        ("node-b", 11 * MINUTE, 14 * MINUTE, 3 * MINUTE, 0, 0),
    ] == only(connection, "unknown-duration", *columns)


def test_an_unknown_run_that_goes_on_is_counted_up_to_the_moment(connection, history):
    """To the instant asked for; at a known position, to the event before it."""
    columns = ("ended_ms", "duration_ms", "restricted")
    where = {"node": "node-a"}
    assert [(None, 2 * MINUTE, 0)] == only(
        connection, "unknown-duration", *columns, as_of_ms=22 * MINUTE, where=where
    )
    restricted = next(r for r in history.records if r.envelope.kind == "device_restricted")
    moment = {"known_at": {restricted.partition: restricted.offset}, "where": where}
    assert [(None, 5 * MINUTE + 9 * SECOND, 0)] == only(connection, "unknown-duration", *columns, **moment)


def test_an_unknown_run_that_goes_on_now_is_counted_to_the_newest_event(tmp_path):
    """Ticks move the end of an open run, in SQL and in the register; an older event after them does not move it back."""
    log = History(1)
    fact = log.fact(health("node-a", "dra:d/p/x", 1_000, "Unknown", rv=1))
    log.decide(
        fact,
        custody(
            DeviceSuspected, "node-a", "dra:d/p/x", 1_000, "in_service", "suspect", unknown_since_ms=1_000
        ),
    )
    log.fact(Tick(node="", partition=0, observed_at_ms=9_000))
    log.fact(Tick(node="", partition=0, observed_at_ms=8_000))
    with Store.open(tmp_path / "open-run.db", create=True, partitions=1) as store:
        store.write(log.records)
        with store.reading() as connection:
            expected = ("node-a", "dra:d/p/x", "d", 1_000, None, 8_000, 0, 0)
            assert [expected] == list(AUDIT_VIEWS["unknown-duration"].rows(connection))
            assert expected == tuple(connection.execute(text("SELECT * FROM audit_unknown_duration")).one())


def test_incidents_breaker_moves_and_alerts_carry_what_opened_them(connection):
    """The closing rows know the devices, the token, and when it was raised."""
    assert [("incident-1", f'["{gpu("node-b", 0)}"]', 12 * MINUTE, 14 * MINUTE, "recovered")] == only(
        connection, "node-incidents", "incident_id", "devices", "opened_at_ms", "closed_at_ms", "outcome"
    )
    assert [("open", 12 * MINUTE, 4), ("closed", 12 * MINUTE, None)] == only(
        connection, "breaker-history", "state", "opened_at_ms", "adverse"
    )
    assert [("finished", "checkpoint", 10 * MINUTE, 7, 21 * MINUTE, 12 * MINUTE, "done")] == only(
        connection,
        "moves",
        *("state", "ability", "planned_at_ms", "token", "lease_expires_at_ms", "finished_at_ms", "outcome"),
    )
    assert {
        ("alert-1", 10 * MINUTE, 60 * MINUTE),
        ("alert-2", 14 * MINUTE, None),
        ("alert-numa", 2 * MINUTE, None),
    } == set(only(connection, "alerts", "alert_id", "raised_at_ms", "cleared_at_ms"))


def test_incidents_moves_and_alerts_as_of_an_instant(connection):
    """Before they ended they had not."""
    assert [(None, "")] == only(connection, "node-incidents", "closed_at_ms", "outcome", as_of_ms=13 * MINUTE)
    assert [("planned", None)] == only(connection, "moves", "state", "token", as_of_ms=10 * MINUTE)
    assert [("leased", 7)] == only(connection, "moves", "state", "token", as_of_ms=11 * MINUTE)
    assert [("alert-1", None), ("alert-numa", None)] == only(
        connection, "alerts", "alert_id", "cleared_at_ms", as_of_ms=11 * MINUTE
    )
    assert ["open"] == [row["state"] for row in ask(connection, "breaker-history", as_of_ms=13 * MINUTE)]


def test_requests_say_who_asked_for_what(connection):
    """Seven requests, with the columns that each kind has and NULL for the others."""
    found = {row["request_id"]: row for row in ask(connection, "requests")}
    assert {"m/1", "r1", "p1", "c1", "h1", "g1", "b1"} == found.keys()
    assert ("breaker_reset_requested", f"driver:{GPU}", "the switch was changed", "") == tuple(
        found["b1"][name] for name in ("kind", "scope", "reason", "device_id")
    )
    assert ("boris", "reseat the card", 500 * MINUTE, None) == tuple(
        found["h1"][name] for name in ("actor", "reason", "until_ms", "passed")
    )
    assert ("prober", 1, 1, None) == tuple(
        found["p1"][name] for name in ("actor", "attempt", "passed", "closed")
    )
    assert ("node", 1, "") == tuple(found["g1"][name] for name in ("scope", "closed", "device_id"))
    assert ("move-1", 7, "done") == tuple(found["m/1"][name] for name in ("move_id", "token", "outcome"))


def test_late_facts_are_those_that_an_alert_names(connection):
    """The fact of minute 1 that came at minute 14 is thirteen minutes late."""
    assert [(gpu("node-b", 2), MINUTE, 13 * MINUTE)] == only(
        connection, "late-facts", "about", "fact_at_ms", "late_by_ms"
    )


def test_inventory_keeps_what_a_withdrawn_device_was(connection):
    """The withdrawn device still has its NUMA node, and before minute 70 it was there."""
    where = {"device_id": gpu("node-a", 2)}
    columns = ("numa_nodes", "withdrawn_at_ms", "withdrawn_reason")
    assert [("[2]", 70 * MINUTE, "generation")] == only(connection, "inventory", *columns, where=where)
    assert [("[2]", None, "")] == only(connection, "inventory", *columns, where=where, as_of_ms=69 * MINUTE)


def test_parked_things_are_listed_with_their_place(own_store):
    """In the order of parking; one without a time is shown for every instant."""
    own_store.park([ParkedItem("a:1", "broken", b"x"), ParkedItem("a:2", "torn", b"yy", 9)])
    with own_store.reading() as connection:
        assert [("a:1", 1), ("a:2", 2)] == only(connection, "parked", "place", "raw_bytes")
        assert [("a:1", 1)] == only(connection, "parked", "place", "raw_bytes", as_of_ms=8)
        sql = connection.execute(text("SELECT place, raw_bytes FROM audit_parked ORDER BY seq")).all()
        assert [("a:1", 1), ("a:2", 2)] == [tuple(row) for row in sql]


def test_answers_are_narrowed_limited_and_ordered(connection):
    """By any column of the view, and never by one it does not have."""
    assert 2 == len(ask(connection, "devices", limit=2))
    assert {gpu("node-c", n) for n in range(3)} == {
        row["device_id"] for row in ask(connection, "devices", where={"node": "node-c"})
    }
    offsets = only(connection, "transitions", "partition_number", "log_offset")
    assert sorted(offsets) == offsets
    with pytest.raises(NotFoundError, match="has no column 'nodes'; it has node, "):
        ask(connection, "devices", where={"nodes": "x"})
    assert [] == ask(connection, "devices", where={"node": "' OR 1=1 --"})


def test_a_view_that_does_not_exist_is_named_with_those_that_do():
    """The error lists the names."""
    assert "devices" == audit_view("devices").name
    with pytest.raises(
        NotFoundError, match="there is no audit view 'device'; there are alerts, breaker-history"
    ):
        audit_view("device")


def test_every_view_has_words_for_a_person():
    """A paragraph each, and an order that the view has."""
    for view in AUDIT_VIEWS.values():
        assert 40 < len(view.doc)
        assert set(view.order) <= set(view.columns)


def test_the_quarantine_of_a_device_is_opened_by_an_event_of_that_kind(connection):
    """The history is what its docstring says, so the numbers above mean something."""
    assert 3 == len(ask(connection, "transitions", where={"kind": QuarantineOpened.KIND}))


def test_a_version_that_comes_late_holds_from_its_time_on(tmp_path):
    """Of the versions true at an instant the one that was written last stands, as with intervals."""
    log, device = History(1), gpu("node-a", 0)
    before = "in_service"
    for number, at_ms in enumerate((100, 300, 200)):
        fact = log.fact(health("node-a", device, at_ms, "Unhealthy", rv=number))
        episode = msgspec.structs.replace(open_episode(device, 100), extensions=number)
        log.decide(
            fact, custody(QuarantineOpened, "node-a", device, at_ms, before, "quarantined", episode=episode)
        )
        before = "quarantined"
    with Store.open(tmp_path / "late-version.db", create=True, partitions=1) as store:
        store.write(log.records)
        with store.reading() as connection:
            found = {
                at_ms: only(connection, "episodes", "extensions", as_of_ms=at_ms) for at_ms in (150, 250, 350)
            }
            assert {150: [(0,)], 250: [(2,)], 350: [(2,)]} == found
            assert [(1,)] == only(connection, "episodes", "extensions", as_of_ms=350, known_at={0: 5})


def test_an_alert_that_is_raised_again_keeps_its_beginning_until_it_is_cleared(tmp_path):
    """Raised at 1 and 2 it began at 1; cleared at 3 and raised at 4 it began at 4; a clearing without a raising has no beginning."""
    log = History(1)
    for at_ms, kind in ((1, AlertRaised), (2, AlertRaised), (3, AlertCleared), (4, AlertRaised)):
        fact = log.fact(Tick(node="", partition=0, observed_at_ms=at_ms))
        log.decide(fact, kind(node="n", at_ms=at_ms, alert_id="a", alert="flap", about="x"))
    log.decide(fact, AlertCleared(node="n", at_ms=4, alert_id="b", alert="flap", about="y"))
    with Store.open(tmp_path / "alerts.db", create=True, partitions=1) as store:
        for record in log.records:
            store.write([record])
        columns = ("alert_id", "raised_at_ms", "cleared_at_ms")
        with store.reading() as connection:
            assert [("a", 1, None)] == only(connection, "alerts", *columns, as_of_ms=2)
            assert [("a", 1, 3)] == only(connection, "alerts", *columns, as_of_ms=3)
            assert [("a", 4, None), ("b", None, 4)] == only(connection, "alerts", *columns)


def test_an_alert_keeps_why_it_was_raised_and_says_apart_why_it_was_cleared(tmp_path):
    """The newest raising counts, with its clause and its cause; before the clearing nothing is said of one."""
    log = History(1)
    told = ((1, AlertRaised, "one fault"), (2, AlertRaised, "two faults"), (3, AlertCleared, "quiet since"))
    facts = []
    for at_ms, kind, reason in told:
        facts.append(log.fact(Tick(node="", partition=0, observed_at_ms=at_ms)))
        words = {"reason": reason, "clause": f"clause.{at_ms}"}
        log.decide(facts[-1], kind(node="n", at_ms=at_ms, alert_id="a", alert="flap", about="x", **words))
    columns = ("reason", "clause", "causation_id", "cleared_reason")
    with Store.open(tmp_path / "alerts.db", create=True, partitions=1) as store:
        store.write(log.records)
        with store.reading() as connection:
            raised = ("two faults", "clause.2", facts[1].event_id)
            assert [(*raised, "")] == only(connection, "alerts", *columns, as_of_ms=2)
            assert [(*raised, "quiet since")] == only(connection, "alerts", *columns)
            assert [(*raised, "")] == only(connection, "alerts", *columns, known_at={0: 4})
            shown = connection.exec_driver_sql(f"SELECT {', '.join(columns)} FROM audit_alerts").all()
            assert [(*raised, "quiet since")] == [tuple(row) for row in shown]


def test_a_release_whose_record_still_names_the_episode_is_its_end(tmp_path):
    """The closed state counts, once."""
    log, device = History(1), gpu("node-a", 0)
    opened = open_episode(device, 1)
    closed = msgspec.structs.replace(opened, closed_at_ms=2, outcome="returned")
    fact = log.fact(health("node-a", device, 2, "Healthy", rv=1))
    decision = released("node-a", device, 2, "observing", closed)
    log.decide(
        fact,
        msgspec.structs.replace(decision, record=msgspec.structs.replace(decision.record, episode=opened)),
    )
    with Store.open(tmp_path / "release.db", create=True, partitions=1) as store:
        store.write(log.records)
        with store.reading() as connection:
            assert [("returned", 2)] == only(connection, "episodes", "outcome", "closed_at_ms")
