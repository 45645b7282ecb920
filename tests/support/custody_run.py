"""One node's custody driven by hand: facts in, decisions out, time as given."""

from __future__ import annotations

from dataclasses import dataclass, field

from facts_of import NODE, tick

from sickbay.decisions import Decision
from sickbay.policy import Policy
from streams.custody.aggregate import CUSTODY, NodeState, dump, initial, load, replay


@dataclass
class Run:
    """A live walk that keeps every decision it made."""

    policy: Policy = field(default_factory=Policy)
    decisions: list[Decision] = field(default_factory=list)
    state: NodeState = None
    log: list = field(default_factory=list)
    node: str = NODE

    def __post_init__(self):
        self.policies = {self.policy.hash(): self.policy}
        self.state = self.state or initial(self.node, self.policies, self.policy.hash())

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

    def replay(self, log):
        """Take in recorded facts and decisions and decide nothing."""
        for event in log:
            self.state = replay(self.state, event)
        return self

    def dump(self):
        return dump(self.state)

    def of(self, *kinds):
        """The decisions of these kinds, in order."""
        return [d for d in self.decisions if d.KIND in kinds]

    def alerts(self):
        """The kinds of the alerts that are raised now."""
        return sorted(kind for kind, _ in self.state.announced.alerts.values())

    def phases(self, device_id):
        """Every phase the device was in, as the decisions tell it."""
        walk = ["in_service"]
        for decision in self.decisions:
            if getattr(decision, "device_id", "") == device_id and hasattr(decision, "record"):
                walk += [decision.record.phase] if decision.record.phase != walk[-1] else []
        return walk

    def open_episodes(self):
        """Ids of the episodes that the decisions so far leave open."""
        ids = set()
        for decision in self.decisions:
            record = getattr(decision, "record", None)
            if record is not None and record.episode is not None:
                ids.add(record.episode.episode_id)
            if decision.KIND == "device_released":
                ids.discard(decision.closed.episode_id)
        return ids

    def unit(self, device_id):
        """What the fold keeps of a device."""
        return self.state.timeline.head.units[device_id]

    def reopened(self):
        """The walk of a process that starts again from the snapshot of this one."""
        return Run(self.policy, state=load(self.dump(), self.policies), node=self.node)
