"""One partition: facts to their node, ticks to the nodes whose time has come, a census for the breaker, replay like live."""

from __future__ import annotations

import msgspec
from facts_of import (
    DRIVER,
    HOUR,
    MINUTE,
    RESOURCE,
    T0,
    UNMONITORED,
    breaker,
    dra,
    gap,
    hold,
    lapsed,
    node_gone,
    plugin,
    policy_changed,
    published,
    tick,
    word,
)

from sickbay.policy import Policy
from streams.custody.aggregate import dump
from streams.custody.state import NEVER
from streams.partition import Partition, arrival_order

POLICY = Policy()
WINDOW_MS = POLICY.unknown.window_ms
CARD = plugin(0)


def on(node, fact):
    """The same fact on another node."""
    return msgspec.structs.replace(fact, node=node)


def partition():
    """A partition under the default policy."""
    made = Partition(3)
    made.step(policy_changed(T0 - HOUR, POLICY, partition=3))
    return made


def walk(made, facts):
    """Every fact and decision, in the order of the log."""
    log = []
    for fact in facts:
        log += [fact, *made.step(fact)]
    return log


def phases(made):
    return {
        (name, device): record.phase
        for name, state in made.nodes.items()
        for device, record in state.announced.devices.items()
    }


def test_a_fact_concerns_its_node_only():
    """The same device id on two nodes is two devices."""
    made = partition()
    decided = made.step(on("b", word(CARD, "Unhealthy", T0, 1)))
    made.step(on("a", word(CARD, "Healthy", T0, 1)))

    assert [("b", "quarantine_opened")] == [(d.node, d.KIND) for d in decided]
    assert {("b", CARD): "quarantined"} == phases(made)
    assert {"a", "b"} == set(made.nodes)


def test_a_tick_reaches_the_nodes_whose_time_has_come_and_no_other():
    """A tick is one per partition: only where something is due it is applied."""
    made = partition()
    made.step(on("a", word(CARD, "Unknown", T0, 1)))
    made.step(on("b", word(CARD, "Unknown", T0 + MINUTE, 1)))
    made.step(on("c", word(CARD, "Healthy", T0, 1)))
    decided = made.step(tick(T0 + WINDOW_MS))

    assert [("a", "device_restricted")] == [(d.node, d.KIND) for d in decided]
    assert [T0 + WINDOW_MS, T0 + MINUTE, T0] == [made.nodes[n].timeline.now_ms for n in ("a", "b", "c")]


def test_a_tick_decides_for_its_nodes_in_the_order_of_their_names():
    """Two workers write the same log."""
    made = partition()
    for name in ("c", "a", "b"):
        made.step(on(name, word(CARD, "Unknown", T0, 1)))

    assert ["a", "b", "c"] == [d.node for d in made.step(tick(T0 + WINDOW_MS))]


def test_a_tick_before_the_first_deadline_does_nothing():
    """Nothing is due: no node is touched."""
    made = partition()
    made.step(on("a", word(CARD, "Unknown", T0, 1)))

    assert [] == made.step(tick(T0 + WINDOW_MS - 1))
    assert T0 == made.nodes["a"].timeline.now_ms


def test_the_partitions_deadline_is_the_earliest_of_its_nodes():
    """The shell need not tick before it; with nothing due there is none."""
    made = partition()

    assert NEVER == made.due_ms

    made.step(on("a", word(CARD, "Unknown", T0 + MINUTE, 1)))
    made.step(on("b", word(CARD, "Unknown", T0, 1)))

    assert T0 + WINDOW_MS == made.due_ms

    made.step(on("b", word(CARD, "Unhealthy", T0 + MINUTE, 2)))

    assert T0 + MINUTE + WINDOW_MS == made.due_ms


def test_what_every_partition_hears_reaches_every_node():
    """A gap, the breaker and a policy concern all nodes; a tick before anything is known concerns none."""
    made = partition()
    for name in ("a", "b"):
        made.step(on(name, word(CARD, "Unknown", T0, 1)))
    made.step(gap(T0 + 1, T0 + 2 * WINDOW_MS))
    made.step(breaker(T0 + 2 * WINDOW_MS, "cluster", is_open=True))

    assert [T0 + 2 * WINDOW_MS] * 2 == [made.nodes[n].timeline.head.blind_until_ms for n in ("a", "b")]
    assert [{"cluster"}] * 2 == [set(made.nodes[n].timeline.head.breakers) for n in ("a", "b")]


