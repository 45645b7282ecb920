"""One node's custody driven by hand: facts in, decisions out, time as given."""

from __future__ import annotations

from dataclasses import dataclass, field

from facts_of import NODE, tick

from sickbay.decisions import Decision
from sickbay.policy import Policy
from streams.custody.aggregate import CUSTODY, NodeState, dump, initial


@dataclass
class Run:
    """A live walk that keeps every decision it made."""

    policy: Policy = field(default_factory=Policy)
    decisions: list[Decision] = field(default_factory=list)
    state: NodeState = None
    log: list = field(default_factory=list)

    def __post_init__(self):
        self.policies = {self.policy.hash(): self.policy}
        self.state = self.state or initial(NODE, self.policies, self.policy.hash())

    def step(self, *facts):
        """Absorb facts that wait together and return what was decided."""
        self.state, decided = CUSTODY.step(self.state, facts)
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

    def kinds(self):
        return [d.KIND for d in self.decisions]

    def phase(self, device_id):
        record = self.state.announced.devices.get(device_id)
        return record.phase if record else "in_service"

    def episode(self, device_id):
        record = self.state.announced.devices.get(device_id)
        return record.episode if record else None

    def dump(self):
        return dump(self.state)
