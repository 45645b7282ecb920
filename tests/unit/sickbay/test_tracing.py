"""Traces are on when the environment asks for them, and leave everything alone otherwise."""

from __future__ import annotations

import asyncio
import sys
import time

import aiohttp
import pytest
from aiohttp import web
from aiokafka import AIOKafkaProducer
from opentelemetry import trace
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sickbay.errors import InputError
from sickbay.operations.tracing import setup_tracing, wants_traces

ON = {"SICKBAY_TRACES": "otlp"}


@pytest.fixture(autouse=True)
def _no_global_provider(monkeypatch) -> None:
    """The provider of a program can be set once; each test is a program of its own."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", trace.Once())


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"SICKBAY_TRACES": ""}, False),
        ({"SICKBAY_TRACES": "none"}, False),
        (ON, True),
        ({"SICKBAY_TRACES": " OTLP "}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "SICKBAY_TRACES": "none"}, False),
        (ON | {"OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
    ],
)
def test_the_environment_says_whether_there_are_traces(environment, wanted) -> None:
    assert wants_traces(environment) is wanted


def test_another_value_is_refused() -> None:
    with pytest.raises(InputError, match=r"SICKBAY_TRACES is 'jaeger'; give otlp or none"):
        setup_tracing("work", {"SICKBAY_TRACES": "jaeger"})


def test_nothing_is_touched_when_nobody_asks() -> None:
    send, init = AIOKafkaProducer.send, aiohttp.ClientSession.__init__
    assert setup_tracing("work", {}) is None
    assert (send, init) == (AIOKafkaProducer.send, aiohttp.ClientSession.__init__)
    assert type(trace.get_tracer_provider()).__name__ == "ProxyTracerProvider"


def test_without_the_extra_asking_is_an_error_with_the_remedy(monkeypatch, caplog) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(InputError, match=r"SICKBAY_TRACES asks for traces.*sickbay\[traces\]"):
        setup_tracing("work", ON)
    assert setup_tracing("work", {"OTEL_TRACES_EXPORTER": "otlp"}) is None
    assert "sickbay[traces]" in caplog.text


def test_a_request_is_a_span_of_this_process_without_its_query() -> None:
    exporter = InMemorySpanExporter()

    async def main() -> str | None:
        tracing = setup_tracing("ingest", ON, exporter)
        assert tracing is not None
        heard: list[str | None] = []

        async def answer(request: web.Request) -> web.Response:
            heard.append(request.headers.get("traceparent"))
            return web.Response(text="{}")

        app = web.Application()
        app.router.add_get("/api/v1/pods", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}/api/v1/pods?token=c4nary") as got,
        ):
            await got.read()
        await runner.cleanup()
        await tracing.close()
        return heard[0]

    traceparent = asyncio.run(main())
    (span,) = exporter.get_finished_spans()
    assert span.name == "GET"
    assert span.resource.attributes["service.name"] == "sickbay-ingest"
    assert "c4nary" not in str(dict(span.attributes))
    assert f"{span.context.trace_id:032x}" in traceparent


def test_after_close_everything_is_as_before() -> None:
    send, init = AIOKafkaProducer.send, aiohttp.ClientSession.__init__

    async def main() -> None:
        tracing = setup_tracing("work", ON, InMemorySpanExporter())
        assert AIOKafkaProducer.send is not send
        assert aiohttp.ClientSession.__init__ is not init
        await tracing.close()

    asyncio.run(main())
    assert (send, init) == (AIOKafkaProducer.send, aiohttp.ClientSession.__init__)


def test_the_name_of_the_service_can_be_given() -> None:
    async def main() -> str:
        tracing = setup_tracing("work", ON | {"OTEL_SERVICE_NAME": "gpu-health"}, InMemorySpanExporter())
        await tracing.close()
        return tracing.provider.resource.attributes["service.name"]

    assert asyncio.run(main()) == "gpu-health"


def test_a_collector_that_does_not_answer_keeps_nobody(caplog) -> None:
    class Silent(SpanExporter):
        def __init__(self) -> None:
            self.ended = False

        def export(self, _spans) -> SpanExportResult:
            while not self.ended:
                time.sleep(0.01)
            return SpanExportResult.FAILURE

        def shutdown(self) -> None:
            self.ended = True

    async def main() -> float:
        tracing = setup_tracing("work", ON, Silent())
        trace.get_tracer("test").start_span("waits").end()
        before = time.monotonic()
        await tracing.close(flush_ms=100)
        return time.monotonic() - before

    assert asyncio.run(main()) < 3
    assert "spans that were not sent in time are lost" in caplog.text
