"""The breaker: thresholds at their boundaries, what counts as a storm, and how it ends."""

from __future__ import annotations

import msgspec
import pytest
from facts_of import DRIVER, HOUR, MINUTE, SECOND, T0, policy_changed, tick

from sickbay.decisions import CensusTaken
from sickbay.facts import BreakerResetRequested
from sickbay.policy import BreakerPolicy, Policy
from streams.breaker import BREAKER, CLUSTER, BreakerState, waiting_for

WINDOW_MS, QUIET_MS = BreakerPolicy().window_ms, BreakerPolicy().quiet_ms
SCOPE = f"driver:{DRIVER}"


def turned(number, at_ms=T0, *, node=None, incident="", driver=DRIVER):
    return driver, f"{node or f'node-{number}'}|dra:{driver}/p/gpu-{number}", at_ms, incident


def census(known, adverse=(), *, at_ms=T0, partition=0, driver=DRIVER, waiting=0, nodes=2, node="n1"):
    return CensusTaken(
        node="", at_ms=at_ms, partition=partition, known={driver: known}, adverse=tuple(adverse),
        waiting={driver: (waiting, nodes, node)},
    )  # fmt: skip


class Breaker:
    """One breaker driven by hand."""

    def __init__(self):
        self.state, self.decisions = BreakerState(), []

    def step(self, *events):
        self.state, decided = BREAKER.step(self.state, events)
        self.decisions += decided
        return decided

    def kinds(self):
        return [(d.KIND, d.subject) for d in self.decisions if d.KIND.startswith("breaker")]


def storm(count, known=20, **options):
    breaker = Breaker()
    breaker.step(census(known, [turned(n, **options) for n in range(count)]))
    return breaker


@pytest.mark.parametrize(
    ("known", "adverse", "opens"),
    [(20, 3, False), (20, 4, True), (30, 3, False), (31, 4, False), (31, 5, True), (1000, 100, False), (1000, 101, True)],
)  # fmt: skip
def test_it_takes_more_than_three_and_more_than_a_tenth(known, adverse, opens):
    """max(3, 10 %), exceeded; a share that is no whole number is rounded up."""
    breaker = storm(adverse, known)

    assert ([("breaker_opened", CLUSTER), ("breaker_opened", SCOPE)] if opens else []) == breaker.kinds()


def test_it_says_what_it_counted_and_raises_one_alert_for_each_scope():
    """Adverse, known and threshold stand in the decision; the alert is about the scope."""
    breaker = storm(5)
    opened, alert = breaker.decisions[:2]

    assert (CLUSTER, 5, 20, 3, T0) == (
        opened.scope, opened.adverse, opened.known, opened.threshold, opened.at_ms,
    )  # fmt: skip
    assert [("breaker", CLUSTER), ("breaker", SCOPE)] == [
        (d.alert, d.about) for d in breaker.decisions if d.KIND == "alert_raised"
    ]
    assert opened.reason == alert.reason


def test_a_driver_has_a_breaker_of_its_own():
    """Five of forty devices of one driver; the cluster has four hundred more that are well."""
    breaker = Breaker()
    breaker.step(census(400, driver="other", partition=1))
    breaker.step(census(40, [turned(n) for n in range(5)]))

    assert [("breaker_opened", SCOPE)] == breaker.kinds()


def test_the_known_devices_of_all_partitions_count():
    """Each partition's newest census replaces its former one."""
    breaker = Breaker()
    breaker.step(census(30, partition=0), census(30, partition=1), census(60, partition=1))
    breaker.step(census(30, [turned(n) for n in range(9)]))

    assert [] == breaker.kinds()

    breaker.step(census(30, [turned(9)]))

    assert [("breaker_opened", CLUSTER), ("breaker_opened", SCOPE)] == breaker.kinds()


def test_one_nodes_own_incident_is_that_nodes_trouble():
    """Eight devices that one node incident explains open nothing."""
    breaker = storm(8, node="node-1", incident="incident-1")

    assert [] == breaker.kinds()


def test_incidents_on_two_nodes_may_be_everybodys():
    """Four devices each: that is a storm."""
    breaker = Breaker()
    breaker.step(
        census(20, [turned(n, node=f"node-{n % 2}", incident=f"incident-{n % 2}") for n in range(8)])
    )

    assert [("breaker_opened", CLUSTER), ("breaker_opened", SCOPE)] == breaker.kinds()


def test_what_stands_alone_counts_beside_one_nodes_incident():
    """Four faults on their own are enough, whatever an incident explains elsewhere."""
    breaker = Breaker()
    explained = [turned(n, node="node-1", incident="i") for n in range(8)]
    breaker.step(census(20, [*explained, *(turned(n + 20) for n in range(3))]))

    assert [] == breaker.kinds()

    breaker.step(census(20, [turned(23)]))

    assert 2 == len(breaker.kinds())


