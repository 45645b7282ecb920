"""RFC 3339 texts and milliseconds since the Unix epoch, each way.

Every time of a recording passes through here, so the two common forms (``…Z`` with no fraction or with three digits) take a
short path. It must not read a clock, and it must not use floats: a millisecond is an ``int``.
"""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache
from typing import Any, Final

from sickbay.errors import InputError

#: 9999-12-31T23:59:59.999Z, the last time that RFC 3339 can write.
LAST_MS: Final = 253_402_300_799_999

_MINUTE_MS: Final = 60_000
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_MINUTE_PREFIX: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):", re.ASCII)
_SECONDS_AND_OFFSET: Final = re.compile(r"(\d\d)(?:\.(\d{1,9}))?(?:([Zz])|([+-])(\d\d):(\d\d))", re.ASCII)
#: Length of ``2026-07-01T00:00:``.
_PREFIX_LENGTH: Final = 17


def parse_time_ms(text: Any) -> int:
    """Return the milliseconds since the Unix epoch of an RFC 3339 text.

    Fractions of up to nine digits are cut (never rounded) to milliseconds; a leap second ``:60`` reads as ``:59.999``.
    Raises InputError for anything else: no offset, a date that does not exist, a year before 1970 or after 9999.
    """
    if not isinstance(text, str):
        raise InputError(
            f"a time must be RFC 3339 text such as 2026-07-01T00:00:00.000Z, not {type(text).__name__}"
        )
    minute_ms = _minute_ms(text[:_PREFIX_LENGTH])
    rest = text[_PREFIX_LENGTH:]
    if rest[-1:] == "Z":
        if len(rest) == 7 and rest[2] == ".":
            digits = rest[:2] + rest[3:6]
            if (
                digits.isascii()
                and digits.isdigit()
                and (within_ms := int(digits)) < _MINUTE_MS
                and minute_ms >= 0
            ):
                return minute_ms + within_ms
        elif len(rest) == 3:
            digits = rest[:2]
            if digits.isascii() and digits.isdigit() and (seconds := int(digits)) < 60 and minute_ms >= 0:
                return minute_ms + seconds * 1000
    return _any_form(text, minute_ms, rest)


def format_time_ms(at_ms: int) -> str:
    """Return the RFC 3339 text of a time, always with three fraction digits and ``Z``.

    Raises InputError for a time before 1970 or after 9999.
    """
    if not 0 <= at_ms <= LAST_MS:
        raise InputError(f"{at_ms} ms is outside the years 1970 to 9999, which RFC 3339 text can write here")
    minute, within_ms = divmod(at_ms, _MINUTE_MS)
    return f"{_minute_text(minute)}{within_ms // 1000:02d}.{within_ms % 1000:03d}Z"


@lru_cache(maxsize=4096)
def _minute_ms(prefix: str) -> int:
    # May be negative, for an offset can still lift it past 1970; a prefix that cannot be read is far below any offset.
    match = _MINUTE_PREFIX.fullmatch(prefix)
    if match is None:
        return _UNREADABLE
    year, month, day, hour, minute = map(int, match.groups())
    if hour > 23 or minute > 59:
        return _UNREADABLE
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        return _UNREADABLE
    return ((days * 24 + hour) * 60 + minute) * _MINUTE_MS


#: Below the year 1, so that no readable prefix has this value.
_UNREADABLE: Final = -(10**15)


@lru_cache(maxsize=4096)
def _minute_text(minute: int) -> str:
    days, minute_of_day = divmod(minute, 1440)
    day = date.fromordinal(_EPOCH_DAY + days).isoformat()
    return f"{day}T{minute_of_day // 60:02d}:{minute_of_day % 60:02d}:"


def _any_form(text: str, minute_ms: int, rest: str) -> int:
    match = _SECONDS_AND_OFFSET.fullmatch(rest)
    if minute_ms == _UNREADABLE or match is None:
        raise InputError(_refusal(text))
    seconds_text, fraction, _, sign, offset_hours, offset_minutes = match.groups()
    seconds = int(seconds_text)
    if seconds > 60:
        raise InputError(_refusal(text))
    at_ms = minute_ms + (59_999 if seconds == 60 else seconds * 1000 + int(f"{fraction or ''}000"[:3]))
    if sign is not None:
        hours, minutes = int(offset_hours), int(offset_minutes)
        if hours > 23 or minutes > 59:
            raise InputError(_refusal(text))
        offset_ms = (hours * 60 + minutes) * _MINUTE_MS
        at_ms += offset_ms if sign == "-" else -offset_ms
    if not 0 <= at_ms <= LAST_MS:
        raise InputError(f"{text[:64]!r} is outside the years 1970 to 9999; write the time that was meant")
    return at_ms


def _refusal(text: str) -> str:
    return f"{text[:64]!r} is no RFC 3339 time; write it with its offset, such as 2026-07-01T00:00:00.000Z"
