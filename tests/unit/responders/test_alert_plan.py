"""Which alerts stand by what stands: one for each cause, and nothing twice."""

from __future__ import annotations

import alerting as a
import facts_of as f
import msgspec
import pytest
from custody_run import Run

from responders.alerts.plan import LATE_FACT_MS, plan
from responders.alerts.words import SEVERITIES, TEXT_MAX, driver_of
from responders.view import LATE_FACTS_MAX, View
from sickbay.decisions import LEDGER_ALERTS, CensusTaken
from sickbay.policy import AlertPolicy
from streams.breaker import BREAKER, BreakerState

POLICY = AlertPolicy()
SUSPECTS = AlertPolicy(suspects=True)
SCOPE = f"driver:{f.DRIVER}"


def planned(view, policy=POLICY, now_ms=a.NOW):
    return {each.alert.alert_id: each for each in plan(view, policy, now_ms).planned}


def alerts(view, policy=POLICY, now_ms=a.NOW):
    return {alert_id: each.alert for alert_id, each in planned(view, policy, now_ms).items()}


def counts(alert):
    return {members.kind: members.count for members in alert.members}


def test_an_open_episode_is_one_alert_that_is_told_at_once():
    (each,) = planned(a.view_of(a.quarantined())).values()
    assert not each.waits
    assert ("quarantine/episode-1", "quarantine", "warning", a.NOW) == (
        each.alert.alert_id, each.alert.kind, each.alert.severity, each.alert.starts_at_ms,
    )  # fmt: skip
    assert {
        "alertname": "SickbayQuarantine",
        "alert_id": "quarantine/episode-1",
        "node": "n1",
        "driver": f.DRIVER,
        "device": f.dra(1),
        "episode": "episode-1",
    } == each.alert.labels
    assert f"{f.dra(1)} on n1 is quarantined" == each.alert.annotations["summary"]
    assert "Pod ml/chat-0 says Unhealthy" in each.alert.annotations["description"]
    assert each.alert.annotations["description"].endswith("(quarantine.min_hold_ms)")
    assert "docs/alerts.md#quarantine" == each.alert.annotations["runbook_url"]


def test_a_released_device_is_no_alert():
    assert {} == alerts(a.view_of(a.quarantined(), a.released()))


def test_a_review_that_is_due_raises_the_severity_and_changes_no_label():
    (before,) = alerts(a.view_of(a.quarantined())).values()
    (after,) = alerts(a.view_of(a.quarantined(), a.review_due())).values()
    assert ("warning", "critical") == (before.severity, after.severity)
    assert before.labels == after.labels
    assert "needs a person" in after.annotations["summary"]


def test_a_hold_by_a_person_is_information():
    (alert,) = alerts(a.view_of(a.quarantined(cause="hold", reason="fan noise"))).values()
    assert "info" == alert.severity


def test_restricted_devices_of_a_driver_on_a_node_are_one_alert():
    view = a.view_of(
        a.adverse(1, at_ms=a.NOW + 5), a.adverse(2), a.adverse(3, node="n2"), a.adverse(4, driver="other")
    )
    found = planned(view)
    assert {f"restricted/n1/{f.DRIVER}", f"restricted/n2/{f.DRIVER}", "restricted/n1/other"} == found.keys()
    assert all(each.waits for each in found.values())
    one = found[f"restricted/n1/{f.DRIVER}"].alert
    assert {"device": 2} == counts(one)
    assert a.NOW == one.starts_at_ms


def test_suspects_are_told_only_where_the_policy_asks_for_it():
    view = a.view_of(a.adverse(1, phase="suspect"), a.adverse(2, phase="suspect"))
    assert {} == alerts(view)
    (alert,) = alerts(view, SUSPECTS).values()
    assert (f"suspect/n1/{f.DRIVER}", "info", {"device": 2}) == (
        alert.alert_id,
        alert.severity,
        counts(alert),
    )


def test_a_node_incident_covers_the_devices_that_name_it_and_no_other():
    view = a.view_of(
        a.incident(),
        a.adverse(1, phase="suspect", incident_id="incident-n1-1"),
        a.adverse(2, incident_id="incident-n1-1"),
        a.adverse(3),
    )
    found = alerts(view, SUSPECTS)
    assert {"node_incident/incident-n1-1", f"restricted/n1/{f.DRIVER}"} == found.keys()
    assert {"device": 2} == counts(found["node_incident/incident-n1-1"])
    assert {"device": 1} == counts(found[f"restricted/n1/{f.DRIVER}"])


def test_an_episode_on_a_node_with_an_incident_is_told():
    """It has evidence of its own, or the incident had absorbed it."""
    found = alerts(a.view_of(a.incident(scope="", cause="node_lost"), a.quarantined()))
    assert {"node_incident/incident-n1-1", "quarantine/episode-1"} == found.keys()


