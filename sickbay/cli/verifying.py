"""``sickbay verify``: the chain holds, the rows are what the log says, and the state is what the log says.

Four proofs, each of which reads the whole log: links and columns; a second store projected from the log; the fold walked twice,
once over facts and recorded decisions without deciding, once deciding again, which must agree byte for byte with each other and
with what is recorded; and the ledger of every node counted again from its objects alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from projections.engine import Store
from projections.places import Place
from projections.records import LogRecord
from projections.verify import verify_log, verify_replay
from sickbay.cli import output
from sickbay.cli.options import db_option, open_store
from sickbay.codec import encode_payload, open_envelope
from sickbay.decisions import (
    AlertCleared,
    AlertRaised,
    BreakerClosed,
    BreakerOpened,
    CensusTaken,
    Decision,
    DuplicateRefused,
    DuplicateWithdrawn,
    Entry,
    EntryPosted,
    EntryReversed,
)
from sickbay.errors import VerifyError
from sickbay.facts import Fact
from streams.custody.aggregate import decide, dump
from streams.ledger import aggregate as ledger
from streams.ledger.recount import Recount
from streams.partition import Partition


def _groups(records: Iterator[LogRecord]) -> Iterator[tuple[LogRecord, Fact, list[Decision]]]:
    """Yield each fact of a partition with the decisions on nodes that follow it."""
    head: tuple[LogRecord, Fact] | None = None
    decisions: list[Decision] = []
    for record in records:
        event = record.event if record.event is not None else open_envelope(record.envelope)
        if isinstance(event, Fact):
            if head is not None:
                yield *head, decisions
            head, decisions = (record, event), []
        elif not isinstance(event, CensusTaken | BreakerOpened | BreakerClosed) and not (
            isinstance(event, AlertRaised | AlertCleared) and event.alert == "breaker"
        ):
            decisions.append(event)
    if head is not None:
        yield *head, decisions


def verify_fold(store: Store) -> dict[str, int]:
    """Walk the fold over the log twice; return how many facts, decisions and nodes were compared.

    Raises VerifyError naming the event at which deciding again gives something else, or the node whose state differs.
    """
    counts = {"facts": 0, "decisions": 0, "nodes": 0}
    for number in sorted(store.positions()):
        replayed, decided = Partition(number), Partition(number)
        for record, fact, recorded in _groups(store.read(number)):
            replayed.replay(fact)
            for decision in recorded:
                replayed.replay(decision)
            again = decided.step(fact)
            if [encode_payload(d) for d in recorded] != [encode_payload(d) for d in again]:
                raise VerifyError(
                    f"partition {number} offset {record.offset}: {fact.KIND} {record.envelope.event_id} was followed by"
                    f" {_kinds(recorded)}, and this build decides {_kinds(again)}; the log was written by another fold, or changed"
                )
            counts["facts"] += 1
            counts["decisions"] += len(recorded)
        for name, state in sorted(replayed.nodes.items()):
            if decide(state) or dump(state) != dump(decided.nodes[name]):
                raise VerifyError(
                    f"node {name}: the state folded from the log is not the state that was decided from"
                )
            counts["nodes"] += 1
        for name, books in sorted(replayed.ledgers.items()):
            if ledger.decide(books) or ledger.dump(books) != ledger.dump(decided.ledgers[name]):
                raise VerifyError(
                    f"node {name}: the ledger folded from the log is not the ledger that was decided from"
                )
    return counts


def _kinds(decisions: list[Decision]) -> str:
    return ", ".join(d.KIND for d in decisions) or "nothing"


class _Booked:
    """What the recorded decisions on one node add up to, read from the log as any reader would."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, ...], Entry] = {}
        self.refused: dict[tuple[str, ...], Entry] = {}

    def take(self, decision: Decision) -> None:
        """Take in a recorded decision."""
        match decision:
            case EntryPosted(entry=entry):
                self.entries[entry.book, entry.key] = entry
            case EntryReversed(entry=entry):
                self.entries.pop((entry.book, entry.key), None)
            case DuplicateRefused(entry=entry, contender=contender):
                self.refused[entry.book, entry.key, contender] = entry
            case DuplicateWithdrawn(entry=entry, contender=contender):
                self.refused.pop((entry.book, entry.key, contender), None)
            case _:
                pass


