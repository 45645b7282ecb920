"""The figures are those of the audit views, on each database."""

from __future__ import annotations

from collections import Counter

from databases import DATABASES, places
from log_builder import History

from projections.audit import audit_view
from projections.engine import Store
from projections.figures import StoreFigures
from sickbay.decisions import BreakerClosed, BreakerOpened
from sickbay.facts import Tick
from sickbay.operations.figures import ReadModelFigures
from sickbay.operations.measures import Measures


def rows(connection, name):
    view = audit_view(name)
    return [dict(zip(view.columns, row, strict=True)) for row in view.rows(connection)]


def test_figures_agree_with_the_audit_views(store, connection) -> None:
    counting: ReadModelFigures = StoreFigures(store)
    found = counting.read()
    assert found.episodes_open == Counter(row["phase"] for row in rows(connection, "open-episodes"))
    assert found.devices == Counter(row["phase"] for row in rows(connection, "devices"))
    assert found.nodes_on_hold == sum(row["verdict"] == "hold" for row in rows(connection, "ledger-verdicts"))
    standing = [row for row in rows(connection, "ledger-drift") if row["ended_at_ms"] is None]
    assert found.drifts_standing == Counter(row["cause"] for row in standing)
    gaps = {(row["watched"], row["from_ms"]) for row in rows(connection, "watch-gaps")}
    assert found.watch_gaps == Counter(watched for watched, _ in gaps)
    assert found.newest_ms == max(position.newest_ms for position in store.positions().values())


def test_the_history_has_something_of_everything(store) -> None:
    """Figures that are all 0 would agree with anything."""
    found = StoreFigures(store).read()
    assert found.episodes_open
    assert found.devices
    assert found.nodes_on_hold > 0
    assert found.drifts_standing
    assert found.watch_gaps


def test_measures_agree_with_the_log(store) -> None:
    """The small history: read off what log_scenarios and ledger_scenarios say happened; the newest event is that of minute 70."""
    found = StoreFigures(store).read().measures
    driver = "gpu.example.com"
    assert {(driver,): 2} == found.quarantines_closed
    assert {(driver, "absorbed"): 1, (driver, "retracted"): 0, (driver, "unconfirmed"): 0} == (
        found.quarantines_false
    )
    assert {(driver, "done"): 1} == found.moves
    assert 2_000 == found.time_to_quarantine_ms["applied", "1"]
    assert 32_000 == found.time_to_quarantine_ms["confirmed", "0.5"]
    assert 0 == found.time_to_quarantine_ms["decision", "1"]
    assert 10 * 60_000 == found.idle_ms[driver, "observing"]
    assert {("memory", "unexplained"): 2**30} == found.ledger_difference
    assert {("claims_gate_closed",): 1} == found.holds_standing
    assert ({("recorded",): 1}, {}) == (found.duplicates_refused, found.duplicates_standing)
    assert {("numa_spanned",): 1} == found.numa_failures == found.numa_failures_standing
    assert {} == found.exclusions
    assert {} == found.unknown_duration_ms
    assert found.status_age_ms[driver, "0.5"] <= found.status_age_ms[driver, "1"]
    assert {(driver, "0.5"), (driver, "0.9"), (driver, "0.99"), (driver, "1")} == found.mapping_age_ms.keys()


def test_a_breaker_is_open_until_it_closed(tmp_path) -> None:
    why = {"node": ""}
    for kind in DATABASES:
        log = History(4)
        cause = log.fact(Tick(node="", partition=1, observed_at_ms=1_000))
        counts = {"adverse": 5, "known": 10, "threshold": 4}
        opened = [BreakerOpened(at_ms=1_000, scope=f"driver:{name}", **counts, **why) for name in "ab"]
        log.decide(cause, *opened)
        cause = log.fact(Tick(node="", partition=1, observed_at_ms=2_000))
        log.decide(cause, BreakerClosed(at_ms=2_000, scope="driver:a", opened_at_ms=1_000, **why))
        with (
            places(kind, tmp_path) as place,
            Store.open(place("breaker"), create=True, partitions=4) as store,
        ):
            store.write(log.records)
            assert StoreFigures(store).read().breakers_open == {"driver:b"}


def test_an_empty_store_has_no_figures(tmp_path) -> None:
    for kind in DATABASES:
        with (
            places(kind, tmp_path) as place,
            Store.open(place("empty"), create=True, partitions=4) as opened,
        ):
            found = StoreFigures(opened).read()
        assert ({}, {}, 0, {}, {}, frozenset(), None, Measures()) == found
