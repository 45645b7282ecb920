"""RFC 3339 texts and milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.errors import InputError
from sickbay.timestamps import LAST_MS, format_time_ms, parse_time_ms

JULY_MS = 1_782_864_000_000  # 2026-07-01T00:00:00Z


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-07-01T00:00:00Z", JULY_MS),
        ("2026-07-01T00:00:59Z", JULY_MS + 59_000),
        ("2026-07-01T00:00:10.123Z", JULY_MS + 10_123),
        ("2026-07-01T00:00:10.1Z", JULY_MS + 10_100),
        ("2026-07-01T00:00:10.12Z", JULY_MS + 10_120),
        ("2026-07-01T00:00:10.123456Z", JULY_MS + 10_123),
        ("2026-07-01T00:00:10.123999999Z", JULY_MS + 10_123),
        ("2026-07-01t00:00:10z", JULY_MS + 10_000),
        ("2026-07-01T02:00:00+02:00", JULY_MS),
        ("2026-06-30T18:30:00.5-05:30", JULY_MS + 500),
        ("2026-07-01T00:00:00-00:00", JULY_MS),
        ("1970-01-01T00:00:00Z", 0),
        ("1969-12-31T23:00:00-01:00", 0),
        ("9999-12-31T23:59:59.999Z", LAST_MS),
        ("2024-02-29T00:00:00Z", 1_709_164_800_000),
    ],
)
def test_a_time_is_read_to_the_millisecond(text, expected):
    """Fractions are cut and never rounded; an offset is applied."""
    assert expected == parse_time_ms(text)


@pytest.mark.parametrize(
    "text", ["2016-12-31T23:59:60Z", "2016-12-31T23:59:60.7Z", "2017-01-01T00:59:60+01:00"]
)
def test_a_leap_second_reads_as_the_last_millisecond_before_it(text):
    """There is no :60 on the Unix time line; the event stays in its minute, and in order."""
    assert parse_time_ms("2016-12-31T23:59:59.999Z") == parse_time_ms(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-07-01",
        "2026-07-01T00:00:00",
        "2026-07-01T00:00:00.123",
        "2026-07-01 00:00:00Z",
        "2026-07-01T00:00:00.Z",
        "2026-07-01T00:00:00.1234567890Z",
        "2026-07-01T00:00:00,123Z",
        "2026-07-01T00:00:61Z",
        "2026-07-01T00:00:99.000Z",
        "2026-07-01T00:60:00Z",
        "2026-07-01T24:00:00Z",
        "2026-02-29T00:00:00Z",
        "2026-00-01T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "2026-07-01T00:00:00+24:00",
        "2026-07-01T00:00:00+00:60",
        "2026-07-01T00:00:00+0200",
        "2026-07-01T00:00:+1Z",
        "2026-07-01T00:00: 1Z",
        "2026-07-01T00:00:1_.000Z",
        "2026-07-01T00:00:٠٠Z",  # noqa: RUF001 - Arabic digits are the point
        "٢٠٢٦-07-01T00:00:00Z",
        "2026-07-01T00:00:00Z\n",
        "1969-12-31T23:59:59.999Z",
        "1969-12-31T23:59:59Z",
        "0001-01-01T00:00:00Z",
        "1970-01-01T00:59:59+01:00",
        "9999-12-31T23:59:59-00:01",
        None,
        1_782_864_000_000,
        True,
        b"2026-07-01T00:00:00Z",
        ["2026-07-01T00:00:00Z"],
    ],
)
def test_what_is_no_time_between_1970_and_9999_is_refused(text):
    """A time without offset, a date that does not exist, another alphabet's digits: refused and never guessed."""
    with pytest.raises(InputError, match=r"RFC 3339|1970 to 9999"):
        parse_time_ms(text)


def test_a_refusal_shows_the_beginning_of_a_very_long_text():
    """A message stays short whatever came in."""
    with pytest.raises(InputError) as caught:
        parse_time_ms("x" * 1_000_000)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("at_ms", "expected"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (JULY_MS + 7, "2026-07-01T00:00:00.007Z"),
        (JULY_MS + 86_399_999, "2026-07-01T23:59:59.999Z"),
        (LAST_MS, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_a_time_is_written_with_milliseconds_and_z(at_ms, expected):
    """One form only, so that equal times are equal bytes."""
    assert expected == format_time_ms(at_ms)


@pytest.mark.parametrize("at_ms", [-1, LAST_MS + 1, 10**18])
def test_a_time_that_cannot_be_written_is_refused(at_ms):
    """Microseconds given by mistake do not become a year far away."""
    with pytest.raises(InputError, match="1970 to 9999"):
        format_time_ms(at_ms)


@given(st.integers(0, LAST_MS))
def test_writing_and_reading_are_inverse(at_ms):
    """Every millisecond of the range comes back."""
    assert at_ms == parse_time_ms(format_time_ms(at_ms))


@given(st.integers(86_400_000_000, 253_402_200_000_000_000), st.integers(-1439, 1439), st.integers(0, 9))
def test_reading_agrees_with_the_standard_library(microseconds, offset_minutes, digits):
    """Any offset and any number of fraction digits give what datetime gives, cut to the millisecond."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    sign, magnitude = ("-" if offset_minutes < 0 else "+"), abs(offset_minutes)
    fraction = f".{moment.microsecond:06d}000"[: 1 + digits] if digits else ""
    text = f"{moment:%H:%M:%S}{fraction}{sign}{magnitude // 60:02d}:{magnitude % 60:02d}"
    text = f"{moment.year:04d}-{moment.month:02d}-{moment.day:02d}T{text}"
    cut_us = int(f"{moment.microsecond:06d}"[:digits].ljust(6, "0")) if digits else 0
    expected = (microseconds // 1_000_000 - offset_minutes * 60) * 1000 + cut_us // 1000
    assert expected == parse_time_ms(text)
