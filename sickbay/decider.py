"""The shape of an aggregate: ``evolve`` what happened, ``decide`` what should happen, and the two walks over a log.

Live is ``evolve`` plus ``decide``; replay is ``evolve`` alone over facts and recorded decisions, so a changed rule cannot
rewrite history (reference models, section 2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

State = TypeVar("State")
Fact = TypeVar("Fact")
Decision = TypeVar("Decision")


@dataclass(frozen=True, slots=True)
class Decider(Generic[Fact, Decision, State]):
    """Two pure functions over one state.

    ``evolve`` is total, takes over the state it is given and returns the next one. ``decide`` looks at the level and not at
    the edge: it closes the gap between what is and what should be, and is silent at its fixed point.
    """

    evolve: Callable[[State, Fact | Decision], State]
    decide: Callable[[State], tuple[Decision, ...]]

    def fold(self, state: State, events: Iterable[Fact | Decision]) -> State:
        """Replay: never decides."""
        for event in events:
            state = self.evolve(state, event)
        return state

    def step(self, state: State, facts: Iterable[Fact]) -> tuple[State, tuple[Decision, ...]]:
        """Live: absorb the facts that wait together, then decide once for what they add up to."""
        absorbed = self.fold(state, facts)
        decisions = self.decide(absorbed)
        settled = self.fold(absorbed, decisions)
        assert not decisions or not self.decide(settled), "decide() did not reach its fixed point"
        return settled, decisions
