"""The devices that device plugins give to one node: how many, who asked for them, and which of them are known by name.

A fold of facts, not of decisions: no decision carries what a node can give of an extended resource or what Pods ask of it, because
the ledger's books hold node resources only (docs/ledger.md). The kubelet tells which devices a Pod got by the health words in the
Pod's status (KEP-4680), so a device has a name here once a Pod had it. Newest version wins, so a fact that comes twice or late
changes nothing. Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from responders.extender.asking import devices_of, is_extended
from sickbay.facts import DeviceHealthObserved, Fact, NodeGone, NodeObserved, PodGone, PodObserved
from sickbay.quantity import parse

#: Kinds of the facts that are folded.
KINDS: Final = frozenset(
    kind.KIND for kind in (NodeObserved, NodeGone, PodObserved, PodGone, DeviceHealthObserved)
)
#: Pods that went and are remembered on a node, so that an older word on them does not bring them back.
GONE_MAX: Final = 512
#: Devices of a node that nobody holds and that are remembered.
DEVICES_MAX: Final = 1_024

_PLUGIN: Final = "plugin:"
_Version = tuple[int, int]


class Count(NamedTuple):
    """Devices of one resource on one node."""

    #: Fit, and not asked for by any Pod.
    free: int
    #: Fit, whoever has them.
    fit: int


class _Device(NamedTuple):
    #: The card that it stands for: itself, unless it is a replica.
    unit: str
    health: str
    version: _Version


class Inventory:
    """What one node gives out."""

    __slots__ = (
        "_asked",
        "_devices",
        "_gone",
        "_holders",
        "_node",
        "_pods",
        "allocatable",
        "capacity",
        "node_uid",
    )

    def __init__(self) -> None:
        self.node_uid = ""
        #: Extended resource to whole devices.
        self.capacity: dict[str, int] = {}
        self.allocatable: dict[str, int] = {}
        self._node: _Version = (-1, -1)
        #: Pod uid to version and what it asks for, of Pods that count.
        self._pods: dict[str, tuple[_Version, Mapping[str, int]]] = {}
        self._asked: dict[str, int] = {}
        self._gone: dict[str, None] = {}
        self._devices: dict[str, _Device] = {}
        #: Device id to the live Pods that have it.
        self._holders: dict[str, set[str]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether the node is gone, as far as is known, and nobody is on it: what is remembered tells repeats apart, and no more."""
        return not (self.node_uid or self._pods or self._holders)

    def fold(self, fact: Fact) -> bool:
        """Take in a fact on the node; return whether an answer may change by it."""
        match fact:
            case NodeObserved():
                return self._observed(fact)
            case NodeGone() if fact.node_uid == self.node_uid:
                self.node_uid, self.capacity, self.allocatable = "", {}, {}
                return True
            case PodObserved():
                return self._pod(fact)
            case PodGone():
                self._remember_gone(fact.pod_uid)
                return self._drop(fact.pod_uid)
            case DeviceHealthObserved() if fact.device_id.startswith(_PLUGIN):
                return self._word(fact)
            case _:
                return False

    def count(self, resource: str, unfit: Mapping[str, object]) -> Count | None:
        """Count the devices of a resource, given the units that take no new work; ``None`` where no plugin gives any.

        What the plugin itself calls Unhealthy the kubelet takes out of what it can give, so such a device counts once: first those
        that Pods hold explain what is missing, then those that were Unhealthy by the last word on them.
        """
        if resource not in self.allocatable:
            return None
        can_give = self.allocatable[resource]
        withheld = max(0, self.capacity.get(resource, 0) - can_give)
        prefix = f"{_PLUGIN}{resource}/"
        mine = {name: device for name, device in self._devices.items() if name.startswith(prefix)}
        by_unit: dict[str, list[str]] = {unit: [] for unit in unfit if unit.startswith(prefix)}
        for name, device in mine.items():
            if device.unit in by_unit:
                by_unit[device.unit].append(name)
        idle = silent = bad = all_of_them = 0
        for unit, names in by_unit.items():
            for name in names or [unit]:
                word = mine[name].health if name in mine else ""
                all_of_them += 1
                bad += word == "Unhealthy"
                if name not in self._holders:
                    idle += 1
                    silent += word == "Unhealthy"
        held_bad = sum(1 for name in self._holders if name in mine and mine[name].health == "Unhealthy")
        counted = idle - min(silent, max(0, withheld - held_bad))
        return Count(
            free=can_give - self._asked.get(resource, 0) - counted,
            fit=can_give - (all_of_them - min(bad, withheld)),
        )

    def _observed(self, fact: NodeObserved) -> bool:
        version = (fact.epoch, fact.rv)
        if version < self._node:
            return False
        before = (self.node_uid, self.capacity, self.allocatable)
        self._node, self.node_uid = version, fact.node_uid
        self.capacity, self.allocatable = _whole(fact.capacity), _whole(fact.allocatable)
        return before != (self.node_uid, self.capacity, self.allocatable)

    def _pod(self, fact: PodObserved) -> bool:
        uid, version = fact.pod_uid, (fact.epoch, fact.rv)
        known = self._pods.get(uid)
        if uid in self._gone or (known is not None and version < known[0]):
            return False
        if fact.phase in ("Succeeded", "Failed"):
            self._remember_gone(uid)  # a phase that is terminal stays so
            return self._drop(uid)
        asked = devices_of(fact)
        if not asked and known is None:
            return False
        changed = known is None or known[1] != asked
        if changed:
            self._charge(known[1] if known else {}, -1)
            self._charge(asked, 1)
        self._pods[uid] = (version, asked)
        return changed

    def _word(self, fact: DeviceHealthObserved) -> bool:
        name, version = fact.device_id, (fact.epoch, fact.rv)
        known = self._devices.get(name)
        before = (known, name in self._holders)
        if known is None or version >= known.version:
            self._devices[name] = _Device(fact.physical_id or name, fact.health, version)
        if fact.live and fact.pod_uid not in self._gone:
            self._holders.setdefault(name, set()).add(fact.pod_uid)
        elif not fact.live:
            self._let_go(name, fact.pod_uid)
        while len(self._devices) > DEVICES_MAX:
            oldest = next((each for each in self._devices if each not in self._holders), name)
            del self._devices[oldest]
            self._holders.pop(oldest, None)
        after = self._devices.get(name)
        return before != (after, name in self._holders)

    def _remember_gone(self, uid: str) -> None:
        self._gone[uid] = None
        while len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]

    def _drop(self, uid: str) -> bool:
        known = self._pods.pop(uid, None)
        if known is not None:
            self._charge(known[1], -1)
        held = [name for name, pods in self._holders.items() if uid in pods]
        for name in held:
            self._let_go(name, uid)
        return bool(held) or (known is not None and bool(known[1]))

    def _let_go(self, name: str, uid: str) -> None:
        pods = self._holders.get(name)
        if pods is not None:
            pods.discard(uid)
            if not pods:
                del self._holders[name]

    def _charge(self, asked: Mapping[str, int], sign: int) -> None:
        for resource, number in asked.items():
            left = self._asked.get(resource, 0) + sign * number
            if left:
                self._asked[resource] = left
            else:
                self._asked.pop(resource, None)


def _whole(amounts: Mapping[str, str]) -> dict[str, int]:
    return {resource: parse(text).value() for resource, text in amounts.items() if is_extended(resource)}
