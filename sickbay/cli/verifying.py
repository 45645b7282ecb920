"""``sickbay verify``: the chain holds, the rows are what the log says, and the state is what the log says.

Three proofs, each of which reads the whole log: links and columns; a second store projected from the log; and the fold walked
twice, once over facts and recorded decisions without deciding, once deciding again, which must agree byte for byte with each
other and with what is recorded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from projections.engine import Store
from projections.records import LogRecord
from projections.verify import verify_log, verify_replay
from sickbay.cli import output
from sickbay.cli.options import db_option, open_store
from sickbay.codec import encode_payload, open_envelope
from sickbay.decisions import AlertCleared, AlertRaised, BreakerClosed, BreakerOpened, CensusTaken, Decision
from sickbay.errors import VerifyError
from sickbay.facts import Fact
from streams.custody.aggregate import decide, dump
from streams.partition import Partition


def _groups(records: Iterator[LogRecord]) -> Iterator[tuple[LogRecord, Fact, list[Decision]]]:
    """Yield each fact of a partition with the custody decisions that follow it."""
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
    return counts


def _kinds(decisions: list[Decision]) -> str:
    return ", ".join(d.KIND for d in decisions) or "nothing"


@click.command()
@db_option
@output.output_option
def verify(db: str, form: str) -> None:
    """Prove that a store is what it says it is.

    Checks the hash chain of the event log and every column against the bytes; projects the log into a second store and compares
    row digests; folds the log without deciding and deciding again, and compares states and decisions byte for byte.

    \b
    Example:
      sickbay verify --db sickbay.db
    """
    with open_store(db) as store, tempfile.TemporaryDirectory(prefix="sickbay-verify-") as folder:
        with store.reading() as connection:
            events = sum(verify_log(connection).values())
        digests = verify_replay(store, Path(folder) / "replayed.db")
        counts = verify_fold(store)
    result: dict[str, Any] = {"events": events, **counts, "tables": len(digests), "digests": digests}
    if form == "json":
        output.print_json(result)
    elif form == "csv":
        output.print_rows(("table", "digest"), sorted(digests.items()), form)
    else:
        output.line(f"chain: {events} events, every link and every column holds")
        output.line(f"rows: {len(digests)} tables equal those projected anew from the log")
        output.line(
            f"fold: {counts['facts']} facts and {counts['decisions']} decisions on {counts['nodes']} nodes; replay equals live"
            " byte for byte"
        )
