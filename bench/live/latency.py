"""How old a fact is when its decision is out, and when the row can be read, at a fixed rate.

The publisher of ``sickbay ingest`` writes the facts, so it decides what shares a record; `sickbay work` and `sickbay project` run
as they are shipped, one of each. Times are those at which the broker appended: of the facts record, and of the first record of
its answer. A row counts as readable when the position in the store has passed its decision, which moves in the same transaction;
that is looked at every few milliseconds, by the clock of this machine, which is the broker's too.
"""

from __future__ import annotations

import asyncio
import bisect
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import psycopg
from report import Goal
from sqlalchemy.engine import make_url

from ingest.kafka_log import KafkaFactLog
from sickbay.clock import SystemClock
from sickbay.cloudevents import FACTS_OFFSET, whole_header
from sickbay.facts import Fact, Tick
from sickbay.settings import KafkaSettings

from .history import beginning, words_of
from .logs import ends
from .processes_of import Answers, projector_process, wait_ready, worker_process
from .services import Services

#: How often facts are handed to the publisher.
_TURN_S: Final = 0.01
_TICK_S: Final = 1
_LOOK_S: Final = 0.005
_LIMIT_S: Final = 120.0
_MOST_MS: Final = 500


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """One rate. Percentiles are milliseconds, of every facts record that has a decision."""

    rate: int
    seconds: int
    facts: int
    #: Facts handed over for each second that it took: lower than the rate when the publisher had to wait.
    published_per_second: int
    records: int
    decided: int
    decision_p50: int
    decision_p99: int
    decision_max: int
    #: 0 without a database.
    row_p50: int
    row_p99: int
    row_max: int


class _Seen(NamedTuple):
    at_ms: int
    next_offset: int


class _Rows(threading.Thread):
    """Looks in the store how far each partition of the decisions is projected."""

    def __init__(self, database: str) -> None:
        super().__init__(daemon=True)
        self._url = make_url(database).set(drivername="postgresql").render_as_string(hide_password=False)
        self._ended = threading.Event()
        self.seen: dict[int, list[_Seen]] = {}

    def run(self) -> None:
        clock = SystemClock()
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._ended.wait(_LOOK_S):
                rows = connection.execute(
                    "SELECT partition_number, next_offset FROM sickbay.source_position WHERE topic = 'decisions'"
                ).fetchall()
                at_ms = clock.now_ms()
                for number, offset in rows:
                    known = self.seen.setdefault(number, [])
                    if not known or known[-1].next_offset < offset:
                        known.append(_Seen(at_ms, offset))

    def end(self) -> None:
        """Stop looking."""
        self._ended.set()
        self.join()

    def readable_ms(self, number: int, offset: int) -> int | None:
        """Return when a decisions record was first found to be projected."""
        known = self.seen.get(number, [])
        place = bisect.bisect_right([seen.next_offset for seen in known], offset)
        return known[place].at_ms if place < len(known) else None


def latency(
    services: Services,
    folder: Path,
    *,
    nodes: int,
    rate: int,
    seconds: int,
    postgresql: bool,
    say: Callable[[str], None],
) -> Latency:
    """Measure one rate."""
    from live_processes import eventually

    settings = services.installation()
    worker = worker_process(settings, folder)
    database = services.database() if postgresql else ""
    projector = projector_process(settings, folder, database) if database else None
    rows = None
    try:
        worker.start()
        wait_ready(worker)
        if projector is not None:
            projector.start()
            eventually(lambda: _has_store(database), "a store", processes=[projector])
            rows = _Rows(database)
            rows.start()
        first, facts, took_s = asyncio.run(_publish_all(settings, worker, nodes, rate, seconds))
        if rows is not None:
            found = rows
            targets = asyncio.run(ends(settings, settings.topics.decisions))
            eventually(
                lambda: all(
                    found.readable_ms(number, end - 1) is not None for number, end in targets.items() if end
                ),
                "every decision in the store",
                processes=[projector],
            )
    finally:
        if rows is not None:
            rows.end()
        for process in (worker, projector):
            if process is not None:
                process.kill()
    result = _result(settings, first, rows, rate, seconds, facts, took_s)
    say(
        f"  {rate}/s: p50 {result.decision_p50} ms, p99 {result.decision_p99} ms; row p99 {result.row_p99} ms"
    )
    return result


