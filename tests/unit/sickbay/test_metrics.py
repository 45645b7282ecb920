"""Metrics follow the rules of Prometheus, tell what they say, and stay small whatever comes."""

from __future__ import annotations

import re
import threading

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from sickbay.errors import StoreError
from sickbay.operations.figure_metrics import FigureMetrics
from sickbay.operations.figures import Figures
from sickbay.operations.measures import Measures
from sickbay.operations.metrics import LABEL_VALUES_MAX, Bounded, Positions, exposition, new_registry
from sickbay.operations.stage_metrics import IngestMetrics, ProjectMetrics, WorkMetrics


class Hand:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry(auto_describe=True)


def value(registry, name, **labels):
    return registry.get_sample_value(name, labels)


def series(registry) -> int:
    return sum(len(family.samples) for family in registry.collect())


# --- the rules ---


def everything(clock) -> CollectorRegistry:
    """A registry with every metric of ours in it, each with a value."""
    registry = new_registry("work")
    ingest, work = IngestMetrics(registry, clock), WorkMetrics(registry, clock)
    project = ProjectMetrics(registry, clock)
    ingest.read("pods")
    ingest.published("device_published")
    ingest.relisted("pods")
    ingest.leads(3)
    for positions in (work.positions, project.positions):
        positions.assigned({0: 0})
        positions.saw_end(0, 1)
        positions.moved(0, 1, clock.now_ms())
    work.answered("taken", {"tick": 1}, {"alert_raised": 1})
    work.snapshotted(0)
    work.breaker("cluster", waiting=None)
    project.wrote(1, 0.01)
    FigureMetrics(registry, Counting(FIGURES), clock).refresh()
    return registry


def test_names_and_helps_follow_the_rules_of_prometheus(clock) -> None:
    families = [f for f in everything(clock).collect() if f.name.startswith("sickbay_")]
    assert len(families) > 30
    for family in families:
        assert re.fullmatch(r"sickbay_[a-z]+(_[a-z]+)*", family.name)
        assert family.documentation.endswith(".")
        assert not re.search(r"_(ms|milliseconds|minutes|hours|count|sum)$", family.name)
        for unit in ("seconds", "bytes"):
            assert unit not in family.name.removesuffix(unit)
        labels = {name for sample in family.samples for name in sample.labels}
        assert labels <= {
            "partition", "resource", "kind", "outcome", "phase", "scope", "cause", "le", "version", "process", "driver",
            "quantile", "why", "until", "reason", "book", "alert", "state",
        }  # fmt: skip
        assert family.samples


def test_what_is_served_can_be_read_by_prometheus(clock) -> None:
    body, _ = exposition(everything(clock))
    names = {family.name for family in text_string_to_metric_families(body.decode())}
    assert {"sickbay_build_info", "process_cpu_seconds", "sickbay_view_staleness_seconds"} <= names


def test_two_processes_in_one_program_do_not_meet() -> None:
    first, second = new_registry("ingest"), new_registry("work")
    assert value(first, "sickbay_build_info", process="work", version="0.1.0") is None
    assert [
        s.labels["process"] for f in second.collect() if f.name == "sickbay_build" for s in f.samples
    ] == ["work"]


def test_a_million_values_make_a_bounded_number_of_series(registry, clock) -> None:
    """Device ids where a kind should be, X5."""
    metrics = IngestMetrics(registry, clock)
    for number in range(100_000):
        metrics.published(f"dra:gpu.example.com/node-{number}/gpu-{number}", 10)
    assert value(registry, "sickbay_ingest_facts_total", kind="other") == 10 * (100_000 - LABEL_VALUES_MAX)
    assert series(registry) < 3 * LABEL_VALUES_MAX


@pytest.mark.parametrize(
    "fill",
    [
        lambda ingest, _work, text: ingest.heard(text),
        lambda ingest, _work, text: ingest.relisted(text),
        lambda _ingest, work, text: work.breaker(text, waiting=1),
        lambda _ingest, work, text: work.answered(text, {text: 1}, {text: 1}),
    ],
)
def test_no_label_can_grow(registry, clock, fill) -> None:
    ingest, work = IngestMetrics(registry, clock), WorkMetrics(registry, clock)
    for number in range(1_000):
        fill(ingest, work, f"value-{number}")
    assert series(registry) < 8 * LABEL_VALUES_MAX


