"""Where the slots of a replay are folded: in this process, or in worker processes that each have their own partitions.

Both give the same log. A worker writes its own partitions; the store takes one writer at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Final, Protocol, cast

import msgspec

from projections.engine import Store
from sickbay.cli.continuing import same_log
from sickbay.cli.folding import Fold
from sickbay.decisions import CensusTaken, Decision
from sickbay.envelope import partition_of
from sickbay.errors import SickbayError
from sickbay.events import KINDS
from sickbay.facts import Fact, PolicyChanged
from streams.custody.state import NEVER

#: A worker that says nothing for this long is lost; folding one slot takes milliseconds, a write waits for its turn.
_WORKER_TIMEOUT_S: Final = 300

_encoder: Final = msgspec.msgpack.Encoder()
_decoders: Final = {kind: msgspec.msgpack.Decoder(cls) for kind, cls in KINDS.items()}


class Folds(Protocol):
    """Where slots go: fold workers in this process or in others."""

    @property
    def due_ms(self) -> int:
        """When time alone will next move anything, NEVER if it will not; as of the slot whose census was taken last."""
        ...

    def slot(self, facts: list[Fact], to_ms: int, *, ends: bool = True) -> None:
        """Take the facts of a slot; with ``ends`` false more of them follow, and its census is nothing."""
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
        self._fold = Fold(range(store.partitions), store.partitions, same_log(store))
        self._census: list[CensusTaken] = []

    @property
    def due_ms(self) -> int:
        return self._fold.due_ms

    def slot(self, facts: list[Fact], to_ms: int, *, ends: bool = True) -> None:
        self._census = self._fold.slot(facts, to_ms, ends=ends)
        self._fold.flush_batch()

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
        #: Of each worker, as it was at the end of its newest slot.
        self._due_ms = [NEVER] * workers
        self._pipes: list[Connection] = []
        self._processes = []
        # a server that has the modules loaded forks each worker: starting one costs a fork and not an import
        context = get_context("forkserver")
        context.set_forkserver_preload(["sickbay.cli.pipeline"])
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
        with suppress(EOFError, OSError):
            if pipe.poll(1):
                content = pipe.recv()
                if isinstance(content, BaseException):
                    return content
        return SickbayError("a fold worker died; run again, the log goes on where it stopped")

    def slot(self, facts: list[Fact], to_ms: int, *, ends: bool = True) -> None:
        shares: list[list[tuple[str, bytes]]] = [[] for _ in range(self._workers)]
        for fact in facts:
            number = getattr(fact, "partition", None)
            if number is None:
                number = partition_of(fact.node, self._total)
            shares[number % self._workers].append((fact.KIND, _encoder.encode(fact)))
        self._send([("slot", (share, to_ms, ends)) for share in shares])

    @property
    def due_ms(self) -> int:
        return min(self._due_ms)

    def census(self) -> list[CensusTaken]:
        taken: list[CensusTaken] = []
        for index, pipe in enumerate(self._pipes):
            found, self._due_ms[index] = self._receive(pipe)
            taken += found
        return taken

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
            fold = Fold(numbers, total, same_log(store))
            while True:
                verb, content = pipe.recv()
                if verb == "slot":
                    share, to_ms, ends = content
                    facts = [cast("Fact", _decoders[kind].decode(data)) for kind, data in share]
                    pipe.send((fold.slot(facts, to_ms, ends=ends), fold.due_ms))
                    fold.flush_batch()
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
