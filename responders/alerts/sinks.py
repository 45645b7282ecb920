"""Where alerts go by HTTP: Alertmanagers and a webhook. A sink sends what it is given once, and says what was taken.

It does not try again and remembers nothing: ``sending`` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import aiohttp
import msgspec

from responders.alerts.book import Notice
from responders.alerts.event import STRUCTURED, read_keys, signature_headers, structured
from responders.alerts.posting import Target, UnreachableError, post, target_of
from sickbay.clock import Clock
from sickbay.errors import InputError, ServiceError
from sickbay.operations.failpoints import reach
from sickbay.timestamps import format_time_ms

#: Alerts of one request to Alertmanager: some hundred kilobytes.
BATCH: Final = 500
#: Events under way to the webhook at once.
AT_ONCE: Final = 8
#: An alert that is not repeated ends after so many repeats were missed, as Prometheus has it: one lost request ends nothing.
REPEATS: Final = 4


class Sent(NamedTuple):
    """What came of sending."""

    taken: list[Notice]
    #: Of the first that was not, empty when all were.
    problem: str = ""


class Sink(Protocol):
    """Somebody who is told."""

    @property
    def name(self) -> str:
        """Unlike that of every other, and the same after a restart; shown in logs and kept in the topic."""
        ...

    @property
    def effect(self) -> str:
        """Of the metrics: ``alertmanager`` or ``webhook``."""
        ...

    @property
    def repeats(self) -> bool:
        """Whether it must be told again and again what stands."""
        ...

    async def send(self, notices: Sequence[Notice]) -> Sent:
        """Send each once."""
        ...


class Alertmanager:
    """One Alertmanager. Of a cluster each is told by itself: they tell one another only what was notified."""

    effect: Final = "alertmanager"
    repeats: Final = True

    def __init__(self, session: aiohttp.ClientSession, url: str, clock: Clock, resend_ms: int) -> None:
        """Raises InputError for an address that is none."""
        self._session, self._clock, self._resend_ms = session, clock, resend_ms
        self._target = target_of("--alertmanager", url, "/api/v2/alerts")
        self.name: Final = f"alertmanager {self._target.shown}"

    async def send(self, notices: Sequence[Notice]) -> Sent:
        """Post them, some hundred at once."""
        taken: list[Notice] = []
        for begin in range(0, len(notices), BATCH):
            part = list(notices[begin : begin + BATCH])
            body = msgspec.json.encode(
                [each for notice in part for each in alerts_of(notice, self._clock.now_ms(), self._resend_ms)]
            )
            try:
                await post(self._session, self._target, body, {"content-type": "application/json"})
            except ServiceError as error:
                return Sent(taken, str(error))
            taken += part
            reach("alert.sent")
        return Sent(taken)


def alerts_of(notice: Notice, now_ms: int, resend_ms: int) -> list[dict[str, Any]]:
    """Return a state as Alertmanager takes it (its API v2, ``postableAlerts``).

    An alert is its labels there, so one whose severity changed is two: the old one ends.
    """
    ends_at_ms = now_ms + REPEATS * resend_ms if notice.ends_at_ms is None else notice.ends_at_ms
    alerts = [_alert(notice, notice.severity, ends_at_ms)]
    if notice.previous_severity:
        alerts.insert(0, _alert(notice, notice.previous_severity, now_ms))
    return alerts


def _alert(notice: Notice, severity: str, ends_at_ms: int) -> dict[str, Any]:
    return {
        "labels": {**notice.labels, "severity": severity},
        "annotations": notice.annotations,
        "startsAt": format_time_ms(notice.starts_at_ms),
        # it refuses an end before the beginning, which clocks of two machines may make
        "endsAt": format_time_ms(max(ends_at_ms, notice.starts_at_ms)),
    }


class Webhook:
    """An address that gets every state as a signed CloudEvent."""

    effect: Final = "webhook"
    repeats: Final = False

    def __init__(self, session: aiohttp.ClientSession, url: str, secret_file: Path, clock: Clock) -> None:
        """Raises InputError for an address that is none, or a file without a key."""
        self._session, self._clock, self._file = session, clock, secret_file
        self._target: Target = target_of("--webhook", url)
        self.name: Final = f"webhook {self._target.shown}"
        read_keys(_read(secret_file), str(secret_file))

    async def send(self, notices: Sequence[Notice]) -> Sent:
        """Post them, a few at once. The keys are read anew each time, so that they can be changed."""
        try:
            keys = read_keys(_read(self._file), str(self._file))
        except (InputError, ServiceError) as error:
            return Sent([], str(error))
        taken: list[Notice] = []
        problem = ""
        for begin in range(0, len(notices), AT_ONCE):
            part = notices[begin : begin + AT_ONCE]
            came = await asyncio.gather(*(self._post(notice, keys) for notice in part))
            taken += [notice for notice, error in zip(part, came, strict=True) if error is None]
            problem = problem or next((str(error) for error in came if error is not None), "")
            if all(isinstance(error, UnreachableError) for error in came):
                break
        return Sent(taken, problem)

    async def _post(self, notice: Notice, keys: tuple[bytes, ...]) -> ServiceError | None:
        body = structured(notice)
        signed = signature_headers(notice, body, keys, self._clock.now_ms() // 1000)
        try:
            await post(self._session, self._target, body, {"content-type": STRUCTURED, **signed})
        except ServiceError as error:
            return error
        reach("alert.sent")
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ServiceError(f"the secret file {path} cannot be read: {type(error).__name__}") from error
