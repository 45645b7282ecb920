"""Laws of recalling: a restart is silent, and whatever happened meanwhile is told as if the mirror had never stopped."""

import copy
import json
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ingest.frames import RESOURCES
from ingest.observe.pods import TERMINAL
from sickbay.codec import encode_payload, fact_id
from sickbay.facts import ClaimGone, DeviceWithdrawn, Fact, NodeGone, PodGone, PodObserved, WatchGapFound
from tests.support.ingest_worlds import WATCHED, WRITES, Step, Watcher, World, key_of, lives, newest, steps

#: Longer than a Lease lasts and than a word waits for its claim.
LONG_TICKS = 45
#: When it was seen and under which version; and what only a mirror that ran on can know of a time before.
INCIDENTAL = ("observed_at_ms", "epoch", "rv", "gone_after_ms", "last_renewal_at_ms", "skew_ms")
ENDS = (PodGone, ClaimGone, NodeGone, DeviceWithdrawn)
BROADCASTS = {"watch_gap_found", "resync_completed", "epoch_changed"}


def contents(facts: list[Fact]) -> dict[str, dict[str, Any]]:
    """Return what the newest fact of each subject on each node says, by what it is about."""
    found: dict[str, dict[str, Any]] = {}
    for fact in newest(facts):
        if fact.KIND not in BROADCASTS:
            raw = json.loads(encode_payload(fact))
            content = {key: value for key, value in raw.items() if key not in INCIDENTAL}
            key = f"{fact.resource} {fact.node} {fact.subject} {raw.get('pod_uid', '')}"
            found[key] = content | {"kind": fact.KIND}
    return found


def said(watcher: Watcher, *, restored: bool) -> dict[str, dict[str, Any]]:
    """Return the contents of all that was told.

    After a restore Leases are left out, for versions that told nothing are forgotten, and with them that they went backwards;
    so are the words of Pods that had ended, for a mirror that ran on hears no more of them though they run again.
    """
    every = contents(watcher.told)
    if not restored:
        return every
    over = {fact.pod_uid for fact in watcher.told if isinstance(fact, PodObserved) and fact.phase in TERMINAL}
    return {
        key: content
        for key, content in every.items()
        if not key.startswith("leases ") and not ("device_id" in content and content.get("pod_uid") in over)
    }


def started(history: list[Step]) -> tuple[World, Watcher]:
    """Return a world after a history, and a mirror that listed it at its beginning and watched it since."""
    world, watcher = World(), Watcher()
    watcher.read(world, list(RESOURCES))
    watcher.follow(world, history)
    return world, watcher


def restarted(watcher: Watcher, facts: list[Fact]) -> Watcher:
    """Return a new mirror that knows what the other one told, and begins at its time."""
    other = Watcher()
    other.mirror.recall(facts, watcher.at_ms)
    other.told, other.at_ms = list(watcher.told), watcher.at_ms
    return other


def given_facts(data: st.DataObject, told: list[Fact]) -> list[Fact]:
    """Return all facts, or only the newest of each subject."""
    return list(newest(told)) if data.draw(st.booleans(), "only the newest") else told


orders = st.permutations(RESOURCES)
#: A step of a relist that is joined with older steps of other resources says more than either state of the world.
_FIRST = {"resourceslices": 0, "pods": 1}
in_order = orders.map(lambda order: sorted(order, key=lambda resource: _FIRST.get(resource, 2)))


@settings(max_examples=300, deadline=None)
@given(st.data(), lives(30), orders)
def test_a_restart_is_silent(data: st.DataObject, history: list[Step], order: list[str]) -> None:
    """When the world did not change, the first LISTs tell of a gap and of themselves, and of nothing else (I5)."""
    world, watcher = started(history)
    watcher.catch_up()
    assume(not watcher.mirror.waiting_pods)
    other = restarted(watcher, given_facts(data, watcher.told))

    facts = other.read(world, order)

    assert {"watch_gap_found", "resync_completed"} == {fact.KIND for fact in facts}
    gaps = [fact for fact in facts if isinstance(fact, WatchGapFound)]
    assert 2 * len(RESOURCES) == len(gaps)
    assert {watcher.at_ms} == {gap.from_ms for gap in gaps}


@settings(max_examples=400, deadline=None)
@given(
    st.data(),
    lives(30),
    steps((*WRITES, "delete_lease"), 20),
    steps((*WATCHED, "delete_lease"), 20),
    in_order,
)
def test_a_restart_changes_nothing_that_is_told(
    data: st.DataObject, before: list[Step], meanwhile: list[Step], after: list[Step], order: list[str]
) -> None:
    """A mirror that lost its watches and one that was restarted tell the same of what went by, and of what comes (D7, W2)."""
    backed_up = data.draw(st.integers(0, len(before)), "steps in the backup")
    world, watcher = started(before[:backed_up])
    backup = copy.deepcopy(world)
    watcher.follow(world, before[backed_up:])
    assume(not watcher.mirror.waiting_pods)
    other = restarted(watcher, given_facts(data, watcher.told))
    watcher.lose()
    for step in meanwhile:
        world.write(step)
    restored = data.draw(st.integers(0, 9), "restored when it is 0") == 0
    if restored:
        backup.made, world = world.made, backup
    world.events.clear()

    for mirror in (watcher, other):
        mirror.read(world, order)
    assert said(watcher, restored=restored) == said(other, restored=restored)
    ends = [fact_id(fact) for fact in other.told if isinstance(fact, ENDS)]
    assert len(ends) == len(set(ends))

    twin = copy.deepcopy(world)
    for mirror, its_world in ((watcher, world), (other, twin)):
        mirror.follow(its_world, after)
        for _ in range(LONG_TICKS):
            mirror.frame("TICK")
        mirror.catch_up()
    assert said(watcher, restored=restored) == said(other, restored=restored)


@settings(max_examples=150, deadline=None)
@given(st.data(), lives(30), steps(WRITES, 15), orders)
def test_order_and_repeats_of_facts_mean_nothing(
    data: st.DataObject, before: list[Step], meanwhile: list[Step], order: list[str]
) -> None:
    """The same facts in any order, and twice, are recalled alike; only equal versions of a subject keep theirs."""
    world, watcher = started(before)
    facts = watcher.told
    turned = data.draw(st.permutations(facts))
    # facts of one subject and one version keep their order
    queues: dict[tuple[Any, ...], list[Fact]] = {}
    for fact in facts:
        queues.setdefault((*key_of(fact), fact.epoch, fact.rv), []).append(fact)
    turned = [queues[*key_of(fact), fact.epoch, fact.rv].pop(0) for fact in turned]
    others = [restarted(watcher, facts), restarted(watcher, turned), restarted(watcher, [*facts, *facts])]
    others[0].mirror.recall(facts, watcher.at_ms)
    for step in meanwhile:
        world.write(step)

    read = [other.read(world, order) for other in others]

    assert read[0] == read[1] == read[2]