def test_a_device_that_an_incident_explains_afterwards_no_longer_counts_alone():
    """The newer word on the same device replaces the older one."""
    breaker = Breaker()
    breaker.step(census(20, [turned(n, node="node-1") for n in range(3)]))
    breaker.step(census(20, [turned(n, T0 + 1, node="node-1", incident="i") for n in range(4)], at_ms=T0 + 1))

    assert [] == breaker.kinds()


def test_one_device_that_turns_again_and_again_is_one():
    """Identities are counted, not transitions."""
    breaker = Breaker()
    for n in range(10):
        breaker.step(census(20, [turned(0, T0 + n)], at_ms=T0 + n))

    assert ([], 1) == (breaker.kinds(), len(breaker.state.adverse))


@pytest.mark.parametrize(("wait_ms", "opens"), [(WINDOW_MS - 1, True), (WINDOW_MS, False)])
def test_what_turned_longer_ago_than_the_window_no_longer_counts(wait_ms, opens):
    """Three, and five minutes later one more."""
    breaker = storm(3)
    breaker.step(census(20, [turned(9, T0 + wait_ms)], at_ms=T0 + wait_ms))

    assert opens == bool(breaker.kinds())


def test_an_open_breaker_is_not_opened_again():
    """More of the same storm is no news."""
    breaker = storm(5)

    assert () == breaker.step(census(20, [turned(9)]))


def test_it_closes_after_the_quiet_time_below_the_threshold():
    """Ten minutes from when the count fell, not from when it opened; the alert is cleared with it."""
    breaker = storm(5)
    breaker.step(tick(T0 + WINDOW_MS))

    assert () == breaker.step(tick(T0 + WINDOW_MS + QUIET_MS - 1))

    closed = breaker.step(tick(T0 + WINDOW_MS + QUIET_MS))

    assert [("breaker_closed", CLUSTER), ("alert_cleared", CLUSTER), ("breaker_closed", SCOPE), ("alert_cleared", SCOPE)] == [
        (d.KIND, d.scope if d.KIND == "breaker_closed" else d.about) for d in closed
    ]  # fmt: skip
    assert {T0} == {d.opened_at_ms for d in closed if d.KIND == "breaker_closed"}
    assert ({}, {}) == (breaker.state.open, breaker.state.calm_since)


@pytest.mark.parametrize(("waiting", "closes"), [(3, True), (4, False)])
def test_it_stays_open_while_more_than_the_threshold_wait_for_it(waiting, closes):
    """Hours of quiet change nothing: closing would restrict them all at once."""
    breaker = storm(5)
    breaker.step(census(20, at_ms=T0 + SECOND, waiting=waiting))
    breaker.step(tick(T0 + WINDOW_MS))
    breaker.step(tick(T0 + 20 * HOUR))

    assert closes == (not breaker.state.open)


def test_the_quiet_time_begins_when_no_more_than_the_threshold_wait():
    """Of all partitions together."""
    breaker = storm(5)
    breaker.step(census(0, waiting=2, partition=0), census(20, waiting=2, partition=1))
    breaker.step(tick(T0 + HOUR))
    breaker.step(census(20, at_ms=T0 + HOUR + SECOND, waiting=1, partition=1), tick(T0 + HOUR + SECOND))

    breaker.step(tick(T0 + HOUR + SECOND + QUIET_MS - 1))
    assert {SCOPE} == set(breaker.state.open)

    breaker.step(tick(T0 + HOUR + SECOND + QUIET_MS))
    assert not breaker.state.open


def test_what_waits_of_another_driver_keeps_only_the_clusters_open():
    breaker = storm(5)
    breaker.step(census(20, at_ms=T0 + SECOND, waiting=9, driver="nic", partition=1))
    breaker.step(tick(T0 + WINDOW_MS), tick(T0 + WINDOW_MS + QUIET_MS))
    breaker.step(tick(T0 + HOUR))

    assert {CLUSTER} == set(breaker.state.open)


def test_what_waits_of_a_driver_whose_own_breaker_is_open_does_not_keep_the_clusters():
    """It keeps the driver's, which is enough: closing the cluster's restricts none of it."""
    breaker = storm(5)
    breaker.step(census(20, at_ms=T0 + SECOND, waiting=9))
    for at_ms in (WINDOW_MS, WINDOW_MS + QUIET_MS, HOUR):
        breaker.step(tick(T0 + at_ms))

    assert {SCOPE} == set(breaker.state.open)
    assert 9 == waiting_for(breaker.state, SCOPE)


