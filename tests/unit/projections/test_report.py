"""What a report shows of a store: the phases, episodes and decisions that the log holds, with their evidence, and bounded."""

from __future__ import annotations

import pytest
from ledger_scenarios import tell
from log_builder import History, verdict
from log_scenarios import GPU, MINUTE, gpu, storm
from report_logs import HOUR, START_MS, day

from projections import report_ledger, report_marks
from projections.engine import Store
from projections.report import DEVICES_COUNTED, Scope, report
from sickbay.decisions import AlertCleared, AlertRaised, Hold
from sickbay.errors import InputError, NotFoundError
from sickbay.facts import ClaimsGateRequested
from sickbay.report import render

EVERYTHING = Scope()


@pytest.fixture
def page(connection):
    return report(connection, EVERYTHING)


def written(tmp_path, log: History) -> Store:
    store = Store.open(tmp_path / "report.db", create=True, partitions=log.partitions)
    store.write(log.records)
    return store


def device_of(page, node, device_id):
    (found,) = [d for n in page.nodes if n.name == node for d in n.devices if d.device_id == device_id]
    return found


def stretches(phases):
    return [
        (phase.phase, phase.from_ms // MINUTE, None if phase.to_ms is None else phase.to_ms // MINUTE)
        for phase in phases
    ]


def test_a_device_shows_the_phases_of_its_history(page):
    """gpu-0 of node-a failed at minute 10 and came back in steps until minute 60; an extension begins no new bar."""
    assert [
        ("quarantined", 10, 40),
        ("probing", 40, 45),
        ("canary", 45, 50),
        ("observing", 50, 60),
    ] == stretches(device_of(page, "node-a", gpu("node-a", 0)).phases)


def test_a_decision_has_what_it_rests_on(page, history):
    """The opening of the hold names the request that a person made, at its place in the log."""
    (opened,) = [
        m for m in device_of(page, "node-c", gpu("node-c", 0)).marks if m.kind == "quarantine_opened"
    ]
    (asked,) = [r for r in history.records if r.envelope.kind == "hold_requested"]
    assert opened.told_by is not None
    assert (asked.envelope.event_id, asked.partition, asked.offset) == (
        opened.told_by.event_id,
        opened.told_by.partition,
        opened.told_by.offset,
    )
    assert "reason reseat the card, actor boris" in opened.told_by.said
    assert ("custody.quarantined", "policy-hash") == (opened.clause, opened.policy)


def test_evidence_is_decoded_to_what_the_fact_said(tmp_path):
    """The message of the driver is in the evidence of the decision that cites it."""
    with written(tmp_path, day(nodes=1, devices=1, busy_percent=100)) as store, store.reading() as connection:
        page = report(connection, EVERYTHING)
    (device,) = page.nodes[0].devices
    opened = device.marks[0]
    assert "quarantine_opened" == opened.kind
    assert ['default/trainer says Unhealthy: "XID 79: fallen off the bus"'] == [
        f.said for f in opened.evidence
    ]
    assert opened.told_by is None


def test_incidents_breakers_moves_gaps_and_requests_are_in_their_rows(page):
    """Each stands once, with its times in minutes."""
    nodes = {node.name: node for node in page.nodes}
    assert [("plugin_down", 12, 14)] == [
        (bar.label, bar.from_ms // MINUTE, bar.to_ms // MINUTE) for bar in nodes["node-b"].incidents
    ]
    assert [("driver:gpu.example.com", 12, 14)] == [
        (bar.label, bar.from_ms // MINUTE, bar.to_ms // MINUTE) for bar in page.breakers
    ]
    assert ["breaker_opened", "breaker_closed", "breaker_reset_requested"] == [
        mark.kind for mark in page.marks
    ]
    (moved,) = device_of(page, "node-a", gpu("node-a", 0)).moves
    assert (10, 12) == (moved.from_ms // MINUTE, moved.to_ms // MINUTE)
    assert [("pods", 23, 24)] == [
        (gap.label, gap.from_ms // MINUTE, gap.to_ms // MINUTE) for gap in page.gaps
    ]
    assert ["claims_gate_requested"] == [mark.kind for mark in nodes["node-c"].marks]


def test_devices_to_which_nothing_happened_are_quiet(page):
    """gpu-2 of node-a was withdrawn and is not in the list; the other quiet ones are."""
    assert {
        "node-a": (),
        "node-b": (gpu("node-b", 1), gpu("node-b", 2)),
        "node-c": (gpu("node-c", 1), gpu("node-c", 2)),
        "node-d": (gpu("node-d", 0),),
        "node-e": (gpu("node-e", 0),),
    } == {node.name: node.quiet for node in page.nodes}


def test_the_page_is_as_of_its_end(connection):
    """Up to minute 20 the episode of gpu-0 is open, and nothing later is shown."""
    page = report(connection, Scope(until_ms=20 * MINUTE))
    assert [("quarantined", 10, None)] == stretches(device_of(page, "node-a", gpu("node-a", 0)).phases)
    assert {None} == {row.closed_at_ms for row in page.episodes if row.node == "node-a"}
    assert 20 * MINUTE >= max(m.at_ms for node in page.nodes for d in node.devices for m in d.marks)


def test_a_later_beginning_leaves_out_what_ended_before(connection):
    """From minute 35 on the runs of gpu-1 and the incident are over."""
    page = report(connection, Scope(from_ms=35 * MINUTE))
    shown = {(node.name, device.device_id) for node in page.nodes for device in node.devices}
    assert {("node-a", gpu("node-a", 0)), ("node-c", gpu("node-c", 0))} == shown
    assert [] == [bar for node in page.nodes for bar in node.incidents]


def test_a_page_can_be_narrowed_to_a_node(connection):
    page = report(connection, Scope(nodes=("node-c",)))
    assert ["node-c"] == [node.name for node in page.nodes]
    assert ["node-c"] == [row.node for row in page.episodes]


def test_a_page_can_be_narrowed_to_a_device(connection):
    """What concerns its node stays, and the other devices do not."""
    page = report(connection, Scope(devices=(gpu("node-b", 0),)))
    (node,) = page.nodes
    assert ("node-b", (), 1, 1) == (node.name, node.quiet, len(node.devices), len(node.incidents))


def test_a_device_of_which_custody_never_spoke_brings_nothing_of_other_nodes(connection):
    """gpu-2 of node-a was published and withdrawn, and that is all."""
    page = report(connection, Scope(devices=(gpu("node-a", 2),)))
    assert ((), (), ()) == (page.nodes, page.episodes, page.alerts)


@pytest.mark.parametrize(
    ("scope", "problem"),
    [
        (Scope(nodes=("node-z",)), "the store knows no node 'node-z'"),
        (Scope(devices=("dra:x/y/z",)), "the store knows no device 'dra:x/y/z'"),
    ],
)
def test_a_name_that_the_store_does_not_know_is_refused(connection, scope, problem):
    with pytest.raises(NotFoundError, match=problem):
        report(connection, scope)


def test_a_time_that_does_not_run_forward_is_refused(connection):
    with pytest.raises(InputError, match="give --from a time before --until"):
        report(connection, Scope(from_ms=5 * MINUTE, until_ms=5 * MINUTE))


def test_the_head_says_where_the_log_stands(page, store):
    """Positions and chain heads are those of the store."""
    assert {
        partition: (place.next_offset, place.chain_head.hex(), place.newest_ms)
        for partition, place in store.positions().items()
    } == {p.partition: (p.next_offset, p.chain_head, p.newest_ms) for p in page.positions}


def test_what_is_left_out_is_said_and_the_most_telling_stays(tmp_path, monkeypatch):
    """Of a day with room for few decisions, openings and releases are kept before runs of Unknown."""
    monkeypatch.setattr(report_marks, "MARKS_MAX", 30)
    log = day(nodes=4, devices=8, busy_percent=100)
    telling = [r for r in log.records if r.envelope.kind in {"quarantine_opened", "device_released"}]
    with written(tmp_path, log) as store, store.reading() as connection:
        page = report(connection, EVERYTHING)
    marks = [
        mark for node in page.nodes for mark in (*node.marks, *(m for d in node.devices for m in d.marks))
    ]
    assert 30 == len(marks)
    assert {r.envelope.event_id for r in telling} <= {mark.event_id for mark in marks}
    total = dict(page.counts)["decisions and requests"]
    (note,) = page.notes
    assert note.startswith(f"Showing 30 of {total} decisions and requests, ")


def test_the_texts_of_a_page_are_bounded_in_bytes(tmp_path, monkeypatch):
    """However long its messages, a page takes no more than its room."""
    monkeypatch.setattr(report_marks, "BYTES_MAX", 20_000)
    with written(tmp_path, day(nodes=4, devices=8, busy_percent=100)) as store, store.reading() as connection:
        page = report(connection, EVERYTHING)
    assert page.notes
    assert 0 < sum(len(d.marks) for node in page.nodes for d in node.devices) < 30


@pytest.mark.parametrize("busy_percent", [30, 100])
def test_eight_hundred_devices_and_a_day_fit_five_mebibytes(tmp_path, busy_percent):
    """A hundred nodes with eight devices each; with all of them busy too."""
    log = day(nodes=100, devices=8, busy_percent=busy_percent)
    with written(tmp_path, log) as store, store.reading() as connection:
        page = report(connection, EVERYTHING)
    counts = dict(page.counts)
    assert (100, 800, 8 * busy_percent) == tuple(
        counts[name] for name in ("nodes", DEVICES_COUNTED, "devices with events")
    )
    assert START_MS <= page.from_ms < page.until_ms <= START_MS + 26 * HOUR
    assert len(render(page).encode()) < 5 * 1024 * 1024


def test_what_is_asked_of_the_cluster_stands_once(tmp_path):
    """Every partition hears that the gate is closed; it is one request, in a row of its own."""
    log = day(nodes=1, devices=1)
    for partition in range(log.partitions):
        log.fact(
            ClaimsGateRequested(
                node="",
                observed_at_ms=START_MS + HOUR,
                device_id="",
                request_id="g1",
                actor="boris",
                scope="cluster",
                closed=True,
                reason="upgrade",
                partition=partition,
            )
        )
    with written(tmp_path, log) as store, store.reading() as connection:
        page = report(connection, EVERYTHING)
    (asked,) = page.marks
    assert ("claims_gate_requested", "cluster") == (asked.kind, asked.about)
    assert "reason upgrade, actor boris, closed yes" in asked.reason
    assert "asked for <bdi>cluster</bdi>" in render(page)


def test_a_store_of_one_instant_is_still_drawn(tmp_path):
    """Its axis has a width."""
    log = storm(nodes=1, devices=1, rounds=1)
    log.records[:] = log.records[:1]
    with written(tmp_path, log) as store, store.reading() as connection:
        page = report(connection, EVERYTHING)
    assert page.from_ms < page.until_ms
    assert "Nothing happened" in render(page)


# --- the ledger ------------------------------------------------------------------------------------------------------


@pytest.fixture
def books(connection):
    """The nodes of the ledger's scenario, by name."""
    return {node.name: node for node in report(connection, EVERYTHING).ledger}


def minutes(from_ms, to_ms):
    return from_ms // MINUTE, None if to_ms is None else to_ms // MINUTE


def test_balances_of_both_books_stand_beside_each_other(books):
    """8 cores; 500m of the Pod, 1.5005 and half a millicore, or 1501m as recorded. Of 32Gi: 1Gi, and 2Gi or 1Gi."""
    balances = {(b.resource, b.book): (b.supply, b.used, b.free) for b in books["node-d"].balances}
    assert {
        ("cpu", "derived"): ("8", "2001m", "5999m"),
        ("cpu", "recorded"): ("8", "2001m", "5999m"),
        ("memory", "derived"): ("32Gi", "3Gi", "29Gi"),
        ("memory", "recorded"): ("32Gi", "2Gi", "30Gi"),
        (f"{GPU}/node-d:devices", "devices"): ("1", "1", "0"),
        (f"{GPU}/node-d:memory", "devices"): ("80Gi", "0", "80Gi"),
        (f"{GPU}/node-d:set-0/slices", "counters"): ("7", "3500m", "3500m"),
    } == balances
    assert [("cpu", "derived"), ("cpu", "recorded"), ("memory", "derived"), ("memory", "recorded")] == list(
        balances
    )[:4]
    assert 250 == {(b.resource, b.book): b.used_per_mille for b in books["node-d"].balances}["cpu", "derived"]


def test_holds_and_verdicts_have_their_times(books):
    """The driver of node-d restarts from minute 3 to 5; the gate of node-e is closed since minute 7."""
    assert [("driver_rebuilding", f"{GPU}/node-d, the pool is gone", (3, 5))] == [
        (hold.label, hold.detail, minutes(hold.from_ms, hold.to_ms)) for hold in books["node-d"].holds
    ]
    assert [("claims_gate_closed", (7, None))] == [
        (hold.label, minutes(hold.from_ms, hold.to_ms)) for hold in books["node-e"].holds
    ]
    assert [("open", "", 0), ("hold", f"driver_rebuilding {GPU}/node-d", 3), ("open", "", 5)] == [
        (verdict.verdict, verdict.holds, verdict.at_ms // MINUTE) for verdict in books["node-d"].verdicts
    ]


def test_drift_has_its_cause_and_its_amounts(books):
    """Explained on node-d from minute 6 to 8, and by nobody on node-e since minute 8."""
    (explained,) = books["node-d"].drifts
    assert ("mapping_changed", False, (6, 8)) == (
        explained.cause,
        explained.predicted,
        minutes(explained.found_at_ms, explained.cleared_at_ms),
    )
    assert ("cpu 1501m, memory 1Gi", "cpu 1500500u, memory 2Gi") == (explained.recorded, explained.derived)
    (unexplained,) = books["node-e"].drifts
    assert ("unexplained", (8, None)) == (
        unexplained.cause,
        minutes(unexplained.found_at_ms, unexplained.cleared_at_ms),
    )


def test_decisions_of_the_ledger_are_marks_with_what_caused_them(books, history):
    """In words, by the names of claim and Pod, each with the fact that it followed."""
    marks = books["node-d"].marks
    assert [
        ("verdict_changed", 0, ""),
        ("verdict_changed", 3, ""),
        ("duplicate_refused", 4, "team-a/gpus for Pod team-a/spare"),
        ("verdict_changed", 5, ""),
        ("drift_found", 6, "team-a/gpus"),
        ("duplicate_withdrawn", 7, "team-a/gpus for Pod team-a/spare"),
        ("drift_cleared", 8, "team-a/gpus"),
    ] == [(mark.kind, mark.at_ms // MINUTE, mark.about) for mark in marks]
    reasons = {mark.at_ms // MINUTE: mark.reason for mark in marks}
    assert "open: new claims may come" == reasons[5]
    assert (
        f"hold: driver_rebuilding {GPU}/node-d: the driver's slices are gone, or were and are back, and have not settled yet"
        " (the pool is gone)"
    ) == reasons[3]
    assert reasons[4].startswith("cpu 1501m: recorded/claim/uid-gpus counts already")
    assert reasons[6].startswith(
        "mapping_changed: recorded cpu 1501m, memory 1Gi, derived cpu 1500500u, memory 2Gi"
    )
    assert "the two books agree again; it was mapping_changed" == reasons[8]
    places = {(r.partition, r.offset): r for r in history.records}
    for mark in marks:
        cause = places[mark.partition, mark.offset].envelope.causation_id
        assert mark.told_by is not None
        assert cause == mark.told_by.event_id


def test_a_verdict_that_only_names_another_driver_is_no_mark(tmp_path):
    """Neither later nor at the instant of the one before; one more reason at one instant is one."""
    log = History(1)
    gap, stale = Hold(reason="watch_gap", scope="pods", since_ms=1), Hold(reason="slice_stale", since_ms=1)
    for minute, told in (
        (1, (((), ()), ((), ("nic",)))),
        (2, (((), (GPU,)),)),
        (3, (((gap,), (GPU,)), ((gap, stale), (GPU,)))),
    ):
        at_ms = minute * MINUTE
        tell(log, "n", at_ms, *(verdict("n", at_ms, *holds, drivers=drivers) for holds, drivers in told))
    with written(tmp_path, log) as store, store.reading() as connection:
        page = report(connection, EVERYTHING)
    (node,) = page.ledger
    assert [(1, "open"), (3, "hold"), (3, "hold")] == [
        (mark.at_ms // MINUTE, mark.reason.partition(":")[0]) for mark in node.marks
    ]
    assert 3 == dict(page.counts)["decisions and requests"]


def test_the_counts_are_those_of_the_log(connection, history):
    """Nodes count with devices or without; differences and duplicates say how many still stand."""
    counts = dict(report(connection, EVERYTHING).counts)
    assert len({r.event.node for r in history.records if r.event.node}) == counts["nodes"]
    assert (2, 1) == (
        counts["differences between the books (1 standing)"],
        counts["refused duplicates (0 standing)"],
    )
    one = dict(report(connection, Scope(nodes=("node-d",))).counts)
    assert 1 == one["nodes"]


def test_an_alert_shows_why_it_was_raised_and_why_it_was_cleared(tmp_path):
    """What raised it stays, and the page has both."""
    log = History(1)
    named = {"node": "n", "alert_id": "a", "alert": "flapping", "about": "x"}
    tell(log, "n", MINUTE, AlertRaised(at_ms=MINUTE, reason="three faults in an hour", **named))
    tell(log, "n", 2 * MINUTE, AlertCleared(at_ms=2 * MINUTE, reason="quiet for a day", **named))
    with written(tmp_path, log) as store, store.reading() as connection:
        page = report(connection, EVERYTHING)
    (row,) = page.alerts
    assert ("three faults in an hour", "quiet for a day") == (row.reason, row.cleared_reason)
    assert "<bdi>three faults in an hour</bdi></td><td><bdi>quiet for a day</bdi>" in render(page)


def test_refused_duplicates_have_their_contender(books):
    """A second Pod claims the claim's entry in minutes 4 to 7."""
    (refused,) = books["node-d"].refused
    assert ("recorded", "claim/uid-gpus", "uid-spare", "cpu 1501m", (4, 7)) == (
        refused.book,
        refused.entry_key,
        refused.contender,
        refused.amounts,
        minutes(refused.refused_at_ms, refused.withdrawn_at_ms),
    )


def test_the_ledger_is_as_of_the_end_of_the_page(connection):
    """At minute 4 the driver still restarts, and nothing differs yet."""
    (node,) = report(connection, Scope(until_ms=4 * MINUTE, nodes=("node-d",))).ledger
    assert [(3, None)] == [minutes(hold.from_ms, hold.to_ms) for hold in node.holds]
    assert () == node.drifts


def test_a_store_without_a_ledger_gives_none(tmp_path):
    log = storm(nodes=1, devices=1, rounds=2)
    with written(tmp_path, log) as store, store.reading() as connection:
        assert () == report(connection, EVERYTHING).ledger


def test_of_too_many_balances_those_of_nodes_in_trouble_are_kept(connection, monkeypatch):
    """Both nodes have holds here; with room for one row the first one has it, and the page says so."""
    monkeypatch.setattr(report_ledger, "_BALANCES_MAX", 1)
    page = report(connection, EVERYTHING)
    assert 1 == sum(len(node.balances) for node in page.ledger)
    assert ["Showing 1 balances of more, nodes with holds and differences first"] == [
        note.partition(";")[0] for note in page.notes
    ]