def test_an_open_breaker_takes_what_is_of_its_driver():
    view = a.view_of(
        a.opened(),
        a.incident(node="n1"),
        a.adverse(1, incident_id="incident-n1-1"),
        a.adverse(2, node="n2"),
        a.adverse(3, node="n2", phase="suspect"),
        a.quarantined(4, node="n3", held=True),
        a.raised("flapping", f"dra:{f.DRIVER}/n4/gpu-0", node="n4"),
        a.adverse(5, node="n5", driver="other"),
    )
    found = plan(view, SUSPECTS, a.NOW)
    ids = {each.alert.alert_id: each for each in found.planned}
    assert {f"breaker/{SCOPE}", "restricted/n5/other"} == ids.keys()
    breaker = ids[f"breaker/{SCOPE}"]
    assert not breaker.waits
    assert {"node_incident": 1, "restricted": 2, "suspect": 1, "quarantine": 1, "flapping": 1} == counts(
        breaker.alert
    )
    assert "critical" == breaker.alert.severity
    assert {f"breaker/{SCOPE}"} == set(found.part_of.values())
    assert "quarantine/episode-4" in found.part_of


def test_a_true_fault_from_before_the_breaker_is_an_alert_of_its_own():
    found = planned(a.view_of(a.quarantined(), a.opened()))
    assert {"quarantine/episode-1", f"breaker/{SCOPE}"} == found.keys()
    assert not found["quarantine/episode-1"].waits


def test_an_episode_that_is_held_before_its_breaker_is_known_waits():
    (each,) = planned(a.view_of(a.quarantined(held=True))).values()
    assert each.waits


def test_the_clusters_breaker_says_nothing_more_while_a_drivers_is_open():
    both = a.view_of(a.opened(), a.opened("cluster"), a.adverse(1, node="n2", driver="other"))
    assert {f"breaker/{SCOPE}", "restricted/n2/other"} == alerts(both).keys()
    alone = a.view_of(a.opened("cluster"), a.adverse(1, node="n2", driver="other"))
    (alert,) = alerts(alone).values()
    assert ("breaker/cluster", {"restricted": 1}) == (alert.alert_id, counts(alert))
    assert "driver" not in alert.labels


@pytest.mark.parametrize("devices", [(f"dra:{f.DRIVER}/n1/gpu-1",), ()])
def test_a_lost_node_is_explained_by_the_breaker_of_one_of_its_drivers(devices):
    lost = a.incident(scope="", cause="node_lost", devices=devices)
    covered = a.adverse(1, phase="suspect", incident_id="incident-n1-1")
    assert {f"breaker/{SCOPE}"} == alerts(a.view_of(a.opened(), lost, covered)).keys()


def test_a_lost_node_of_other_drivers_is_told():
    lost = a.incident(scope="", cause="node_lost", devices=("plugin:x/y/z",))
    assert {f"breaker/{SCOPE}", "node_incident/incident-n1-1"} == alerts(a.view_of(a.opened(), lost)).keys()


def test_an_alert_of_a_breaker_is_not_told_twice():
    view = a.view_of(a.opened(), a.raised("breaker", SCOPE, node=""))
    assert {f"breaker/{SCOPE}"} == alerts(view).keys()


@pytest.mark.parametrize(
    ("kind", "about", "labels"),
    [
        ("flapping", f.dra(1), {"device": f.dra(1), "driver": f.DRIVER}),
        ("device_replaced", f.plugin(1), {"device": f.plugin(1), "driver": f.RESOURCE}),
        ("device_conflict", f.dra(1), {"device": f.dra(1), "driver": f.DRIVER}),
        ("unattributed_unhealthy", f.RESOURCE, {"about": f.RESOURCE}),
        ("workload_not_movable", f"{f.dra(1)} ml/chat-0",
         {"device": f.dra(1), "driver": f.DRIVER, "namespace": "ml", "pod": "chat-0"}),
        ("probable_duplicate", "ml/claim-1@uid-1", {"namespace": "ml", "claim": "claim-1"}),
        ("numa_spanned", "ml/claim-1", {"namespace": "ml", "claim": "claim-1"}),
        ("numa_missed", "ml/claim-1", {"namespace": "ml", "claim": "claim-1"}),
    ],
)  # fmt: skip
def test_an_alert_that_was_decided_names_what_it_is_about(kind, about, labels):
    view = a.view_of(a.raised(kind, about))
    (alert,) = alerts(view).values()
    own = {name: value for name, value in alert.labels.items() if name not in ("alertname", "alert_id")}
    assert {"node": "n1", **labels} == own
    assert (f"{kind}/{kind}-1", SEVERITIES[kind]) == (alert.alert_id, alert.severity)
    view.fold(a.cleared(kind, about))
    assert {} == alerts(view)


