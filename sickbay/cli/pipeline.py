"""Replay: recordings read, observed, folded and written, on one core or on all of them.

The reading process turns frames into facts and cuts event time into slots; fold workers, each with its own partitions, take the
facts of a slot, and the breaker hears every partition's census before the next slot begins. So the log has the same bytes
whatever the number of workers. Workers write their own partitions; the store takes one writer at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from ingest.diff import Mirror
from ingest.frames import FactFrame, Frame, Parked, Unread
from ingest.recording import Ignored, read_recordings
from projections.engine import Store
from projections.records import ParkedItem
from sickbay.cli import interrupts
from sickbay.cli.folding import TICK_MS, on_grid
from sickbay.cli.folds import Folds, LocalFolds, ProcessFolds
from sickbay.decisions import CensusTaken
from sickbay.envelope import derived_id
from sickbay.errors import RecordingError
from sickbay.facts import BreakerResetRequested, BreakerStateChanged, Fact, PodGone, PolicyChanged, Tick
from sickbay.policy import Policy
from streams.breaker import BREAKER, BreakerState

#: Facts that may wait for one slot; above it a slot is folded in parts, so memory stays bounded.
_SLOT_FACTS_LIMIT: Final = 5_000


@dataclass(frozen=True, slots=True)
class Options:
    """What to replay and how."""

    paths: tuple[str, ...]
    policy: Policy
    from_ms: int | None = None
    until_ms: int | None = None
    nodes: frozenset[str] = frozenset()
    workers: int = 1
    step_ms: int = 1000

    def source_id(self) -> str:
        """Name what is replayed: the same recordings under the same policy and options give the same log."""
        parts = [
            self.policy.hash(),
            str(self.from_ms),
            str(self.until_ms),
            str(self.step_ms),
            *sorted(self.nodes),
        ]
        for path in self.paths:
            if not Path(path).is_file():  # standard input and pipes can be read once only, and not for this
                parts.append(path)
                continue
            try:
                with Path(path).open("rb") as stream:
                    head = stream.read(65_536)
                parts.append(f"{Path(path).stat().st_size}:{head.hex()}")
            except OSError:
                parts.append(path)
        return f"replay:{derived_id(*parts)}"


@dataclass(slots=True)
class Outcome:
    """What a replay came to."""

    frames: int = 0
    facts: int = 0
    parked: int = 0
    decisions: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    ignored: Ignored = field(default_factory=Ignored)


class Replay:
    """One replay into one store."""

    def __init__(
        self, options: Options, store: Store, *, on_progress: Callable[[int, int | None], None] | None = None
    ) -> None:
        self._options = options
        self._store = store
        self._on_progress = on_progress
        self._breaker = BreakerState(policy=options.policy.breaker)
        self._mirror = Mirror(options.policy.reading, store.partitions)
        self._parked: list[ParkedItem] = []
        #: Place and reason of the first thing that was parked.
        self._first = ""
        self._latest: dict[tuple[str, ...], Fact] | None = {} if options.from_ms is not None else None
        self._waiting = False
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Replay everything; raises RecordingError and StoreError."""
        workers = min(self._options.workers, self._store.partitions)
        with interrupts.held() if workers > 1 else nullcontext():
            folds: Folds = LocalFolds(self._store) if workers <= 1 else ProcessFolds(self._store, workers)
        try:
            self._run(folds)
            self._settle(folds)
            folds.finish()
            self._store.park(self._parked)
            self._store.end_source()
        finally:
            folds.close()
        return self.outcome

    def _run(self, folds: Folds) -> None:
        slot: list[Fact] = []
        slot_end_ms: int | None = None
        for at_ms, facts in self._facts():
            end_ms = on_grid(at_ms)
            if slot_end_ms is None:
                slot_end_ms = end_ms
                folds.policy(PolicyChanged.to(self._options.policy, self._options.from_ms or at_ms))
            elif end_ms > slot_end_ms:
                self._slot(folds, slot, slot_end_ms)
                slot = []
                self._quiet(folds, slot_end_ms, end_ms)
                slot_end_ms = end_ms
            elif len(slot) >= _SLOT_FACTS_LIMIT:
                self._part(folds, slot, slot_end_ms)
                slot = []
            slot += facts
        if slot_end_ms is None:
            self._store.park(self._parked)
            first = (
                f"; the first of {self.outcome.parked} that could not be used is {self._first}"
                if self._first
                else ""
            )
            raise RecordingError(
                f"{', '.join(self._options.paths)}: no usable frame"
                f"{' in the given time' if self._options.from_ms or self._options.until_ms else ''}{first};"
                " `sickbay replay --help` names the formats that are read"
            )
        self._slot(folds, slot, slot_end_ms)
        if self._options.until_ms is not None and self._options.until_ms > slot_end_ms:
            end_ms = on_grid(self._options.until_ms)
            self._quiet(folds, slot_end_ms, end_ms)
            self._slot(folds, [], end_ms)

    def _slot(self, folds: Folds, facts: list[Fact], to_ms: int) -> None:
        self._settle(folds)
        folds.slot(facts, to_ms)
        self._waiting = True
        self._slot_end_ms = to_ms

    def _part(self, folds: Folds, facts: list[Fact], to_ms: int) -> None:
        """Hand on what one slot has so far."""
        self._settle(folds)
        folds.slot(facts, to_ms, ends=False)
        folds.census()

    def _settle(self, folds: Folds) -> bool:
        """Let the breaker hear the slot that is under way and return whether it decided; the reading goes on meanwhile."""
        if not self._waiting:
            return False
        self._waiting = False
        # by partition, whoever folds it: the log must not depend on the number of workers
        taken = sorted(folds.census(), key=lambda census: census.partition)
        heard: list[Fact | CensusTaken] = [*taken, Tick(node="", observed_at_ms=self._slot_end_ms)]
        self._breaker, decisions = BREAKER.step(self._breaker, heard)
        if decisions:
            folds.breaker(decisions, self._slot_end_ms)
        return bool(decisions)

    def _quiet(self, folds: Folds, from_ms: int, to_ms: int) -> None:
        """Go through the slots without facts one by one while the breaker has something to wait for.

        When it waits for devices alone, only a deadline can change that, and the slots before the next one are passed over.
        """
        at_ms = from_ms + TICK_MS
        if at_ms >= to_ms:
            return
        self._settle(folds)
        while at_ms < to_ms and (self._breaker.open or self._breaker.adverse):
            self._slot(folds, [], at_ms)
            at_ms += TICK_MS
            if not self._settle(folds) and self._breaker.is_stuck:
                at_ms = max(at_ms, min(on_grid(folds.due_ms), to_ms))

    def _facts(self) -> Iterator[tuple[int, list[Fact]]]:
        """Yield ``(time, facts)`` of each frame that is wanted, never going back in time by more than the frame says."""
        options, outcome = self._options, self.outcome
        slot_end_ms = -1
        for frame in read_recordings(
            options.paths,
            on_parked=self._park,
            step_ms=options.step_ms,
            on_progress=self._on_progress,
            ignored=outcome.ignored,
            glances=True,
        ):
            if options.until_ms is not None and frame.at_ms > options.until_ms:
                continue
            facts = self._observe(frame)
            outcome.frames += 1
            outcome.last_ms = max(frame.at_ms, outcome.last_ms or 0)
            if self._latest is not None:
                assert options.from_ms is not None
                if frame.at_ms < options.from_ms:
                    self._keep(facts)
                    continue
                facts = [*self._snapshot(options.from_ms), *facts]
                self._latest = None
            if options.nodes:
                facts = [
                    f for f in facts if f.node in options.nodes or getattr(f, "partition", None) is not None
                ]
            if not facts and frame.at_ms <= slot_end_ms:
                continue  # most frames change nothing, and their slot is known
            outcome.facts += len(facts)
            outcome.first_ms = frame.at_ms if outcome.first_ms is None else min(outcome.first_ms, frame.at_ms)
            slot_end_ms = max(slot_end_ms, on_grid(frame.at_ms))
            yield frame.at_ms, facts

    def _observe(self, frame: Frame | FactFrame | Unread) -> list[Fact]:
        if isinstance(frame, Unread):
            passed = self._mirror.pass_over(frame)
            return [f for read in frame.read() for f in self._observe(read)] if passed is None else passed
        if isinstance(frame, FactFrame):
            return self._recorded(frame.fact)
        facts = self._mirror.apply(frame)
        for parked in self._mirror.drain_parked():
            self._park(parked)
        return facts

    def _recorded(self, fact: Fact) -> list[Fact]:
        """Return a fact of a dump as this replay takes it: time, policy and breaker are this replay's own."""
        if isinstance(fact, Tick | PolicyChanged | BreakerStateChanged | BreakerResetRequested):
            self.outcome.ignored.note(f"{fact.KIND} of a dump: a replay makes its own")
            return []
        number = getattr(fact, "partition", None)
        if number is None:
            return [fact]
        if number != 0:
            return []
        return [msgspec.structs.replace(fact, partition=n) for n in range(self._store.partitions)]

    def _park(self, parked: Parked) -> None:
        self.outcome.parked += 1
        self._first = self._first or f"{parked.place}: {parked.reason}"
        self._parked.append(ParkedItem(parked.place, parked.reason, parked.raw.encode(), parked.at_ms))
        if len(self._parked) >= 1000:
            self._store.park(self._parked)
            self._parked = []

    def _keep(self, facts: list[Fact]) -> None:
        assert self._latest is not None
        for fact in facts:
            if getattr(fact, "partition", None) is None:
                kind = "pod_observed" if isinstance(fact, PodGone) else fact.KIND
                self._latest[kind, fact.node, fact.subject, getattr(fact, "pod_uid", "")] = fact

    def _snapshot(self, from_ms: int) -> list[Fact]:
        """Return the newest fact of everything that was known before ``from_ms``, as seen then."""
        assert self._latest is not None
        return [msgspec.structs.replace(fact, observed_at_ms=from_ms) for fact in self._latest.values()]