def goal_of(result: Latency) -> Goal:
    """Return the goal on one rate."""
    return Goal(
        goal=f"p99 from fact published to decision published at {result.rate:,}/s on one worker <= {_MOST_MS} ms",
        reached=f"{result.decision_p99} ms (p50 {result.decision_p50} ms; {result.published_per_second:,}/s were published)",
        met=result.decision_p99 <= _MOST_MS,
    )


def _has_store(database: str) -> bool:
    url = make_url(database).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as connection:
        there = connection.execute("SELECT to_regclass('sickbay.source_position')").fetchone()
    return there is not None and there[0] is not None


async def _publish_all(
    settings: KafkaSettings, worker: object, nodes: int, rate: int, seconds: int
) -> tuple[dict[int, int], int, float]:
    """Publish the nodes, and then facts at the rate; return where those begin, their number, and how long it took."""
    log = KafkaFactLog(settings)
    await log.start()
    try:
        async with Answers(settings) as answers:
            await log.recall()
            log.lead(1)
            await log.publish(beginning(nodes, settings.partitions))
            await log.drain()
            first = await ends(settings, settings.topics.facts)
            await answers.until(first, _LIMIT_S, worker)
            published, took_s = await _publish(log, nodes, rate, seconds)
            await answers.until(await ends(settings, settings.topics.facts), _LIMIT_S, worker)
        return first, published, took_s
    finally:
        await log.close()


async def _publish(log: KafkaFactLog, nodes: int, rate: int, seconds: int) -> tuple[int, float]:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    published = ticked = 0
    words = words_of(nodes)
    while (passed := loop.time() - begun) < seconds:
        due = int(passed * rate) - published
        if due:
            facts = list(islice(words, due))
            published += due
            if passed >= ticked + _TICK_S:
                ticked += _TICK_S
                facts += _ticks(facts[-1], log.partitions)
            await log.publish(facts)
        await asyncio.sleep(_TURN_S)
    await log.drain()
    return published, loop.time() - begun


def _ticks(after: Fact, partitions: int) -> Iterator[Fact]:
    for number in range(partitions):
        yield Tick(node="", observed_at_ms=after.observed_at_ms, partition=number)


def _result(
    settings: KafkaSettings,
    first: dict[int, int],
    rows: _Rows | None,
    rate: int,
    seconds: int,
    facts: int,
    took_s: float,
) -> Latency:
    from live_processes import read_topic

    # before the facts: each of them that has an answer is there then
    answers = read_topic(settings, settings.topics.decisions)
    published = {
        number: {record.offset: record.timestamp for record in records}
        for number, records in read_topic(settings, settings.topics.facts).items()
    }
    decided: list[int] = []
    readable: list[int] = []
    for number, records in answers.items():
        answered: set[int] = set()
        for record in records:
            offset = whole_header(record.headers, FACTS_OFFSET) or 0
            if not record.value or offset < first[number] or offset in answered:
                continue
            answered.add(offset)
            decided.append(record.timestamp - published[number][offset])
            at_ms = None if rows is None else rows.readable_ms(number, record.offset)
            if at_ms is not None:
                readable.append(at_ms - published[number][offset])
    return Latency(
        rate=rate,
        seconds=seconds,
        facts=facts,
        published_per_second=int(facts / took_s),
        records=sum(len(times) for times in published.values()) - sum(first.values()),
        decided=len(decided),
        decision_p50=percentile(decided, 50),
        decision_p99=percentile(decided, 99),
        decision_max=max(decided, default=0),
        row_p50=percentile(readable, 50),
        row_p99=percentile(readable, 99),
        row_max=max(readable, default=0),
    )


def percentile(values: list[int], share: int) -> int:
    """Return the smallest value that ``share`` percent of all are not above; 0 of none."""
    ordered = sorted(values)
    return ordered[max(0, -(-share * len(ordered) // 100) - 1)] if ordered else 0
