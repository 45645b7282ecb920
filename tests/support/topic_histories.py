"""Generated pairs of topics: facts records of one partition, and what workers that crash and begin again answer to them."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from sickbay.cloudevents import FACTS_OFFSET, OUTCOME, PART, batches
from sickbay.codec import encode, wrap_decision, wrap_fact
from sickbay.decisions import AlertRaised
from sickbay.facts import Tick

PARTITION = 3
PARKED = b"\xff not an event"


def tick(number):
    return wrap_fact(Tick(node="", partition=PARTITION, observed_at_ms=1_000 * number))


def alert(cause, ordinal):
    raised = AlertRaised(
        node="node-a", at_ms=cause.at_ms, alert_id=f"alert-{ordinal}", alert="late_fact", about="device"
    )
    return wrap_decision(raised, cause, ordinal, "policy")


def message(envelopes, *extra):
    """Return value and headers of the one record that holds some events."""
    (found,) = batches("key", [(envelope, encode(envelope)) for envelope in envelopes], extra)
    return found.value, found.headers


def answer(facts_offset, outcome, envelopes=(), part="", value=b""):
    """Return value and headers of an answer, or of one part of it."""
    extra = [(FACTS_OFFSET, str(facts_offset).encode()), (OUTCOME, outcome.encode())]
    if part:
        extra.append((PART, part.encode()))
    return message(envelopes, *extra) if envelopes else (value, extra)


@dataclass
class Topics:
    """Both topics, record by record as ``(value, headers)``, and the log that follows from them."""

    facts: list = field(default_factory=list)
    answers: list = field(default_factory=list)
    log: list = field(default_factory=list)
    #: Index of a decisions record -> facts records that are answered once it is read.
    answered: dict = field(default_factory=dict)
    #: Facts record -> length of the log before it.
    log_before: list = field(default_factory=list)


@dataclass
class _Record:
    facts: list
    decisions: list
    outcome: str
    parts: int

    @property
    def merged(self):
        if self.outcome != "taken":
            return []
        out, seen = [], set()
        for fact in self.facts:
            out.append(fact)
            if fact.event_id not in seen:
                out += [d for d in self.decisions if d.causation_id == fact.event_id]
            seen.add(fact.event_id)
        return [encode(envelope) for envelope in out]

    def answer(self, offset):
        """Return the records of the answer; none when it was taken without decisions."""
        if self.outcome != "taken":
            return [answer(offset, self.outcome)]
        size = -(-len(self.decisions) // self.parts) if self.decisions else 1
        chunks = [self.decisions[i : i + size] for i in range(0, len(self.decisions), size)]
        if len(chunks) == 1:
            return [answer(offset, "taken", chunks[0])]
        return [
            answer(offset, "taken", chunk, f"{number}/{len(chunks)}")
            for number, chunk in enumerate(chunks, 1)
        ]


@st.composite
def _records(draw):
    count = draw(st.integers(1, 12))
    records, number = [], 0
    for _ in range(count):
        facts = [tick(number + step) for step in range(draw(st.integers(1, 3)))]
        number += len(facts)
        if draw(st.integers(0, 4)) == 0:
            facts.append(facts[0])
        outcome = draw(st.sampled_from(["taken", "taken", "taken", "parked", "superseded"]))
        decisions = [
            alert(fact, ordinal)
            for fact in {fact.event_id: fact for fact in facts}.values()
            for ordinal in range(draw(st.integers(0, 3)))
        ]
        records.append(_Record(facts, decisions, outcome, draw(st.integers(1, 3))))
    return records


@st.composite
def topics(draw):
    """Topics whose worker crashed a few times, in the middle of an answer too, and answered again from an earlier place."""
    records = draw(_records())
    made = Topics()
    for record in records:
        made.log_before.append(len(made.log))
        broken = record.outcome == "parked" and draw(st.booleans())
        made.facts.append((PARKED, []) if broken else message(record.facts))
        made.log += record.merged
    made.log_before.append(len(made.log))
    done = 0
    for _ in range(draw(st.integers(0, 3))):
        begin = draw(st.integers(0, done))
        end = draw(st.integers(begin, len(records)))
        _attempt(draw, made, records, begin, end)
        done = max(done, end)
        if done < len(records):
            # it was killed between two parts
            pieces = records[done].answer(done)
            for piece in pieces[: draw(st.integers(0, max(0, len(pieces) - 1)))]:
                made.answers.append(piece)
                made.answered[len(made.answers) - 1] = done
    _attempt(draw, made, records, draw(st.integers(0, done)), len(records))
    made.answers.append(answer(len(records) - 1, "progress"))
    made.answered[len(made.answers) - 1] = len(records)
    return made


def _attempt(draw, made, records, begin, end):
    for offset in range(begin, end):
        pieces = records[offset].answer(offset)
        for piece in pieces:
            made.answers.append(piece)
            made.answered[len(made.answers) - 1] = offset
        if pieces:
            made.answered[len(made.answers) - 1] = offset + 1
        if draw(st.integers(0, 4)) == 0:
            made.answers.append(answer(offset, "progress"))
            made.answered[len(made.answers) - 1] = offset + 1