def test_a_new_node_inherits_the_open_breakers_and_the_policy():
    """It joins in the middle of a storm, under the rules that hold."""
    other = msgspec.structs.replace(
        POLICY, version="other", quarantine=msgspec.structs.replace(POLICY.quarantine, min_hold_ms=HOUR)
    )
    made = partition()
    made.step(policy_changed(T0, other, partition=3))
    made.step(breaker(T0, "cluster", is_open=True))
    made.step(breaker(T0, "driver:x", is_open=True))
    made.step(breaker(T0 + 1, "driver:x", is_open=False))
    made.step(on("new", word(CARD, "Unhealthy", T0 + 2, 1)))
    episode = made.nodes["new"].announced.devices[CARD].episode

    assert (True, T0 + 2 + HOUR) == (episode.held, episode.hold_until_ms)
    assert {"cluster"} == set(made.nodes["new"].timeline.head.breakers)


def test_a_census_is_taken_when_the_known_devices_changed():
    """First sight, and drift beyond five percent; in between there is nothing to say."""
    made = partition()
    for n in range(20):
        made.step(on("a", word(plugin(n), "Healthy", T0, 1)))
    first = made.census(T0)

    assert (3, {RESOURCE: 20}, ()) == (first.partition, first.known, first.adverse)
    assert made.census(T0 + 1) is None

    made.step(on("b", word(plugin(0), "Healthy", T0, 1)))

    assert made.census(T0 + 2) is None

    made.step(on("b", word(plugin(1), "Healthy", T0, 1)))

    assert {RESOURCE: 22} == made.census(T0 + 3).known


def test_a_driver_that_is_gone_is_told_to_be_gone():
    """The threshold would stay as high as it was."""
    made = partition()
    made.step(on("a", word(CARD, "Healthy", T0, 1)))
    made.census(T0)
    made.step(on("a", node_gone(T0 + 1, 9)))

    assert {} == made.census(T0 + 2).known
    assert made.census(T0 + 3) is None


def test_a_census_names_what_newly_turned_adverse_once():
    """A device that was in service and is not: with its node, its time and no more than once."""
    made = partition()
    for n in range(3):
        made.step(on("a", word(plugin(n), "Healthy", T0, 1)))
    made.step(on("a", word(plugin(0), "Unhealthy", T0 + 1, 2)))
    made.step(on("a", word(plugin(1), "Unknown", T0 + 2, 2)))
    made.step(on("a", word(plugin(1), "Unhealthy", T0 + 3, 3)))
    taken = made.census(T0 + 4)

    assert (
        (RESOURCE, f"a|{plugin(0)}", T0 + 1, ""),
        (RESOURCE, f"a|{plugin(1)}", T0 + 2, ""),
    ) == taken.adverse
    assert made.census(T0 + 5) is None


def test_a_device_that_is_seen_for_the_first_time_did_not_turn():
    """A cold start finds many bad devices and is no storm."""
    made = partition()
    for n in range(10):
        made.step(on("a", word(plugin(n), "Unhealthy", T0, 1)))

    assert () == made.census(T0).adverse


def test_a_persons_hold_and_an_unmonitored_device_are_no_storm():
    """Only what the cluster says of health counts."""
    made = partition()
    made.step(on("a", word(CARD, "Healthy", T0, 1)))
    made.step(on("a", hold(CARD, T0 + 1, T0 + HOUR)))
    made.step(on("a", published(0, T0, 1)))
    made.step(on("a", word(dra(0), "Healthy", T0, 1)))
    made.step(on("a", published(0, T0 + 1, 2, taints=[UNMONITORED])))

    assert () == made.census(T0 + 2).adverse


def test_what_a_node_incident_explains_is_named_with_it():
    """The breaker must know which trouble is one node's own."""
    made = partition()
    for n in range(3):
        made.step(on("a", word(plugin(n), "Healthy", T0, 1)))
    made.step(on("a", lapsed(T0 + MINUTE, 1, T0)))
    incident = next(iter(made.nodes["a"].announced.incidents))

    assert {incident} == {by for _, _, _, by in made.census(T0 + MINUTE).adverse}


