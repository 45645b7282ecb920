"""Replay: recordings read, observed, folded and written, on one core or on all of them.

The reading process turns frames into facts and cuts event time into slots; fold workers, each with its own partitions, take the
facts of a slot, and the breaker hears every partition's census before the next slot begins. So the log has the same bytes
whatever the number of workers. Workers write their own partitions; the store takes one writer at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgspec

from ingest.diff import Mirror
from ingest.frames import FactFrame, Frame, Parked, Unread
from ingest.prefetch import Prefetcher
from ingest.recording import Ignored, read_recordings
from projections.engine import Store
from projections.records import ParkedItem
from sickbay.cli.folding import TICK_MS, Fold, on_grid
from sickbay.decisions import CensusTaken, Decision
from sickbay.envelope import derived_id, partition_of
from sickbay.errors import RecordingError, SickbayError
from sickbay.events import KINDS
from sickbay.facts import BreakerStateChanged, Fact, PodGone, PolicyChanged, Tick
from sickbay.policy import Policy
from streams.breaker import BREAKER, BreakerState

#: A worker that says nothing for this long is lost; folding one slot takes milliseconds, a write waits for its turn.
_WORKER_TIMEOUT_S: Final = 300
#: Facts that may wait for one slot; above it a slot is folded in parts, so memory stays bounded.
_SLOT_FACTS_LIMIT: Final = 50_000

_encoder: Final = msgspec.msgpack.Encoder()
_decoders: Final = {kind: msgspec.msgpack.Decoder(cls) for kind, cls in KINDS.items()}


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


class Folds(Protocol):
    """Where slots go: fold workers in this process or in others."""

    def slot(self, facts: list[Fact], to_ms: int) -> None:
        """Take the facts of a slot."""
        ...

    def census(self) -> list[CensusTaken]:
        """Wait for what the slot's partitions tell the breaker."""
        ...

    def breaker(self, decisions: Sequence[Decision], at_ms: int) -> None:
        """Make every partition hear of the breaker."""
        ...

    def policy(self, fact: PolicyChanged) -> None:
        """Put a policy in force."""
        ...

    def finish(self) -> None:
        """Write what is left."""
        ...

    def close(self) -> None:
        """Let go of everything; after an error what was not written is lost, and done again by the next run."""
        ...


class LocalFolds:
    """All partitions in this process."""

    def __init__(self, store: Store) -> None:
        self._fold = Fold(range(store.partitions), store.partitions, store.write)
        self._census: list[CensusTaken] = []

    def slot(self, facts: list[Fact], to_ms: int) -> None:
        self._census = self._fold.slot(facts, to_ms)

    def census(self) -> list[CensusTaken]:
        return self._census

    def breaker(self, decisions: Sequence[Decision], at_ms: int) -> None:
        self._fold.breaker(decisions, at_ms)

    def policy(self, fact: PolicyChanged) -> None:
        self._fold.policy(fact)

    def finish(self) -> None:
        self._fold.flush()

    def close(self) -> None:
        return


class ProcessFolds:
    """Partitions spread over worker processes: worker ``w`` of ``n`` has the partitions that leave ``w`` modulo ``n``."""

    def __init__(self, store: Store, workers: int) -> None:
        self._total = store.partitions
        self._workers = workers
        self._pipes: list[Connection] = []
        self._processes = []
        context = get_context("spawn")
        for index in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work,
                args=(theirs, store.place, list(range(index, store.partitions, workers)), store.partitions),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def _send(self, message: Sequence[tuple[str, Any]]) -> None:
        for pipe, content in zip(self._pipes, message, strict=True):
            try:
                pipe.send(content)
            except OSError as error:
                raise self._lost(pipe) from error

    def _receive(self, pipe: Connection) -> Any:
        if not pipe.poll(_WORKER_TIMEOUT_S):
            raise SickbayError(
                f"a fold worker said nothing for {_WORKER_TIMEOUT_S} s; run again with --workers 1"
            )
        try:
            content = pipe.recv()
        except EOFError:
            raise SickbayError("a fold worker died; run again, the log goes on where it stopped") from None
        if isinstance(content, BaseException):
            raise content
        return content

    def _lost(self, pipe: Connection) -> BaseException:
        with suppress(SickbayError, OSError):
            if pipe.poll(1):
                content = pipe.recv()
                if isinstance(content, BaseException):
                    return content
        return SickbayError("a fold worker died; run again, the log goes on where it stopped")

    def slot(self, facts: list[Fact], to_ms: int) -> None:
        shares: list[list[tuple[str, bytes]]] = [[] for _ in range(self._workers)]
        for fact in facts:
            number = getattr(fact, "partition", None)
            if number is None:
                number = partition_of(fact.node, self._total)
            shares[number % self._workers].append((fact.KIND, _encoder.encode(fact)))
        self._send([("slot", (share, to_ms)) for share in shares])

    def census(self) -> list[CensusTaken]:
        return [census for pipe in self._pipes for census in self._receive(pipe)]

    def breaker(self, decisions: Sequence[Decision], at_ms: int) -> None:
        self._send([("breaker", (list(decisions), at_ms))] * self._workers)

    def policy(self, fact: PolicyChanged) -> None:
        self._send([("policy", fact)] * self._workers)

    def finish(self) -> None:
        self._send([("finish", None)] * self._workers)
        for pipe in self._pipes:
            self._receive(pipe)

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=30)
            if process.is_alive():
                process.terminate()
                process.join(timeout=30)


