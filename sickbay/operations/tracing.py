"""OpenTelemetry traces, by the libraries' own integrations: on when the environment asks for them, and nothing at all otherwise.

aiokafka's and aiohttp's instrumentations carry the context through record headers and requests to the API server; what a span
says is theirs. Faust has an integration of its own, for spans around the folding of a record, which only ``streams`` may call:
``faust.contrib.opentelemetry.setup_opentelemetry(app)`` after ``setup_tracing`` returned something. Where spans go, and which
ones, is said by the exporter's own ``OTEL_…`` variables.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from sickbay.errors import InputError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from yarl import URL

VARIABLE: Final = "SICKBAY_TRACES"
#: How long the end of a process may wait for spans that were not sent.
FLUSH_MS: Final = 3_000

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_log: Final = logging.getLogger(__name__)


class Tracing:
    """Traces that are on, until ``close``."""

    def __init__(self, provider: TracerProvider, exporter: SpanExporter, instrumentors: list[Any]) -> None:
        self.provider: Final = provider
        self._exporter = exporter
        self._instrumentors = instrumentors

    async def close(self, flush_ms: int = FLUSH_MS) -> None:
        """Take the instrumentation away and send what waits, for so long at most."""
        for instrumentor in self._instrumentors:
            instrumentor.uninstrument()
        # a daemon, because the provider's own limits are ten times as long
        sending = threading.Thread(target=self.provider.shutdown, name="spans", daemon=True)
        sending.start()
        await asyncio.to_thread(sending.join, flush_ms / 1000)
        if sending.is_alive():
            _log.warning("spans that were not sent in time are lost")
            self._exporter.shutdown()


def wants_traces(environment: Mapping[str, str]) -> bool:
    """Whether the environment asks for traces.

    ``SICKBAY_TRACES=otlp`` does and ``none`` does not; unset, an OTLP endpoint or ``OTEL_TRACES_EXPORTER=otlp`` does.
    ``OTEL_SDK_DISABLED=true`` is stronger than all. Raises InputError for any other value of ours.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    asked = environment.get(VARIABLE, "").strip().lower()
    if asked not in ("", "none", "otlp"):
        raise InputError(f"{VARIABLE} is {asked[:40]!r}; give otlp or none")
    if asked:
        return asked == "otlp"
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporter:
        return exporter == "otlp"
    return any(environment.get(name, "").strip() for name in _ENDPOINTS)


def setup_tracing(
    process: str, environment: Mapping[str, str], exporter: SpanExporter | None = None
) -> Tracing | None:
    """Turn traces on for a process (``ingest``, ``work``, ``project``) when the environment asks; ``None`` when they stay off.

    Call it before any client of Kafka or HTTP is made. ``exporter`` replaces OTLP over HTTP. Raises InputError when
    SICKBAY_TRACES asks and the extra ``traces`` is not installed; where only OTEL_… variables ask, a warning says so.
    """
    if not wants_traces(environment):
        return None
    try:
        return _setup(process, environment, exporter)
    except ImportError as error:
        missing = f"traces need the extra `traces` (pip install 'sickbay[traces]'): {error}"
        if environment.get(VARIABLE, "").strip():
            raise InputError(f"{VARIABLE} asks for traces, and {missing}") from error
        _log.warning("OTEL_… variables ask for traces, and %s", missing)
        return None


def _setup(process: str, environment: Mapping[str, str], exporter: SpanExporter | None) -> Tracing:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.instrumentation.aiohttp_client import AioHttpClientInstrumentor
    from opentelemetry.instrumentation.aiokafka import AIOKafkaInstrumentor
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(
        shutdown_on_exit=False,
        resource=Resource.create(
            {
                "service.name": environment.get("OTEL_SERVICE_NAME", "").strip() or f"sickbay-{process}",
                "service.version": version("sickbay"),
            }
        ),
    )
    exporter = OTLPSpanExporter() if exporter is None else exporter
    provider.add_span_processor(BatchSpanProcessor(exporter))
    # Faust's integration asks for the global provider
    trace.set_tracer_provider(provider)
    instrumentors: list[Any] = [AIOKafkaInstrumentor(), AioHttpClientInstrumentor()]
    instrumentors[0].instrument(tracer_provider=provider)
    instrumentors[1].instrument(tracer_provider=provider, url_filter=_plain_url)
    _log.info("traces are on")
    return Tracing(provider, exporter, instrumentors)


def _plain_url(url: URL) -> str:
    """Return the URL without its query and user: tokens and names of objects travel there."""
    return str(url.with_query(None).with_user(None).with_fragment(None))
