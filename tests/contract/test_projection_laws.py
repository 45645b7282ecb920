"""Laws of every projection, over generated logs: cuts and redelivery do not show, and time travel agrees with the log.

They run on the read models of custody and of the ledger, and on a tally that counts every delivery, so that a row written twice cannot hide behind a
projection that forgives it.
"""

from __future__ import annotations

from collections import Counter
from typing import get_args

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_scenarios import GPU
from log_builder import (
    History,
    custody,
    drift,
    entry,
    gap,
    health,
    open_episode,
    posted,
    released,
    reversed_at,
    verdict,
)
from log_scenarios import gpu

from projections.audit import AUDIT_VIEWS
from projections.custody import WANTED
from projections.engine import CUSTODY, LEDGER, Projection
from projections.rebuild import rebuild
from projections.rows import upsert
from projections.tables import device_history
from sickbay.decisions import (
    AlertCleared,
    AlertRaised,
    DeviceCleared,
    DeviceRestricted,
    DeviceSuspected,
    DriftCleared,
    DriftFound,
    Hold,
    Phase,
    QuarantineExtended,
    QuarantineOpened,
)
from sickbay.envelope import partition_of
from sickbay.facts import ExclusionReported, MoveStepReported, Tick, WatchGapFound

NODES = ("node-a", "node-b", "node-c")
LAWS = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)

