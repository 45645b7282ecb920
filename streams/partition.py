"""One partition: facts routed to custody and ledger of their node, ticks to the nodes whose time has come, a census for the breaker.

A tick is one per partition and a state one per node: it is applied to those nodes that have a deadline at or before it. That
rule is a function of the states alone, so a replay applies it alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import Final

import msgspec

from sickbay.decisions import (
    LEDGER_ALERTS,
    AlertCleared,
    AlertRaised,
    CensusTaken,
    CustodyDecision,
    Decision,
    LedgerDecision,
)
from sickbay.facts import (
    BreakerStateChanged,
    ClaimObserved,
    ClaimsGateRequested,
    Fact,
    PolicyChanged,
    Tick,
    WatchGapFound,
)
from sickbay.policy import Policy, policy_from_document
from sickbay.topics import RECORD_BYTES_MAX
from streams.custody.aggregate import CUSTODY, NodeState, initial, replay
from streams.custody.context import Context
from streams.custody.signals import Source, source_of
from streams.custody.state import NEVER
from streams.custody.surroundings import restrictable
from streams.ledger import aggregate as ledger
from streams.ledger.aggregate import LEDGER
from streams.ledger.state import LedgerState

#: Shares of known devices by which a census may be out of date, in percent: the breaker's own ratio is coarser.
_CENSUS_DRIFT_PERCENT = 5
#: Bytes of the devices that one census names: it must fit a record (P8). What is left is named by the next one.
_CENSUS_BYTES: Final = RECORD_BYTES_MAX * 7 // 10
_NO_SOURCE: tuple[Source, tuple[int, ...]] = (("9",), ())
#: Claims come before the Pods that speak of them, so that what arrives together needs no second entry.
_CLAIM: dict[type[Fact], tuple[Source, tuple[int, ...]]] = {ClaimObserved: (("39claim",), ())}


def arrival_order(fact: Fact) -> tuple[int, str, Source, tuple[int, ...]]:
    """Return the order in which facts that arrived together are logged: time, node, source, version.

    It is the order of event time, so that what arrives together needs no rebuilding.
    """
    source, version = source_of(fact) or _CLAIM.get(type(fact), _NO_SOURCE)
    return fact.observed_at_ms, fact.node, source, version


def is_ledgers(decision: Decision) -> bool:
    """Whether a decision is the ledger's; the others are custody's or the breaker's."""
    if isinstance(decision, AlertRaised | AlertCleared):
        return decision.alert in LEDGER_ALERTS
    return isinstance(decision, LedgerDecision)