def test_a_label_shows_no_control_character_and_no_endless_text() -> None:
    bounded = Bounded(2)
    assert bounded("a\nb\x1b\u202e") == "a\\nb\\x1b\\u202e"
    assert len(bounded("x" * 10_000)) == 100
    assert bounded("third") == "other"
    assert bounded("a\nb\x1b\u202e") == "a\\nb\\x1b\\u202e"


# --- positions ---


def test_lag_compares_the_position_with_the_end_that_was_seen(registry, clock) -> None:
    positions = Positions(registry, "sickbay_work", clock)
    positions.assigned({0: 100, 3: 5})
    positions.saw_end(0, 150)
    positions.moved(0, 120, clock.ms - 4_000)
    clock.ms += 1_000
    assert value(registry, "sickbay_work_position_offset", partition="0") == 120
    assert value(registry, "sickbay_work_lag_records", partition="0") == 30
    assert value(registry, "sickbay_work_event_time_lag_seconds", partition="0") == 5
    assert value(registry, "sickbay_work_end_age_seconds", partition="0") == 1
    assert value(registry, "sickbay_work_position_offset", partition="3") == 5
    assert value(registry, "sickbay_work_event_time_lag_seconds", partition="3") is None
    assert positions.lag_records(0) == 30


def test_at_the_end_nothing_lags_however_old_the_newest_event_is(registry, clock) -> None:
    positions = Positions(registry, "sickbay_work", clock)
    positions.assigned({0: 0})
    positions.moved(0, 10, clock.ms - 3_600_000)
    positions.saw_end(0, 10)
    assert value(registry, "sickbay_work_lag_records", partition="0") == 0
    assert value(registry, "sickbay_work_event_time_lag_seconds", partition="0") == 0
    assert positions.behind_ms() == 0


def test_the_partition_furthest_behind_says_how_stale_all_is(registry, clock) -> None:
    positions = Positions(registry, "sickbay_project", clock)
    positions.assigned({0: 0, 1: 0})
    positions.saw_end(0, 0)
    positions.saw_end(1, 7)
    clock.ms += 10_000
    positions.saw_end(0, 0)
    positions.saw_end(1, 9)
    assert positions.behind_ms() == 10_000
    positions.moved(1, 9, clock.ms)
    assert positions.behind_ms() == 0
    clock.ms += 60_000
    assert positions.behind_ms() == 60_000, "no end was seen: nobody knows what came since"


def test_handling_what_was_seen_long_ago_makes_nothing_fresh(registry, clock) -> None:
    positions = Positions(registry, "sickbay_project", clock)
    positions.assigned({0: 0})
    positions.saw_end(0, 5)
    clock.ms += 30_000
    positions.moved(0, 5, clock.ms)
    assert positions.behind_ms() == 30_000


def test_a_partition_that_went_elsewhere_is_forgotten(registry, clock) -> None:
    positions = Positions(registry, "sickbay_work", clock)
    positions.assigned({0: 0, 1: 0})
    positions.moved(0, 5, clock.ms)
    positions.saw_end(1, 100)
    clock.ms += 50_000
    positions.assigned({0: 3})
    positions.moved(1, 7, clock.ms)
    positions.saw_end(1, 200)
    positions.saw_end(0, 5)
    assert value(registry, "sickbay_work_position_offset", partition="1") is None
    assert value(registry, "sickbay_work_position_offset", partition="0") == 5, "what is held goes on"
    assert positions.behind_ms() == 0
    positions.assigned({})
    clock.ms += 50_000
    assert positions.behind_ms() == 0


def test_a_scrape_meets_no_half_of_a_rebalance(registry, clock) -> None:
    positions = Positions(registry, "sickbay_work", clock)
    done = threading.Event()

    def rebalance() -> None:
        while not done.is_set():
            positions.assigned(dict.fromkeys(range(64), 0))
            for partition in range(64):
                positions.saw_end(partition, 5)
                positions.moved(partition, 5, clock.ms)
            positions.assigned({})

    thread = threading.Thread(target=rebalance)
    thread.start()
    try:
        for _ in range(200):
            assert 0 <= series(registry) <= 5 * 64
            positions.behind_ms()
    finally:
        done.set()
        thread.join()


# --- stages ---


