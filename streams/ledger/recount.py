"""The ledger of one node counted again from nothing: which entries and refusals follow from its objects as they are now.

It knows no order of arrival, no decision and no time, so that ``sickbay verify`` can hold what was decided step by step against
it. It must never be used to decide: what came later than the lateness horizon is the caller's to leave out.
"""

from __future__ import annotations

from sickbay.decisions import Entry
from sickbay.facts import Fact
from sickbay.policy import Policy
from streams.ledger.books import Books
from streams.ledger.findings import EntryKey, RefusalKey
from streams.ledger.versions import Source, Version, has_history, source_of


class Recount:
    """The facts of one node: of every object the newest, and all of those whose history counts."""

    def __init__(self) -> None:
        self._facts: dict[Source, dict[Version, Fact]] = {}

    def take(self, fact: Fact) -> None:
        """Keep a fact; one that the ledger does not listen to is passed over."""
        found = source_of(fact)
        if found is None:
            return
        source, version = found
        known = self._facts.setdefault(source, {})
        if not has_history(source) and known:
            if version <= max(known):
                return
            known.clear()
        known.setdefault(version, fact)

    def count(self, policy: Policy) -> tuple[dict[EntryKey, Entry], dict[RefusalKey, Entry]]:
        """Return the entries and the refusals that follow under a policy."""
        books = Books(policy)
        for source in sorted(self._facts):
            for version in sorted(self._facts[source]):
                books.objects.take(self._facts[source][version], source, version)
        for claim in list(books.objects.claims.values()):
            since_ms = books.objects.items("claim", claim.claim_uid)[0].at_ms
            books.objects.drop_ended(claim, since_ms - policy.lateness_horizon_ms)
        books.use(policy)
        books.look(0)
        refusals = {key: books.refusal(key) for key in books.changed_refusals()}
        return books.standing(), {key: entry for key, entry in refusals.items() if entry is not None}