def verify_ledger(store: Store) -> dict[str, int]:
    """Count every node's ledger again from its objects alone; return how many nodes and entries were compared.

    The fold is walked without deciding only to tell which facts came later than the lateness horizon and were not acted on.
    Raises VerifyError naming the node and the first entry or refusal that the log and the count do not share.
    """
    counts = {"ledgers": 0, "entries": 0}
    for number in sorted(store.positions()):
        walked = Partition(number)
        counting: dict[str, Recount] = {}
        booked: dict[str, _Booked] = {}
        for _, fact, recorded in _groups(store.read(number)):
            state = walked.ledgers.get(fact.node)
            if fact.node and (state is None or fact.observed_at_ms >= state.cut_ms):
                counting.setdefault(fact.node, Recount()).take(fact)
            walked.replay(fact)
            for decision in recorded:
                walked.replay(decision)
                booked.setdefault(decision.node, _Booked()).take(decision)
        for name, state in sorted(walked.ledgers.items()):
            entries, refused = counting.get(name, Recount()).count(state.policy)
            found = booked.get(name, _Booked())
            _compare(name, "entry", found.entries, entries)
            _compare(name, "refusal", found.refused, refused)
            counts["ledgers"] += 1
            counts["entries"] += len(entries)
    return counts


def _compare(node: str, what: str, logged: Any, counted: Any) -> None:
    for key in sorted(logged.keys() | counted.keys()):
        one, two = (_timeless(found.get(key)) for found in (logged, counted))
        if one != two:
            problem = (
                "is missing from the log" if one is None
                else "stands in the log and does not follow from the objects" if two is None
                else "has other amounts in the log than follow from the objects"
            )  # fmt: skip
            raise VerifyError(
                f"node {node}: the ledger's {what} {'/'.join(key)} {problem}; the log was written by another fold, or changed"
            )


def _timeless(entry: Entry | None) -> Entry | None:
    return None if entry is None else msgspec.structs.replace(entry, at_ms=0)


def _live(store: Store) -> list[str]:
    # here and not above: a store in a file has no need of the client of Kafka
    from sickbay.cli.verifying_live import verify_live

    return verify_live(store)


@click.command()
@db_option
@click.option(
    "--live",
    is_flag=True,
    help="Compare the log with the topics of Kafka that it follows first; where Kafka is stands in SICKBAY_KAFKA_….",
)
@output.output_option
def verify(db: Place, live: bool, form: str) -> None:
    """Prove that a store is what it says it is.

    Checks the hash chain of the event log and every column against the bytes; projects the log into a second store and compares
    row digests; folds the log without deciding and deciding again, and compares states and decisions byte for byte; and counts
    the ledger of every node again from its objects alone.

    \b
    Examples:
      sickbay verify --db sickbay.db
      sickbay verify --db postgresql://auditor@db.example/sickbay --live
    """
    with open_store(db) as store, tempfile.TemporaryDirectory(prefix="sickbay-verify-") as folder:
        lines = _live(store) if live else []
        with store.reading() as connection:
            events = sum(verify_log(connection).values())
        digests = verify_replay(store, Path(folder) / "replayed.db")
        counts = verify_fold(store)
        ledgers = verify_ledger(store)
    result: dict[str, Any] = {
        "events": events,
        **counts,
        **ledgers,
        "tables": len(digests),
        "digests": digests,
    }
    if live:
        result["live"] = lines
    if form == "json":
        output.print_json(result)
    elif form == "csv":
        output.print_rows(("table", "digest"), sorted(digests.items()), form)
    else:
        for line in lines:
            output.line(line)
        output.line(f"chain: {events} events, every link and every column holds")
        output.line(f"rows: {len(digests)} tables equal those projected anew from the log")
        output.line(
            f"fold: {counts['facts']} facts and {counts['decisions']} decisions on {counts['nodes']} nodes; replay equals live"
            " byte for byte"
        )
        output.line(
            f"ledger: {ledgers['entries']} entries on {ledgers['ledgers']} nodes equal those counted again from the objects"
        )
