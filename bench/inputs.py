"""What the benchmark measures with: recordings from ``examples/generate.py``, and the facts and log records made of them once.

Rows that measure one stage read its input from here, so that no stage pays for the one before it. Equal options give equal
inputs. It must not measure anything.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, cast
from zlib import crc32

import msgspec
import zstandard
from ledger import ledger_facts

from ingest.diff import Mirror
from ingest.frames import Frame, Parked
from ingest.recording import read_recordings
from projections.records import LogRecord
from sickbay.cli.folding import Fold, on_grid, partition_of_fact
from sickbay.codec import decode_envelope, open_envelope
from sickbay.envelope import Envelope
from sickbay.events import KINDS
from sickbay.facts import Fact, PolicyChanged
from sickbay.policy import Policy
from sickbay.topics import PARTITIONS_DEFAULT
from streams.partition import arrival_order

#: Nodes of the ledger's own facts, few enough that each sees many Pods.
LEDGER_NODES: Final = 20
ROOT: Final = Path(__file__).resolve().parents[1]
PARTITIONS: Final = PARTITIONS_DEFAULT
#: One fact in this many comes late in the disordered fold, behind the next one to ``_BEHIND_MAX`` facts of its node.
LATE_ONE_IN: Final = 5
_BEHIND_MAX: Final = 3
_BLOCK_BYTES: Final = 1 << 20
#: A late fact stays far inside the lateness horizon of the default policy (10 minutes).
_LATE_MAX_MS: Final = 300_000

#: The facts of one slot of event time, in the order of arrival, and the slot's end.
Slot: TypeAlias = tuple[int, list[Fact]]
_StoredSlot: TypeAlias = tuple[int, list[tuple[str, msgspec.Raw]]]
_StoredRecord: TypeAlias = tuple[int, int, bytes]


class Size(NamedTuple):
    """One recording: its cluster and how much happens in it."""

    nodes: int
    devices: int
    events: int
    events_per_second: int
    #: Share of the events that change a device's health, as a fraction.
    fault_rate: str = "1/100"


def recording(folder: Path) -> Path:
    """Return the path of the recording of an input folder."""
    return folder / "recording.jsonl.zst"


def generate(folder: Path, size: Size) -> None:
    """Write the recording of ``size``."""
    folder.mkdir(parents=True)
    subprocess.run(  # noqa: S603 - this interpreter and a script of this tree
        [
            sys.executable,
            str(ROOT / "examples" / "generate.py"),
            str(recording(folder)),
            f"--nodes={size.nodes}",
            f"--devices={size.devices}",
            f"--events-per-second={size.events_per_second}",
            f"--fault-rate={size.fault_rate}",
            f"--duration-s={max(1, size.events // size.events_per_second)}",
        ],
        check=True,
        stderr=subprocess.DEVNULL,
    )


def lines(folder: Path) -> Iterator[list[bytes]]:
    """Yield the decompressed lines of the recording, a block at a time."""
    with zstandard.open(recording(folder), "rb") as stream:
        rest = b""
        while chunk := cast("bytes", stream.read(_BLOCK_BYTES)):
            *block, rest = (rest + chunk).split(b"\n")
            yield block
    assert not rest, "a recording ends with a line end"


def frames(folder: Path) -> Iterator[Frame]:
    """Yield the frames as a replay reads them."""
    for frame in read_recordings([recording(folder)], on_parked=refuse):
        assert isinstance(frame, Frame)
        yield frame


def refuse(parked: Parked) -> None:
    """A generated recording has nothing unreadable."""
    raise ValueError(f"{parked.place}: {parked.reason}")


def prepare(folder: Path) -> None:
    """Write the facts of the recording, by slot, and the log records that become of them."""
    slots: list[Slot] = []
    mirror = Mirror(Policy().reading, PARTITIONS)
    for frame in frames(folder):
        to_ms = on_grid(frame.at_ms)
        if not slots or to_ms > slots[-1][0]:
            slots.append((to_ms, []))
        slots[-1][1].extend(mirror.apply(frame))
    for _, facts in slots:
        facts.sort(key=arrival_order)
    _write(folder / "facts.msgpack", [(to_ms, [(f.KIND, f) for f in facts]) for to_ms, facts in slots])
    _write(folder / "records.msgpack", _records(slots))
    events = sum(map(len, lines(folder)))
    _write(folder / "ledger.msgpack", _records(_slotted(ledger_facts_for(events))))


def ledger_facts_for(events: int) -> list[Fact]:
    """Return the ledger's own facts for a recording of so many events: a Pod for each forty, nine facts for each Pod."""
    return list(ledger_facts(LEDGER_NODES, max(1, events // 40)))


def _slotted(facts: Iterable[Fact]) -> list[Slot]:
    slots: list[Slot] = []
    for fact in facts:
        to_ms = on_grid(fact.observed_at_ms)
        if not slots or to_ms > slots[-1][0]:
            slots.append((to_ms, []))
        slots[-1][1].append(fact)
    return slots


def _records(slots: list[Slot]) -> list[list[_StoredRecord]]:
    batches: list[list[_StoredRecord]] = []
    fold = Fold(
        range(PARTITIONS),
        PARTITIONS,
        lambda records: batches.append([(r.partition, r.offset, r.data) for r in records]),
    )
    fold.policy(PolicyChanged.to(Policy(), slots[0][0]))
    for to_ms, facts in slots:
        fold.slot(list(facts), to_ms)
    fold.flush()
    return batches


def _write(path: Path, content: object) -> None:
    path.write_bytes(msgspec.msgpack.encode(content))


def slots_of(folder: Path) -> list[Slot]:
    """Return the prepared facts."""
    stored = msgspec.msgpack.decode((folder / "facts.msgpack").read_bytes(), type=list[_StoredSlot])
    decoders = {kind: msgspec.msgpack.Decoder(cls) for kind, cls in KINDS.items()}
    return [
        (to_ms, [cast("Fact", decoders[kind].decode(raw)) for kind, raw in facts]) for to_ms, facts in stored
    ]


def batches_of(folder: Path, name: str = "records") -> list[list[LogRecord]]:
    """Return the prepared log records (of the recording, or of the ledger's own facts) in batches as a replay writes them."""
    stored = msgspec.msgpack.decode((folder / f"{name}.msgpack").read_bytes(), type=list[list[_StoredRecord]])

    def record(partition: int, offset: int, data: bytes) -> LogRecord:
        envelope: Envelope = decode_envelope(data)
        return LogRecord(partition, offset, envelope, data, b"", open_envelope(envelope))

    return [[record(*place) for place in batch] for batch in stored]


def disordered(slots: list[Slot]) -> list[Slot]:
    """Return the same facts, one in ``LATE_ONE_IN`` arriving behind later facts of its own node."""
    arrivals = [(index, fact) for index, (_, facts) in enumerate(slots) for fact in facts]
    by_node: dict[str, list[int]] = {}
    for position, (_, fact) in enumerate(arrivals):
        by_node.setdefault(fact.node, []).append(position)
    moved: list[tuple[int, int, int]] = []
    for node, positions in by_node.items():
        for rank, position in enumerate(positions):
            fact, arrives = arrivals[position][1], position
            throw = crc32(f"{node}/{rank}".encode())
            if node and throw % LATE_ONE_IN == 0:
                for behind in positions[rank + 1 : rank + 2 + throw // LATE_ONE_IN % _BEHIND_MAX]:
                    if arrivals[behind][1].observed_at_ms - fact.observed_at_ms <= _LATE_MAX_MS:
                        arrives = behind
            moved.append((arrives, int(arrives != position), position))
    result: list[Slot] = [(to_ms, []) for to_ms, _ in slots]
    for arrives, _, position in sorted(moved):
        result[arrivals[arrives][0]][1].append(arrivals[position][1])
    return result


def share_late(slots: Iterable[Slot]) -> tuple[int, int]:
    """Return how many facts arrive behind a later fact of their node, and how many there are."""
    newest: dict[str, tuple[object, ...]] = {}
    late = total = 0
    for _, facts in slots:
        for fact in facts:
            order = arrival_order(fact)
            late += order < newest.get(fact.node, order)
            newest[fact.node] = max(order, newest.get(fact.node, order))
            total += 1
    return late, total


def routed(
    slots: list[Slot], number_of: Callable[[Fact, int], int] = partition_of_fact
) -> list[tuple[int, list[tuple[int, Fact]]]]:
    """Return the slots with the partition of each fact."""
    return [(to_ms, [(number_of(fact, PARTITIONS), fact) for fact in facts]) for to_ms, facts in slots]
