"""What was told before: where time and policy stand, and how much of a recording need not be told again.

A recording that is read again gives the same facts in the same order, and telling them again is harmless but late: who hears
them has forgotten most of their identities by then. So what stands before the newest tick that was told is passed over, if the
log knows its subjects; the tick was written when all that comes before it was kept. At the first fact that the log does not
know the recording is another one, and everything from there on is told. Values only; it must never be asked about a live
watch, whose known set is recalled instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ingest.frames import RESOURCES
from sickbay.codec import stream_of
from sickbay.facts import EpochChanged, Fact, PolicyChanged, Request, ResyncCompleted, Tick, WatchGapFound


class Recollection:
    """The memory of a log, by subject; without ``subjects``, which a live watch needs not, it is a few numbers."""

    def __init__(self, facts: Iterable[Fact], *, subjects: bool = True) -> None:
        #: The newest tick that any partition has; ``None`` before the first.
        self.ticked_ms: int | None = None
        #: The newest time at which an ingester saw anything. What people ask for carries times of theirs and is left out.
        self.seen_ms: int | None = None
        self._policies: dict[int, tuple[int, str]] = {}
        #: Resource type to its newest version.
        self._versions: dict[str, tuple[int, int]] = {}
        self._subjects: dict[tuple[str, str], int] | None = {} if subjects else None
        for fact in facts:
            self._take(fact)

    def _take(self, fact: Fact) -> None:
        at_ms = fact.observed_at_ms
        if self._subjects is not None:
            subject = (stream_of(fact), fact.subject)
            self._subjects[subject] = max(at_ms, self._subjects.get(subject, 0))
        if isinstance(fact, PolicyChanged):
            newest = (at_ms, fact.policy_hash)
            self._policies[fact.partition] = max(newest, self._policies.get(fact.partition, newest))
        elif not isinstance(fact, Request):
            self.seen_ms = max(at_ms, self.seen_ms or 0)
        if isinstance(fact, Tick):
            self.ticked_ms = max(at_ms, self.ticked_ms or 0)
        resource, rv = _heard(fact)
        if resource in RESOURCES:
            version = (fact.epoch, rv)
            self._versions[resource] = max(version, self._versions.get(resource, version))

    @property
    def versions(self) -> dict[str, int]:
        """The newest resourceVersion that was told of each resource type, in its newest epoch."""
        return {resource: rv for resource, (_, rv) in self._versions.items()}

    def policy_of(self, partition: int) -> str:
        """Return the hash of the policy that was last put in force in a partition, "" for none."""
        return self._policies.get(partition, (0, ""))[1]

    def after_everything(self, at_ms: int) -> int:
        """Return ``at_ms``, or the first time after every tick and policy that was told."""
        newest = [at for at, _ in self._policies.values()]
        if self.ticked_ms is not None:
            newest.append(self.ticked_ms)
        return max([at_ms, *(at + 1 for at in newest)])

    def covers(self, facts: Sequence[Fact]) -> bool:
        """Whether the log knows something as new of the subject of each fact."""
        subjects = self._subjects or {}
        return all(subjects.get((stream_of(fact), fact.subject), -1) >= fact.observed_at_ms for fact in facts)


def _heard(fact: Fact) -> tuple[str, int]:
    """Return up to which version of which resource type a fact shows that it was heard.

    It is what the mirror recalls: if a watch asked for less, a server that lags would look like a restore.
    """
    if isinstance(fact, ResyncCompleted):
        return fact.watched, fact.rv
    if isinstance(fact, EpochChanged):
        return fact.watched, fact.list_rv
    if isinstance(fact, WatchGapFound):
        return fact.watched, fact.to_rv
    return fact.resource, fact.rv