def test_what_an_incident_explains_afterwards_is_named_again_with_it():
    """The quarantine came first, the incident absorbed it: the later word counts."""
    made = partition()
    for n in range(3):
        made.step(on("a", word(plugin(n), "Healthy", T0, 1)))
    for n in range(3):
        made.step(on("a", word(plugin(n), "Unhealthy", T0 + MINUTE + n, 2)))
    incident = next(iter(made.nodes["a"].announced.incidents))

    assert {incident} == {by for _, _, _, by in made.census(T0 + 2 * MINUTE).adverse}


def unknown(name, count, rv=2, at_ms=T0 + 1):
    """Facts that leave devices of a node Unknown after they were Healthy."""
    return [
        on(name, word(plugin(n), health, at, version))
        for health, at, version in (("Healthy", T0, 1), ("Unknown", at_ms, rv))
        for n in range(count)
    ]


def stormed():
    """A partition of two nodes with two Unknown devices each, whose driver's breaker has just opened, and what it was told."""
    made = Partition(3)
    log = walk(made, [policy_changed(T0 - HOUR, POLICY, partition=3), *unknown("a", 2), *unknown("b", 2)])
    log.append(made.census(T0 + 2))
    return made, log + walk(made, [breaker(T0 + 3, f"driver:{RESOURCE}", is_open=True)])


def test_while_a_breaker_is_open_a_census_counts_what_waits_for_it():
    """Told once at its opening and then when it changes: devices that are Unknown, until they are known again."""
    made, _ = stormed()

    assert {RESOURCE: (4, 2, "a")} == made.census(T0 + 4).waiting
    assert made.census(T0 + 5) is None

    made.step(tick(T0 + HOUR))

    assert made.census(T0 + HOUR) is None

    made.step(on("a", word(plugin(0), "Healthy", T0 + HOUR, 3)))
    made.step(tick(T0 + 2 * HOUR))

    assert {RESOURCE: (3, 2, "a")} == made.census(T0 + 2 * HOUR).waiting


def test_a_node_without_waiting_devices_tells_so_once_when_a_breaker_opens():
    """What it said of an earlier storm must not keep the next one open."""
    made = partition()
    made.step(on("a", word(CARD, "Healthy", T0, 1)))
    made.census(T0)
    made.step(breaker(T0 + 1, "cluster", is_open=True))

    assert {} == made.census(T0 + 2).waiting
    assert made.census(T0 + 3) is None

    made.step(breaker(T0 + 4, "cluster", is_open=False))

    assert made.census(T0 + 5) is None

    made.step(breaker(T0 + 6, "cluster", is_open=True))

    assert made.census(T0 + 7) is not None


def test_what_is_restricted_faulty_unmonitored_or_of_a_lost_node_does_not_wait():
    """Closing the breaker changes nothing for it."""
    made = partition()
    for fact in (*unknown("restricted", 1), *unknown("faulty", 1), *unknown("lost", 1)):
        made.step(fact)
    made.step(tick(T0 + 2 * WINDOW_MS))
    at_ms = T0 + 2 * WINDOW_MS
    made.step(breaker(at_ms, "cluster", is_open=True))
    made.step(on("faulty", word(plugin(1), "Unhealthy", at_ms, 3)))
    made.step(on("lost", word(plugin(1), "Healthy", at_ms, 3)))
    made.step(on("lost", word(plugin(1), "Unknown", at_ms + 1, 4)))
    made.step(on("silent", published(0, at_ms, 1, taints=[UNMONITORED])))

    assert {RESOURCE: (1, 1, "lost")} == made.census(at_ms + 2).waiting

    made.step(on("lost", lapsed(at_ms + MINUTE, 1, at_ms)))

    assert {} == made.census(at_ms + MINUTE).waiting


def test_a_restart_does_not_forget_what_was_told_of_the_waiting():
    live, log = stormed()
    replayed = Partition(3)
    for event in log:
        replayed.replay(event)
    taken = live.census(T0 + 4)
    assert taken == replayed.census(T0 + 4)

    again = Partition(3)
    for event in (*log, taken):
        again.replay(event)
    restored = Partition.restored(3, live.header(), live.nodes, live.ledgers)

    assert again.census(T0 + 5) is None
    assert restored.census(T0 + 5) is None
    assert again.header() == live.header()


