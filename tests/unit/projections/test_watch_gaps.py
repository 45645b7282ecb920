"""Watch gaps in the read models, and the durations that they make lower bounds."""

from __future__ import annotations

import pytest
from log_builder import History, custody, health
from log_scenarios import MINUTE, gpu
from sqlalchemy import text

from projections.audit import AUDIT_VIEWS
from projections.engine import CUSTODY, Store
from projections.rebuild import rebuild
from sickbay.decisions import DeviceCleared, DeviceSuspected
from sickbay.envelope import partition_of
from sickbay.facts import Tick

NODE, DEVICE = "node-a", gpu("node-a", 0)
BEGAN, ENDED = 20 * MINUTE, 30 * MINUTE


def unknown(log, *, node=NODE, at_ms=BEGAN):
    fact = log.fact(health(node, gpu(node, 0), at_ms, "Unknown", rv=at_ms))
    log.decide(
        fact,
        custody(DeviceSuspected, node, gpu(node, 0), at_ms, "in_service", "suspect", unknown_since_ms=at_ms),
    )


def known(log, *, node=NODE, at_ms=ENDED):
    fact = log.fact(health(node, gpu(node, 0), at_ms, "Healthy", rv=at_ms))
    log.decide(fact, custody(DeviceCleared, node, gpu(node, 0), at_ms, "suspect", "in_service"))


@pytest.fixture
def written(tmp_path):
    """Writes a log and gives the store, closed after the test."""
    opened = []

    def write(log):
        store = Store.open(tmp_path / f"gaps-{len(opened)}.db", create=True, partitions=log.partitions)
        opened.append(store)
        store.write(log.records)
        return store

    yield write
    for store in opened:
        store.close()


def runs(store, **moment):
    """Return ``(node, ended_ms, duration_ms, lower_bound)`` of every Unknown run; for now, SQL must say the same."""
    view = AUDIT_VIEWS["unknown-duration"]
    wanted = [view.columns.index(name) for name in ("node", "ended_ms", "duration_ms", "lower_bound")]
    with store.reading() as connection:
        rows = list(view.rows(connection, **moment))
        if not moment:
            assert sorted(rows) == sorted(
                map(tuple, connection.execute(text("SELECT * FROM audit_unknown_duration")))
            )
    return [tuple(row[place] for place in wanted) for row in rows]


def gap_rows(store, **moment):
    with store.reading() as connection:
        return list(AUDIT_VIEWS["watch-gaps"].rows(connection, **moment))


@pytest.mark.case("C18")
def test_c18_a_duration_across_a_gap_is_a_lower_bound(written):
    """Position 9000 expired and the next list is of 20000: the run that lasted through it is marked, the one after it is not."""
    log = History(2)
    unknown(log)
    log.gap("pods", 22 * MINUTE, 25 * MINUTE, from_rv=9_000, to_rv=20_000)
    known(log)
    unknown(log, at_ms=40 * MINUTE)
    known(log, at_ms=43 * MINUTE)
    store = written(log)

    assert [(NODE, ENDED, 10 * MINUTE, 1), (NODE, 43 * MINUTE, 3 * MINUTE, 0)] == runs(store)
    assert [("pods", 22 * MINUTE, 25 * MINUTE, "9000", "20000", partition) for partition in range(2)] == [
        row[:6] for row in gap_rows(store)
    ]


@pytest.mark.parametrize(
    ("from_ms", "to_ms", "expected"),
    [
        pytest.param(BEGAN - 2, BEGAN - 1, 0, id="before"),
        pytest.param(BEGAN - 2, BEGAN, 1, id="the list that ended it found the device Unknown"),
        pytest.param(BEGAN - 2, BEGAN + 1, 1, id="over the beginning"),
        pytest.param(BEGAN + 1, BEGAN + 2, 1, id="inside"),
        pytest.param(BEGAN - 1, ENDED + 1, 1, id="around"),
        pytest.param(ENDED - 1, ENDED, 1, id="the list that ended it found the device known"),
        pytest.param(ENDED - 1, ENDED + 1, 1, id="over the end"),
        pytest.param(ENDED, ENDED + 1, 0, id="what was heard last ended the run"),
        pytest.param(ENDED + 1, ENDED + 2, 0, id="after"),
    ],
)
def test_a_gap_counts_when_it_hides_a_part_of_the_run_or_its_beginning(written, from_ms, to_ms, expected):
    """The run is half-open like every interval; where it begins with the end of the gap its true beginning was not seen."""
    log = History(1)
    unknown(log)
    known(log)
    log.gap("pods", from_ms, to_ms)
    assert [(NODE, ENDED, 10 * MINUTE, expected)] == runs(written(log))


