"""How every process of Sickbay reaches Kafka: one place for connections, identities and errors.

aiokafka speaks Metadata up to version 5, which names no topic ids, and a topic that was deleted and made again under its name
looks the same then. So the one request that tells them apart is declared here (KIP-516).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar
from uuid import UUID

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError, for_code
from aiokafka.helpers import create_ssl_context
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    AbstractType,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from sickbay.errors import ServiceError
from sickbay.settings import KafkaSettings

#: How long one request to a broker may take. Faust and aiokafka wait as long for a broker that is gone.
REQUEST_TIMEOUT_MS: Final = 30_000

T = TypeVar("T")
#: How long is waited before a broker is asked again, another one perhaps.
_PAUSES_S: Final = (0.1, 0.2, 0.4, 0.8, 1.6)
#: How long one question may take, attempts included.
_LIMIT_S: Final = 60.0
#: How long a client may take to leave.
_STOP_S: Final = 15.0


def client_arguments(settings: KafkaSettings, client_id: str) -> dict[str, Any]:
    """Return the keyword arguments that every aiokafka client takes.

    Raises ServiceError when a file of certificates or the password cannot be read.
    """
    arguments: dict[str, Any] = {
        "bootstrap_servers": settings.bootstrap.split(","),
        "client_id": client_id,
        "request_timeout_ms": REQUEST_TIMEOUT_MS,
        "security_protocol": settings.security.upper(),
    }
    if settings.security != "plaintext":
        arguments["ssl_context"] = _ssl_context(settings)
    if settings.security == "sasl_ssl":
        arguments |= {
            "sasl_mechanism": settings.sasl_mechanism,
            "sasl_plain_username": settings.sasl_username,
            "sasl_plain_password": _read_secret(settings.sasl_password_file),
        }
    return arguments


def _ssl_context(settings: KafkaSettings) -> ssl.SSLContext:
    try:
        context: ssl.SSLContext = create_ssl_context(
            cafile=settings.ca_file or None,
            certfile=settings.cert_file or None,
            keyfile=settings.key_file or None,
        )
    except (OSError, ssl.SSLError) as error:
        raise ServiceError(
            f"the certificates of SICKBAY_KAFKA_CA_FILE, _CERT_FILE and _KEY_FILE cannot be used: {error}"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _read_secret(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ServiceError(
            f"the password file {path} of SICKBAY_KAFKA_SASL_PASSWORD_FILE cannot be read: {error}"
        ) from error


@contextmanager
def translated(settings: KafkaSettings) -> Iterator[None]:
    """Turn every error of the client into ServiceError; the original stays as its cause."""
    try:
        yield
    except (KafkaError, OSError, TimeoutError) as error:
        told = str(error) or type(error).__name__
        raise ServiceError(f"Kafka at {settings.bootstrap} cannot be used: {told}") from error


class _Uuid(AbstractType[UUID]):
    """Sixteen bytes, as the protocol writes a topic id."""

    @classmethod
    def encode(cls, value: UUID) -> bytes:
        return value.bytes

    @classmethod
    def decode(cls, data: Any) -> UUID:
        return UUID(bytes=data.read(16))


class _MetadataResponse_v12(Response):  # noqa: N801 - the client names its requests so
    API_KEY = 3
    API_VERSION = 12
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", CompactString("utf-8")),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _MetadataRequest_v12(RequestStruct):  # noqa: N801 - the client names its requests so
    API_KEY = 3
    API_VERSION = 12
    FLEXIBLE_VERSION: ClassVar[bool] = True
    RESPONSE_TYPE = _MetadataResponse_v12
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(("topic_id", _Uuid), ("name", CompactString("utf-8")), ("tags", TaggedFields)),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class _Metadata(Request[_MetadataRequest_v12]):
    API_KEY = 3

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(self, request_struct_class: type[_MetadataRequest_v12]) -> _MetadataRequest_v12:
        return request_struct_class([(UUID(int=0), self._topic, {})], False, False, {})


async def asked(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask, up to six times while the error is one that passes, and return the answer.

    The administrative client draws the broker of each request and does not ask another one when that is down, as one of three
    is during every update of a cluster. Raises what the last attempt raised.
    """
    for pause_s in _PAUSES_S:
        try:
            return await ask()
        except KafkaError as error:
            if not error.retriable:
                raise
        await asyncio.sleep(pause_s)
    return await ask()


async def started_producer(settings: KafkaSettings, client_id: str, **tuning: Any) -> AIOKafkaProducer:
    """Start a producer whose records are on every replica in sync once acknowledged, and stand there once.

    Whoever takes it ends it with ``let_go``, and limits the time of what it sends: an idempotent producer tries again for ever.
    Raises ServiceError when Kafka cannot be reached.
    """
    producer = AIOKafkaProducer(
        **client_arguments(settings, client_id), acks="all", enable_idempotence=True, **tuning
    )
    with translated(settings):
        try:
            await producer.start()
        except BaseException:
            await let_go(producer)
            raise
    return producer


async def let_go(client: Any) -> None:
    """Stop a producer or a consumer, without waiting for a broker that does not answer.

    An idempotent producer never gives up what it was handed, and its own ``stop`` waits for that.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(_STOP_S):
            await client.stop()


async def topic_identity(settings: KafkaSettings, topic: str) -> str:
    """Return ``<cluster id>/<topic id>``: what positions in a topic mean something for.

    Raises ServiceError when Kafka cannot be reached, or has no such topic.
    """
    with translated(settings):
        admin = AIOKafkaAdminClient(**client_arguments(settings, "sickbay-identity"))
        try:
            async with asyncio.timeout(_LIMIT_S):
                await asked(admin.start)
                response = await asked(lambda: admin._send_request(_Metadata(topic)))  # noqa: SLF001 - the client has no public way to send a request of one's own
        finally:
            await admin.close()
        code, _, topic_id, *_ = next(entry for entry in response.topics if entry[1] == topic)
        if code == UnknownTopicOrPartitionError.errno:
            raise ServiceError(
                f"Kafka at {settings.bootstrap} has no topic {topic}; `sickbay topics apply` makes the topics"
            )
        if code:
            raise for_code(code)(f"topic {topic}")
    return f"{response.cluster_id}/{topic_id}"
