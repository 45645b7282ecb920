"""One partition as a live worker folds it: records of the facts topic in, answers out.

It owns the order in which things are said and nothing else: what a record leads to is a function of the records before it, so a
worker that folds a stretch again after a crash gives the same answers, with the same ids. It must do no I/O, and it is never
asked to fold a record that could not be read.

The breaker lives in the partition of the cluster's stream, its *home*: other partitions send it their census as a record of the
facts topic, and it sends every partition its word the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from sickbay.cloudevents import INGEST_EPOCH, Headers, Opened, header, unpack, whole_header
from sickbay.codec import encode, fact_id, open_envelope, stream_of, wrap_decision, wrap_fact
from sickbay.deadletters import RETRIED
from sickbay.decisions import BreakerClosed, BreakerOpened, CensusTaken, Decision
from sickbay.envelope import CLUSTER_STREAM, Envelope, partition_of
from sickbay.errors import CodecError
from sickbay.events import Event
from sickbay.facts import BreakerResetRequested, BreakerStateChanged, Fact, PolicyChanged, Tick
from sickbay.timestamps import LAST_MS
from streams.breaker import BREAKER, BreakerState
from streams.partition import Partition


class NoPolicyError(CodecError):
    """A record that comes before any policy is in force."""


class Answer(NamedTuple):
    """What became of one facts record."""

    outcome: Literal["taken", "superseded"]
    #: In order, each with its canonical bytes.
    decisions: list[Opened]
    #: Events for the facts topic: ``(partition, event)``.
    forwarded: list[tuple[int, Opened]]


class Record(NamedTuple):
    """One facts record that could be read."""

    events: list[tuple[Opened, Event]]
    #: Epoch of the ingester that wrote it; ``None`` for what no ingester wrote: requests, censuses, words of the breaker.
    ingest_epoch: int | None


def read_record(opened: Sequence[Opened], ingest_epoch: int | None, number: int, total: int) -> Record:
    """Decode the events of a record of partition ``number``.

    Raises CodecError for one that is empty, cannot be decoded, is no fact, or stands in the wrong partition (reference faults,
    P9): the record is parked as a whole.
    """
    if not opened:
        raise CodecError("a batch without events says nothing")
    events: list[tuple[Opened, Event]] = []
    for item in opened:
        event = open_envelope(item.envelope)
        if isinstance(event, Fact):
            _require_outside(item.envelope, event)
            own = getattr(event, "partition", None)
            right = partition_of(event.node, total) if own is None else own
        elif isinstance(event, CensusTaken):
            right = home_of(total)
        else:
            raise CodecError(f"{event.KIND} {item.envelope.event_id} is a decision; facts are what is folded")
        if right != number:
            raise CodecError(
                f"{event.KIND} {item.envelope.event_id} of {item.envelope.stream_id!r} belongs to partition {right} of {total}"
                f" and stands in {number}; write it there"
            )
        events.append((item, event))
    return Record(events, ingest_epoch)


def read_message(value: bytes | None, headers: Headers | None, number: int, total: int) -> Record:
    """Decode a record as it stands in the topic; one that was parked and sent again is of no ingester's epoch.

    Raises CodecError as ``unpack`` and ``read_record`` do.
    """
    retried = header(headers, RETRIED) is not None
    epoch = None if retried else whole_header(headers, INGEST_EPOCH)
    return read_record(unpack(value, headers), epoch, number, total)


def _require_outside(envelope: Envelope, fact: Fact) -> None:
    """Refuse a fact whose outside is another one's: the log is told apart by it, and a store can hold no other times."""
    outside = (envelope.event_id, envelope.stream_id, envelope.at_ms)
    if outside != (fact_id(fact), stream_of(fact), fact.observed_at_ms):
        raise CodecError(
            f"{fact.KIND} {envelope.event_id!r}: its id, its stream or its time is not that of the fact inside; no writer of ours"
            " made it"
        )
    if not 0 <= fact.observed_at_ms <= LAST_MS:
        raise CodecError(f"{fact.KIND} {envelope.event_id!r}: {fact.observed_at_ms} ms is no time")


def home_of(total: int) -> int:
    """Return the partition of the cluster's stream, where the breaker lives."""
    return partition_of(CLUSTER_STREAM, total)


