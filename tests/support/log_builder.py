"""Logs for tests: facts and the decisions they caused, put in their places as a shell would.

It decides nothing: the caller says what was decided.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from projections.chain import first_head, next_hash
from projections.records import LogRecord
from sickbay.codec import encode, wrap_decision, wrap_fact
from sickbay.decisions import (
    NUMA_UNKNOWN,
    Account,
    Amount,
    Book,
    CustodyDecision,
    Decision,
    DeviceRecord,
    DeviceReleased,
    Drift,
    DriftCause,
    Entry,
    EntryPosted,
    EntryReversed,
    Episode,
    Hold,
    Phase,
    VerdictChanged,
)
from sickbay.envelope import Envelope, derived_id, partition_of
from sickbay.facts import (
    DeviceHealthObserved,
    DevicePublished,
    Fact,
    Health,
    NumaAffinity,
    WatchGapFound,
)


@dataclass
class History:
    """A log in the making; ``records`` holds it in the order of writing."""

    partitions: int = 4
    #: Whether records carry their chain, as a writer that owns its partitions gives them.
    chained: bool = True
    records: list[LogRecord] = field(default_factory=list)
    _heads: dict[int, bytes] = field(default_factory=dict)
    _next: dict[int, int] = field(default_factory=dict)

    def fact(self, fact: Fact) -> Envelope:
        """Append a fact to its partition."""
        partition = getattr(fact, "partition", None)
        envelope = wrap_fact(fact)
        self._append(
            partition_of(fact.node, self.partitions) if partition is None else partition, envelope, fact
        )
        return envelope

    def gap(
        self, watched: str, from_ms: int, to_ms: int, *, from_rv: int = 9_000, to_rv: int = 20_000
    ) -> None:
        """Append to every partition that nothing was seen between two moments."""
        for partition in range(self.partitions):
            self.fact(gap(partition, watched, from_ms, to_ms, from_rv=from_rv, to_rv=to_rv))

    def decide(self, cause: Envelope, *decisions: Decision, policy: str = "policy-hash") -> list[Envelope]:
        """Append the decisions that a fact, which must be the last of its partition's facts, caused."""
        partition = next(
            record.partition
            for record in reversed(self.records)
            if record.envelope.event_id == cause.event_id
        )
        envelopes = [
            wrap_decision(decision, cause, ordinal, policy) for ordinal, decision in enumerate(decisions)
        ]
        for envelope, decision in zip(envelopes, decisions, strict=True):
            self._append(partition, envelope, decision)
        return envelopes

    def _append(self, partition: int, envelope: Envelope, event: Fact | Decision) -> None:
        data = encode(envelope)
        offset = self._next.get(partition, 0)
        self._heads[partition] = next_hash(self._heads.get(partition) or first_head(partition), data)
        self._next[partition] = offset + 1
        chain = self._heads[partition] if self.chained else b""
        self.records.append(LogRecord(partition, offset, envelope, data, chain, event))


def health(
    node: str, device_id: str, at_ms: int, word: Health, *, rv: int, message: str | None = None
) -> DeviceHealthObserved:
    """Return what one Pod said of a device."""
    return DeviceHealthObserved(
        node=node,
        observed_at_ms=at_ms,
        rv=rv,
        device_id=device_id,
        health=word,
        health_raw=word,
        message=message,
        pod_uid=f"uid-{node}",
        namespace="default",
        pod="trainer",
    )


def gap(
    partition: int, watched: str, from_ms: int, to_ms: int, *, from_rv: int = 9_000, to_rv: int = 20_000
) -> WatchGapFound:
    """Return what one partition hears of a gap."""
    return WatchGapFound(
        node="",
        observed_at_ms=to_ms,
        partition=partition,
        watched=watched,
        from_ms=from_ms,
        to_ms=to_ms,
        from_rv=from_rv,
        to_rv=to_rv,
    )


def published(node: str, device_id: str, at_ms: int, *, rv: int, numa: int = 0) -> DevicePublished:
    """Return a device as its slice publishes it."""
    driver, pool, device = device_id.removeprefix("dra:").split("/", 2)
    return DevicePublished(
        node=node,
        observed_at_ms=at_ms,
        rv=rv,
        device_id=device_id,
        driver=driver,
        pool=pool,
        device=device,
        slice_uid=f"slice-{node}",
        pool_generation=1,
        numa=NumaAffinity(nodes=(numa,)),
    )


