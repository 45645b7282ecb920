"""Responders read the decisions topic: whole before they act, then as it grows, and old answers that come again change nothing."""

from __future__ import annotations

import asyncio

from live_processes import produce
from responding import AT, NODE, breaker_opened, quarantined, released

from responders.reading import Decisions
from responders.view import View
from sickbay.cli.responding import LEVEL_KINDS
from sickbay.cloudevents import Opened
from sickbay.codec import encode, wrap_decision, wrap_fact
from sickbay.envelope import partition_of
from sickbay.facts import NodeGone
from streams.answers import answer_messages, mark_message
from streams.live import Answer


def answer(settings, offset, *decisions):
    """What a worker writes of one facts record."""
    cause = wrap_fact(NodeGone(node=NODE, observed_at_ms=AT, epoch=0, rv=offset, node_uid="u"))
    opened = [wrap_decision(decision, cause, number, "policy") for number, decision in enumerate(decisions)]
    said = [Opened(envelope, encode(envelope)) for envelope in opened]
    number = partition_of(decisions[0].node, settings.partitions)
    return [(number, message) for message in answer_messages(number, offset, Answer("taken", said, []))]


async def reading(settings, more=()):
    """Read until caught up, then what is written meanwhile; return the view and the reader."""
    view = View()
    decisions = Decisions(settings, lambda _, decision: view.fold(decision), LEVEL_KINDS)
    task = asyncio.ensure_future(decisions.run())
    try:
        async with asyncio.timeout(20):
            await decisions.caught_up.wait()
        at_start = len(list(view.devices())), set(view.breakers)
        if more:
            seen = decisions.records
            await asyncio.to_thread(produce, settings, settings.topics.decisions, list(more))
            async with asyncio.timeout(20):
                while decisions.records < seen + len(more):
                    decisions.changed.clear()
                    await decisions.changed.wait()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return view, decisions, at_start


def test_nothing_was_decided_and_it_is_caught_up_at_once(kafka_ready):
    view, decisions, _ = asyncio.run(reading(kafka_ready))
    assert ({}, 0) == (view.nodes, decisions.events)


def test_what_was_decided_stands_before_it_may_act_and_what_comes_is_followed(kafka_ready):
    written = [*answer(kafka_ready, 3, quarantined()), *answer(kafka_ready, 4, breaker_opened())]
    produce(kafka_ready, kafka_ready.topics.decisions, written)
    view, _, at_start = asyncio.run(reading(kafka_ready, answer(kafka_ready, 9, released())))
    assert (1, {"driver:gpu.example.com"}) == at_start
    assert [] == list(view.devices())


def test_an_answer_that_comes_again_after_a_crash_changes_nothing(kafka_ready):
    first, second = answer(kafka_ready, 3, quarantined()), answer(kafka_ready, 5, released())
    produce(kafka_ready, kafka_ready.topics.decisions, [*first, *second, *first])
    view, decisions, _ = asyncio.run(reading(kafka_ready))
    assert ([], 2) == (list(view.devices()), decisions.events)


def test_marks_and_records_of_others_are_passed_over_and_counted(kafka_ready):
    number = partition_of(NODE, kafka_ready.partitions)
    (good,) = answer(kafka_ready, 7, quarantined())
    broken = good[1]._replace(value=b"{")
    stranger = good[1]._replace(headers=[("sickbay-outcome", b"taken"), ("sickbay-facts-offset", b"x")])
    records = [(number, mark_message(number, 1, "progress")), (number, broken), (number, stranger), good]
    produce(kafka_ready, kafka_ready.topics.decisions, records)
    _, decisions, _ = asyncio.run(reading(kafka_ready))
    assert (4, 2) == (decisions.records, decisions.refused)


def test_of_a_batch_with_an_event_that_cannot_be_read_the_others_count(kafka_ready):
    ((number, batch),) = answer(kafka_ready, 7, quarantined(), breaker_opened())
    broken = batch._replace(value=batch.value.replace(b'"phase":"quarantined"', b'"phase":"no such phase"'))
    assert broken != batch
    produce(kafka_ready, kafka_ready.topics.decisions, [(number, broken)])
    view, decisions, _ = asyncio.run(reading(kafka_ready))
    assert ({"driver:gpu.example.com"}, 1, 1) == (set(view.breakers), decisions.events, decisions.refused)