def _order(fact: ClaimsGateRequested) -> tuple[int, str]:
    return fact.observed_at_ms, fact.request_id


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a partition keeps beside the states of its nodes."""

    #: Hash to canonical document.
    policies: dict[str, str]
    policy_hash: str
    breakers: dict[str, int]
    heard: dict[str, tuple[int, bool]]
    gates: dict[str, ClaimsGateRequested]
    gaps: dict[str, WatchGapFound]
    reported: dict[str, int]
    ticked_ms: int
    #: In the order in which they turned: a census tells them so.
    adverse: tuple[tuple[str, tuple[str, int, str]], ...]
    #: As the newest census told it, ``None`` since a breaker's newest word.
    waiting: dict[str, tuple[int, int, str]] | None


def read_policies(header: Header) -> dict[str, Policy]:
    """Return the policies of a header by their hash."""
    return {key: policy_from_document(document) for key, document in header.policies.items()}


class Partition:
    """The states of one partition's nodes."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.policies: dict[str, Policy] = {}
        self.policy_hash = ""
        self.nodes: dict[str, NodeState] = {}
        self.ledgers: dict[str, LedgerState] = {}
        self._breakers: dict[str, int] = {}
        #: Newest request for each gate that every node hears of.
        self._gates: dict[str, ClaimsGateRequested] = {}
        #: Newest watch gap of each resource type.
        self._gaps: dict[str, WatchGapFound] = {}
        #: Node to the deadline that was noted last.
        self._noted_ms: dict[str, int] = {}
        self._deadlines: list[tuple[int, str]] = []
        self._sizes: dict[str, int] = {}
        self._known_by_node: dict[str, Counter[str]] = {}
        self._known: Counter[str] = Counter()
        self._reported: dict[str, int] = {}
        #: Device to (driver, when it turned, the incident that explains it).
        self._adverse: dict[str, tuple[str, int, str]] = {}
        #: What the newest census since the newest word of a breaker said of the devices that wait for it.
        self._waiting: dict[str, tuple[int, int, str]] | None = None
        #: Whether that may have changed.
        self._stirred = True
        #: Scope of a breaker to the newest word on it: the same word again, late, changes nothing.
        self._heard: dict[str, tuple[int, bool]] = {}
        #: Time of the newest tick.
        self._ticked_ms = 0
        #: Nodes whose state changed since whoever keeps snapshots emptied it.
        self.touched: set[str] = set()

    @property
    def due_ms(self) -> int:
        """The earliest deadline of any node, NEVER if there is none."""
        while self._deadlines:
            due_ms, name = self._deadlines[0]
            if self._due_ms(name) == due_ms:
                return due_ms
            heappop(self._deadlines)
        return NEVER

    def _due_ms(self, name: str) -> int:
        books = self.ledgers.get(name)
        due_ms = self.nodes[name].due_ms
        return due_ms if books is None else min(due_ms, books.due_ms)

    def step(self, fact: Fact) -> list[Decision]:
        """Live: take one fact in and decide."""
        decisions: list[Decision] = []
        for name in self._concerned(fact):
            decisions += self._step_node(name, (fact,))
        return decisions

    def _step_node(self, name: str, facts: Sequence[Fact]) -> Sequence[Decision]:
        state, decisions = CUSTODY.step(self._node(name), facts)
        self.nodes[name] = state
        for decision in decisions:
            if isinstance(decision, CustodyDecision):
                self._count(name, state, decision)
        books = self.ledgers.get(name)
        if books is not None:
            self.ledgers[name], entered = LEDGER.step(books, facts)
            decisions = (*decisions, *entered)
        self._note(name, state)
        return decisions

    def _count(self, name: str, state: NodeState, decision: CustodyDecision) -> None:
        """Note a device that newly turned adverse, or whose turn a node incident now explains."""
        record = decision.record
        explained = bool(record.incident_id) and decision.phase_before in ("quarantined", "suspect")
        turned = decision.phase_before == "in_service" and record.phase != "in_service"
        if not (turned or explained) or record.cause in ("unmonitored", "hold"):
            return
        unit = state.timeline.head.units.get(decision.device_id)
        if unit is not None and unit.first_seen_ms < decision.at_ms:
            self._adverse[f"{name}|{decision.device_id}"] = (
                decision.driver,
                decision.at_ms,
                record.incident_id,
            )

    def replay(self, event: Fact | Decision) -> None:
        """Replay: take in a recorded fact or decision and decide nothing."""
        if isinstance(event, Decision):
            if isinstance(event, CensusTaken):
                if event.partition == self.number:  # the breaker's home hears those of the others too
                    self._reported = dict(event.known)
                    if self._breakers:
                        self._waiting = dict(event.waiting)
                    for _, device, _, _ in event.adverse:
                        self._adverse.pop(device, None)
            elif event.node in self.nodes:
                self._replay_decision(event)
            return
        for name in self._concerned(event):
            state = replay(self._node(name), event)
            if name in self.ledgers:
                ledger.replay(self.ledgers[name], event)
            self._note(name, state)

    def _replay_decision(self, event: Decision) -> None:
        if is_ledgers(event):
            ledger.replay(self.ledgers[event.node], event)
            return
        state = replay(self.nodes[event.node], event)
        if isinstance(event, CustodyDecision):
            self._count(event.node, state, event)
        elif (
            isinstance(event, AlertRaised) and event.alert == ledger.LATE_FACT and event.node in self.ledgers
        ):
            # either of the two may have found the fact late; for the other it says nothing
            ledger.replay(self.ledgers[event.node], event)

    def _concerned(self, fact: Fact) -> list[str]:
        """Return the nodes that a fact is about, and take in what concerns the whole partition."""
        match fact:
            case Tick():
                self._ticked_ms = max(self._ticked_ms, fact.observed_at_ms)
                return self._due_nodes(fact.observed_at_ms)
            case PolicyChanged():
                self.policies[fact.policy_hash] = policy_from_document(fact.document)
                self.policy_hash = fact.policy_hash
            case BreakerStateChanged():
                word = (fact.observed_at_ms, fact.open)
                if self._heard.get(fact.scope, (0, False)) <= word:
                    self._heard[fact.scope] = word
                    self._waiting = None
                    if fact.open:
                        self._breakers[fact.scope] = fact.observed_at_ms
                    else:
                        self._breakers.pop(fact.scope, None)
            case ClaimsGateRequested() if fact.partition is not None:
                known = self._gates.get(fact.scope)
                if known is None or _order(known) < _order(fact):
                    self._gates[fact.scope] = fact
            case WatchGapFound():
                gap = self._gaps.get(fact.watched)
                if gap is None or (gap.to_ms, -gap.from_ms) < (fact.to_ms, -fact.from_ms):
                    self._gaps[fact.watched] = fact
            case _:
                return [] if getattr(fact, "partition", None) is not None else [fact.node]
        return sorted(self.nodes)

    def _due_nodes(self, at_ms: int) -> list[str]:
        due: list[str] = []
        while self._deadlines and self._deadlines[0][0] <= at_ms:
            due_ms, name = heappop(self._deadlines)
            if self._noted_ms.get(name) == due_ms:
                del self._noted_ms[name]
            if self._due_ms(name) == due_ms and name not in due:
                due.append(name)
        return sorted(due)

    def _node(self, name: str) -> NodeState:
        state = self.nodes.get(name)
        if state is None:
            state = initial(name, self.policies, self.policy_hash, breakers=self._breakers)
            self.nodes[name] = state
            if name:  # what is on no node is in no book
                heard = (*self._gates.values(), *self._gaps.values())
                self.ledgers[name] = ledger.initial(name, self.policies, self.policy_hash, heard)
        return state

    def _note(self, name: str, state: NodeState) -> None:
        self.touched.add(name)
        self._stirred = True
        due_ms = self._due_ms(name)
        if due_ms < NEVER and self._noted_ms.get(name) != due_ms:
            self._noted_ms[name] = due_ms
            heappush(self._deadlines, (due_ms, name))
        units = state.timeline.head.units
        if len(units) != self._sizes.get(name, 0):
            self._sizes[name] = len(units)
            counts = Counter(unit.scope for unit in units.values())
            self._known += counts
            self._known -= self._known_by_node.get(name, Counter())
            self._known_by_node[name] = counts

    def knows(self, fact: Fact) -> bool:
        """Whether a fact of this identity was taken in already and is still remembered.

        A repeat may carry a later time than the first; taken in, it would move time on and say so under an id that the log has.
        So would a tick that comes again after newer facts, as from an ingester that was killed (P2): its census has its id.
        """
        if isinstance(fact, Tick):
            return fact.observed_at_ms <= self._ticked_ms
        state = self.nodes.get(fact.node)
        if state is None or getattr(fact, "partition", None) is not None:
            return False
        books = self.ledgers.get(fact.node)
        return state.timeline.knows(fact) or (books is not None and books.knows(fact))

    def header(self) -> Header:
        """Return what the partition keeps beside the states of its nodes."""
        return Header(
            policies={key: policy.canonical() for key, policy in sorted(self.policies.items())},
            policy_hash=self.policy_hash,
            breakers=dict(sorted(self._breakers.items())),
            heard=dict(sorted(self._heard.items())),
            gates=dict(sorted(self._gates.items())),
            gaps=dict(sorted(self._gaps.items())),
            reported=dict(sorted(self._reported.items())),
            ticked_ms=self._ticked_ms,
            adverse=tuple(self._adverse.items()),
            waiting=self._waiting,
        )

    @classmethod
    def restored(
        cls, number: int, header: Header, nodes: Mapping[str, NodeState], ledgers: Mapping[str, LedgerState]
    ) -> Partition:
        """Return the partition whose header and states these are; ``policies`` of the states must be those of the header."""
        partition = cls(number)
        partition.policies = read_policies(header)
        partition.policy_hash = header.policy_hash
        partition._breakers, partition._heard = dict(header.breakers), dict(header.heard)
        partition._gates, partition._gaps = dict(header.gates), dict(header.gaps)
        partition._reported, partition._adverse = dict(header.reported), dict(header.adverse)
        partition._waiting = header.waiting
        partition._ticked_ms = header.ticked_ms
        for name, state in nodes.items():
            partition.nodes[name] = state
            if name in ledgers:
                partition.ledgers[name] = ledgers[name]
            partition._note(name, state)
        partition.touched.clear()
        return partition

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to decide, as after every fact of a log that this fold decided."""
        if any(CUSTODY.decide(self.nodes[name]) for name in self.nodes):
            return False
        return not any(LEDGER.decide(self.ledgers[name]) for name in self.ledgers)

    def census(self, at_ms: int) -> CensusTaken | None:
        """Return what the breaker must hear at ``at_ms``, ``None`` when nothing changed that could matter."""
        drifted = any(
            abs(self._known[scope] - self._reported.get(scope, 0)) * 100
            > _CENSUS_DRIFT_PERCENT * max(self._known[scope], 1)
            for scope in self._known.keys() | self._reported.keys()
        )
        waiting = self._count_waiting()
        if not self._adverse and not drifted and (not self._breakers or waiting == self._waiting):
            return None
        adverse: list[tuple[str, str, int, str]] = []
        left = _CENSUS_BYTES
        for device, (scope, turned_ms, incident) in self._adverse.items():
            left -= len(msgspec.json.encode((scope, device, turned_ms, incident))) + 1
            if left < 0 and adverse:
                break
            adverse.append((scope, device, turned_ms, incident))
        for _, device, _, _ in adverse:
            del self._adverse[device]
        self._reported = dict(self._known)
        if self._breakers:
            self._waiting = waiting
        return CensusTaken(
            node="",
            at_ms=at_ms,
            partition=self.number,
            known=dict(sorted(self._known.items())),
            adverse=tuple(adverse),
            waiting=waiting,
        )

    def _count_waiting(self) -> dict[str, tuple[int, int, str]]:
        """Return what a census tells of the devices that only an open breaker keeps from being restricted; none while none is open."""
        if not self._breakers:
            return {}
        if self._waiting is not None and not self._stirred:
            return self._waiting
        self._stirred = False
        devices: Counter[str] = Counter()
        nodes: dict[str, list[str]] = {}
        for name, state in self.nodes.items():
            found = Counter(restrictable(Context(state.timeline.head, self.policies)))
            devices += found
            for scope in found:
                nodes.setdefault(scope, []).append(name)
        return {scope: (devices[scope], len(nodes[scope]), min(nodes[scope])) for scope in sorted(devices)}