def test_ingest_tells_what_it_read_and_how_long_ago(registry, clock) -> None:
    metrics, waiting = IngestMetrics(registry, clock), [3]
    metrics.read("pods", 5)
    metrics.heard("nodes")
    clock.ms += 2_000
    metrics.heard("nodes")
    metrics.published("tick", 2)
    metrics.parked()
    metrics.relisted("pods")
    metrics.count_waiting(lambda: waiting[0])
    metrics.leads(7)
    waiting[0] = 4
    assert value(registry, "sickbay_ingest_frames_total", resource="pods") == 5
    assert value(registry, "sickbay_ingest_watch_age_seconds", resource="pods") == 2
    assert value(registry, "sickbay_ingest_watch_age_seconds", resource="nodes") == 0
    assert value(registry, "sickbay_ingest_facts_total", kind="tick") == 2
    assert value(registry, "sickbay_ingest_parked_total") == 1
    assert value(registry, "sickbay_ingest_relists_total", resource="pods") == 1
    assert value(registry, "sickbay_ingest_waiting_facts") == 4
    assert (value(registry, "sickbay_ingest_leader"), value(registry, "sickbay_ingest_epoch")) == (1, 7)
    metrics.leads(None)
    assert value(registry, "sickbay_ingest_leader") == 0


def test_work_tells_what_became_of_records_and_how_long_it_took(registry, clock) -> None:
    metrics = WorkMetrics(registry, clock)
    metrics.answered("taken", {"tick": 1, "device_published": 3}, {"alert_raised": 2})
    metrics.answered("parked", {}, {})
    metrics.parked()
    metrics.decided(clock.ms - 400)
    metrics.decided(clock.ms + 5_000)  # the broker's clock is ahead
    metrics.breaker("cluster", waiting=7)
    metrics.snapshotted(2, clock.ms - 9_000)
    metrics.snapshotted(3)
    metrics.revoked(3)
    assert value(registry, "sickbay_work_records_total", outcome="taken") == 1
    assert value(registry, "sickbay_work_facts_total", kind="device_published") == 3
    assert value(registry, "sickbay_work_decisions_total", kind="alert_raised") == 2
    assert value(registry, "sickbay_work_parked_total") == 1
    assert value(registry, "sickbay_work_decision_latency_seconds_count") == 2
    assert value(registry, "sickbay_work_decision_latency_seconds_sum") == pytest.approx(0.4)
    assert value(registry, "sickbay_work_decision_latency_seconds_bucket", le="0.3") == 1
    assert value(registry, "sickbay_work_breaker_open", scope="cluster") == 1
    assert value(registry, "sickbay_work_breaker_waiting_devices", scope="cluster") == 7
    metrics.breaker("cluster", waiting=None)
    assert value(registry, "sickbay_work_breaker_open", scope="cluster") == 0
    assert value(registry, "sickbay_work_breaker_waiting_devices", scope="cluster") == 0
    assert value(registry, "sickbay_work_snapshot_age_seconds", partition="2") == 9
    assert value(registry, "sickbay_work_snapshot_age_seconds", partition="3") is None


def test_project_tells_what_it_wrote_and_how_stale_the_view_is(registry, clock) -> None:
    metrics = ProjectMetrics(registry, clock)
    assert value(registry, "sickbay_project_write_age_seconds") is None
    metrics.wrote(40, 0.2)
    metrics.parked()
    metrics.positions.assigned({0: 0})
    clock.ms += 6_000
    assert value(registry, "sickbay_project_events_total") == 40
    assert value(registry, "sickbay_project_batch_seconds_sum") == pytest.approx(0.2)
    assert value(registry, "sickbay_project_write_age_seconds") == 6
    assert value(registry, "sickbay_project_parked_total") == 1
    assert value(registry, "sickbay_view_staleness_seconds") == 6


# --- figures of the read model ---

FIGURES = Figures(
    episodes_open={"quarantined": 2, "canary": 1},
    devices={"in_service": 9},
    nodes_on_hold=4,
    drifts_standing={"not_counted": 1},
    watch_gaps={"pods": 2},
    breakers_open=frozenset({"cluster"}),
    newest_ms=1_500,
    measures=Measures(
        status_age_ms={("a", "1"): 1},
        unknown_duration_ms={("a", "1"): 1},
        quarantines_closed={("a",): 1},
        quarantines_false={("a", "absorbed"): 1},
        time_to_quarantine_ms={("decision", "1"): 1},
        moves={("a", "done"): 1},
        idle_ms={("a", "quarantined"): 1},
        ledger_difference={("cpu", "unexplained"): 1},
        mapping_age_ms={("a", "1"): 1},
        holds_standing={("drift",): 1},
        duplicates_refused={("recorded",): 1},
        duplicates_standing={("recorded",): 1},
        numa_failures={("numa_missed",): 1},
        numa_failures_standing={("numa_missed",): 1},
        exclusions={("applied",): 1},
    ),
)