def _work(pipe: Connection, place: str, numbers: list[int], total: int) -> None:
    """Run one fold worker until the pipe closes; an error is sent back and ends it."""
    try:
        with Store.open(place) as store:
            fold = Fold(numbers, total, store.write)
            while True:
                verb, content = pipe.recv()
                if verb == "slot":
                    share, to_ms = content
                    facts = [cast("Fact", _decoders[kind].decode(data)) for kind, data in share]
                    pipe.send(fold.slot(facts, to_ms))
                elif verb == "breaker":
                    fold.breaker(*content)
                elif verb == "policy":
                    fold.policy(content)
                else:
                    fold.flush()
                    pipe.send(None)
    except EOFError:
        return
    except BaseException as error:  # noqa: BLE001 - it crosses to the reading process, which raises it
        with suppress(OSError):
            pipe.send(
                error if isinstance(error, SickbayError) else SickbayError(f"a fold worker failed: {error!r}")
            )


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
        self._latest: dict[tuple[str, ...], Fact] | None = {} if options.from_ms is not None else None
        self._waiting = False
        self._prefetcher: Prefetcher | None = None
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Replay everything; raises RecordingError and StoreError."""
        workers = min(self._options.workers, self._store.partitions)
        folds: Folds = LocalFolds(self._store) if workers <= 1 else ProcessFolds(self._store, workers)
        try:
            with Prefetcher(workers) if workers > 1 else nullcontext() as self._prefetcher:
                self._run(folds)
            self._settle(folds)
            folds.finish()
            self._store.park(self._parked)
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
                folds.policy(self._policy_fact(self._options.from_ms or at_ms))
            elif end_ms > slot_end_ms or len(slot) >= _SLOT_FACTS_LIMIT:
                self._slot(folds, slot, slot_end_ms)
                slot = []
                self._quiet(folds, slot_end_ms, end_ms)
                slot_end_ms = max(slot_end_ms, end_ms)
            slot += facts
        if slot_end_ms is None:
            raise RecordingError(
                f"{', '.join(self._options.paths)}: no usable frame"
                f"{' in the given time' if self._options.from_ms or self._options.until_ms else ''}; `sickbay replay --help`"
                " names the formats that are read"
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
        if self._breaker.open or self._breaker.adverse:
            self._settle(folds)

    def _settle(self, folds: Folds) -> None:
        """Let the breaker hear the slot that is under way; the reading goes on meanwhile."""
        if not self._waiting:
            return
        self._waiting = False
        heard: list[Fact | CensusTaken] = [*folds.census(), Tick(node="", observed_at_ms=self._slot_end_ms)]
        self._breaker, decisions = BREAKER.step(self._breaker, heard)
        if decisions:
            folds.breaker(decisions, self._slot_end_ms)

    def _quiet(self, folds: Folds, from_ms: int, to_ms: int) -> None:
        """Go through the slots without facts one by one while the breaker has something to wait for."""
        self._settle(folds)
        at_ms = from_ms + TICK_MS
        while at_ms < to_ms and (self._breaker.open or self._breaker.adverse):
            self._slot(folds, [], at_ms)
            at_ms += TICK_MS

    def _policy_fact(self, at_ms: int) -> PolicyChanged:
        policy = self._options.policy
        return PolicyChanged(
            node="",
            observed_at_ms=at_ms,
            policy_version=policy.version,
            policy_hash=policy.hash(),
            document=policy.canonical(),
        )

    def _facts(self) -> Iterator[tuple[int, list[Fact]]]:
        """Yield ``(time, facts)`` of each frame that is wanted, never going back in time by more than the frame says."""
        options, outcome = self._options, self.outcome
        for frame in read_recordings(
            options.paths,
            on_parked=self._park,
            step_ms=options.step_ms,
            on_progress=self._on_progress,
            ignored=outcome.ignored,
            prefetcher=self._prefetcher,
        ):
            if options.until_ms is not None and frame.at_ms > options.until_ms:
                continue
            facts = self._observe(frame)
            outcome.frames += 1
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
            outcome.facts += len(facts)
            outcome.first_ms = frame.at_ms if outcome.first_ms is None else min(outcome.first_ms, frame.at_ms)
            outcome.last_ms = max(frame.at_ms, outcome.last_ms or 0)
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
        if isinstance(fact, Tick | PolicyChanged | BreakerStateChanged):
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
