"""One measured row, run in a process of its own: ``python bench/rows.py ROW FOLDER`` prints its result as JSON.

The clock runs over the stage and nothing else; what it works on is made before. Rows import what only they need themselves, so
that the memory of a stage is its own. It must print nothing but the result.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec
from clock import Clock, Result
from inputs import (
    PARTITIONS,
    Slot,
    disordered,
    frames,
    ledger_facts_for,
    lines,
    prepare,
    recording,
    refuse,
    routed,
    share_late,
    slots_of,
)

from ingest.diff import Mirror
from ingest.recording import read_recordings
from sickbay.cli.folding import Fold
from sickbay.facts import PolicyChanged, Tick
from sickbay.policy import Policy
from streams.partition import Partition


def floor(folder: Path) -> Result:
    """Decode every line and write it into a dict under its object's uid, so that the newest of each object is there.

    Lines are cut outside the clock, a block at a time, so that they come from a warm cache.
    """
    decode = msgspec.json.Decoder().decode
    newest: dict[str, Any] = {}
    clock, count = Clock(), 0
    for block in lines(folder):
        count += len(block)
        with clock:
            for line in block:
                document = decode(line)
                found = document.get("object")
                newest[found["metadata"].get("uid", "") if found else ""] = document
    return clock.result(count)


def decode_alone(folder: Path) -> Result:
    """Decode every line and forget it: what the floor costs without its dict."""
    decode = msgspec.json.Decoder().decode
    clock, count = Clock(), 0
    for block in lines(folder):
        count += len(block)
        with clock:
            for line in block:
                decode(line)
    return clock.result(count)


def read(folder: Path) -> Result:
    """Read the recording: decompress, cut, decode, frame."""
    with Clock() as clock:
        count = sum(1 for _ in read_recordings([recording(folder)], on_parked=refuse))
    return clock.result(count)


def observe(folder: Path) -> Result:
    """Read the recording and turn every frame into facts."""
    mirror = Mirror(Policy().reading, PARTITIONS)
    count = 0
    with Clock() as clock:
        for frame in frames(folder):
            mirror.apply(frame)
            count += 1
    return clock.result(count)


def fold(folder: Path) -> Result:
    """Fold prepared facts in the order of event time."""
    return _fold(slots_of(folder))


def fold_disordered(folder: Path) -> Result:
    """Fold the same facts, 20 % of them late."""
    return _fold(disordered(slots_of(folder)))


def _fold(slots: list[Slot]) -> Result:
    late, total = share_late(slots)
    partitions = [Partition(number) for number in range(PARTITIONS)]
    for partition in partitions:
        partition.step(PolicyChanged.to(Policy(), slots[0][0]))
    prepared = routed(slots)
    with Clock() as clock:
        for to_ms, facts in prepared:
            for number, fact in facts:
                partitions[number].step(fact)
            for partition in partitions:
                if partition.due_ms <= to_ms:
                    partition.step(Tick(node="", observed_at_ms=to_ms, partition=partition.number))
    result = clock.result(total)
    result.late = late
    result.digest = _standing(partitions)
    return result


def _standing(partitions: list[Partition]) -> str:
    """Return a digest of where every device stands, which no order of arrival may change."""
    standing = [
        (name, unit_id, unit.phase, unit.verdict, unit.episode)
        for partition in partitions
        for name, state in sorted(partition.nodes.items())
        for unit_id, unit in sorted(state.timeline.head.units.items())
    ]
    return sha256(msgspec.json.encode(standing)).hexdigest()


def ledger_fold(folder: Path) -> Result:
    """Fold Pods that come and go with their claims, one for forty events of the recording, into the ledgers of their nodes."""
    from streams.ledger.aggregate import LEDGER, LedgerState, initial

    facts = ledger_facts_for(sum(map(len, lines(folder))))
    policy = Policy()
    policies, in_force = {policy.hash(): policy}, policy.hash()
    states: dict[str, LedgerState] = {}
    with Clock() as clock:
        for fact in facts:
            state = states.get(fact.node)
            if state is None:
                state = initial(fact.node, policies, in_force)
            states[fact.node], _ = LEDGER.step(state, (fact,))
    return clock.result(len(facts))


def log(folder: Path) -> Result:
    """Fold prepared facts and put facts and decisions into log records: the fold with its shell."""
    slots = slots_of(folder)
    fold_of_all = Fold(range(PARTITIONS), PARTITIONS, len)
    with Clock() as clock:
        fold_of_all.policy(PolicyChanged.to(Policy(), slots[0][0]))
        for to_ms, facts in slots:
            fold_of_all.slot(facts, to_ms)
        fold_of_all.flush()
    return clock.result(sum(len(facts) for _, facts in slots))


def _stored(kind: str, records: str, *, bare: bool = False) -> Callable[[Path], Result]:
    """Return a row that writes prepared records to a store, or the rows that become of them with nothing around."""

    def row(folder: Path) -> Result:
        import stores

        measure = stores.bare if bare else stores.projected
        return measure(folder, kind, records)

    return row


def replay_1(folder: Path) -> Result:
    """Replay the recording into a store with one worker."""
    return _replay(folder, workers=1)


def replay_2(folder: Path) -> Result:
    """Replay the recording into a store with two workers, their start included."""
    return _replay(folder, workers=2)


def _replay(folder: Path, workers: int) -> Result:
    from projections.engine import Store
    from sickbay.cli.pipeline import Options, Replay

    options = Options(paths=(str(recording(folder)),), policy=Policy(), workers=workers)
    with (
        tempfile.TemporaryDirectory(dir=folder) as place,
        Store.open(f"{place}/store.db", create=True, source_id=options.source_id()) as store,
    ):
        with Clock() as clock:
            outcome = Replay(options, store).run()
        result = clock.result(outcome.frames)
        result.digest = sha256(msgspec.json.encode(store.digests(), order="sorted")).hexdigest()
    return result


def make(folder: Path) -> Result:
    """Prepare the input of the other rows; not a row of the table."""
    with Clock() as clock:
        prepare(folder)
    return clock.result(1)


ROWS: Final[dict[str, Callable[[Path], Result]]] = {
    "floor": floor,
    "decode": decode_alone,
    "read": read,
    "observe": observe,
    "fold": fold,
    "fold-disordered": fold_disordered,
    "ledger-fold": ledger_fold,
    "log": log,
    "project": _stored("sqlite", "records"),
    "bare": _stored("sqlite", "records", bare=True),
    "project-pg": _stored("postgresql", "records"),
    "bare-pg": _stored("postgresql", "records", bare=True),
    "ledger-project": _stored("sqlite", "ledger"),
    "ledger-bare": _stored("sqlite", "ledger", bare=True),
    "ledger-project-pg": _stored("postgresql", "ledger"),
    "ledger-bare-pg": _stored("postgresql", "ledger", bare=True),
    "replay-1": replay_1,
    "replay-2": replay_2,
    "make": make,
}


if __name__ == "__main__":
    row, place = sys.argv[1:]
    sys.stdout.buffer.write(msgspec.json.encode(ROWS[row](Path(place))))
