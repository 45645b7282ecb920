"""What the extender knows of every node, made ready to be asked: which devices take no new work, what is on hold, what is left.

It joins the view of custody and verdicts with the ledger's balances and the devices that plugins give. An answer must be ready in
milliseconds for thousands of nodes, so what stands of a node is worked out when it is first asked for after a change, and kept.
Pure: no I/O, no clock; it judges no Pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from responders.extender import balances, inventory
from responders.extender.asking import devices_of
from responders.extender.balances import Balances
from responders.extender.inventory import Count, Inventory
from responders.view import Node, View, driver_of_hold
from responders.work import NEVER_MS, takes_work_from_ms
from sickbay.decisions import Decision
from sickbay.facts import Fact, PodObserved, Tick
from sickbay.policy import Effect, NodeClass, Policy

#: Kinds of decisions and of facts that are needed beside those of the view.
DECISION_KINDS: Final = balances.KINDS
FACT_KINDS: Final = inventory.KINDS | {Tick.KIND}
#: Resources that are remembered as given by plugins: more than this have no meaning.
RESOURCES_MAX: Final = 10_000
#: Nodes that are gone and of which it is remembered who was there: a repeated fact then changes nothing.
LEFT_MAX: Final = 1_000

_PLUGIN: Final = "plugin:"
_STRICTNESS: Final[dict[Effect, int]] = {"off": 0, "observe": 1, "enforce": 2}


class Short(NamedTuple):
    """A resource of a node of which devices take no new work."""

    devices: Count
    #: ``2 quarantined, 1 restricted``.
    words: str
    mode: Effect


class Standing(NamedTuple):
    """What stands of one node."""

    #: Resource to what is short; a resource without unfit devices is not there.
    short: Mapping[str, Short] = {}
    #: Resources that a plugin gives on the node.
    gives: frozenset[str] = frozenset()
    #: Reasons of the holds, in order, by how strictly they count; empty where claims may come.
    holds: Mapping[Effect, tuple[str, ...]] = {}
    #: Node resource to the exact free amount, where the scheduler does not count all that is used.
    free_nano: Mapping[str, int] = {}
    #: How strictly a claim is dealt with here.
    claims_mode: Effect = "off"
    #: From then on it must be worked out anew.
    until_ms: int = NEVER_MS


class Holdings:
    """Every node. Whoever folds a decision into the view tells it here afterwards."""

    def __init__(self, view: View, policy: Policy) -> None:
        self._view, self._policy, self._rules = view, policy, policy.respond.extender
        self._balances: dict[str, Balances] = {}
        self._inventories: dict[str, Inventory] = {}
        #: Names of the inventories that are empty, the one that was heard of last at the end.
        self._left: dict[str, None] = {}
        self._ready: dict[str, Standing] = {}
        #: What stands of a node of which nothing is known, by its class.
        self._unknown = Standing(claims_mode=self.claims_mode("stable", ()))
        #: Resources whose devices custody knows; those that a rule names are known from the beginning.
        self.resources: set[str] = {rule.driver for rule in self._rules.rules if rule.driver}

    def fold_decision(self, decision: Decision) -> None:
        """Take in a decision that the view took in."""
        if not decision.node:
            return
        device_id = getattr(decision, "device_id", "")
        if device_id.startswith(_PLUGIN):
            self._learn(device_id)
        if decision.KIND in DECISION_KINDS:
            found = self._balances.setdefault(decision.node, Balances())
            found.fold(decision)
            if found.is_empty:
                del self._balances[decision.node]
        self._ready.pop(decision.node, None)

    def fold_fact(self, fact: Fact) -> None:
        """Take in a fact on a node; a Pod without a node is nobody's."""
        if not fact.node:
            return
        if isinstance(fact, PodObserved) and fact.extended_claim:
            # what it asks for and no plugin gives here came through a claim (KEP-5004), so it is ours elsewhere too
            for resource in devices_of(fact):
                self._learn(f"{_PLUGIN}{resource}/")
        found = self._inventories.setdefault(fact.node, Inventory())
        if found.fold(fact):
            self._ready.pop(fact.node, None)
            device_id = getattr(fact, "device_id", "")
            if device_id:
                self._learn(device_id)
        self._left.pop(fact.node, None)
        if found.is_empty:
            self._left[fact.node] = None
            while len(self._left) > LEFT_MAX:
                oldest = next(iter(self._left))
                del self._left[oldest], self._inventories[oldest]
                self._ready.pop(oldest, None)

    def standing(self, name: str, now_ms: int) -> Standing:
        """Return what stands of a node; of one that nothing is known of, nothing."""
        found = self._ready.get(name)
        if found is not None and now_ms < found.until_ms:
            return found
        view = self._view.nodes.get(name)
        books, given = self._balances.get(name), self._inventories.get(name)
        if view is None and books is None and given is None:
            return self._unknown
        found = self._stand(view or Node(), books, given, now_ms)
        self._ready[name] = found
        return found

    def mode(self, driver: str, node_class: NodeClass) -> Effect:
        """Return what is done about a resource or driver on nodes of a class: by the first rule that matches."""
        for rule in self._rules.rules:
            if rule.driver in ("", driver) and rule.node_class in ("", node_class):
                return rule.mode
        return self._rules.mode

    def claims_mode(self, node_class: NodeClass, drivers: tuple[str, ...]) -> Effect:
        """Return how strictly claims are dealt with: as the strictest of the drivers says, since none is chosen yet."""
        return max(
            (self.mode(driver, node_class) for driver in drivers or ("",)), key=_STRICTNESS.__getitem__
        )

    def strictest(self, name: str, resources: tuple[str, ...], *, claims: bool) -> Effect:
        """Return how strictly what is asked is dealt with on a node while nobody knows which drivers are there."""
        node_class = self._view.node_class(name)
        modes = [self.mode(resource, node_class) for resource in resources]
        if claims:
            modes += [rule.mode for rule in self._rules.rules if rule.node_class in ("", node_class)]
            modes.append(self.mode("", node_class))
        return max(modes, key=_STRICTNESS.__getitem__)

    def _learn(self, device_id: str) -> None:
        if device_id.startswith(_PLUGIN) and len(self.resources) < RESOURCES_MAX:
            self.resources.add(_resource_of(device_id))

    def _stand(self, view: Node, books: Balances | None, given: Inventory | None, now_ms: int) -> Standing:
        unfit, until_ms = self._unfit(view, now_ms)
        node_class, drivers = view.node_class, view.drivers
        short: dict[str, Short] = {}
        for resource in {_resource_of(unit) for unit in unfit} if given is not None else ():
            assert given is not None
            count = given.count(resource, unfit)
            if count is not None:
                phases = Counter(phase for unit, phase in unfit.items() if _resource_of(unit) == resource)
                words = ", ".join(f"{number} {phase}" for phase, number in sorted(phases.items()))
                short[resource] = Short(count, words, self.mode(resource, node_class))
        holds: dict[Effect, set[str]] = {}
        for hold in view.holds if view.verdict == "hold" else ():
            driver = driver_of_hold(hold)
            mode = self.claims_mode(node_class, (driver,) if driver else drivers)
            holds.setdefault(mode, set()).add(hold.reason)
        return Standing(
            short=short,
            gives=frozenset(given.allocatable) if given is not None else frozenset(),
            holds={mode: tuple(sorted(reasons)) for mode, reasons in holds.items()},
            free_nano=books.uncounted_nano() if books is not None else {},
            claims_mode=self.claims_mode(node_class, drivers),
            until_ms=until_ms,
        )

    def _unfit(self, view: Node, now_ms: int) -> tuple[dict[str, str], int]:
        """Return unit to phase of the plugins' devices that take no new work, and when that ends by itself."""
        found: dict[str, str] = {}
        until_ms = NEVER_MS
        for unit, device in view.devices.items():
            if unit.startswith(_PLUGIN):
                from_ms = takes_work_from_ms(device.record, self._policy.staged_return)
                if now_ms < from_ms:
                    found[unit] = device.record.phase
                    until_ms = min(until_ms, from_ms)
        return found, until_ms


def _resource_of(unit: str) -> str:
    """Return the resource of ``plugin:<domain>/<name>/<id>``; an id may hold slashes, a resource has one."""
    domain, _, rest = unit[len(_PLUGIN) :].partition("/")
    name = rest.partition("/")[0]
    return f"{domain}/{name}"
