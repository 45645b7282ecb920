"""The alerting rules of ``deploy/monitoring``: they name metrics, labels and commands that exist."""

from __future__ import annotations

import re

import pytest
import yaml
from kustomization import DEPLOY
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from projections.audit import AUDIT_VIEWS
from sickbay.cli import cli
from sickbay.clock import SystemClock
from sickbay.decisions import DECISIONS
from sickbay.facts import FACTS
from sickbay.operations.figure_metrics import FigureMetrics
from sickbay.operations.figures import Figures
from sickbay.operations.metrics import new_registry
from sickbay.operations.respond_metrics import RespondMetrics
from sickbay.operations.stage_metrics import IngestMetrics, ProjectMetrics, WorkMetrics

(GROUP,) = yaml.safe_load((DEPLOY / "monitoring" / "rules.yaml").read_text("utf-8"))["groups"]
RULES = {rule["alert"]: rule for rule in GROUP["rules"]}
METRIC = re.compile(r"\bsickbay_[a-z_]+")


class NoFigures:
    """A store of which nothing is counted."""

    def read(self):
        return Figures


def exported() -> dict[str, set[str]]:
    """Every name that a process of ours exports, and the labels that it has."""
    clock, found = SystemClock(), {}
    for made in (
        IngestMetrics,
        WorkMetrics,
        ProjectMetrics,
        lambda registry, _: RespondMetrics(registry),
        lambda registry, clock: FigureMetrics(registry, NoFigures(), clock),
    ):
        registry = CollectorRegistry(auto_describe=True)
        made(registry, clock)
        for collector, names in registry._collector_to_names.items():
            labels = set(collector._labelnames) if isinstance(collector, MetricWrapperBase) else set()
            found |= dict.fromkeys(names, labels)
    for names in new_registry("ingest")._collector_to_names.values():
        found |= {name: {"process", "version"} for name in names}
    return found


def test_every_metric_of_a_rule_is_exported():
    names = exported()
    assert {"sickbay_work_behind_seconds", "sickbay_work_parked_total", "sickbay_devices"} <= names.keys()
    assert [] == [
        (alert, name)
        for alert, rule in RULES.items()
        for name in METRIC.findall(rule["expr"])
        if name not in names
    ]


def test_every_metric_that_is_chosen_by_a_label_has_it():
    """Gauges that are counted when they are asked for show their label's name only then: phase, cause, scope."""
    names = exported()
    for rule in RULES.values():
        for name, label in re.findall(r"(sickbay_[a-z_]+)\{(\w+)", rule["expr"]):
            assert label in (names[name] or {"phase", "cause"}), rule["alert"]


def test_kinds_phases_and_causes_are_those_of_the_code():
    chosen = {
        (label, value)
        for rule in RULES.values()
        for label, values in re.findall(r'(kind|phase|cause)=~?"([^"]+)"', rule["expr"])
        for value in values.split("|")
    }
    kinds = {kind.KIND for kind in (*DECISIONS, *FACTS)}
    assert {value for label, value in chosen if label == "kind"} <= kinds
    assert {value for label, value in chosen if label == "phase"} == {"suspect", "restricted"}
    assert {value for label, value in chosen if label == "cause"} == {"unexplained"}


@pytest.mark.parametrize("alert", RULES)
def test_a_rule_says_how_bad_it_is_what_is_wrong_and_what_to_do(alert):
    rule = RULES[alert]
    assert alert.startswith("Sickbay")
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert {"summary", "remedy"} == rule["annotations"].keys()
    assert rule["expr"].count("(") == rule["expr"].count(")")
    for command in re.findall(r"`sickbay ([a-z-]+)(?: ([a-z-]+))?", rule["annotations"]["remedy"]):
        assert command[0] in cli.list_commands(None)
        if command[0] == "audit" and command[1]:
            assert command[1] in AUDIT_VIEWS


def test_each_way_in_which_sickbay_fails_has_its_rule():
    assert {
        "SickbayWatchSilent", "SickbayNobodyWatches", "SickbayWorkBehind", "SickbayViewStale", "SickbayParked",
        "SickbayBreakerOpen", "SickbayUnknownStorm", "SickbayQuarantineReviewDue", "SickbayLedgerDrift",
        "SickbayResponderFailing", "SickbayResponderIdle",
    } == RULES.keys()  # fmt: skip
