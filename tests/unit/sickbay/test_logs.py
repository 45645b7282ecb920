"""What a process says is one line a record, and nothing that it was given can forge, flood or leak it."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator

import pytest

from sickbay.operations.logs import (
    MESSAGES_MAX,
    REPEATS_MAX,
    JsonFormatter,
    RepeatFilter,
    setup_logging,
)
from sickbay.operations.redaction import _known, conceal, redacted

log = logging.getLogger("sickbay.tests")


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    logging.captureWarnings(capture=False)
    root.handlers[:], root.level = handlers, level
    _known.clear()


class Sink(io.StringIO):
    def lines(self) -> list[str]:
        return self.getvalue().splitlines()

    def objects(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.lines()]


@pytest.fixture
def sink() -> Sink:
    sink = Sink()
    setup_logging("json", stream=sink)
    return sink


def test_a_record_is_one_json_object_with_its_fields(sink: Sink) -> None:
    log.info("parked %s", "a record", extra={"event_id": "e-1", "partition": 3, "offset": 1200, "node": None})
    (line,) = sink.objects()
    assert ["time", "level", "logger", "message", "event_id", "partition", "offset", "node"] == list(line)
    assert ("INFO", "sickbay.tests", "parked a record", "e-1", 3, 1200, None) == tuple(line.values())[1:]
    assert str(line["time"]).endswith("Z")
    assert len(str(line["time"])) == len("2026-07-01T00:00:00.000Z")


def test_text_names_the_fields_behind_the_message() -> None:
    sink = Sink()
    setup_logging("text", stream=sink)
    log.warning("parked", extra={"partition": 3})
    (line,) = sink.lines()
    assert line.endswith("Z WARNING sickbay.tests: parked partition=3")


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_what_a_driver_wrote_paints_no_false_line(log_format: str) -> None:
    sink = Sink()
    setup_logging(log_format, stream=sink)  # type: ignore[arg-type]
    hostile = "bad\n2026-07-01T00:00:00.000Z ERROR sickbay: forged\r\x1b[2J\x9b31m\u202egnol\u2028\ud800\x00"
    log.warning("device says %s", hostile, extra={"reason": hostile})
    assert len(sink.lines()) == 1
    assert sink.getvalue()[:-1].isprintable()
    if log_format == "json":
        (line,) = sink.objects()
        assert str(line["message"]).isprintable()
        assert str(line["reason"]).isprintable()


def test_a_traceback_stays_with_its_record() -> None:
    def fail() -> None:
        raise ValueError("first\n2026-07-01T00:00:00.000Z ERROR sickbay: forged\x1b[2J")

    texts = {}
    for log_format in ("json", "text"):
        sink = Sink()
        setup_logging(log_format, stream=sink)  # type: ignore[arg-type]
        try:
            fail()
        except ValueError:
            log.exception("uncaught")
        texts[log_format] = sink.getvalue()
    lines = texts["text"].splitlines()
    assert lines[0].endswith("ERROR sickbay.tests: uncaught")
    assert all(line.startswith("  | ") for line in lines[1:])
    assert "\\x1b[2J" in texts["text"]
    (line,) = [json.loads(text) for text in texts["json"].splitlines()]
    assert "ValueError: first\n" in line["exception"]
    assert "\x1b" not in line["exception"]


CANARY = "c4nary-S3cr3t/+x"


class CarriesSecretsError(Exception):
    """An exception whose repr shows the request that failed."""

    def __init__(self) -> None:
        super().__init__(
            {"headers": {"Authorization": f"Bearer {CANARY}"}, "sasl_plain_password": CANARY},
            f"postgresql://writer:{CANARY}@db.example/sickbay",
        )


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {CANARY}",
        f"authorization: Basic {CANARY}",
        f"<CIMultiDict('Authorization': 'Bearer {CANARY}', 'User-Agent': 'x')>",
        f"[('authorization', b'Bearer {CANARY}')]",
        f"[('Proxy-Authorization', 'Basic {CANARY}')]",
        f"got bearer {CANARY} from the file",
        f"postgresql://writer:{CANARY}@db.example:5432/sickbay",
        f"postgresql://writer:{CANARY}@x/{CANARY}@db.example/sickbay",
        f"https://db.example/x?user=a&password={CANARY}&b=1",
        f"host=db user=a password={CANARY} dbname=x",
        f"password='{CANARY} with blanks' dbname=x",
        f'{{"sasl_plain_password": "a\\"{CANARY}", "x": 1}}',
        f"sasl_plain_password={CANARY!r}, sasl_mechanism='PLAIN'",
        f"SICKBAY_DB_PASSWORD={CANARY}",
        f"pwd: {CANARY}",
        f'{{\\"token\\":\\"{CANARY}\\",\\"x\\":1}}',
        f"client-key-data: {CANARY}",
        f"{{'client_secret': b'{CANARY}'}}",
        f"('password', '{CANARY}')",
        f'"password": "{CANARY}',
        f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{CANARY}",
        f'{{"name": "DB", "value": "{CANARY}"}}',
        f"{{'name': 'DB', 'value': '{CANARY}', 'value_from': None}}",
        f'"kubectl.kubernetes.io/last-applied-configuration":"{{\\"x\\":\\"{CANARY}\\"}}"',
        "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJjNG5hcnkifQ.c4nary-S3cr3t",
        f"Cookie: session={CANARY}",
        f'{{\\"password\\":\\"a\\\\\\"{CANARY}\\",\\"x\\":1}}',
    ],
)
def test_a_planted_secret_never_reaches_the_sink(sink: Sink, text: str) -> None:
    log.warning(text)
    log.warning("%s", text)
    log.warning("failed", extra={"detail": text})
    logging.getLogger("aiokafka.conn").error("failed: %s", [text])
    log.error("failed", exc_info=OSError(text))
    assert len(sink.lines()) == 5
    assert "c4nary" not in sink.getvalue()
    assert "***" in sink.getvalue()


def test_the_repr_of_an_exception_that_carries_secrets_is_hidden(sink: Sink) -> None:
    error = CarriesSecretsError()
    log.error("failed: %r", error)
    log.error("failed: %s", error)
    try:
        try:
            raise error
        except CarriesSecretsError as cause:
            raise RuntimeError("outer") from cause
    except RuntimeError:
        log.exception("failed")
    assert "c4nary" not in sink.getvalue()
    assert "db.example" in sink.getvalue()


def test_a_field_with_a_secret_name_is_hidden(sink: Sink) -> None:
    log.warning("x", extra={"sasl_password": CANARY, "token": "c4nary", "token_count": 5})
    (line,) = sink.objects()
    assert ("***", "***", 5) == (line["sasl_password"], line["token"], line["token_count"])


def test_a_secret_known_by_its_value_is_hidden_without_its_name(sink: Sink) -> None:
    conceal(CANARY)
    conceal("")
    log.warning("login failed for %s", CANARY)
    assert "login failed for ***" in sink.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://user@host/database",
        "sickbay.facts/3@1200 has 17 events",
        "the password file of SICKBAY_KAFKA_SASL_PASSWORD_FILE cannot be read",
        "node gpu-1: no bearer of news",
        "2026-07-01T08:00:00Z to 2026-07-01T09:00:00Z",
        "http://127.0.0.1:8080/metrics",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text, 1_000) == text


def test_a_secret_that_is_cut_is_hidden_too(sink: Sink) -> None:
    dsn = f"postgresql://writer:{CANARY}"  # its @ stands beyond the limit
    log.warning("%s", "x" * (16_384 - len(dsn)) + dsn + "@db/x")
    assert "c4nary" not in sink.getvalue()


def test_a_long_message_is_cut_and_says_so(sink: Sink) -> None:
    log.warning("x" * 1_000_000, extra={"detail": "y" * 1_000_000})
    (line,) = sink.objects()
    assert "(1000000 characters)" in str(line["message"])
    assert len(sink.getvalue()) < 20_000


@pytest.mark.parametrize("part", ["://u:", "password=", '"', "\\", "bearer ", "eyJa.", "authorization=", "-"])
def test_hostile_text_takes_no_long_time(part: str) -> None:
    for _ in range(20):
        redacted(part * 16_384, 16_384)


def test_libraries_speak_from_warning_on_whatever_they_set(sink: Sink) -> None:
    for name in ("aiokafka.consumer", "faust", "mode.worker", "kubernetes.client.rest", "asyncio"):
        other = logging.getLogger(name)
        before = other.level
        other.setLevel(logging.DEBUG)
        other.info("chatter")
        other.warning("matters", extra={"headers": "x"})
        other.setLevel(before)
    log.debug("detail")
    log.info("news")
    assert ["matters"] * 5 + ["news"] == [line["message"] for line in sink.objects()]
    assert "headers" not in sink.getvalue()


def test_verbose_tells_our_own_details() -> None:
    sink = Sink()
    setup_logging("json", verbose=True, stream=sink)
    log.debug("detail")
    assert [line["message"] for line in sink.objects()] == ["detail"]


def test_setting_up_again_replaces_the_sink(sink: Sink) -> None:
    second = Sink()
    setup_logging("json", stream=second)
    log.info("news")
    assert (0, 1) == (len(sink.lines()), len(second.lines()))


def test_a_warning_of_python_is_logged(sink: Sink) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=False)
        setup_logging("json", stream=sink)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert any("DeprecationWarning: old" in str(line["message"]) for line in sink.objects())


def test_a_wrong_format_string_is_still_logged() -> None:
    record = logging.makeLogRecord({"name": "sickbay.x", "msg": "%d of %d", "args": ("x",)})
    assert "%d of %d ('x',)" in json.loads(JsonFormatter().format(record))["message"]


def test_numbers_that_json_cannot_hold_are_text(sink: Sink) -> None:
    log.warning("x", extra={"count": 2**80, "share": float("nan")})
    (line,) = sink.objects()
    assert (str(2**80), None) == (line["count"], line["share"])


def test_repeats_are_counted_instead_of_written() -> None:
    now = [0.0]
    repeats = RepeatFilter(lambda: now[0])

    def say(text: str = "again %d") -> logging.LogRecord | None:
        record = logging.LogRecord("sickbay.x", logging.WARNING, "", 0, text, (1,), None)
        return record if repeats.filter(record) else None

    assert all(say() for _ in range(REPEATS_MAX))
    assert not any(say() for _ in range(100))
    assert say("another %d")
    now[0] = 60.0
    record = say()
    assert record is not None
    assert record.suppressed == 100  # type: ignore[attr-defined]
    assert not hasattr(say(), "suppressed")


def test_repeats_are_told_with_the_next_one(sink: Sink) -> None:
    for number in range(REPEATS_MAX + 5):
        log.warning("again %d", number)
    assert len(sink.lines()) == REPEATS_MAX


def test_counting_repeats_takes_bounded_memory() -> None:
    repeats = RepeatFilter(lambda: 0.0)
    for number in range(MESSAGES_MAX * 3):
        record = logging.LogRecord("sickbay.x", logging.WARNING, "", 0, f"unique {number}" * 100, (), None)
        assert repeats.filter(record)
    assert len(repeats._seen) == MESSAGES_MAX
