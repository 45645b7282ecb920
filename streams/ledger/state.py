"""The state of one node's ledger: what it was told, what follows from that, what was announced, and the time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sickbay.decisions import Book, Decision, Drift, Entry, ledger_version
from sickbay.facts import ClaimsGateRequested, Fact, PolicyChanged
from sickbay.policy import Policy
from streams.ledger.books import Books
from streams.ledger.findings import EntryKey, RefusalKey
from streams.ledger.judging import Shown, Standing, drifts, verdict
from streams.ledger.versions import Source, Version, reports_lateness, source_of

#: Sources that ended, late facts and refused requests, of which the version is kept so that a repeat is told from news.
_SEEN_LIMIT: Final = 256
#: Objects above which those that ended before the horizon are forgotten; then twice what remained.
_TRIM_ABOVE: Final = 128


class Announced:
    """What the decisions so far add up to."""

    __slots__ = ("alerts", "drifts", "ended", "entries", "refused", "verdict")

    def __init__(self) -> None:
        self.entries: dict[EntryKey, Entry] = {}
        self.refused: dict[RefusalKey, Entry] = {}
        #: Book and key, and book and whose entry it was, to the time of the last reversal inside the horizon: what follows
        #: does not begin before.
        self.ended: dict[tuple[Book, str], int] = {}
        #: Alert id to (kind, about).
        self.alerts: dict[str, tuple[str, str]] = {}
        self.drifts: dict[str, Drift] = {}
        self.verdict: Standing | None = None


class LedgerState:
    """The ledger of one node. ``evolve`` takes it over and returns it; nobody else changes it."""

    __slots__ = (
        "_trim_above", "announced", "books", "cause_ms", "late", "node", "now_ms", "outbox", "policies", "policy_hash",
        "refused", "seen", "told_late",
    )  # fmt: skip

    def __init__(self, node: str, policies: Mapping[str, Policy], policy_hash: str) -> None:
        self.node = node
        self.policies = policies
        self.policy_hash = policy_hash
        self.books = Books(policies[policy_hash])
        self.announced = Announced()
        self.now_ms = 0
        #: Event time of the newest of the facts since the last decision.
        self.cause_ms = 0
        #: Changes that fell due at a time that has passed, in order.
        self.outbox: list[Decision] = []
        self.late: list[Fact] = []
        #: ``(source, version)`` to the time when it became true.
        self.seen: dict[tuple[Source, Version], int] = {}
        #: Late facts that were told of, and requests to open a gate that were refused, oldest first: a repeat changes nothing.
        self.told_late: dict[tuple[Source, Version], None] = {}
        self.refused: dict[tuple[Source, Version], int] = {}
        self._trim_above = _TRIM_ABOVE

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self.policies[self.policy_hash]

    @property
    def due_ms(self) -> int:
        """The time at which a tick would change something."""
        return self.books.due_ms(self.now_ms)

    @property
    def cut_ms(self) -> int:
        """Facts that became true before this are late."""
        return self.now_ms - self.policy.lateness_horizon_ms

    # --- time ---

    def advance(self, to_ms: int) -> None:
        """Let time pass, noting what falls due on the way at its own time."""
        while (due_ms := self.books.due_ms(self.now_ms)) <= to_ms:
            self.now_ms = due_ms
            self._note(due_ms)
        self.now_ms = max(self.now_ms, to_ms)

    def _note(self, at_ms: int) -> None:
        """Add to the outbox what the time alone changed: drift that is none of the objects following one another, holds."""
        shown = self.shown()
        self.outbox += drifts(self.node, self.books, shown, at_ms)
        self.outbox += verdict(self.node, self.books, shown, at_ms)

    def shown(self) -> Shown:
        """Return what is announced of verdict and drift, with what waits in the outbox."""
        return Shown(self.announced.verdict, self.announced.drifts, self.outbox)

    def trim(self) -> None:
        """Forget what ended before the lateness horizon; nothing that is announced hangs on it."""
        for source, version, at_ms in self.books.objects.forget(self.cut_ms):
            self._remember(source, version, at_ms)
        ended = self.announced.ended
        self.announced.ended = {name: at_ms for name, at_ms in ended.items() if at_ms >= self.cut_ms}

    def trim_if_full(self) -> None:
        """Forget once there is much to forget."""
        if len(self.books.objects.kept) > self._trim_above:
            self.trim()
            self._trim_above = max(_TRIM_ABOVE, 2 * len(self.books.objects.kept))

    def _remember(self, source: Source, version: Version, at_ms: int) -> None:
        _keep(self.seen, (source, version), at_ms)

    # --- facts ---

    def absorb(self, fact: Fact) -> None:
        """Take a fact in."""
        if not self.outbox:
            self.cause_ms = max(self.cause_ms, fact.observed_at_ms) if self.books.changed else 0
        self.advance(fact.observed_at_ms)
        found = source_of(fact)
        if found is None:
            return
        source, version = found
        if fact.observed_at_ms < self.cut_ms:
            self._too_late(fact, source, version)
            return
        if (source, version) in self.refused:
            return
        if isinstance(fact, ClaimsGateRequested) and not self._may_open(fact):
            _keep(self.refused, (source, version), fact.observed_at_ms)
            return
        if isinstance(fact, PolicyChanged):
            if not self.books.objects.take(fact, source, version, self.cut_ms):
                return
            newest = self.books.objects.newest("policy")
            assert isinstance(newest, PolicyChanged)
            self.policy_hash = newest.policy_hash
            self.books.use(self.policy)
        elif not self.books.objects.take(fact, source, version, self.cut_ms):
            return
        self.cause_ms = max(self.cause_ms, fact.observed_at_ms)
        self.books.look(self.cut_ms)
        self.trim_if_full()

    def knows(self, fact: Fact) -> bool:
        """Whether this version of the fact's source is kept, or was remembered when its object was forgotten."""
        found = source_of(fact)
        if found is None:
            return False
        kept = self.books.objects.kept.get(found[0])
        return (
            kept is not None and any(item.version == found[1] for item in kept.items)
        ) or found in self.seen

    def settle(self) -> None:
        """Note that what was decided so far answers all that was seen, as in a log."""
        self.books.changed.clear()
        self.cause_ms = 0

    def _may_open(self, fact: ClaimsGateRequested) -> bool:
        """Whether the ledger is the one that was checked, where a request to open says so."""
        if fact.closed or not fact.ledger_version or fact.scope != "node":
            return True
        return ledger_version(self.books.standing().values()) == fact.ledger_version

    def _too_late(self, fact: Fact, source: Source, version: Version) -> None:
        kept = self.books.objects.kept.get(source)
        known = kept is not None and version <= kept.newest.version
        known = known or any(s == source and version <= v for s, v in self.seen)
        if known or (source, version) in self.told_late or not reports_lateness(source):
            return
        self.told_late[source, version] = None
        while len(self.told_late) > _SEEN_LIMIT:
            del self.told_late[next(iter(self.told_late))]
        self.late.append(fact)


def _keep(known: dict[tuple[Source, Version], int], identity: tuple[Source, Version], at_ms: int) -> None:
    """Keep an identity, and forget what became true first; so the order of arrival does not show."""
    known[identity] = at_ms
    if len(known) > _SEEN_LIMIT:
        del known[min(known, key=lambda other: (known[other], other))]
