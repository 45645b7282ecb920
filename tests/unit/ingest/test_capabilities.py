"""What a cluster can tell, judged: nothing is guessed, and what is missing is named with its consequence."""

from __future__ import annotations

import pytest

from ingest.capabilities import (
    EXCESS,
    NEEDED,
    judge_access,
    judge_apis,
    judge_gates,
    judge_nodes,
    judge_version,
    read_gates,
)

METRICS = """\
# HELP kubernetes_feature_enabled [BETA] whether
# TYPE kubernetes_feature_enabled gauge
kubernetes_feature_enabled{name="DRADeviceTaints",stage="BETA"} 1
kubernetes_feature_enabled{name="DRANodeAllocatableResources",stage="ALPHA"} 0
kubernetes_feature_enabled{name="DRAAdminAccess",stage=""} 1
kubernetes_feature_enabled_total{name="Other",stage=""} 1
"""


def states(findings):
    return {finding.name: finding.state for finding in findings}


def test_gates_are_read_from_the_metrics_and_nothing_else_is():
    assert read_gates(METRICS) == {
        "DRADeviceTaints": True,
        "DRANodeAllocatableResources": False,
        "DRAAdminAccess": True,
    }


def test_a_gate_that_is_off_or_unknown_to_the_server_names_what_will_be_missing():
    found = {finding.name: finding for finding in judge_gates(read_gates(METRICS))}
    assert found["DRADeviceTaints"].state == "ok"
    assert not found["DRADeviceTaints"].means
    assert found["DRANodeAllocatableResources"].state == "off"
    assert "does not count" in found["DRANodeAllocatableResources"].means
    assert (found["ResourceHealthStatus"].state, found["ResourceHealthStatus"].found) == (
        "off",
        "not known to this server",
    )


def test_gates_that_cannot_be_read_are_unknown_and_never_off():
    found = list(judge_gates(None, "403 Forbidden"))
    assert {finding.state for finding in found} == {"unknown"}
    assert all("403 Forbidden" in finding.means for finding in found)


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("v1.36.3", "ok"),
        ("v1.37.0-rc.1", "ok"),
        ("v1.35.9", "unknown"),
        ("v1.38.0", "unknown"),
        (None, "unknown"),
    ],
)
def test_a_version_that_was_not_tested_says_so(version, state):
    assert judge_version({"gitVersion": version}).state == state


@pytest.mark.parametrize(
    ("served", "rules", "wanted"),
    [
        (["v1", "v1beta2"], ["v1beta2"], ("ok", "ok")),
        (["v1"], [], ("ok", "off")),
        (["v1beta1"], [], ("off", "off")),
        ([], [], ("off", "off")),
    ],
)
def test_of_the_versions_that_are_served_the_best_is_named(served, rules, wanted):
    assert wanted == tuple(finding.state for finding in judge_apis(served, rules))


@pytest.mark.parametrize(
    ("gate", "declared", "state"),
    [(True, 2, "ok"), (True, 1, "off"), (False, 1, "ok"), (None, 0, "unknown"), (None, 2, "ok")],
)
def test_kubelets_that_do_not_declare_the_feature_are_counted_where_the_gate_is_on(gate, declared, state):
    nodes = [{"status": {"declaredFeatures": ["DRANodeAllocatableResources"]}}] * declared
    nodes += [{"status": {}}, {}][: 2 - declared]
    gates = None if gate is None else {"DRANodeAllocatableResources": gate}
    found = judge_nodes(nodes, gates, more=False)
    assert (found.state, found.found[:6]) == (state, f"{declared} of 2")


def test_nodes_that_could_not_be_listed_are_unknown():
    assert judge_nodes(None, {"DRANodeAllocatableResources": True}).state == "unknown"


def test_what_is_needed_and_denied_failed_and_what_is_allowed_and_not_needed_is_excess():
    needed = judge_access({NEEDED[0]: True, NEEDED[1]: False, NEEDED[2]: None}, needed=True)
    assert list(states(needed).values()) == ["ok", "failed", "unknown"]
    excess = list(judge_access({EXCESS[0]: True, EXCESS[1]: False}, needed=False))
    assert [(finding.name, finding.state) for finding in excess] == [("list secrets", "excess")]