@pytest.mark.parametrize(("nodes", "closes"), [(1, True), (2, False)])
def test_what_waits_on_one_node_is_that_nodes_trouble(nodes, closes):
    breaker = storm(5)
    breaker.step(census(20, at_ms=T0 + SECOND, waiting=9, nodes=nodes))
    for at_ms in (WINDOW_MS, WINDOW_MS + QUIET_MS):
        breaker.step(tick(T0 + at_ms))

    assert closes == (not breaker.state.open)


@pytest.mark.parametrize(("node", "closes"), [("n1", True), ("n2", False)])
def test_a_node_with_devices_of_two_drivers_is_one_node(node, closes):
    breaker = Breaker()
    turns = [turned(n, driver=driver) for driver in (DRIVER, "nic") for n in range(3)]
    known = {DRIVER: 10, "nic": 10}
    told = {DRIVER: (3, 1, "n1"), "nic": (3, 1, node)}
    breaker.step(CensusTaken(node="", at_ms=T0, partition=0, known=known, adverse=tuple(turns), waiting=told))
    assert {CLUSTER} == set(breaker.state.open)

    breaker.step(tick(T0 + WINDOW_MS), tick(T0 + WINDOW_MS + QUIET_MS))
    assert closes == (not breaker.state.open)


def test_breakers_that_would_close_together_count_what_waits_for_each():
    """Three of each of three drivers: no driver's is more than it allows, and for the cluster they are nine."""
    breaker = Breaker()
    drivers = ("a", "b", "c")
    turns = [turned(n, driver=driver) for driver in drivers for n in range(4)]
    known, told = dict.fromkeys(drivers, 10), dict.fromkeys(drivers, (3, 3, "n1"))
    breaker.step(CensusTaken(node="", at_ms=T0, partition=0, known=known, adverse=tuple(turns), waiting=told))
    for at_ms in (WINDOW_MS, WINDOW_MS + QUIET_MS, HOUR):
        breaker.step(tick(T0 + at_ms))

    assert {CLUSTER} == set(breaker.state.open)
    assert 9 == waiting_for(breaker.state, CLUSTER)


def test_the_order_in_which_partitions_tell_of_one_moment_makes_no_difference():
    """Two wait, then one here and two there: no more than three at any time."""
    told = [
        census(10, waiting=1, partition=1, at_ms=T0 + HOUR),
        census(10, waiting=2, partition=2, at_ms=T0 + HOUR),
    ]
    closed = []
    for order in (told, told[::-1]):
        breaker = storm(5)
        breaker.step(census(10, waiting=3, partition=1), census(10, partition=2), tick(T0 + WINDOW_MS))
        breaker.step(*order, tick(T0 + HOUR))
        closed.append(breaker.decisions[2:])

    assert closed[0] == closed[1]
    assert "breaker_closed" in [d.KIND for d in closed[0]]


def test_a_census_between_two_ticks_keeps_open_what_was_quiet_until_then():
    breaker = storm(5)
    breaker.step(tick(T0 + WINDOW_MS))

    breaker.step(census(20, waiting=9, at_ms=T0 + WINDOW_MS + QUIET_MS))
    assert {SCOPE} == set(breaker.state.open)


def test_only_what_waits_for_devices_alone_is_stuck():
    """A replay passes over the silence that follows, so time must have nothing to do there."""
    breaker = storm(5)
    assert not breaker.state.is_stuck

    breaker.step(census(20, at_ms=T0 + SECOND, waiting=9), tick(T0 + SECOND))
    assert not breaker.state.is_stuck, "the storm is in the window"

    for at_ms in (WINDOW_MS, WINDOW_MS + QUIET_MS):
        breaker.step(tick(T0 + at_ms))
    assert breaker.state.is_stuck

    breaker.step(census(20, at_ms=T0 + HOUR), tick(T0 + HOUR))
    assert not breaker.state.is_stuck, "the quiet time runs"


def test_a_person_closes_it_whatever_waits():
    breaker = storm(5)
    breaker.step(census(20, at_ms=T0 + SECOND, waiting=9))
    breaker.step(reset(T0 + MINUTE, CLUSTER), reset(T0 + MINUTE))
    breaker.step(tick(T0 + HOUR))

    assert [] == list(breaker.state.open)


def test_a_second_wave_starts_the_quiet_time_anew():
    """The storm is not over."""
    breaker = storm(5)
    again = T0 + WINDOW_MS + QUIET_MS - SECOND
    breaker.step(tick(T0 + WINDOW_MS))
    breaker.step(census(20, [turned(n, again) for n in range(5)], at_ms=again))

    assert () == breaker.step(tick(T0 + WINDOW_MS + QUIET_MS))

    breaker.step(tick(again + WINDOW_MS))

    assert () == breaker.step(tick(again + WINDOW_MS + QUIET_MS - 1))
    assert 4 == len(breaker.step(tick(again + WINDOW_MS + QUIET_MS)))


