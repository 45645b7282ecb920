"""A state of an alert as a CloudEvent 1.0, and its signature: what a consumer reads (docs/alerts.md). Pure.

The id follows from the alert and the version of its state, so that whoever gets one twice knows it again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

import msgspec

from responders.alerts.book import Notice
from sickbay.envelope import derived_id
from sickbay.errors import InputError
from sickbay.timestamps import format_time_ms

SOURCE: Final = "/sickbay/alerts"
STRUCTURED: Final = "application/cloudevents+json"
#: Bytes of a key, as Standard Webhooks asks for.
KEY_BYTES_MIN: Final = 24
KEY_BYTES_MAX: Final = 64

_encode: Final = msgspec.json.Encoder(order="deterministic").encode


def event_id(notice: Notice) -> str:
    """Return the id of the event that tells a state."""
    return derived_id("alert-event", notice.alert_id, str(notice.version))


def event_type(notice: Notice) -> str:
    """Return ``dev.sickbay.alert.raised.v1``, ``changed`` or ``cleared``."""
    return f"dev.sickbay.alert.{notice.change}.v1"


def data_of(notice: Notice) -> bytes:
    """Return the data of the event: canonical JSON, the same whenever the same state is told."""
    return _encode(notice)


def attributes(notice: Notice) -> dict[str, str]:
    """Return the attributes of the event, without its data."""
    return {
        "specversion": "1.0",
        "id": event_id(notice),
        "source": SOURCE,
        "type": event_type(notice),
        "subject": notice.alert_id,
        "time": format_time_ms(notice.version),
        "datacontenttype": "application/json",
    }


def structured(notice: Notice) -> bytes:
    """Return the event as one JSON object."""
    return _encode({**attributes(notice), "data": msgspec.Raw(data_of(notice))})


def read_keys(text: str, place: str) -> tuple[bytes, ...]:
    """Return the keys of a secret file: one a line in base64, with or without ``whsec_`` before it, the newest first.

    Raises InputError naming the place, never the content.
    """
    keys = []
    for number, line in enumerate(filter(None, map(str.strip, text.splitlines())), start=1):
        try:
            key = base64.b64decode(line.removeprefix("whsec_"), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
            raise InputError(
                f"{place}: key {number} is not {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes in base64;"
                " `openssl rand -base64 32` makes one"
            )
        keys.append(key)
    if not keys:
        raise InputError(f"{place}: it holds no key; `openssl rand -base64 32` makes one")
    return tuple(keys)


def signature_headers(notice: Notice, body: bytes, keys: tuple[bytes, ...], sent_at_s: int) -> dict[str, str]:
    """Return the headers that sign a body, as Standard Webhooks has them.

    HMAC-SHA256 over ``<id>.<seconds since the epoch>.<body>`` with each key, in base64 after ``v1,``, with spaces between.
    """
    told = event_id(notice)
    content = b"%s.%d.%s" % (told.encode(), sent_at_s, body)
    signed = [base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode() for key in keys]
    return {
        "webhook-id": told,
        "webhook-timestamp": str(sent_at_s),
        "webhook-signature": " ".join(f"v1,{each}" for each in signed),
    }
