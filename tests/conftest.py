"""What any test may ask for: one Kafka for the whole run, started by the first test that wants it.

Tests share the broker and keep apart by the prefix of their topics. A test that stops, kills or starves a broker starts one of
its own (``kafka_server``).
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import signal
from dataclasses import dataclass

import kafka_topics as administrator
import msgspec
import pytest
from hypothesis import Phase, settings
from kafka_server import KafkaServer
from tcp_proxy import TcpProxy

from sickbay.operations.topics import apply_topics
from sickbay.settings import KafkaSettings

_numbers = itertools.count(1)

# a shell has what it puts into the background ignore Ctrl-C, and processes inherit that; tests send it to those that they start
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# what a shell says of colours, proxies and telemetry is not for the processes of tests
for name in list(os.environ):
    if name in {"FORCE_COLOR", "SICKBAY_HTTP_PORT", "SICKBAY_TRACES"} or name.startswith("OTEL_"):
        del os.environ[name]
os.environ["no_proxy"] = "127.0.0.1,localhost"

# a law says nothing of how long an example takes
settings.register_profile("patient", parent=settings(), deadline=None)
settings.load_profile("patient")
# for the mutants: that a law fails is all they ask, and no smaller history of it
settings.register_profile("unshrunk", derandomize=True, phases=(Phase.explicit, Phase.generate))


@dataclass
class NamedKafka:
    """The broker that SICKBAY_KAFKA names."""

    bootstrap: str


@dataclass
class ProxiedKafka:
    """An installation whose clients come through a proxy."""

    proxy: TcpProxy
    #: Through the proxy.
    settings: KafkaSettings
    #: The same topics, past it.
    direct: KafkaSettings


@pytest.fixture(scope="session")
def own_kafka():
    """Return a broker of this run and the proxy before it."""
    with TcpProxy() as proxy, KafkaServer(advertised_port=proxy.port) as server:
        proxy.target = server.behind
        yield server, proxy


@pytest.fixture(scope="session")
def kafka(request):
    """Return a Kafka that serves; ``bootstrap`` says where. It ends with the run, also when that is killed."""
    named = os.environ.get("SICKBAY_KAFKA")
    return NamedKafka(named) if named else request.getfixturevalue("own_kafka")[0]


@pytest.fixture
def kafka_prefix(request):
    """Return a prefix that no other test has, nor another run on the same broker."""
    seed = f"{os.getpid()}/{request.node.nodeid}/{next(_numbers)}"
    prefix = f"t{hashlib.sha256(seed.encode()).hexdigest()[:12]}"
    yield prefix
    named = os.environ.get("SICKBAY_KAFKA")
    if named:  # a broker of our own goes with all that is on it
        left = asyncio.run(administrator.names(named, prefix))
        asyncio.run(administrator.delete(named, *left))


@pytest.fixture
def kafka_partitions():
    """Return how many partitions the topics of a test have; a test that wants others parametrizes this."""
    return 4


@pytest.fixture
def kafka_settings(kafka, kafka_prefix, kafka_partitions):
    """Return the settings of an installation that is the test's own; its topics are not made yet."""
    return _settings(kafka.bootstrap, kafka_prefix, kafka_partitions)


@pytest.fixture
def kafka_ready(kafka_settings):
    """Return the settings of an installation whose topics are there."""
    asyncio.run(apply_topics(kafka_settings))
    return kafka_settings


@pytest.fixture
def proxied_kafka(own_kafka, kafka_prefix, kafka_partitions):
    """Return an installation behind a proxy, with its topics; the proxy is well again for the next test."""
    server, proxy = own_kafka
    direct = _settings(server.bootstrap, kafka_prefix, kafka_partitions)
    asyncio.run(apply_topics(direct))
    yield ProxiedKafka(proxy, msgspec.structs.replace(direct, bootstrap=proxy.address), direct)
    proxy.heal()
    proxy.cut()


def _settings(bootstrap, prefix, partitions):
    return KafkaSettings(
        bootstrap=bootstrap, security="plaintext", prefix=prefix, partitions=partitions, replication=1
    )
