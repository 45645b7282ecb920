"""Glances at lines, made on other cores while this one reads on.

Lines go out in batches, in turn, to worker processes, and come back in order; a bounded number is under way. A worker that dies
costs nothing but speed: its lines get no glance and are read in full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Final, Self

import msgspec

from ingest.glance import Glance, glance

#: Lines in one batch: some 100 KiB, so that what waits for a worker fits into the pipe and nobody stands still.
_BATCH_LINES: Final = 64
#: Batches under way for each worker: one that is worked on and two that wait.
_BATCHES_AHEAD: Final = 3
#: A worker that says nothing for this long is given up.
_TIMEOUT_S: Final = 60

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[Glance | None])


class Prefetcher:
    """A pool of glancing workers. Use as a context manager."""

    def __init__(self, workers: int) -> None:
        context = get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=10)
            if process.is_alive():
                process.terminate()
                process.join(timeout=10)

    def glances(self, lines: Iterable[tuple[bytes, str]]) -> Iterator[tuple[bytes, str, Glance | None]]:
        """Yield each ``(line, place)`` with the glance at it, in order."""
        under_way: deque[tuple[Connection | None, list[tuple[bytes, str]]]] = deque()
        for turn, batch in enumerate(_batches(lines)):
            worker = self._pipes[turn % len(self._pipes)]
            pipe: Connection | None = worker
            try:
                worker.send_bytes(_encoder.encode([line for line, _ in batch]))
            except OSError:
                pipe = None
            under_way.append((pipe, batch))
            if len(under_way) >= _BATCHES_AHEAD * len(self._pipes):
                yield from _received(*under_way.popleft())
        while under_way:
            yield from _received(*under_way.popleft())


def _batches(lines: Iterable[tuple[bytes, str]]) -> Iterator[list[tuple[bytes, str]]]:
    batch: list[tuple[bytes, str]] = []
    for item in lines:
        batch.append(item)
        if len(batch) == _BATCH_LINES:
            yield batch
            batch = []
    if batch:
        yield batch


def _received(
    pipe: Connection | None, batch: list[tuple[bytes, str]]
) -> Iterator[tuple[bytes, str, Glance | None]]:
    found: list[Glance | None] = [None] * len(batch)
    if pipe is not None:
        with suppress(EOFError, OSError, msgspec.MsgspecError):
            if pipe.poll(_TIMEOUT_S):
                answered = _decoder.decode(pipe.recv_bytes())
                if len(answered) == len(batch):
                    found = answered
    for (line, place), seen in zip(batch, found, strict=True):
        yield line, place, seen


def _work(pipe: Connection) -> None:
    decoder = msgspec.msgpack.Decoder(list[bytes])
    # the reading process went away, or is done: so is this one
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            pipe.send_bytes(_encoder.encode([glance(line) for line in decoder.decode(pipe.recv_bytes())]))
