"""``sickbay topics``: the topics of an installation, made once and compared at every start."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

import click

from sickbay.cli import output
from sickbay.operations.topics import apply_topics, compare_topics, require
from sickbay.settings import KafkaSettings, kafka_settings

T = TypeVar("T")


@click.group()
def topics() -> None:
    """Make the topics of Kafka that Sickbay uses, or compare them with what they must be.

    Where Kafka is and what the topics are called stands in the variables SICKBAY_KAFKA_…; docs/cli.md lists them.
    """


@topics.command("apply")
@output.output_option
def apply(form: str) -> None:
    """Make the topics that are missing. Those that are there stay as they are: one that is not as it must be is an error.

    \b
    Examples:
      sickbay topics apply
      SICKBAY_KAFKA_BOOTSTRAP=localhost:9092 SICKBAY_KAFKA_REPLICATION=1 sickbay topics apply
    """
    settings = _settings()
    made = _run(apply_topics(settings))
    rows = [
        (topic.name, topic.partitions, "made" if topic.name in made else "was there")
        for topic in settings.topics.declared(settings.partitions)
    ]
    output.print_rows(("topic", "partitions", "result"), rows, form)


@topics.command("check")
@output.output_option
def check(form: str) -> None:
    """Compare every topic with what it must be; the exit code is 7 when one differs, and nothing is changed.

    \b
    Examples:
      sickbay topics check
      sickbay topics check --output json
    """
    compared = _run(compare_topics(_settings()))
    rows = [
        (each.topic, each.setting, each.found, each.wanted, "right" if each.is_right else "differs")
        for each in compared
    ]
    output.print_rows(("topic", "setting", "found", "wanted", "result"), rows, form)
    require(compared)


def _settings() -> KafkaSettings:
    return kafka_settings(os.environ)


def _run(asking: Coroutine[Any, Any, T]) -> T:
    if logging.getLogger().level > logging.INFO:
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # its errors come back as ours, on one line
    return asyncio.run(asking)
