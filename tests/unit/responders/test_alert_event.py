"""An event of an alert and its signature, byte by byte: what consumers build on."""

from __future__ import annotations

import base64
import hashlib
import hmac

import alerting as a
import facts_of as f
import msgspec
import pytest

from responders.alerts.book import Book
from responders.alerts.event import read_keys, signature_headers, structured
from responders.alerts.plan import plan
from responders.alerts.posting import target_of
from responders.alerts.sinks import REPEATS, alerts_of
from sickbay.errors import InputError
from sickbay.policy import AlertPolicy
from sickbay.timestamps import format_time_ms

KEY = bytes(range(32))
TEXT = base64.b64encode(KEY).decode()


def notices(*decisions, book=None, now_ms=a.NOW):
    book = book or Book(AlertPolicy(), ())
    found = book.look(plan(a.view_of(*decisions), AlertPolicy(), now_ms), now_ms)
    book.take(found)
    return found


def test_the_event_is_a_cloudevent_whose_bytes_are_always_the_same():
    (notice,) = notices(a.quarantined())
    event = msgspec.json.decode(structured(notice))
    data = event.pop("data")
    assert {
        "specversion": "1.0",
        "id": "cc138afd-7b96-5771-81ab-b3e15591e595",
        "source": "/sickbay/alerts",
        "type": "dev.sickbay.alert.raised.v1",
        "subject": "quarantine/episode-1",
        "time": format_time_ms(a.NOW),
        "datacontenttype": "application/json",
    } == event
    assert {
        "alert_id", "kind", "change", "severity", "previous_severity", "labels", "annotations", "members", "starts_at_ms",
        "ends_at_ms", "part_of", "version",
    } == data.keys()  # fmt: skip
    assert ("raised", "warning", None) == (data["change"], data["severity"], data["ends_at_ms"])
    assert structured(notice) == structured(
        msgspec.json.decode(msgspec.json.encode(notice), type=type(notice))
    )


def test_the_signature_is_over_id_time_and_body_with_every_key():
    (notice,) = notices(a.quarantined())
    body = structured(notice)
    other = b"x" * 24
    headers = signature_headers(notice, body, (KEY, other), 1_790_000_000)
    content = f"{headers['webhook-id']}.1790000000.".encode() + body
    wanted = [
        base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode() for key in (KEY, other)
    ]
    assert f"v1,{wanted[0]} v1,{wanted[1]}" == headers["webhook-signature"]
    assert "1790000000" == headers["webhook-timestamp"]


def test_keys_are_read_one_a_line_with_or_without_their_prefix():
    assert (KEY, KEY) == read_keys(f"{TEXT}\n\n whsec_{TEXT} \n", "file")


@pytest.mark.parametrize(
    "text", ["", "\n", "secret", TEXT + "\nc2hvcnQ=", base64.b64encode(b"x" * 65).decode()]
)
def test_a_key_that_is_none_is_refused_without_showing_it(text):
    with pytest.raises(InputError, match="openssl rand") as caught:
        read_keys(text, "file")
    assert "secret" not in str(caught.value)
    assert "c2hvcnQ" not in str(caught.value)


def test_an_alertmanager_gets_an_end_in_the_future_while_the_alert_stands():
    (notice,) = notices(a.quarantined())
    (alert,) = alerts_of(notice, a.NOW + 1_000, 60_000)
    assert {
        "labels": {**notice.labels, "severity": "warning"},
        "annotations": notice.annotations,
        "startsAt": format_time_ms(a.NOW),
        "endsAt": format_time_ms(a.NOW + 1_000 + REPEATS * 60_000),
    } == alert


def test_an_alertmanager_gets_the_end_of_what_was_cleared_and_none_before_its_beginning():
    book = Book(AlertPolicy(), ())
    notices(a.quarantined(), book=book)
    (notice,) = notices(book=book, now_ms=a.NOW - f.MINUTE)
    (alert,) = alerts_of(notice, a.NOW + f.HOUR, 60_000)
    assert alert["startsAt"] == alert["endsAt"] == format_time_ms(a.NOW)


def test_an_alertmanager_gets_the_end_of_the_old_severity():
    book = Book(AlertPolicy(), ())
    notices(a.quarantined(), book=book)
    (notice,) = notices(a.review_due(), book=book, now_ms=a.NOW + 5)
    old, new = alerts_of(notice, a.NOW + 10, 60_000)
    assert ("warning", "critical") == (old["labels"]["severity"], new["labels"]["severity"])
    assert format_time_ms(a.NOW + 10) == old["endsAt"]
    assert old["labels"] | {"severity": "critical"} == new["labels"]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "receiver.invalid",
        "ftp://receiver.invalid",
        "file:///etc/passwd",
        "http://",
        "https://h:port",
        "http://h:0",
    ],
)
def test_only_an_address_of_http_is_taken_and_what_was_given_is_not_repeated(url):
    with pytest.raises(InputError, match="--webhook needs an address") as caught:
        target_of("--webhook", url)
    assert not url or url not in str(caught.value).replace("http://", "").replace("https://", "")


def test_what_is_shown_of_an_address_has_no_secret():
    target = target_of("--alertmanager", "https://ann:pw@h:9093/am/?token=x#y", "/api/v2/alerts")
    assert ("https://ann:pw@h:9093/am/api/v2/alerts?token=x", "https://h:9093/am/api/v2/alerts") == target
    assert target == target_of("--alertmanager", target.url, "/api/v2/alerts")