def test_a_closed_breaker_opens_for_the_next_storm():
    """Closed is not disabled."""
    breaker = storm(5)
    breaker.step(tick(T0 + WINDOW_MS))
    breaker.step(tick(T0 + WINDOW_MS + QUIET_MS))
    breaker.step(census(20, [turned(n, T0 + HOUR) for n in range(5)], at_ms=T0 + HOUR))

    assert 2 == len([d for d in breaker.decisions if d.KIND == "breaker_opened" and d.at_ms == T0 + HOUR])


def test_a_restart_does_not_forget_the_storm():
    """Counts, open breakers and the calm are in the state, and the state survives encoding."""
    breaker = storm(3)
    breaker.state = msgspec.json.decode(msgspec.json.encode(breaker.state), type=BreakerState)
    breaker.step(census(20, [turned(9, T0 + MINUTE)], at_ms=T0 + MINUTE))

    assert [("breaker_opened", CLUSTER), ("breaker_opened", SCOPE)] == breaker.kinds()

    breaker.step(tick(T0 + 2 * WINDOW_MS))
    breaker.state = msgspec.json.decode(msgspec.json.encode(breaker.state), type=BreakerState)
    closed = breaker.step(tick(T0 + 2 * WINDOW_MS + QUIET_MS))

    assert 2 == len([d for d in closed if d.KIND == "breaker_closed"])


def test_a_replay_of_censuses_and_decisions_gives_the_same_state():
    """Folding is enough: nothing is decided again."""
    breaker, log = Breaker(), []
    for event in (
        census(20, [turned(n) for n in range(5)]), tick(T0 + WINDOW_MS), tick(T0 + WINDOW_MS + QUIET_MS),
        census(20, [turned(n, T0 + HOUR) for n in range(5)], at_ms=T0 + HOUR),
    ):  # fmt: skip
        log += [event, *breaker.step(event)]

    replayed = BREAKER.fold(BreakerState(), log)

    assert breaker.state == replayed
    assert () == BREAKER.decide(replayed)


def test_a_policy_changes_the_thresholds():
    """A floor of one: two devices are a storm."""
    strict = msgspec.structs.replace(Policy(), breaker=msgspec.structs.replace(BreakerPolicy(), floor=1))
    breaker = Breaker()
    breaker.step(policy_changed(T0, strict), census(10, [turned(0), turned(1)]))

    assert [("breaker_opened", CLUSTER), ("breaker_opened", SCOPE)] == breaker.kinds()


def test_a_tick_of_the_past_does_not_turn_the_clock_back():
    """Partitions tell the time in any order."""
    breaker = storm(3)
    breaker.step(tick(T0 + MINUTE), tick(T0))

    assert T0 + MINUTE == breaker.state.now_ms


def reset(at_ms, scope=SCOPE):
    return BreakerResetRequested(
        node="", observed_at_ms=at_ms, request_id="r", device_id="", actor="ann", scope=scope, reason="rolled back",
        partition=0,
    )  # fmt: skip


def test_a_person_closes_it_at_once_and_the_decision_says_who_and_why():
    breaker = storm(4)
    decided = breaker.step(reset(T0 + SECOND))

    assert ["breaker_closed", "alert_cleared"] == [d.KIND for d in decided]
    assert (SCOPE, "breaker_reset_requested", "reset by ann: rolled back") == (
        decided[0].scope,
        decided[0].clause,
        decided[0].reason,
    )
    assert {CLUSTER} == set(breaker.state.open)


def test_after_a_reset_it_takes_a_new_storm_to_open_it_again():
    """What turned before the word counts no more, also when a census tells of it only afterwards."""
    breaker = storm(4)
    breaker.step(reset(T0 + SECOND, CLUSTER), reset(T0 + SECOND))
    assert [] == list(breaker.step(census(20, [turned(n) for n in range(10, 16)], at_ms=T0 + 2 * SECOND)))
    later = [turned(n, T0 + 3 * SECOND) for n in range(20, 24)]
    assert "breaker_opened" in [d.KIND for d in breaker.step(census(20, later, at_ms=T0 + 4 * SECOND))]


def test_the_reset_of_one_driver_leaves_the_others():
    breaker = storm(4)
    breaker.step(census(20, [turned(n, driver="nic") for n in range(4)], driver="nic", partition=1))
    breaker.step(reset(T0 + SECOND, "driver:nic"))

    assert {CLUSTER, SCOPE} == set(breaker.state.open)


def test_a_reset_of_what_is_not_open_closes_nothing_now_or_later():
    breaker = Breaker()
    breaker.step(census(20), reset(T0))
    breaker.step(census(20, [turned(n, T0 + SECOND) for n in range(4)], at_ms=T0 + SECOND))

    assert {CLUSTER, SCOPE} == set(breaker.state.open)
