"""Two topics into one log: each fact followed by the decisions that it caused, for one partition.

The workers answer the records of ``Topics.facts`` in ``Topics.decisions``, in the order of the facts and each at most once, and
after a crash once more from an earlier place. What is merged is therefore a function of the two partitions alone: the first
complete answer to a facts record counts, and what comes later for it is passed over. How the two are interleaved, cut into
fetches or read again has no part in it. Pure: records in, records of the log out; nothing here fetches, waits or writes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from projections.records import LogRecord
from sickbay.cloudevents import (
    FACTS_OFFSET,
    OUTCOME,
    OUTCOMES,
    PART,
    Headers,
    Opened,
    header,
    unpack,
    whole_header,
)
from sickbay.errors import CodecError, MergeError

#: Parts and bytes of one answer: above what a tick decides when every device of a partition falls due at once.
PARTS_MAX: Final = 10_000
ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024
#: What a record costs beside its bytes, roughly: so that a million empty ones are not taken for nothing.
_RECORD_BYTES: Final = 512


class MergePosition(NamedTuple):
    """Where a merge of one partition stands, and goes on from."""

    #: Offset of the next facts record that is merged; everything before it is in the log, or was left out for good.
    next_facts_offset: int = 0
    #: Offset from which decisions are to be read again; what before it answers later facts is nothing.
    next_decisions_offset: int = 0
    #: Offset of the next event in the merged log.
    next_log_offset: int = 0


class Limits(NamedTuple):
    """How much of one topic's partition waits for the other, at most; one record, or one answer, more may come."""

    records: int = 20_000
    bytes: int = 16 * 1024 * 1024


class Merged(NamedTuple):
    """A piece of the log, and where the merge stands after it."""

    records: list[LogRecord]
    position: MergePosition


@dataclass(slots=True)
class _Fetched:
    """A record as it was fetched."""

    offset: int
    value: bytes | None
    headers: Headers | None

    @property
    def size(self) -> int:
        return len(self.value or b"") + _RECORD_BYTES


@dataclass(slots=True)
class _Answer:
    """What was answered to one facts record, as far as it has come."""

    facts_offset: int
    outcome: str
    parts_count: int
    #: Offset of the first record of it.
    from_offset: int
    parts: dict[int, _Fetched] = field(default_factory=dict)
    size: int = 0

    @property
    def is_complete(self) -> bool:
        return len(self.parts) == self.parts_count

    def add(self, number: int, part: _Fetched) -> None:
        if number not in self.parts:
            self.parts[number] = part
            self.size += part.size