def test_every_alert_of_the_ledger_has_a_severity():
    assert set() == LEDGER_ALERTS - SEVERITIES.keys()


def test_late_facts_are_one_alert_for_an_hour_and_a_view_keeps_few():
    view = a.view_of(
        *(a.raised("late_fact", f"event-{n}", at_ms=a.NOW + n, number=n) for n in range(40)),
        a.raised("late_fact", "event-x", node="n2", number=99),
    )
    assert LATE_FACTS_MAX == len(view.nodes["n1"].alerts)
    (alert,) = alerts(view).values()
    assert ("late_fact", {"node": 2}) == (alert.alert_id, counts(alert))
    assert {} == alerts(view, now_ms=a.NOW + 39 + LATE_FACT_MS)


def test_held_nodes_are_one_alert_for_each_reason_and_driver():
    view = a.view_of(
        a.held("n1", ("driver_rebuilding", f"{f.DRIVER}/n1"), ("slice_missing", "ml/claim-1")),
        a.held("n2", ("driver_rebuilding", f"{f.DRIVER}/n2")),
        a.held("n3", ("driver_rebuilding", "other/n3"), ("claims_gate_closed", "driver:other")),
        a.held("n4", ("slice_stale", "")),
    )
    found = planned(view)
    assert {
        f"held/driver_rebuilding/{f.DRIVER}": 2,
        "held/driver_rebuilding/other": 1,
        "held/slice_missing/": 1,
        "held/claims_gate_closed/other": 1,
        "held/slice_stale/": 1,
    } == {alert_id: counts(each.alert)["node"] for alert_id, each in found.items()}
    assert all(each.waits for each in found.values())
    assert "info" == found["held/claims_gate_closed/other"].alert.severity


def test_a_text_of_a_driver_is_shown_safely_and_cut():
    view = a.view_of(a.quarantined(reason="bad\x1b[31m\n" + "x" * 5_000))
    (alert,) = alerts(view).values()
    text = alert.annotations["description"]
    assert text.isprintable()
    assert TEXT_MAX == len(text)


def test_what_a_device_id_names():
    assert (f.DRIVER, f.RESOURCE, "") == (driver_of(f.dra(1)), driver_of(f.plugin(1)), driver_of("x"))


NODES, DEVICES = 1_000, 8


def storm_on(node):
    """Return every decision of custody on one node whose devices all turn Unknown at once."""
    run = Run(node=node)
    at_ms = f.T0

    def words(health, at_ms, rv):
        return [
            msgspec.structs.replace(f.word(f.dra(n), health, at_ms, rv, pod=f"pod-{n}"), node=node)
            for n in range(DEVICES)
        ]

    run.step(msgspec.structs.replace(f.node(at_ms, 1), node=node))
    run.step(*words("Healthy", at_ms + 1_000, 2))
    run.step(*words("Unknown", at_ms + 60_000, 3))
    run.until(at_ms + 70_000)
    return run.decisions


def test_a_thousand_nodes_whose_devices_turn_unknown_at_once_are_one_alert():
    """By the decisions that custody and the breaker make themselves; what has a node's name has another's too."""
    one = storm_on(f.NODE)
    assert {"device_suspected", "node_incident_opened"} == {decision.KIND for decision in one}
    adverse = [
        (f.DRIVER, f"node-{n}|{f.dra(device)}", f.T0 + 60_000, "")
        for n in range(NODES)
        for device in range(DEVICES)
    ]
    census = CensusTaken(
        node="", at_ms=f.T0 + 70_000, partition=0, known={f.DRIVER: NODES * DEVICES}, adverse=tuple(adverse)
    )
    _, breakers = BREAKER.step(BreakerState(), [census])
    assert {"breaker_opened", "alert_raised"} == {decision.KIND for decision in breakers}
    view = View()
    for n in range(NODES):
        for decision in one:
            changed = msgspec.structs.replace(decision, node=f"node-{n}")
            if hasattr(changed, "incident_id"):
                changed = msgspec.structs.replace(changed, incident_id=f"{changed.incident_id}-{n}")
            view.fold(changed)
    before = plan(view, SUSPECTS, a.NOW)
    assert NODES <= len(before.planned)
    assert all(each.waits for each in before.planned)
    for decision in breakers:
        view.fold(decision)
    (each,) = plan(view, SUSPECTS, a.NOW).planned
    assert f"breaker/{SCOPE}" == each.alert.alert_id
    assert {"node_incident": NODES, "suspect": NODES * DEVICES} == counts(each.alert)
