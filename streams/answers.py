"""What a worker writes of one facts record: its decisions, the events it sends to other partitions, or a mark without a value.

Pure: answers in, records out, so that what fits no record is known before anything of it is written.
"""

from __future__ import annotations

from sickbay.cloudevents import FACTS_OFFSET, OUTCOME, PART, Message, batches, single
from streams.live import Answer


def answer_messages(number: int, offset: int, answer: Answer) -> list[Message]:
    """Return the records of the decisions on the record at an offset. Raises OversizeError for one that no record can hold."""
    if not answer.decisions:
        return []
    extra = [(FACTS_OFFSET, b"%d" % offset), (OUTCOME, b"taken")]
    key = answer.decisions[0].envelope.stream_id or f"partition/{number}"
    messages = batches(key, [(o.envelope, o.data) for o in answer.decisions], extra)
    if len(messages) > 1:
        for index, message in enumerate(messages, 1):
            message.headers.append((PART, b"%d/%d" % (index, len(messages))))
    return messages


def forwards(answer: Answer) -> list[tuple[int, Message]]:
    """Return ``(partition, record)`` of what goes into the facts topic. Raises OversizeError."""
    return [(number, single(opened.envelope, opened.data)) for number, opened in answer.forwarded]


def mark_message(number: int, offset: int, outcome: str) -> Message:
    """Return the record that says what became of the facts record at an offset, and nothing else."""
    return Message(
        f"partition/{number}".encode(),
        b"",
        [
            (FACTS_OFFSET, b"%d" % offset),
            (OUTCOME, outcome.encode()),
            ("content-type", b"application/json"),
        ],
    )