class Merger:
    """The merge of one partition. Give it the records of each topic in order of offset, and take the log out of it.

    ``wants_facts`` and ``wants_answers`` say what to fetch next. When neither is wanted, ``take`` has something to give out, so
    nothing waits but for an answer that is missing.
    """

    def __init__(
        self,
        partition: int,
        position: MergePosition = MergePosition(),  # noqa: B008 - a tuple of numbers
        *,
        facts: str = "facts",
        decisions: str = "decisions",
        limits: Limits = Limits(),  # noqa: B008 - a tuple of numbers
    ) -> None:
        """``facts`` and ``decisions`` are the names of the topics, for errors."""
        self.partition: Final = partition
        self._facts_topic: Final = facts
        self._decisions_topic: Final = decisions
        self._limits: Final = limits
        self._position = position
        self._facts: deque[_Fetched] = deque()
        self._facts_bytes = 0
        #: Answers that are complete and not used yet, by rising offset of what they answer.
        self._answers: deque[_Answer] = deque()
        self._answers_bytes = 0
        self._partial: _Answer | None = None
        #: Every facts record below this offset was answered.
        self._answered_to = position.next_facts_offset
        #: Offsets of the next records to be given.
        self.next_facts_fetch = position.next_facts_offset
        self.next_answers_fetch = position.next_decisions_offset

    @property
    def position(self) -> MergePosition:
        """Where the merge stands: after what ``take`` gave out last."""
        return self._position

    @property
    def waiting(self) -> int:
        """Facts records that are here and not merged."""
        return len(self._facts)

    @property
    def ready(self) -> bool:
        """Whether ``take`` would move the position."""
        return bool(self._facts) and self._facts[0].offset < self._answered_to

    @property
    def wants_facts(self) -> bool:
        """Whether more facts are of use: not while too many wait for their answers."""
        return len(self._facts) < self._limits.records and self._facts_bytes < self._limits.bytes

    @property
    def wants_answers(self) -> bool:
        """Whether more answers are of use: not while too many wait for their facts."""
        return len(self._answers) < self._limits.records and self._answers_bytes < self._limits.bytes

    # --- in ---

    def fact(self, offset: int, value: bytes | None, headers: Headers | None) -> None:
        """Take the next record of the facts topic; one that was merged is passed over. Raises MergeError for a gap."""
        if offset < self.next_facts_fetch:
            return
        self._require_next(self._facts_topic, self.next_facts_fetch, offset)
        self.next_facts_fetch = offset + 1
        fetched = _Fetched(offset, value, headers)
        self._facts.append(fetched)
        self._facts_bytes += fetched.size

    def answer(self, offset: int, value: bytes | None, headers: Headers | None) -> None:
        """Take the next record of the decisions topic; a repeated answer is passed over.

        Raises MergeError for a gap, for a record that says not what it answers, and for an answer of which a part is missing.
        """
        if offset < self.next_answers_fetch:
            return
        self._require_next(self._decisions_topic, self.next_answers_fetch, offset)
        self.next_answers_fetch = offset + 1
        answers, outcome, (part, parts) = self._read_headers(offset, headers)
        if answers < self._answered_to:
            return
        partial = self._partial
        if partial is not None and answers > partial.facts_offset:
            raise MergeError(
                f"{self._place(self._decisions_topic, offset)} answers offset {answers} of {self._facts_topic}, and the answer"
                f" to {partial.facts_offset} has {len(partial.parts)} of {partial.parts_count} parts; decisions were lost in"
                " Kafka: find out how before anything is projected"
            )
        # what has begun says that everything before it was answered
        self._answered_to = answers
        fetched = _Fetched(offset, value, headers)
        if partial is None or not self._continues(partial, outcome, part, parts, fetched):
            partial = _Answer(answers, outcome, parts, offset)
        partial.add(part, fetched)
        if partial.size > ANSWER_BYTES_MAX:
            raise MergeError(
                f"{self._place(self._decisions_topic, offset)}: the answer to {answers} of {self._facts_topic} has more than"
                f" {ANSWER_BYTES_MAX} bytes; nothing that a worker writes is so large"
            )
        if not partial.is_complete:
            self._partial = partial
            return
        self._partial = None
        self._answered_to = answers + 1
        if outcome == "progress" and self._answers and self._answers[-1].outcome == "progress":
            self._answers_bytes -= self._answers.pop().size
        self._answers.append(partial)
        self._answers_bytes += partial.size

    @staticmethod
    def _continues(partial: _Answer, outcome: str, part: int, parts: int, fetched: _Fetched) -> bool:
        """Whether a part belongs to what is being put together, and not to another attempt that says something else."""
        known = partial.parts.get(part)
        return (
            partial.outcome == outcome
            and partial.parts_count == parts
            and (known is None or known.value == fetched.value)
        )

    def _read_headers(self, offset: int, headers: Headers | None) -> tuple[int, str, tuple[int, int]]:
        place = self._place(self._decisions_topic, offset)
        try:
            answers = whole_header(headers, FACTS_OFFSET)
            outcome = header(headers, OUTCOME)
            part = header(headers, PART)
        except CodecError as error:
            raise MergeError(f"{place}: {error}") from error
        if answers is None or outcome not in OUTCOMES:
            raise MergeError(
                f"{place} has {FACTS_OFFSET}={answers} and {OUTCOME}={outcome!r}, which is no answer that this build knows; only"
                " the workers may write to this topic, and a projector must be as new as they are"
            )
        return answers, outcome, self._read_part(place, part)

    @staticmethod
    def _read_part(place: str, text: str | None) -> tuple[int, int]:
        if text is None:
            return 1, 1
        part, _, parts = text.partition("/")
        if not all(number.isascii() and number.isdigit() and len(number) < 10 for number in (part, parts)):
            raise MergeError(f"{place} has {PART}={text[:40]!r} and not part/parts")
        if not 1 <= int(part) <= int(parts) <= PARTS_MAX:
            raise MergeError(
                f"{place} is part {text[:40]} of an answer; an answer has 1 to {PARTS_MAX} parts"
            )
        return int(part), int(parts)

    def _require_next(self, topic: str, expected: int, offset: int) -> None:
        if offset != expected:
            raise MergeError(
                f"{self._place(topic, offset)} follows where offset {expected} is due: the topic was compacted, or written in"
                " transactions, or lost records; the log cannot be made from it, restore the topic (`sickbay topics check`)"
            )

    def _place(self, topic: str, offset: int) -> str:
        return f"{topic}/{self.partition}@{offset}"

    # --- out ---

    def take(self, events_max: int, bytes_max: int) -> Merged:
        """Give out the next piece of the log: whole facts records with their decisions, until one of the limits is passed.

        The position moves past what is given out. Raises MergeError, naming the record, for one that cannot be what it says.
        """
        records: list[LogRecord] = []
        size = 0
        while self.ready and len(records) < events_max and size < bytes_max:
            fact = self._facts.popleft()
            self._facts_bytes -= fact.size
            events = self._follow(fact, self._answer_to(fact.offset))
            first = self._position.next_log_offset
            records += [
                LogRecord(self.partition, first + number, event.envelope, event.data)
                for number, event in enumerate(events)
            ]
            size += sum(len(event.data) for event in events) + _RECORD_BYTES
            self._position = MergePosition(fact.offset + 1, self._read_again(), first + len(events))
        return Merged(records, self._position)

    def _answer_to(self, facts_offset: int) -> _Answer | None:
        """Return the answer to a facts record, and let go of what is of no use after it."""
        found: _Answer | None = None
        while self._answers and self._answers[0].facts_offset <= facts_offset:
            answer = self._answers.popleft()
            self._answers_bytes -= answer.size
            if answer.outcome != "progress":
                # no facts record is left out, so this one's is the only answer that can be left
                found = answer
        return found

    def _read_again(self) -> int:
        """Return the offset of the first decisions record that is of use for what is not merged yet."""
        if self._answers:
            return self._answers[0].from_offset
        return self.next_answers_fetch if self._partial is None else self._partial.from_offset

    def _follow(self, fact: _Fetched, answer: _Answer | None) -> list[Opened]:
        """Return the events of a facts record, each followed by the decisions on it; nothing when it was not taken."""
        if answer is not None and answer.outcome != "taken":
            return []
        causes = self._open(self._facts_topic, fact)
        groups: list[list[Opened]] = []
        group_of: dict[str, int] = {}
        for number, event in enumerate(causes):
            groups.append([event])
            # a fact that comes twice in one record causes nothing the second time
            group_of.setdefault(event.envelope.event_id, number)
        for _, part in sorted(answer.parts.items()) if answer is not None else ():
            for decision in self._open(self._decisions_topic, part):
                envelope = decision.envelope
                cause = group_of.get(envelope.causation_id)
                if cause is None:
                    raise MergeError(
                        f"{self._place(self._decisions_topic, part.offset)}: {envelope.kind} {envelope.event_id} was caused by"
                        f" {envelope.causation_id!r}, which is not in {self._place(self._facts_topic, fact.offset)}; the two"
                        " topics do not belong together"
                    )
                groups[cause].append(decision)
                # what follows from a decision stands behind it
                group_of.setdefault(envelope.event_id, cause)
        return [event for group in groups for event in group]

    def _open(self, topic: str, record: _Fetched) -> list[Opened]:
        try:
            return unpack(record.value, record.headers)
        except CodecError as error:
            raise MergeError(
                f"{self._place(topic, record.offset)} was taken and is no event: {error}"
            ) from error
