"""What a Pod says of each device: told when it changes, joined late when its claim comes after it.

The versions that wait for a claim are kept, few and for a bounded time, so that a fault that came and went is still told once
the claim is there (reference faults, W20). A word that stays without a claim is told as unattributed. Silence is told too: a
device that a running Pod holds and never reports (kubernetes/kubernetes#139940), and one whose report vanished. A Pod that is
still starting is not silent: the kubelet writes the first words with the status that makes it Running.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, cast

import msgspec

from ingest.diff.attribution import (
    UNATTRIBUTED,
    Allocation,
    Held,
    Subject,
    Word,
    claim_of,
    dra_subject,
    merge,
    plugin_subject,
    spoken_of,
    unattributed,
)
from ingest.diff.claims import ClaimCollection, KnownClaim
from ingest.diff.known import Known, Version
from ingest.observe.fields import Identity
from ingest.observe.pods import DeviceReport, PodObservation
from sickbay.facts import DeviceHealthObserved, Fact, PodClaim

#: How long, in sighted time, a DRA word waits for its claim before it is told as unattributed: watches of two resources are
#: seconds apart, a claim that is not there after a minute was not seen at all.
LATE_BINDING_MS: Final = 60_000
#: Pods whose words wait; beyond it the one that waits longest is told at once.
WAITING_MAX: Final = 50_000
#: Versions of one Pod that wait together; the oldest is dropped.
HISTORY_MAX: Final = 8


class Snapshot(msgspec.Struct, frozen=True):
    """What one version of a Pod says of devices."""

    version: Version
    reports: tuple[DeviceReport, ...]
    live: bool
    running: bool


class KnownPod(Known):
    """A Pod, compact: the reports and the last words, not the object."""

    __slots__ = (
        "allocations", "claims", "deletion_ms", "digest", "ended", "extended_claim", "flushed", "history", "named",
        "node", "terminal", "told", "word_versions", "words",
    )  # fmt: skip

    def __init__(self, identity: Identity, epoch: int, mark: bytes) -> None:
        super().__init__(identity, epoch, mark)
        self.node = ""
        self.digest = b""
        #: Version under which the Pod's own content was last told.
        self.told: Version = (0, 0)
        self.terminal = False
        self.deletion_ms: int | None = None
        self.claims: tuple[PodClaim, ...] = ()
        self.extended_claim: str | None = None
        #: Claim names that the Pod is registered under.
        self.named: tuple[str, ...] = ()
        #: The newest version last; more than one while words wait for a claim; none when all is told and final.
        self.history: list[Snapshot] = []
        #: Pod-local claim name to what it held: a claim may be deallocated before its word is read.
        self.allocations: dict[str, Allocation] = {}
        #: Device id to the last word told.
        self.words: dict[str, Word] = {}
        #: Device id to the version under which that was.
        self.word_versions: dict[str, Version] = {}
        #: Devices whose frozen word was told already.
        self.ended: frozenset[str] = frozenset()
        #: The wait is over: what has no claim is told as unattributed.
        self.flushed = False


class Words:
    """Turns the reports of Pods into words on devices."""

    def __init__(self, claims: ClaimCollection) -> None:
        self._claims = claims
        #: Pod uid to the sighted time at which its wait began, longest first.
        self.waiting: dict[str, int] = {}
        self.sighted_ms = 0

    def recall(self, known: KnownPod, told: Mapping[str, DeviceHealthObserved], *, terminal: bool) -> None:
        """Know again what a Pod said. Whether it is ``terminal`` the next reading says: a frozen word may still be due."""
        words = {device_id: _word_of(fact) for device_id, fact in told.items()}
        live = {device_id for device_id, fact in told.items() if fact.live}
        known.words = {device_id: words[device_id] for device_id in sorted(live)}
        known.word_versions = {
            device_id: (told[device_id].epoch, told[device_id].rv) for device_id in known.words
        }
        # of a Pod that runs, only a word that found its device has ended
        known.ended = frozenset(told.keys() - live) if terminal else frozenset()
        known.flushed = any(
            device_id.startswith(UNATTRIBUTED) and not words[device_id].candidates
            for device_id in live | known.ended
            if not words[device_id].absence
        )
        for local, (name, held) in spoken_of(words).items():
            known.allocations[local] = self._recalled_allocation(known, local, name, held)

    def _recalled_allocation(
        self, known: KnownPod, local: str, name: str, held: tuple[Held, ...]
    ) -> Allocation:
        """Return what a claim held when words were joined through it: by now it may hold something else."""
        claim = self._claim(known, local)
        allocation = None if claim is None else claim.allocation
        if allocation is not None and {device.device_id for device in held} <= {
            device.device_id for device in allocation.devices
        }:
            return allocation
        uid, named = ("", local) if claim is None else (claim.uid, claim.name)
        return Allocation(uid, known.namespace, name or named, held)

    def hear(self, known: KnownPod, seen: PodObservation, at_ms: int, out: list[Fact]) -> None:
        """Take over what a newer version says; a Pod that was terminal before says nothing new."""
        if known.terminal:
            return
        known.terminal = seen.terminal
        if known.uid not in self.waiting:
            known.history.clear()
        known.history.append(snapshot_of(seen))
        del known.history[:-HISTORY_MAX]
        self.settle(known, at_ms, out)

    def settle(self, known: KnownPod, at_ms: int, out: list[Fact]) -> None:
        """Tell what the newest version says, and what older ones that waited for a claim said."""
        if not known.history:
            return
        newest = known.history[-1]
        self._catch_up(known, at_ms, out)
        words, unresolved = self.read(known, newest.reports, with_unresolved=known.flushed)
        if newest.live:
            self._compare(known, newest, words, at_ms, out, complete=not unresolved)
        else:
            self._freeze(known, newest.version, words, at_ms, out)
        if unresolved and not known.flushed:
            self.waiting.setdefault(known.uid, self.sighted_ms)
            return
        self.waiting.pop(known.uid, None)
        known.flushed = unresolved
        if newest.live or unresolved:
            del known.history[:-1]
        else:
            known.history.clear()

    def give_up(self, known: KnownPod, at_ms: int, out: list[Fact]) -> None:
        """Tell the words whose claim did not come in time."""
        self.waiting.pop(known.uid, None)
        known.flushed = True
        del known.history[:-1]
        self.settle(known, at_ms, out)

    def overdue(self) -> str | None:
        """Return the uid of a Pod that waited long enough, or longest when too many wait."""
        uid = next(iter(self.waiting), None)
        if uid is None:
            return None
        late = self.sighted_ms - self.waiting[uid] > LATE_BINDING_MS or len(self.waiting) > WAITING_MAX
        return uid if late else None

    def keep_late(self, known: KnownPod, seen: PodObservation) -> bool:
        """Let a version that came late wait with the others; return whether the Pod waits at all."""
        if known.uid not in self.waiting:
            return False
        known.history.append(snapshot_of(seen))
        known.history.sort(key=lambda snapshot: snapshot.version)
        del known.history[:-HISTORY_MAX]
        return True

    def restate(
        self, known: KnownPod, late: dict[str, Word], version: Version, at_ms: int, out: list[Fact]
    ) -> None:
        """Say again, with the newest version, what a late one seems to have changed.

        What equals the last word told is not told again, so the late version would otherwise stand as the newest.
        """
        if known.terminal:
            return
        for device_id in sorted(late):
            word = known.words.get(device_id)
            if word is None:
                if device_id in known.ended or known.uid in self.waiting:
                    continue
                word = msgspec.structs.replace(
                    late[device_id],
                    health="Unknown",
                    health_raw=None,
                    message=None,
                    absence="report_vanished",
                )
            elif version < known.word_versions[device_id]:
                continue
            _tell(known, device_id, word, known.version, at_ms, out)

    def end(
        self, known: KnownPod, seen: PodObservation | None, version: Version, at_ms: int, out: list[Fact]
    ) -> None:
        """Freeze every word of a Pod that is gone; ``seen`` is its final state where there is one."""
        if seen is not None and not known.terminal:
            known.history.append(snapshot_of(seen))
        if known.history:
            self._catch_up(known, at_ms, out)
            words, _ = self.read(known, known.history[-1].reports, with_unresolved=True)
            self._freeze(known, version, words, at_ms, out)
        elif known.words:
            # they were told before a restart, and the Pod was not read since
            self._freeze(known, version, {}, at_ms, out)
        self.waiting.pop(known.uid, None)

    def _catch_up(self, known: KnownPod, at_ms: int, out: list[Fact]) -> None:
        told = known.words.keys() | known.ended
        for snapshot in known.history[:-1]:
            words, _ = self.read(known, snapshot.reports)
            for device_id, word in sorted(words.items()):
                if device_id not in told and known.words.get(device_id) != word:
                    _tell(known, device_id, word, snapshot.version, at_ms, out, live=snapshot.live)

    def _compare(
        self,
        known: KnownPod,
        snapshot: Snapshot,
        words: dict[str, Word],
        at_ms: int,
        out: list[Fact],
        *,
        complete: bool,
    ) -> None:
        """Tell the words that differ from the last ones told; ``complete``: no report waits for its claim."""
        reported = {(report.name, report.resource_id) for report in snapshot.reports}
        for device_id in sorted(known.words.keys() | words.keys()):
            word, before = words.get(device_id), known.words.get(device_id)
            if word is None and before is not None:
                if before.absence:
                    continue
                if _is_attributed_now(device_id, before, reported):
                    del known.words[device_id], known.word_versions[device_id]
                    out.append(health(known, device_id, before, snapshot.version, at_ms, live=False))
                    continue
                word = msgspec.structs.replace(
                    before, health="Unknown", health_raw=None, message=None, absence="report_vanished"
                )
            if word is not None and word != before:
                _tell(known, device_id, word, snapshot.version, at_ms, out)
        if not (snapshot.running and complete):
            return
        spoken_for = {candidate for word in known.words.values() for candidate in word.candidates}
        for device_id in self._claims.held_by(known.uid):
            if device_id not in known.words and device_id not in spoken_for:
                word = Word("Unknown", None, absence="never_reported")
                _tell(known, device_id, word, snapshot.version, at_ms, out)

    def _freeze(
        self, known: KnownPod, version: Version, words: dict[str, Word], at_ms: int, out: list[Fact]
    ) -> None:
        """Tell the last word of each device as frozen (kubernetes/kubernetes#132978)."""
        last = {**known.words, **words}
        out.extend(
            health(known, device_id, last[device_id], version, at_ms, live=False)
            for device_id in sorted(last.keys() - known.ended)
        )
        known.ended |= last.keys()
        known.words, known.word_versions = {}, {}

    # --- whose word it is --------------------------------------------------------------------------------------------

    def read(
        self, known: KnownPod, reports: tuple[DeviceReport, ...], *, with_unresolved: bool = False
    ) -> tuple[dict[str, Word], bool]:
        """Return the word on each device, and whether a report still has no claim."""
        grouped: dict[str, tuple[Subject, list[DeviceReport]]] = {}
        unresolved = False
        for report in reports:
            parsed = claim_of(report.name)
            if parsed is None:
                subject = plugin_subject(report)
            else:
                local, request = parsed
                allocation = self._allocation(known, local)
                if allocation is not None:
                    subject = dra_subject(report, request, allocation)
                else:
                    unresolved = True
                    if not with_unresolved:
                        continue
                    subject = unattributed(report, known.namespace, local)
            grouped.setdefault(subject.device_id, (subject, []))[1].append(report)
        return {key: merge(group, subject) for key, (subject, group) in grouped.items()}, unresolved

    def _allocation(self, known: KnownPod, local: str) -> Allocation | None:
        """Return what a claim of the Pod holds, remembered from when it was first seen to."""
        before = known.allocations.get(local)
        claim = self._claim(known, local)
        if claim is None or claim.allocation is None:
            return before
        if before is None or known.uid in claim.consumer_pods:
            known.allocations[local] = claim.allocation
            return claim.allocation
        return before

    def _claim(self, known: KnownPod, local: str) -> KnownClaim | None:
        listed = next((claim for claim in known.claims if claim.name == local), None)
        if listed is None:
            # KEP-5004: the status entry then holds the name of the claim object itself.
            return self._claims.find(known.namespace, local) if local == known.extended_claim else None
        if listed.claim is not None:
            return self._claims.find(known.namespace, listed.claim)
        # The controller's record is missing (kubernetes/kubernetes#139772): the claim itself tells whose it is.
        own = [claim for claim in self._claims.of_pod(known.uid) if not claim.extended]
        made_for = [claim for claim in own if claim.pod_claim_name == local]
        if not made_for and sum(claim.claim is None for claim in known.claims) == 1:
            made_for = [
                claim for claim in own if claim.pod_claim_name is None and claim.name not in known.named
            ]
        return made_for[0] if len(made_for) == 1 else None


def snapshot_of(seen: PodObservation) -> Snapshot:
    """Return what an observed Pod says of devices."""
    fact = seen.fact
    return Snapshot(
        version=(fact.epoch, fact.rv),
        reports=seen.reports,
        live=not seen.terminal,
        running=fact.phase == "Running",
    )


def _word_of(fact: DeviceHealthObserved) -> Word:
    return Word(
        health=fact.health,
        health_raw=fact.health_raw,
        message=fact.message,
        containers=fact.containers,
        reported_as=fact.reported_as,
        candidates=fact.candidates,
        absence=fact.absence,
        physical_id=fact.physical_id,
    )


def _is_attributed_now(device_id: str, word: Word, reported: set[tuple[str, str]]) -> bool:
    """Whether an unattributed word's report is still there, so that another device has it now."""
    # unattributed:<namespace>/<claim>/<resourceID>: only the last part may hold a slash.
    return device_id.startswith(UNATTRIBUTED) and (word.reported_as, device_id.split("/", 2)[2]) in reported


def _tell(
    known: KnownPod,
    device_id: str,
    word: Word,
    version: Version,
    at_ms: int,
    out: list[Fact],
    *,
    live: bool = True,
) -> None:
    known.words[device_id], known.word_versions[device_id] = word, version
    out.append(health(known, device_id, word, version, at_ms, live=live))


def health(
    known: KnownPod, device_id: str, word: Word, version: Version, at_ms: int, *, live: bool = True
) -> DeviceHealthObserved:
    """Return the fact of one word."""
    return DeviceHealthObserved(
        node=known.node,
        observed_at_ms=at_ms,
        epoch=version[0],
        rv=version[1],
        device_id=device_id,
        physical_id=word.physical_id,
        health=word.health,
        health_raw=word.health_raw,
        message=word.message,
        live=live,
        absence=cast("Literal['', 'never_reported', 'report_vanished']", word.absence),
        pod_uid=known.uid,
        namespace=known.namespace,
        pod=known.name,
        containers=word.containers,
        reported_as=word.reported_as,
        candidates=word.candidates,
    )