@pytest.mark.parametrize(
    ("watched", "expected"),
    [("pods", 1), ("resourceslices", 1), ("nodes", 1), ("leases", 0), ("resourceclaims", 0)],
)
def test_only_what_health_is_seen_through_counts(written, watched, expected):
    """Every gap is recorded; a silence of Leases or claims hides no word about a device."""
    log = History(1)
    unknown(log)
    log.gap(watched, 22 * MINUTE, 25 * MINUTE)
    known(log)
    store = written(log)
    assert [(NODE, ENDED, 10 * MINUTE, expected)] == runs(store)
    assert [watched] == [row[0] for row in gap_rows(store)]


def test_a_gap_concerns_the_nodes_of_its_partition(written):
    """A gap that only one partition heard of marks no run of another."""
    nodes = {partition_of(f"node-{number}", 2): f"node-{number}" for number in range(20)}
    log = History(2)
    for node in nodes.values():
        unknown(log, node=node)
    log.partitions = 1
    log.gap("pods", 22 * MINUTE, 25 * MINUTE)
    log.partitions = 2
    for node in nodes.values():
        known(log, node=node)
    assert sorted([(nodes[0], ENDED, 10 * MINUTE, 1), (nodes[1], ENDED, 10 * MINUTE, 0)]) == runs(
        written(log)
    )


def test_a_run_that_goes_on_is_a_lower_bound_after_a_gap(written):
    """An open run has no end that a gap could lie behind."""
    log = History(1)
    unknown(log)
    log.gap("nodes", 22 * MINUTE, 25 * MINUTE)
    log.fact(Tick(node="", partition=0, observed_at_ms=26 * MINUTE))
    assert [(NODE, None, 6 * MINUTE, 1)] == runs(written(log))


def test_as_of_an_instant_a_gap_is_there_from_its_beginning_on(written):
    """Before it began the duration was exact; inside it the gap has no end and no version that ended it."""
    log = History(1)
    unknown(log)
    log.gap("pods", 22 * MINUTE, 25 * MINUTE)
    known(log)
    store = written(log)
    for minute, bound, gaps in (
        (21, 0, []),
        (22, 1, [("pods", 22 * MINUTE, None, "9000", None)]),
        (24, 1, [("pods", 22 * MINUTE, None, "9000", None)]),
        (25, 1, [("pods", 22 * MINUTE, 25 * MINUTE, "9000", "20000")]),
    ):
        as_of_ms = minute * MINUTE
        assert [(NODE, None, as_of_ms - BEGAN, bound)] == runs(store, as_of_ms=as_of_ms)
        assert gaps == [row[:5] for row in gap_rows(store, as_of_ms=as_of_ms)]


def test_at_a_known_position_a_gap_is_there_once_it_was_written(written):
    """What came after the position marks nothing, though it is earlier in time."""
    log = History(1)
    unknown(log)
    known(log)
    log.gap("pods", 22 * MINUTE, 25 * MINUTE)
    store, written_at = written(log), log.records[-1].offset
    for position, bound in ((written_at, 0), (written_at + 1, 1)):
        assert [(NODE, ENDED, 10 * MINUTE, bound)] == runs(store, known_at={0: position})
        assert bound == len(gap_rows(store, known_at={0: position}))
    assert [(NODE, None, 4 * MINUTE, 0)] == runs(store, known_at={0: written_at}, as_of_ms=24 * MINUTE)


def test_a_rebuild_knows_the_gaps(written):
    """The rebuilt rows equal the live ones, and the views read them alone."""
    log = History(2)
    unknown(log)
    log.gap("pods", 22 * MINUTE, 25 * MINUTE)
    store = written(log)
    before = (runs(store), gap_rows(store))
    assert [] == rebuild(store, CUSTODY).differing
    assert before == (runs(store), gap_rows(store))


def test_versions_that_no_integer_column_holds_are_kept(written):
    """resourceVersions are text, whatever their size."""
    log = History(1)
    log.gap("pods", 1, 2, from_rv=2**63 - 1, to_rv=2**64 - 1)
    ((*_, from_rv, to_rv, _, _),) = gap_rows(written(log))
    assert (str(2**63 - 1), str(2**64 - 1)) == (from_rv, to_rv)
