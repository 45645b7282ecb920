"""The ledger decider of one node: what stands in the books (``announced``) against what follows from the objects (``Books``).

What follows is a function of the newest versions, of short histories and of the time, so any order of arrival ends in the same
books; ``decide`` closes the gap. Deadlines are carried out at their own time, whatever fact or tick brings them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from sickbay.codec import fact_id
from sickbay.decider import Decider
from sickbay.decisions import (
    LEDGER_ALERTS,
    AlertCleared,
    AlertRaised,
    Book,
    Decision,
    Drift,
    DriftCleared,
    DriftFound,
    DuplicateRefused,
    DuplicateWithdrawn,
    Entry,
    EntryPosted,
    EntryReversed,
    VerdictChanged,
)
from sickbay.envelope import derived_id
from sickbay.events import KINDS
from sickbay.facts import Fact
from sickbay.policy import Policy
from streams.ledger.judging import Standing, drifts, standing_of, verdict
from streams.ledger.state import LedgerState
from streams.ledger.versions import source_of

#: Raised whenever the shape of the state or the meaning of ``evolve`` changes; a snapshot of another version is rebuilt.
FOLD_VERSION: Final = 1
LATE_FACT: Final = "late_fact"


def initial(
    node: str, policies: Mapping[str, Policy], policy_hash: str, heard: Iterable[Fact] = ()
) -> LedgerState:
    """Return the ledger of a node of which nothing is known yet; ``heard`` are the facts that every node heard and that hold on."""
    state = LedgerState(node, policies, policy_hash)
    for fact in heard:
        found = source_of(fact)
        assert found is not None
        state.books.objects.take(fact, *found)
    return state


def evolve(state: LedgerState, event: Fact | Decision) -> LedgerState:
    """Take in what was seen or what was decided."""
    if isinstance(event, Fact):
        state.absorb(event)
        return state
    announced, state.outbox = state.announced, []
    match event:
        case EntryPosted():
            announced.entries[event.entry.book, event.entry.key] = event.entry
        case EntryReversed():
            announced.entries.pop((event.entry.book, event.entry.key), None)
            _end(announced.ended, event.entry, event.at_ms)
        case DuplicateRefused():
            announced.refused[event.entry.book, event.entry.key, event.contender] = event.entry
        case DuplicateWithdrawn():
            announced.refused.pop((event.entry.book, event.entry.key, event.contender), None)
        case VerdictChanged():
            announced.verdict = standing_of(event)
        case DriftFound():
            announced.drifts[event.drift.about] = event.drift
        case DriftCleared():
            announced.drifts.pop(event.drift.about, None)
        case AlertRaised() if event.alert == LATE_FACT:
            state.late = [fact for fact in state.late if fact_id(fact) != event.about]
        case AlertRaised() if event.alert in LEDGER_ALERTS:
            announced.alerts[event.alert_id] = (event.alert, event.about)
        case AlertCleared():
            announced.alerts.pop(event.alert_id, None)
        case _:
            pass
    return state


def replay(state: LedgerState, event: Fact | Decision) -> LedgerState:
    """Take in a recorded event and decide nothing; the decisions before a fact in the log answer all before it."""
    if isinstance(event, Fact):
        state.settle()
    return evolve(state, event)


def decide(state: LedgerState) -> tuple[Decision, ...]:
    """Return what must be said so that what is announced is what follows; nothing when it does."""
    books = state.books
    if not (books.changed or state.outbox or state.late):
        return ()
    at_ms = state.cause_ms or state.now_ms
    out: list[Decision] = [_late(state, fact) for fact in state.late]
    out += state.outbox
    out += _entries(state, at_ms)
    out += _refusals(state, at_ms)
    out += _alerts(state, state.now_ms)
    if books.judged_anew or state.outbox:
        shown = state.shown()
        out += drifts(state.node, books, shown, state.now_ms)
        out += verdict(state.node, books, shown, state.now_ms)
    if not out:
        books.changed.clear()
    return tuple(out)


def _late(state: LedgerState, fact: Fact) -> AlertRaised:
    about = fact_id(fact)
    return AlertRaised(
        node=state.node,
        at_ms=state.now_ms,
        clause="lateness_horizon_ms",
        reason=f"{fact.KIND} became true before the lateness horizon: recorded, not acted on",
        evidence=(about,),
        alert_id=derived_id("alert", state.node, LATE_FACT, about),
        alert=LATE_FACT,
        about=about,
    )


def _same(one: Entry | None, two: Entry | None) -> bool:
    """Whether two entries say the same, whatever their times."""
    if one is None or two is None:
        return one is two
    return (
        one.amounts == two.amounts
        and one.covered == two.covered
        and one.account == two.account
        and (one.namespace, one.pod, one.pod_uid) == (two.namespace, two.pod, two.pod_uid)
        and (one.claim, one.claim_uid) == (two.claim, two.claim_uid)
        and (one.device_id, one.share_id) == (two.device_id, two.share_id)
        and one.mapping_version == two.mapping_version
    )


def _timeless(entry: Entry | None) -> Entry | None:
    return None if entry is None else msgspec.structs.replace(entry, at_ms=0)


def _names(entry: Entry) -> tuple[tuple[Book, str], ...]:
    """Return what an entry may follow another by: its key, and whose it is. Neither may count twice in between."""
    whose = entry.claim_uid or entry.pod_uid
    return ((entry.book, entry.key), (entry.book, whose)) if whose else ((entry.book, entry.key),)


def _end(ended: dict[tuple[Book, str], int], entry: Entry, at_ms: int) -> None:
    for name in _names(entry):
        ended[name] = max(ended.get(name, 0), at_ms)


def _entries(state: LedgerState, at_ms: int) -> list[Decision]:
    """Reverse what does not follow any more, then post what does.

    A posting begins with the fact that brought it, and never before what it rests on, or before what it follows ended.
    """
    reversals: list[Decision] = []
    posts: list[Decision] = []
    ended = dict(state.announced.ended)
    begun: list[Entry] = []
    for key in sorted(state.books.changed_entries()):
        before, after = state.announced.entries.get(key), state.books.entry(key)
        if _same(before, after):
            continue
        if before is not None:
            when = max(at_ms, before.at_ms)
            reversals.append(EntryReversed(node=state.node, at_ms=when, reason=_why(after), entry=before))
            _end(ended, before, when)
        if after is not None:
            begun.append(after)
    for after in begun:
        when = max(at_ms, after.at_ms, *(ended.get(name, 0) for name in _names(after)))
        entry = msgspec.structs.replace(after, at_ms=when)
        posts.append(EntryPosted(node=state.node, at_ms=when, entry=entry))
    return [*reversals, *posts]


def _why(after: Entry | None) -> str:
    return "no longer held" if after is None else "another amount takes its place"


def _refusals(state: LedgerState, at_ms: int) -> list[Decision]:
    out: list[Decision] = []
    for key in sorted(state.books.changed_refusals()):
        before, after = state.announced.refused.get(key), state.books.refusal(key)
        if _same(before, after):
            continue
        if before is not None:
            out.append(
                DuplicateWithdrawn(
                    node=state.node, at_ms=max(at_ms, before.at_ms), entry=before, contender=key[2]
                )
            )
        if after is not None:
            entry = msgspec.structs.replace(after, at_ms=at_ms)
            reason = f"{key[1]} is counted already; a second contribution is never added"
            out.append(
                DuplicateRefused(node=state.node, at_ms=at_ms, reason=reason, entry=entry, contender=key[2])
            )
    return out


def _alerts(state: LedgerState, at_ms: int) -> list[Decision]:
    out: list[Decision] = []
    for kind, about in sorted(state.books.changed_alerts()):
        alert_id = derived_id("alert", state.node, kind, about)
        reason = state.books.alert((kind, about))
        if reason is None and alert_id in state.announced.alerts:
            out.append(
                AlertCleared(
                    node=state.node, at_ms=at_ms, reason="no longer so", alert_id=alert_id, alert=kind, about=about
                )
            )  # fmt: skip
        elif reason is not None and alert_id not in state.announced.alerts:
            out.append(
                AlertRaised(
                    node=state.node, at_ms=at_ms, reason=reason, alert_id=alert_id, alert=kind, about=about
                )
            )
    return out


def standing(state: LedgerState) -> dict[str, Any]:
    """Return what is announced without its times: equal for every order of arrival once the time has passed."""
    announced = state.announced
    return {
        "entries": {key: _timeless(entry) for key, entry in announced.entries.items()},
        "refused": {key: _timeless(entry) for key, entry in announced.refused.items()},
        "alerts": announced.alerts,
        "drifts": announced.drifts,
        "verdict": None if announced.verdict is None else announced.verdict.essence,
    }


def dump(state: LedgerState) -> bytes:
    """Return the snapshot of a settled state: canonical bytes, equal for equal states."""
    state.trim()
    announced = state.announced
    facts = [
        {"kind": item.fact.KIND, "fact": item.fact}
        for _, kept in sorted(state.books.objects.kept.items())
        for item in kept.items
    ]
    content = {
        "fold_version": FOLD_VERSION,
        "node": state.node,
        "now_ms": state.now_ms,
        "policy_hash": state.policy_hash,
        "facts": facts,
        "told_late": [[list(s), list(v)] for s, v in state.told_late],
        "refused_requests": sorted([list(s), list(v), at_ms] for (s, v), at_ms in state.refused.items()),
        "left_ms": sorted([*name, at_ms] for name, at_ms in state.books.objects.left_ms.items()),
        "ended": sorted([*whose, at_ms] for whose, at_ms in announced.ended.items()),
        "seen": sorted([list(s), list(v), at_ms] for (s, v), at_ms in state.seen.items()),
        "entries": [announced.entries[key] for key in sorted(announced.entries)],
        "refused": [[key[2], announced.refused[key]] for key in sorted(announced.refused)],
        "alerts": announced.alerts,
        "drifts": announced.drifts,
        "verdict": announced.verdict,
    }
    return msgspec.json.encode(content, order="sorted")


def load(data: bytes, policies: Mapping[str, Policy]) -> LedgerState | None:
    """Read a snapshot back; ``None`` when another fold version wrote it and the state must be built from the log."""
    content = msgspec.json.decode(data)
    if content["fold_version"] != FOLD_VERSION:
        return None
    state = LedgerState(content["node"], policies, content["policy_hash"])
    for kept in content["facts"]:
        fact = msgspec.convert(kept["fact"], KINDS[kept["kind"]])
        assert isinstance(fact, Fact)
        found = source_of(fact)
        assert found is not None
        state.books.objects.take(fact, *found)
    state.now_ms = content["now_ms"]
    state.books.objects.left_ms = {(ns, name): at_ms for ns, name, at_ms in content["left_ms"]}
    state.told_late = {(tuple(s), tuple(v)): None for s, v in content["told_late"]}
    state.refused = {(tuple(s), tuple(v)): at_ms for s, v, at_ms in content["refused_requests"]}
    state.books.use(state.policy)
    state.books.look(state.cut_ms)
    state.books.changed.clear()
    state.seen = {(tuple(s), tuple(v)): at_ms for s, v, at_ms in content["seen"]}
    announced = state.announced
    for raw in content["entries"]:
        entry = msgspec.convert(raw, Entry)
        announced.entries[entry.book, entry.key] = entry
    for contender, raw in content["refused"]:
        entry = msgspec.convert(raw, Entry)
        announced.refused[entry.book, entry.key, contender] = entry
    announced.ended = {(book, whose): at_ms for book, whose, at_ms in content["ended"]}
    announced.alerts = {key: (kind, about) for key, (kind, about) in content["alerts"].items()}
    announced.drifts = msgspec.convert(content["drifts"], dict[str, Drift])
    announced.verdict = msgspec.convert(content["verdict"], Standing | None)
    return state


LEDGER: Final[Decider[Fact, Decision, LedgerState]] = Decider(evolve=evolve, decide=decide)
