"""What is started and does not come up is let go: a client that nobody holds would go on asking brokers."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.errors import KafkaConnectionError

from sickbay import kafka
from sickbay.errors import ServiceError
from sickbay.settings import kafka_settings


def test_a_producer_that_does_not_start_is_stopped_and_told_of(monkeypatch):
    done = []

    class Producer:
        def __init__(self, **arguments):
            assert (arguments["acks"], arguments["enable_idempotence"]) == ("all", True)
            assert arguments["max_request_size"] == 7

        async def start(self):
            raise KafkaConnectionError("nobody is there")

        async def stop(self):
            done.append("stopped")

    monkeypatch.setattr(kafka, "AIOKafkaProducer", Producer)
    settings = kafka_settings({"SICKBAY_KAFKA_BOOTSTRAP": "localhost:1"})
    with pytest.raises(ServiceError, match="localhost:1"):
        asyncio.run(kafka.started_producer(settings, "test", max_request_size=7))
    assert done == ["stopped"]
