"""What any test may ask for: one Kafka for the whole run, started by the first test that wants it.

Tests share the broker and keep apart by the prefix of their topics. A test that stops, kills or starves a broker starts one of
its own (``kafka_server``).
"""

from __future__ import annotations

import hashlib
import itertools
import os

import pytest
from kafka_server import KafkaServer

from sickbay.settings import KafkaSettings

_numbers = itertools.count(1)


class NamedKafka:
    """The broker that SICKBAY_KAFKA names."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap


@pytest.fixture(scope="session")
def kafka():
    """Return a Kafka that serves; ``bootstrap`` says where. It ends with the run, also when that is killed."""
    named = os.environ.get("SICKBAY_KAFKA")
    if named:
        yield NamedKafka(named)
        return
    with KafkaServer() as server:
        yield server


@pytest.fixture
def kafka_prefix(request):
    """Return a prefix that no other test has, nor another run on the same broker."""
    seed = f"{os.getpid()}/{request.node.nodeid}/{next(_numbers)}"
    return f"t{hashlib.sha256(seed.encode()).hexdigest()[:12]}"


@pytest.fixture
def kafka_partitions():
    """Return how many partitions the topics of a test have; a test that wants others parametrizes this."""
    return 4


@pytest.fixture
def kafka_settings(kafka, kafka_prefix, kafka_partitions):
    """Return the settings of an installation that is the test's own; its topics are not made yet."""
    return KafkaSettings(
        bootstrap=kafka.bootstrap,
        security="plaintext",
        prefix=kafka_prefix,
        partitions=kafka_partitions,
        replication=1,
    )