def open_episode(
    device_id: str, at_ms: int, *, evidence: tuple[str, ...] = (), cause: str = "unhealthy"
) -> Episode:
    """Return a fresh episode of a device that opened at a time."""
    return Episode(
        episode_id=derived_id("episode", device_id, str(at_ms)),
        opened_at_ms=at_ms,
        cause=cause,
        reason="the device reports Unhealthy",
        actor="sickbay",
        expires_at_ms=at_ms + 86_400_000,
        hold_until_ms=at_ms + 600_000,
        open_causes=(cause,),
        evidence=evidence,
    )


def custody(
    kind: type[CustodyDecision],
    node: str,
    device_id: str,
    at_ms: int,
    before: Phase,
    after: Phase,
    *,
    episode: Episode | None = None,
    unknown_since_ms: int | None = None,
    incident_id: str = "",
    evidence: tuple[str, ...] = (),
) -> CustodyDecision:
    """Return a custody decision of any kind but ``DeviceReleased``."""
    return kind(
        node=node,
        at_ms=at_ms,
        clause=f"custody.{after}",
        reason=f"{before} to {after}",
        evidence=evidence,
        device_id=device_id,
        driver=device_id.split(":", 1)[-1].split("/", 1)[0],
        phase_before=before,
        record=DeviceRecord(
            phase=after,
            since_ms=at_ms,
            cause=episode.cause if episode else "unknown" if unknown_since_ms is not None else "",
            unknown_since_ms=unknown_since_ms,
            window_ms=None if unknown_since_ms is None else 300_000,
            episode=episode,
            incident_id=incident_id,
        ),
    )


def released(
    node: str, device_id: str, at_ms: int, before: Phase, closed: Episode, *, incident_id: str = ""
) -> DeviceReleased:
    """Return the end of an episode."""
    return DeviceReleased(
        node=node,
        at_ms=at_ms,
        clause="custody.returns",
        reason=f"episode ended: {closed.outcome}",
        device_id=device_id,
        driver=device_id.split(":", 1)[-1].split("/", 1)[0],
        phase_before=before,
        record=DeviceRecord(phase="in_service", since_ms=at_ms, incident_id=incident_id),
        closed=closed,
    )


def amounts(*lines: tuple[str, str] | tuple[str, str, str]) -> tuple[Amount, ...]:
    """Return amounts of ``(resource, quantity)``, or ``(resource, quantity, NUMA bucket)``."""
    return tuple(
        Amount(resource, bucket[0] if bucket else NUMA_UNKNOWN, quantity)
        for resource, quantity, *bucket in lines
    )


def entry(
    book: Book,
    key: str,
    account: Account,
    at_ms: int,
    *lines: tuple[str, str] | tuple[str, str, str],
    **whose: Any,
) -> Entry:
    """Return an entry of amounts; ``whose`` are the other fields."""
    return Entry(book=book, key=key, account=account, at_ms=at_ms, amounts=amounts(*lines), **whose)


def posted(node: str, contribution: Entry) -> EntryPosted:
    """Return that an entry began, decided at its own time."""
    return EntryPosted(node=node, at_ms=contribution.at_ms, clause="ledger", entry=contribution)


def reversed_at(node: str, at_ms: int, contribution: Entry) -> EntryReversed:
    """Return that an entry ended."""
    return EntryReversed(node=node, at_ms=at_ms, clause="ledger", entry=contribution)


def verdict(node: str, at_ms: int, *holds: Hold, **fields: Any) -> VerdictChanged:
    """Return the verdict that the holds make."""
    return VerdictChanged(
        node=node, at_ms=at_ms, verdict="hold" if holds else "open", holds=tuple(sorted(holds)), **fields
    )


def drift(namespace: str, claim: str, cause: DriftCause, **fields: Any) -> Drift:
    """Return a difference about a claim."""
    return Drift(about=f"{namespace}/{claim}", cause=cause, namespace=namespace, claim=claim, **fields)
