"""One node's ledger driven by hand: facts in, decisions out, time as given; and what it says in plain figures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

from facts_of import tick
from ledger_facts import NODE

from sickbay.decisions import Decision
from sickbay.policy import Policy
from sickbay.quantity import parse
from streams.ledger.aggregate import LEDGER, LedgerState, dump, initial, load, replay

REQUESTED = {"recorded": ("common", "recorded"), "derived": ("common", "derived")}


def units(text):
    """A quantity in units, exact."""
    return Fraction(parse(text).nano, 10**9)


@dataclass
class Run:
    """A live walk that keeps every decision it made."""

    policy: Policy = field(default_factory=Policy)
    decisions: list[Decision] = field(default_factory=list)
    state: LedgerState = None
    log: list = field(default_factory=list)
    node: str = NODE
    others: tuple[Policy, ...] = ()

    def __post_init__(self):
        self.policies = {policy.hash(): policy for policy in (self.policy, *self.others)}
        self.state = self.state or initial(self.node, self.policies, self.policy.hash())

    def step(self, *facts):
        """Absorb facts that wait together and return what was decided."""
        self.state, decided = LEDGER.step(self.state, facts)
        self.decisions += decided
        self.log += [*facts, *decided]
        return decided

    def each(self, facts):
        """Absorb facts one by one."""
        for fact in facts:
            self.step(fact)
        return self

    def until(self, at_ms):
        """Let time pass."""
        return self.step(tick(at_ms))

    def replay(self, log):
        """Take in recorded facts and decisions and decide nothing."""
        for event in log:
            self.state = replay(self.state, event)
        return self

    def dump(self):
        return dump(self.state)

    def reopened(self):
        """The walk of a process that starts again from the snapshot of this one."""
        return Run(self.policy, state=load(self.dump(), self.policies), node=self.node, others=self.others)

    def of(self, *kinds):
        """The decisions of these kinds, in order."""
        return [d for d in self.decisions if d.KIND in kinds]

    # -- what stands

    @property
    def entries(self):
        return self.state.announced.entries

    def keys(self, book):
        return sorted(key for found, key in self.entries if found == book)

    def sums(self, book, *accounts, numa=None):
        """Resource to units of the entries of a book, of some accounts or buckets only where they are named."""
        total = Counter()
        for (found, _), entry in self.entries.items():
            if found == book and (not accounts or entry.account in accounts):
                for amount in entry.amounts:
                    if numa is None or amount.numa == numa:
                        total[amount.resource] += units(amount.quantity)
        return {resource: amount for resource, amount in total.items() if amount}

    def requested(self, by="recorded"):
        """What is asked of the node, by resource, as one of the two books says it."""
        total = Counter()
        for book in REQUESTED[by]:
            for account in ("pods", "claims", "overhead", "adjustment"):
                for resource, amount in self.sums(book, account).items():
                    total[resource] += amount
        return {resource: amount for resource, amount in total.items() if amount}

    def free(self, by="recorded"):
        have = self.sums("common", "supply")
        asked = self.requested(by)
        return {r: have.get(r, 0) - asked.get(r, 0) for r in sorted({*have, *asked})}

    def refused(self):
        """``(book, key, contender)`` of everything that was refused."""
        return sorted(self.state.announced.refused)

    def drifts(self):
        """What a difference is about, to its cause."""
        return {about: drift.cause for about, drift in self.state.announced.drifts.items()}

    def alerts(self):
        """``(kind, about)`` of the alerts that are raised now."""
        return sorted(self.state.announced.alerts.values())

    def holds(self):
        """``(reason, scope)`` of every reason why new claims wait."""
        verdict = self.state.announced.verdict
        return {(hold.reason, hold.scope) for hold in verdict.holds} if verdict else set()

    def reasons(self):
        return {reason for reason, _ in self.holds()}
