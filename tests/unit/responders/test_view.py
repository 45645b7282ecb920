"""The view: what stands by the decisions so far, and nothing of what has ended."""

from __future__ import annotations

import msgspec
from responding import (
    AT,
    NODE,
    breaker_opened,
    device_id,
    node_class,
    quarantined,
    released,
    restricted,
    view_of,
)

from responders.view import ENDED_MAX
from responders.work import NEVER_MS, takes_work_from_ms
from sickbay.decisions import (
    AlertCleared,
    AlertRaised,
    BreakerClosed,
    MoveFinished,
    MoveLeaseGranted,
    MovePlanned,
    NodeIncidentClosed,
    NodeIncidentOpened,
    QuarantineReviewDue,
)
from sickbay.policy import ReturnPolicy

DEVICE = device_id()
MOVE = {"node": NODE, "at_ms": AT, "device_id": DEVICE, "move_id": "m", "episode_id": "e", "pod_uid": "u", "namespace": "ml", "pod": "p"}  # fmt: skip


def test_a_device_stands_until_it_is_in_service_again() -> None:
    view = view_of(quarantined())
    assert [DEVICE] == [on_node.device.device_id for on_node in view.devices()]
    view.fold(released())
    assert [] == list(view.devices())
    assert ["returned"] == [episode.outcome for episode in view.nodes[NODE].ended.values()]


def test_a_review_that_is_due_keeps_the_words_of_the_fault() -> None:
    opened = quarantined()
    view = view_of(opened)
    fields = {name: getattr(opened, name) for name in ("node", "device_id", "driver", "record")}
    view.fold(
        QuarantineReviewDue(**fields, at_ms=AT + 5, phase_before="quarantined", reason="the lease ran out")
    )
    (on_node,) = view.devices()
    assert (True, "reported Unhealthy") == (on_node.device.review_due, on_node.device.reason)


def test_breakers_stop_their_driver_or_everything_until_they_close() -> None:
    view = view_of(breaker_opened("driver:a"))
    assert (True, False) == (view.breaker_open("a"), view.breaker_open("b"))
    view.fold(breaker_opened("cluster"))
    assert view.breaker_open("b")
    view.fold(BreakerClosed(node="", at_ms=AT, scope="cluster", opened_at_ms=AT))
    assert not view.breaker_open("b")


def test_incidents_alerts_and_moves_stand_until_they_end() -> None:
    incident = {"node": NODE, "at_ms": AT, "incident_id": "i", "cause": "node_lost"}
    alert = {"node": NODE, "at_ms": AT, "alert_id": "a", "alert": "flapping", "about": DEVICE}
    view = view_of(
        NodeIncidentOpened(**incident),
        AlertRaised(**alert),
        MovePlanned(**MOVE, ability="restartable", topology="whole"),
        MoveLeaseGranted(**MOVE, token=2, expires_at_ms=AT + 9),
    )
    node = view.nodes[NODE]
    assert ({"i"}, {"a"}, 2) == (set(node.incidents), set(node.alerts), node.moves["m"].token)
    view.fold(NodeIncidentClosed(**incident, opened_at_ms=AT))
    view.fold(AlertCleared(**alert))
    view.fold(MoveFinished(**MOVE, token=2, outcome="done"))
    assert {} == view.nodes


def test_alerts_of_the_cluster_stand_apart_from_those_of_nodes() -> None:
    view = view_of(AlertRaised(node="", at_ms=AT, alert_id="a", alert="breaker", about="cluster"))
    assert ({"a"}, {}) == (set(view.alerts), view.nodes)


def test_a_node_of_which_nothing_is_known_is_stable() -> None:
    view = view_of(node_class("n2", "canary"))
    assert ("stable", "canary") == (view.node_class("n1"), view.node_class("n2"))


def test_a_lease_of_a_move_that_is_not_known_makes_none() -> None:
    assert {} == view_of(MoveLeaseGranted(**MOVE, token=1, expires_at_ms=AT)).nodes


def test_episodes_that_ended_are_forgotten_from_the_oldest_on() -> None:
    many = [released(device_id(n), at_ms=AT + n, opened_at_ms=AT + n) for n in range(ENDED_MAX + 3)]
    ended = list(view_of(*many).nodes[NODE].ended.values())
    assert (ENDED_MAX, AT + 3) == (len(ended), ended[0].opened_at_ms)


def test_new_work_comes_after_the_ramp_of_an_observation_and_never_before_it() -> None:
    closed = [quarantined(phase=phase).record for phase in ("quarantined", "probing", "canary")]
    closed.append(restricted().record)
    assert {NEVER_MS} == {takes_work_from_ms(record, ReturnPolicy()) for record in closed}
    observing = quarantined(phase="observing", observing_at_ms=AT, verification="prober").record
    times = [
        takes_work_from_ms(observing, ReturnPolicy(observation_ms=1000, ramp_after_percent=percent)) - AT
        for percent in (0, 50, 100)
    ]
    assert [0, 500, NEVER_MS - AT] == times
    suspect = msgspec.structs.replace(restricted().record, phase="suspect")
    assert 0 == takes_work_from_ms(suspect, ReturnPolicy())