tally_metadata = sa.MetaData()
tally = sa.Table(
    "tally",
    tally_metadata,
    sa.Column("generation", sa.Integer, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("deliveries", sa.Integer, nullable=False),
)


def count(connection, generation, records):
    """Add what came to what is there: delivering twice shows."""
    counted = Counter(record.envelope.kind for record in records)
    before = dict(
        connection.execute(
            sa.select(tally.c.kind, tally.c.deliveries).where(tally.c.generation == generation)
        ).all()
    )
    upsert(
        connection,
        tally,
        [
            {"generation": generation, "kind": kind, "deliveries": before.get(kind, 0) + number}
            for kind, number in sorted(counted.items())
        ],
    )


TALLY = Projection("tally", (tally,), WANTED | {Tick.KIND}, count)

#: (node, device, what happens, minute of event time); a minute below an earlier one is a late fact.
happenings = st.lists(
    st.tuples(
        st.sampled_from(NODES),
        st.integers(0, 1),
        st.sampled_from(
            [
                *("suspect", "restrict", "clear", "open", "extend", "release", "alert", "tick", "gap"),
                *("enter", "leave", "judge", "differ"),
                *("exclude", "step"),
            ]
        ),
        st.integers(0, 9),
    ),
    max_size=25,
)


def log_of(steps, *, chained=True):
    """Turn happenings into a log whose decisions follow the facts that caused them; they need not make sense as custody."""
    log, episodes, phases, entered = History(4, chained), {}, {}, {}
    for number, (node, device_number, happening, minute) in enumerate(steps):
        device, at_ms = gpu(node, device_number), minute * 60_000
        before = phases.get(device, "in_service")
        fact = log.fact(health(node, device, at_ms, "Unknown", rv=number))
        episode = episodes.get(device)
        match happening:
            case "suspect" | "restrict":
                kind, phase = {
                    "suspect": (DeviceSuspected, "suspect"),
                    "restrict": (DeviceRestricted, "restricted"),
                }[happening]
                log.decide(
                    fact,
                    custody(
                        kind, node, device, at_ms, before, phase, episode=episode, unknown_since_ms=at_ms
                    ),
                )
            case "clear":
                phase = "in_service"
                log.decide(fact, custody(DeviceCleared, node, device, at_ms, before, phase, episode=episode))
            case "open":
                phase = "quarantined"
                episode = open_episode(device, at_ms + number, evidence=(fact.event_id,))
                log.decide(
                    fact, custody(QuarantineOpened, node, device, at_ms, before, phase, episode=episode)
                )
            case "extend" if episode:
                phase = "quarantined"
                episode = msgspec.structs.replace(episode, extensions=episode.extensions + 1)
                log.decide(
                    fact, custody(QuarantineExtended, node, device, at_ms, before, phase, episode=episode)
                )
            case "release" if episode:
                phase = "in_service"
                closed = msgspec.structs.replace(episode, closed_at_ms=at_ms, outcome="returned")
                log.decide(fact, released(node, device, at_ms, before, closed))
                episode = None
            case "alert":
                phase = before
                kind = AlertRaised if number % 2 else AlertCleared
                log.decide(fact, kind(node=node, at_ms=at_ms, alert_id=device, alert="flap", about=device))
            case "enter" | "leave" | "judge" | "differ":
                phase = before
                log.decide(fact, *of_the_ledger(entered, node, device_number, happening, at_ms))
            case "exclude":
                phase = before
                state = ("applied", "confirmed", "repaired", "removed")[number % 4]
                log.fact(exclusion_report(node, device, at_ms, state, f"x/{number}", episode))
            case "step":
                phase = before
                log.fact(step_report(node, device, at_ms, f"s/{number}"))
            case "gap":
                phase = before
                watched = ("pods", "resourceslices", "nodes", "leases")[number % 4]
                partition = partition_of(node, 4) if device_number else number % 4
                found = gap(partition, watched, at_ms, at_ms + number % 3 * 60_000)
                log.fact(msgspec.structs.replace(found, epoch=number))
            case _:
                phase = before
                log.fact(Tick(node="", partition=number % 4, observed_at_ms=at_ms + number))
        episodes[device], phases[device] = episode, phase
    assert set(phases.values()) <= set(get_args(Phase))
    return log.records


def exclusion_report(node, device, at_ms, state, request, episode=None):
    """Return what became of the rule of a device."""
    return ExclusionReported(
        node=node,
        observed_at_ms=at_ms,
        request_id=request,
        device_id=device,
        actor="excluder",
        episode_id=episode.episode_id if episode else "",
        rule=f"rule-{device[-1]}",
        effect="NoSchedule",
        state=state,
    )


def step_report(node, device, at_ms, request):
    """Return a step of a move of which nothing else is known."""
    return MoveStepReported(
        node=node,
        observed_at_ms=at_ms,
        request_id=request,
        device_id=device,
        actor="mover",
        move_id=f"move/{device}",
        token=1,
        step="evicted",
    )


def of_the_ledger(entered, node, number, happening, at_ms):
    """Return what the ledger decides; an entry whose key stands takes the place of the one before."""
    match happening:
        case "enter" | "leave":
            before = entered.pop((node, number), None)
            decided = [] if before is None else [reversed_at(node, max(at_ms, before.at_ms), before)]
            if happening == "enter":
                amount = ("cpu", f"{at_ms + 1}u") if number else ("memory", "2Gi", "1")
                entered[node, number] = entry("derived", f"claim/{number}", "claims", at_ms, amount)
                decided.append(posted(node, entered[node, number]))
            return decided
        case "judge":
            hold = Hold(reason="driver_rebuilding", scope=f"{GPU}/{node}", since_ms=at_ms)
            return [
                verdict(node, at_ms, *([hold] if number else []), drivers=() if at_ms % 120_000 else (GPU,))
            ]
        case _:
            found = drift("team", f"claim-{at_ms % 120_000}", "unexplained")
            return [(DriftFound if number else DriftCleared)(node=node, at_ms=at_ms, drift=found)]


def store_with_tally(open_store, new_place):
    """Open a new store that also counts deliveries."""
    place = new_place()
    first = open_store(place)
    with first.engine.begin() as connection:
        tally_metadata.create_all(connection)
    first.close()
    return open_store(place, projections=(CUSTODY, LEDGER, TALLY))


@LAWS
@given(steps=happenings, data=st.data())
def test_cuts_and_redelivery_do_not_show(open_store, new_place, done, steps, data):
    """Any cut into batches, each starting at or before the checkpoint, leaves the rows and positions of a clean run."""
    records = log_of(steps)
    clean, cut = store_with_tally(open_store, new_place), store_with_tally(open_store, new_place)
    clean.write(records)
    written = 0
    while written < len(records):
        start = data.draw(st.integers(0, written), label="redelivered from")
        stop = data.draw(st.integers(written + 1, len(records)), label="up to")
        cut.write(records[start:stop])
        written = stop
    assert clean.digests() == cut.digests()
    done(clean, cut)


@LAWS
@given(steps=happenings, repeats=st.lists(st.integers(0, 200), max_size=6))
def test_events_that_are_sent_twice_do_not_show_in_rows(open_store, new_place, done, steps, repeats):
    """Repeats under new offsets leave the read models of a log without them, whoever counts."""
    records = log_of(steps, chained=False)
    clean, repeated = store_with_tally(open_store, new_place), store_with_tally(open_store, new_place)
    clean.write(records)
    repeated.write(records)
    nexts = {partition: position.next_offset for partition, position in repeated.positions().items()}
    for choice in repeats:
        if records:
            record = records[choice % len(records)]
            repeated.write([record._replace(offset=nexts[record.partition])])
            nexts[record.partition] += 1
    ours, theirs = clean.digests(), repeated.digests()
    assert {name: ours[name] for name in ours if name != "checkpoint"} == {
        name: theirs[name] for name in theirs if name != "checkpoint"
    }
    done(clean, repeated)


#: What is counted up to the moment: at a position to its last event, and now to the newest one.
COUNTED = ("duration_ms", "age_ms", "idle_ms")


def without_counted(view, row):
    return tuple(cell for name, cell in zip(view.columns, row, strict=True) if name not in COUNTED)


def custody_decisions(records):
    return [(r, r.event) for r in records if hasattr(r.event, "record")]


@LAWS
@given(steps=happenings)
def test_a_device_stands_as_the_last_decision_said_that_was_true_and_known(open_store, done, steps):
    """For every instant and every position the timeline agrees with a walk over the log."""
    records, store = log_of(steps), open_store()
    store.write(records)
    decisions = custody_decisions(records)
    nexts = {partition: position.next_offset for partition, position in store.positions().items()}
    positions = [nexts] + [nexts | {record.partition: record.offset} for record, _ in decisions]
    view = AUDIT_VIEWS["devices"]
    with store.reading() as connection:
        for as_of_ms in (None, *range(-1, 600_001, 120_000)):
            for known_at in (None, *positions[:4]):
                expected = {}
                for record, event in decisions:
                    known = known_at is None or record.offset < known_at.get(record.partition, 0)
                    if known and (as_of_ms is None or event.at_ms <= as_of_ms):
                        expected[event.node, event.device_id] = event.record.phase
                found = {
                    (row[0], row[1]): row[3]
                    for row in view.rows(connection, as_of_ms=as_of_ms, known_at=known_at)
                }
                assert expected == found
    done(store)


@LAWS
@given(steps=happenings)
def test_known_intervals_of_a_device_never_overlap_and_leave_no_gap(open_store, done, steps):
    """At every position, what was known of a device is one unbroken line of intervals, the last one open."""
    records, store = log_of(steps), open_store()
    store.write(records)
    with store.reading() as connection:
        rows = connection.execute(sa.select(device_history)).mappings().all()
    for position in {row["known_from_offset"] + 1 for row in rows}:
        lines = {}
        for row in rows:
            until = row["known_to_offset"]
            if row["known_from_offset"] < position and (until is None or until >= position):
                lines.setdefault((row["node"], row["device_id"]), []).append(
                    (row["valid_from_ms"], row["valid_to_ms"])
                )
        for line in lines.values():
            line.sort()
            assert [begin for begin, _ in line[1:]] == [end for _, end in line[:-1]]
            assert line[-1][1] is None
    done(store)


@LAWS
@given(steps=happenings)
def test_episodes_at_a_position_are_those_of_the_shorter_log(open_store, done, steps):
    """Every audit view, asked at a position, answers what a store that stopped there answers now."""
    records, whole, short = log_of(steps), open_store(), open_store()
    half = records[: len(records) // 2]
    whole.write(records)
    short.write(half)
    known_at = {partition: position.next_offset for partition, position in short.positions().items()}
    with whole.reading() as ours, short.reading() as theirs:
        for name, view in AUDIT_VIEWS.items():
            expected = [without_counted(view, row) for row in view.rows(theirs)]
            assert expected == [without_counted(view, row) for row in view.rows(ours, known_at=known_at)], (
                name
            )
    done(whole, short)


@LAWS
@given(steps=happenings)
def test_an_unknown_run_is_a_lower_bound_when_a_gap_of_its_partition_reaches_it(open_store, done, steps):
    """For every instant and every position the mark agrees with a walk over the gaps of the log; SQL agrees on now."""
    records, store = log_of(steps), open_store()
    store.write(records)
    found_gaps = [(record, record.event) for record in records if isinstance(record.event, WatchGapFound)]
    nexts = {partition: position.next_offset for partition, position in store.positions().items()}
    positions = [nexts] + [nexts | {record.partition: record.offset} for record, _ in found_gaps]
    view = AUDIT_VIEWS["unknown-duration"]
    with store.reading() as connection:
        for as_of_ms in (None, *range(-1, 600_001, 120_000)):
            for known_at in (None, *positions[:4]):
                for row in view.rows(connection, as_of_ms=as_of_ms, known_at=known_at):
                    node, _, _, since_ms, ended_ms, *_, marked = row
                    reaching = [
                        found
                        for record, found in found_gaps
                        if record.partition == partition_of(node, 4)
                        and found.watched != "leases"
                        and (known_at is None or record.offset < known_at.get(record.partition, 0))
                        and (as_of_ms is None or found.from_ms <= as_of_ms)
                        and found.to_ms >= since_ms
                        and (ended_ms is None or found.from_ms < ended_ms)
                    ]
                    assert int(bool(reaching)) == marked
        result = connection.execute(sa.text(f"SELECT * FROM {view.sql_name}"))
        assert sorted(map(repr, view.rows(connection))) == sorted(repr(tuple(row)) for row in result)
    done(store)


@pytest.mark.case("C20")
def test_c20_the_number_of_open_episodes_is_that_of_the_log_and_of_a_rebuild(open_store):
    """After cycles that ended by return, by hand and with the node, the open ones are two, live and rebuilt from nothing."""
    log, store = History(4), open_store()
    endings = ("returned", "hold_ended", "node_gone", "retracted", None, None)
    for number, outcome in enumerate(endings):
        node = NODES[number % 3]
        device = gpu(node, number)
        fault = log.fact(health(node, device, number, "Unhealthy", rv=number))
        episode = open_episode(device, number)
        log.decide(
            fault,
            custody(QuarantineOpened, node, device, number, "in_service", "quarantined", episode=episode),
        )
        if outcome:
            well = log.fact(health(node, device, 100 + number, "Healthy", rv=100 + number))
            closed = msgspec.structs.replace(episode, closed_at_ms=100 + number, outcome=outcome)
            log.decide(well, released(node, device, 100 + number, "observing", closed))
    store.write(log.records)
    opened = {
        event.record.episode.episode_id for _, event in custody_decisions(log.records) if event.record.episode
    }
    closed = {
        event.closed.episode_id for _, event in custody_decisions(log.records) if hasattr(event, "closed")
    }
    for _ in range(2):
        with store.reading() as connection:
            found = {row[0] for row in AUDIT_VIEWS["open-episodes"].rows(connection)}
        assert opened - closed == found
        assert 2 == len(found)
        for projection in store.projections:
            rebuild(store, projection)
