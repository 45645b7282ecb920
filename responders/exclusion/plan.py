"""What is to be done about taint rules: what should be, by the view, against what is, by the API server. Pure.

A rule that somebody else changed is put right a few times an hour and then left, loudly; one that a person took charge of
(``sickbay.dev/override``) is left at once. Nothing is made while there are too many rules, or too many new ones (A15, A18).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from responders.exclusion.rules import (
    Found,
    RuleEffect,
    Wanted,
    is_ours,
    is_right,
    rule_name,
    selector_of,
)
from responders.view import OnNode, View
from responders.work import NEVER_MS, takes_work_from_ms
from sickbay.envelope import derived_id
from sickbay.policy import ExclusionPolicy, Policy

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
#: Causes of an episode that are evidence of a fault: nobody is evicted for a person's hold or for silence.
_FAULTS: Final = ("unhealthy", "driver_taint")


class Should(NamedTuple):
    """The rules that should stand, by name, and when time alone will change them."""

    rules: Mapping[str, Wanted]
    due_ms: int


class Action(NamedTuple):
    """One thing to do about one rule."""

    #: ``cap`` and ``give_up`` are only told; ``respect`` is that a person is in charge.
    do: Literal["create", "update", "repair", "delete", "cap", "give_up", "respect", "confirm"]
    name: str
    wanted: Wanted | None
    found: Found | None


class Limits(NamedTuple):
    """What was done lately, as far as this process knows."""

    #: Times at which rules were made.
    created_at_ms: Sequence[int] = ()
    #: Name of a rule to the times at which it was repaired.
    repaired_at_ms: Mapping[str, Sequence[int]] = {}
    #: When the whole list was read: only what was read back confirms a rule.
    listed_at_ms: int = 0
    #: Rules that this process has seen standing: one that is gone was deleted by somebody else.
    stood: frozenset[str] = frozenset()


def should(view: View, policy: Policy, now_ms: int) -> Should:
    """Return which rules should stand now: one for each device that takes no new work, in the effect that the policy gives it."""
    rules: dict[str, Wanted] = {}
    due_ms = NEVER_MS
    for on_node in view.devices():
        from_ms = takes_work_from_ms(on_node.device.record, policy.staged_return)
        if from_ms <= now_ms:
            continue
        wanted = _wanted(on_node, view, policy.respond.exclusion)
        if wanted is not None:
            rules[wanted.name] = wanted
            due_ms = min(due_ms, from_ms)
    return Should(rules, due_ms)


def _wanted(on_node: OnNode, view: View, policy: ExclusionPolicy) -> Wanted | None:
    node, device = on_node
    record = device.record
    selector = selector_of(device.device_id)
    if selector is None:
        return None
    mode = next(
        (
            rule.mode
            for rule in policy.rules
            if rule.driver in ("", device.driver) and rule.node_class in ("", view.node_class(node))
        ),
        policy.mode,
    )
    if mode == "off":
        return None
    effect: RuleEffect = "None" if mode == "observe" else "NoSchedule"
    episode = record.episode
    if (
        mode == "evict"
        and episode is not None
        and record.phase == "quarantined"
        and episode.cause in _FAULTS
        and not episode.held
        and not view.breaker_open(device.driver)
    ):
        effect = "NoExecute"
    run = derived_id("restricted", node, device.device_id, str(record.unknown_since_ms or record.since_ms))
    return Wanted(
        name=rule_name(node, device.device_id, episode.episode_id if episode else run),
        selector=selector,
        effect=effect,
        value="quarantined" if episode else "restricted",
        node=node,
        device_id=device.device_id,
        episode_id=episode.episode_id if episode else "",
        at_ms=device.at_ms,
    )


def plan(
    wanted: Mapping[str, Wanted],
    found: Mapping[str, Found],
    policy: ExclusionPolicy,
    limits: Limits,
    now_ms: int,
) -> list[Action]:
    """Return what to do, in order: nothing is taken away before what takes its place was made."""
    out = [
        action
        for name in sorted(wanted.keys() & found.keys())
        if (action := _compare(wanted[name], found[name], policy, limits, now_ms)) is not None
    ]
    out += _missing((w for name, w in wanted.items() if name not in found), found, policy, limits, now_ms)
    for name in sorted(found.keys() - wanted.keys()):
        out.append(Action("respect" if found[name].override else "delete", name, None, found[name]))
    return out


def _compare(
    wanted: Wanted, found: Found, policy: ExclusionPolicy, limits: Limits, now_ms: int
) -> Action | None:
    if found.override:
        return Action("respect", wanted.name, wanted, found)
    if is_right(found, wanted):
        if limits.listed_at_ms - found.created_at_ms >= policy.confirm_after_ms:
            return Action("confirm", wanted.name, wanted, found)
        return None
    if is_ours(found):
        return Action("update", wanted.name, wanted, found)
    return Action(_repair(wanted.name, policy, limits, now_ms), wanted.name, wanted, found)


def _repair(name: str, policy: ExclusionPolicy, limits: Limits, now_ms: int) -> Literal["repair", "give_up"]:
    lately = [at_ms for at_ms in limits.repaired_at_ms.get(name, ()) if at_ms > now_ms - HOUR_MS]
    return "repair" if len(lately) < policy.repairs_per_hour else "give_up"


def _missing(
    missing: Iterable[Wanted],
    found: Mapping[str, Found],
    policy: ExclusionPolicy,
    limits: Limits,
    now_ms: int,
) -> list[Action]:
    """Return what to make of the rules that are not there: quarantines before restrictions, the oldest first."""
    since_ms = now_ms - MINUTE_MS
    lately = max(
        sum(1 for at_ms in limits.created_at_ms if at_ms > since_ms),
        sum(1 for rule in found.values() if rule.created_at_ms > since_ms),
    )
    room = min(policy.rules_max - len(found), policy.per_minute - lately)
    out = []
    for wanted in sorted(missing, key=lambda w: (w.value != "quarantined", w.at_ms, w.name)):
        was_there = wanted.name in limits.stood
        if was_there and _repair(wanted.name, policy, limits, now_ms) == "give_up":
            out.append(Action("give_up", wanted.name, wanted, None))
        elif room <= 0:
            out.append(Action("cap", wanted.name, wanted, None))
        else:
            room -= 1
            out.append(Action("repair" if was_there else "create", wanted.name, wanted, None))
    return out