def history():
    """Two nodes, a late fact, ticks, a gap, a breaker, a policy."""
    other = msgspec.structs.replace(
        POLICY, version="other", quarantine=msgspec.structs.replace(POLICY.quarantine, min_hold_ms=HOUR)
    )
    return [
        policy_changed(T0 - HOUR, POLICY, partition=3),
        *(on("b", word(plugin(n), "Healthy", T0, 1)) for n in range(3)),
        on("a", word(CARD, "Unknown", T0, 1)),
        on("b", word(CARD, "Unhealthy", T0 + MINUTE, 4)),
        tick(T0 + 6 * MINUTE),
        on("a", word(CARD, "Healthy", T0 + 2 * MINUTE, 2)),
        gap(T0 + 5 * MINUTE, T0 + 7 * MINUTE),
        breaker(T0 + 8 * MINUTE, f"driver:{DRIVER}", is_open=True),
        on("b", word(CARD, "Healthy", T0 + 9 * MINUTE, 6)),
        on("b", word(CARD, "Unknown", T0 + 3 * MINUTE, 5)),
        policy_changed(T0 + 10 * MINUTE, other, partition=3),
        on("c", word(CARD, "Unhealthy", T0 + 10 * MINUTE, 1)),
        tick(T0 + HOUR),
        on("a", word(CARD, "Unhealthy", T0, 1, pod="pod-late")),
        tick(T0 + 12 * HOUR),
    ]


def test_a_replay_of_the_log_gives_the_live_states():
    """Facts and decisions folded, nothing decided: every node's state is the same, byte for byte."""
    live, replayed = Partition(3), Partition(3)
    log = walk(live, history())
    for event in log:
        replayed.replay(event)

    assert {n: dump(s) for n, s in live.nodes.items()} == {n: dump(s) for n, s in replayed.nodes.items()}
    assert (live.due_ms, live.policy_hash) == (replayed.due_ms, replayed.policy_hash)
    assert len(log) > len(history()) + 8


def test_after_a_replay_the_same_is_decided_in_the_same_order():
    """A worker that took over goes on as the one before would have, from any point of the log."""
    facts = history()
    whole = walk(Partition(3), facts)
    for cut in range(1, len(facts)):
        first, second = Partition(3), Partition(3)
        log = walk(first, facts[:cut])
        for event in log:
            second.replay(event)

        assert whole == log + walk(second, facts[cut:])


def test_a_replayed_census_is_not_taken_again():
    """What the breaker was told stands in the log."""
    live, replayed = partition(), partition()
    fact = on("a", word(CARD, "Healthy", T0, 1))
    live.step(fact)
    taken = live.census(T0)
    replayed.replay(fact)
    replayed.replay(taken)

    assert replayed.census(T0 + 1) is None


def test_a_restart_does_not_forget_what_turned_since_the_last_census():
    """The storm began before the restart and is reported after it."""
    live, replayed = Partition(3), Partition(3)
    facts = [policy_changed(T0 - HOUR, POLICY, partition=3)]
    facts += [
        on("a", word(plugin(n), health, T0 + rv, rv))
        for rv, health in ((1, "Healthy"), (2, "Unknown"))
        for n in (0, 1)
    ]
    for event in walk(live, facts):
        replayed.replay(event)
    taken = live.census(T0 + 3)

    assert (2, taken) == (len(taken.adverse), replayed.census(T0 + 3))


def test_a_decision_on_a_node_that_is_not_here_is_passed_over():
    """The log of the cluster's own stream may hold decisions of no node."""
    made = partition()
    made.replay(walk(partition(), [on("a", word(CARD, "Unhealthy", T0, 1))])[1])

    assert {} == made.nodes


def test_facts_that_arrive_together_are_ordered_by_time_then_node_then_source():
    """The node before the Pods, a slice before the words, each source by its version."""
    facts = [
        on("b", word(CARD, "Healthy", T0, 2)),
        on("a", word(CARD, "Healthy", T0, 3)),
        on("a", word(CARD, "Unknown", T0, 2)),
        on("a", published(0, T0, 1)),
        on("a", lapsed(T0, 1, T0)),
        tick(T0),
        on("a", word(CARD, "Healthy", T0 - 1, 1)),
    ]

    assert [facts[n] for n in (6, 5, 4, 3, 2, 1, 0)] == sorted(facts, key=arrival_order)