class Counting:
    def __init__(self, *answers: Figures | Exception) -> None:
        self.answers = list(answers)

    def read(self) -> Figures:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_figures_are_shown_with_their_age(registry, clock) -> None:
    metrics = FigureMetrics(registry, Counting(FIGURES), clock)
    assert metrics.problem() == "the read model was not counted yet"
    assert value(registry, "sickbay_nodes_on_hold") is None
    metrics.refresh()
    clock.ms += 3_000
    assert metrics.problem() is None
    assert value(registry, "sickbay_episodes_open", phase="quarantined") == 2
    assert value(registry, "sickbay_devices", phase="in_service") == 9
    assert value(registry, "sickbay_nodes_on_hold") == 4
    assert value(registry, "sickbay_drifts_standing", cause="not_counted") == 1
    assert value(registry, "sickbay_watch_gaps", resource="pods") == 2
    assert value(registry, "sickbay_breaker_open", scope="cluster") == 1
    assert value(registry, "sickbay_view_newest_event_timestamp_seconds") == 1.5
    assert value(registry, "sickbay_figures_age_seconds") == 3


def test_measures_are_shown_in_base_units_under_their_labels(registry, clock) -> None:
    """Milliseconds become seconds; what is counted stays."""
    measured = Measures(
        status_age_ms={("a", "0.5"): 1_500, ("a", "1"): 9_000},
        moves={("a", "done"): 3, ("a", "failed"): 1},
        ledger_difference={("cpu", "unexplained"): 0.5},
    )
    FigureMetrics(registry, Counting(FIGURES._replace(measures=measured)), clock).refresh()
    assert value(registry, "sickbay_status_age_seconds", driver="a", quantile="0.5") == 1.5
    assert value(registry, "sickbay_status_age_seconds", driver="a", quantile="1") == 9
    assert value(registry, "sickbay_moves", driver="a", outcome="done") == 3
    assert value(registry, "sickbay_ledger_difference", resource="cpu", cause="unexplained") == 0.5


def test_drivers_beyond_the_bound_are_added_up_and_of_quantiles_the_greatest_counts(registry, clock) -> None:
    """However many drivers there are, the series stay few."""
    names = [f"d{number}" for number in range(LABEL_VALUES_MAX + 3)]
    measured = Measures(
        idle_ms={(name, "quarantined"): 1_000 for name in names},
        mapping_age_ms={(name, "1"): 1_000 * number for number, name in enumerate(names)},
    )
    FigureMetrics(registry, Counting(FIGURES._replace(measures=measured)), clock).refresh()
    assert value(registry, "sickbay_idle_device_seconds", driver="other", phase="quarantined") == 3
    assert value(registry, "sickbay_mapping_age_seconds", driver="other", quantile="1") == len(names) - 1


def test_a_counting_that_fails_keeps_the_figures_and_says_so(registry, clock) -> None:
    changed = FIGURES._replace(nodes_on_hold=5, newest_ms=None)
    metrics = FigureMetrics(registry, Counting(FIGURES, StoreError("no connection"), changed), clock)
    metrics.refresh()
    clock.ms += 3_000
    metrics.refresh()
    assert metrics.problem() == "no connection"
    assert value(registry, "sickbay_nodes_on_hold") == 4
    assert value(registry, "sickbay_figures_age_seconds") == 3
    metrics.refresh()
    assert metrics.problem() is None
    assert value(registry, "sickbay_nodes_on_hold") == 5
    assert value(registry, "sickbay_view_newest_event_timestamp_seconds") is None


def test_figures_of_many_values_are_summed(registry, clock) -> None:
    many = FIGURES._replace(watch_gaps={f"r{number}": 1 for number in range(500)})
    FigureMetrics(registry, Counting(many), clock).refresh()
    assert value(registry, "sickbay_watch_gaps", resource="other") == 500 - LABEL_VALUES_MAX
    assert series(registry) < 2 * LABEL_VALUES_MAX
