"""Logs of a long-running process: one line a record on standard error, as JSON for programs or as text for people.

Modules log as everywhere, by ``logging.getLogger(__name__)``, and name things in ``extra={"event_id": …, "partition": …}``; the
one sink that is set up here judges what leaves the process: secrets hidden, control characters escaped, lengths bounded, repeats
counted instead of written. It must not be gone around: whatever the process says goes through ``logging``.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Literal, TextIO

import msgspec

from sickbay.operations.redaction import HIDDEN, escaped, is_secret_name, redacted
from sickbay.timestamps import format_time_ms

LogFormat = Literal["json", "text"]
LOG_FORMATS: Final = ("json", "text")

#: Characters of a message, of one field, and of a traceback.
MESSAGE_CHARACTERS_MAX: Final = 16_384
FIELD_CHARACTERS_MAX: Final = 2_048
EXCEPTION_CHARACTERS_MAX: Final = 32_768
#: Fields of one record.
FIELDS_MAX: Final = 32
#: How often the same message is written in one window; the rest is counted and told with the next one.
REPEATS_MAX: Final = 20
WINDOW_S: Final = 60.0
#: Different messages whose repeats are counted; beyond that the one that was quiet longest is forgotten.
MESSAGES_MAX: Final = 512

#: The first part of our own loggers' names. All others speak from WARNING on, whatever level they give themselves.
_OURS: Final = frozenset({"sickbay", "ingest", "streams", "projections", "responders", "migrations"})
_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message",
    "asctime",
    "taskName",
    "suppressed",
}
_encode: Final = msgspec.json.Encoder().encode


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] in _OURS


class RepeatFilter(logging.Filter):
    """Lets the first ``REPEATS_MAX`` of a message pass in each window, and counts the rest.

    Messages are the same when logger, level and text before its arguments are. Memory is bounded by ``MESSAGES_MAX``.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        #: Message to when its window began, how many passed, how many did not.
        self._seen: OrderedDict[tuple[str, int, str], tuple[float, int, int]] = OrderedDict()
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written; ``record.suppressed`` says how many like it were not."""
        key = (record.name, record.levelno, str(record.msg)[:256])
        now = self._monotonic()
        with self._lock:
            began, passed, suppressed = self._seen.pop(key, (now, 0, 0))
            if now - began >= WINDOW_S:
                began, passed = now, 0
            passes = passed < REPEATS_MAX
            self._seen[key] = (began, passed + 1, 0) if passes else (began, passed, suppressed + 1)
            if len(self._seen) > MESSAGES_MAX:
                self._seen.popitem(last=False)
        if passes and suppressed:
            record.suppressed = suppressed
        return passes


class _Loudness(logging.Filter):
    """Keeps other people's libraries at WARNING, also where they set their loggers' levels themselves."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or _is_ours(record)


def _is_plain_number(value: object) -> bool:
    return isinstance(value, int) and -(2**63) <= value < 2**63


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return what was named beside the message; other people's extras are not ours to judge, and left out."""
    fields: dict[str, Any] = {}
    if _is_ours(record):
        for name, value in record.__dict__.items():
            if name in _STANDARD or len(fields) == FIELDS_MAX:
                continue
            if value is None or isinstance(value, float) or _is_plain_number(value):
                fields[name] = value
            elif is_secret_name(name):
                fields[name] = HIDDEN
            else:
                fields[name] = escaped(redacted(str(value), FIELD_CHARACTERS_MAX))
    suppressed = getattr(record, "suppressed", 0)
    return fields | ({"suppressed": suppressed} if suppressed else {})


class _Formatter(logging.Formatter):
    """What both forms share: every text passes here on its way out."""

    @staticmethod
    def message_of(record: logging.LogRecord) -> str:
        try:
            message = record.getMessage()
        except Exception as error:  # noqa: BLE001 - a wrong format string must not end what was logged about
            message = f"{record.msg} {record.args!r} (cannot be formatted: {error!r})"
        return escaped(redacted(message, MESSAGE_CHARACTERS_MAX))

    def exception_of(self, record: logging.LogRecord) -> str:
        parts = []
        if record.exc_info and record.exc_info[0] is not None:
            parts.append(self.formatException(record.exc_info))
        if record.stack_info:
            parts.append(record.stack_info)
        return escaped(redacted("\n".join(parts), EXCEPTION_CHARACTERS_MAX), keep="\n")

    @staticmethod
    def time_of(record: logging.LogRecord) -> str:
        return format_time_ms(int(record.created * 1000))


class JsonFormatter(_Formatter):
    """One JSON object: time, level, logger, message, the fields, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; no control character stands in it."""
        line: dict[str, Any] = {
            "time": self.time_of(record),
            "level": record.levelname,
            "logger": record.name,
            "message": self.message_of(record),
        }
        line.update((name, value) for name, value in _fields(record).items() if name not in line)
        if exception := self.exception_of(record):
            line["exception"] = exception
        return _encode(line).decode()


class TextFormatter(_Formatter):
    """A line for people; a traceback follows indented, so that no part of it looks like a line of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the indented lines of a traceback."""
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        text = f"{self.time_of(record)} {record.levelname} {record.name}: {self.message_of(record)}{fields}"
        exception = self.exception_of(record)
        return text + "".join(f"\n  | {line}" for line in exception.splitlines())


def setup_logging(
    log_format: LogFormat = "json", *, verbose: bool = False, stream: TextIO | None = None
) -> None:
    """Make the one sink of this process, in place of whatever stood there; calling it again replaces it.

    Our own loggers speak from INFO on (``verbose``: DEBUG), all others from WARNING on; Python's warnings are logged too.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    handler.addFilter(_Loudness())
    handler.addFilter(RepeatFilter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    for name in _OURS:
        logging.getLogger(name).setLevel(logging.DEBUG if verbose else logging.INFO)
    logging.captureWarnings(capture=True)