class Live:
    """One partition of ``total``, at a position of the facts topic."""

    def __init__(self, number: int, total: int) -> None:
        self.number: Final = number
        self.total: Final = total
        self.partition = Partition(number)
        self.breaker: BreakerState | None = BreakerState() if number == home_of(total) else None
        #: Identity of the facts topic: what the position means something for.
        self.source = ""
        #: Offset of the next facts record.
        self.position = 0
        #: Highest epoch of an ingester that was heard.
        self.ingest_epoch = 0
        #: Event time of the newest fact.
        self.time_ms = 0
        #: Of the breaker's home: partition to the time of its newest census that was sent here.
        self.censused: dict[int, int] = {}

    def take(self, offset: int, record: Record) -> Answer:
        """Fold the record at an offset and return its answer. The offset is the position: no record may be left out.

        Raises NoPolicyError, with nothing changed, for a record that comes before any policy is in force.
        """
        assert offset >= self.position, f"record {offset} of partition {self.number} was folded already"
        if not self.partition.policy_hash and not isinstance(record.events[0][1], PolicyChanged):
            raise NoPolicyError(
                "no policy is in force yet: an ingester tells one before anything else; start one, then retry this record"
            )
        self.position = offset + 1
        epoch = record.ingest_epoch
        if epoch is not None:
            if epoch < self.ingest_epoch:
                return Answer("superseded", [], [])
            self.ingest_epoch = epoch
        answer = Answer("taken", [], [])
        for opened, event in record.events:
            self._take(opened.envelope, event, answer)
        return answer

    def follow(self, offset: int, record: Record, decisions: Sequence[tuple[str, Decision]]) -> None:
        """Replay: take in a record and what was decided of it then, deciding nothing.

        ``decisions`` are all decisions of the answer, in order, each with the id of its cause; a record that was superseded or
        parked is passed by ``skip``. The state is that of the worker which decided, byte for byte.
        """
        self.position = offset + 1
        if record.ingest_epoch is not None:
            self.ingest_epoch = max(self.ingest_epoch, record.ingest_epoch)
        for opened, event in record.events:
            said = [decision for cause, decision in decisions if cause == opened.envelope.event_id]
            if isinstance(event, CensusTaken):
                if self._is_news(event):
                    self._hear([event, *said])
                continue
            assert isinstance(event, Fact)
            if self.partition.knows(event):
                continue
            self.time_ms = max(self.time_ms, event.observed_at_ms)
            self.partition.replay(event)
            for decision in said:
                self.partition.replay(decision)
            censuses = [decision for decision in said if isinstance(decision, CensusTaken)]
            self._hear([*censuses, event, *said])

    def _is_news(self, census: CensusTaken) -> bool:
        """Note a census; one that comes again, from a worker that folds anew, is older than what was heard or as old."""
        is_news = census.at_ms > self.censused.get(census.partition, -1)
        if is_news:
            self.censused[census.partition] = census.at_ms
        return is_news

    def _hear(self, events: Sequence[Event]) -> None:
        """Let the breaker take in what it took in then: censuses before the tick, its own decisions after it."""
        if self.breaker is None:
            return
        for event in events:
            if isinstance(
                event,
                CensusTaken | Tick | PolicyChanged | BreakerResetRequested | BreakerOpened | BreakerClosed,
            ):
                self.breaker = BREAKER.evolve(self.breaker, event)

    def skip(self, offset: int) -> None:
        """Move past a record that is parked."""
        self.position = offset + 1

    def _take(self, cause: Envelope, event: Event, answer: Answer) -> None:
        said = _Saying(cause, answer)
        if isinstance(event, CensusTaken):
            if self.breaker is not None and self._is_news(event):
                self._tell_breaker([event], said)
            return
        assert isinstance(event, Fact)
        if self.partition.knows(event):
            return
        self.time_ms = max(self.time_ms, event.observed_at_ms)
        for decision in self.partition.step(event):
            said.say(decision, self.partition.policy_hash)
        if isinstance(event, PolicyChanged) and self.breaker is not None:
            # it decides at the next tick: what it said here would be in nobody's answer
            self.breaker = BREAKER.evolve(self.breaker, event)
        elif isinstance(event, BreakerResetRequested):
            if self.breaker is not None:
                self._tell_breaker([event], said)
        elif isinstance(event, Tick):
            self._tick(event, said)

    def _tick(self, tick: Tick, said: _Saying) -> None:
        census = self.partition.census(tick.observed_at_ms)
        heard: list[Fact | CensusTaken] = [tick]
        if census is not None:
            opened = said.say(census, self.partition.policy_hash)
            if self.breaker is None:
                said.answer.forwarded.append((home_of(self.total), opened))
            heard.insert(0, census)
        if self.breaker is not None:
            self._tell_breaker(heard, said)

    def _tell_breaker(self, heard: list[Fact | CensusTaken], said: _Saying) -> None:
        assert self.breaker is not None
        self.breaker, decisions = BREAKER.step(self.breaker, heard)
        for decision in decisions:
            said.say(decision, self.partition.policy_hash)
            if isinstance(decision, BreakerOpened | BreakerClosed):
                for number in range(self.total):
                    # a census of a partition that lags is older than what was said before, and so would its word be
                    fact = BreakerStateChanged(
                        node="",
                        observed_at_ms=decision.at_ms,
                        partition=number,
                        scope=decision.scope,
                        open=isinstance(decision, BreakerOpened),
                    )
                    envelope = wrap_fact(fact)
                    said.answer.forwarded.append((number, Opened(envelope, encode(envelope))))


class _Saying:
    """Numbers the decisions of one cause."""

    def __init__(self, cause: Envelope, answer: Answer) -> None:
        self.answer = answer
        self._cause = cause
        self._ordinal = 0

    def say(self, decision: Decision, policy: str) -> Opened:
        """Add a decision to the answer and return it."""
        envelope = wrap_decision(decision, self._cause, self._ordinal, policy)
        self._ordinal += 1
        opened = Opened(envelope, encode(envelope))
        self.answer.decisions.append(opened)
        return opened
