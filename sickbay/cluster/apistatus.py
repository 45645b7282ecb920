"""What an API server means by an error: the ``Status`` object and the headers that come with it, read once for all requests.

Servers have said the same thing in several ways over the years; every way that is known is recognised here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sickbay.cluster.wire import decode_json

#: How long a server may ask to be left alone; more is taken for a mistake, because the view would be blind as long.
RETRY_AFTER_MAX_MS: Final = 300_000
_TOLD_MAX: Final = 300
_TOO_LARGE: Final = "Too large resource version"


def read_status(body: bytes) -> dict[str, Any]:
    """Return the Status of a refusal; ``{}`` when the body is none, as proxies on the way send it."""
    try:
        document = decode_json(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def is_gone(status: Mapping[str, Any]) -> bool:
    """Whether the version asked for has left the history (410; reason Expired, before that Gone)."""
    return status.get("code") == 410 or (
        status.get("code") is None and status.get("reason") in ("Expired", "Gone")
    )


def is_too_large(status: Mapping[str, Any]) -> bool:
    """Whether the version asked for is newer than anything the server has (W5).

    The three shapes are those of client-go's ``isTooLargeResourceVersionError``: a cause of type ResourceVersionTooLarge
    (1.18.6 on), a timeout with a cause of that message (1.17 to 1.18.5), a timeout with that message (before).
    """
    details = status.get("details")
    listed = details.get("causes") if isinstance(details, dict) else None
    causes = [cause for cause in listed if isinstance(cause, dict)] if isinstance(listed, list) else []
    if any(cause.get("reason") == "ResourceVersionTooLarge" for cause in causes):
        return True
    if status.get("reason") != "Timeout" and status.get("code") != 504:
        return False
    return any(cause.get("message") == _TOO_LARGE for cause in causes) or _TOO_LARGE in str(
        status.get("message", "")
    )


def is_store_read_error(status: Mapping[str, Any]) -> bool:
    """Whether the server could not read an object of its own store, which somebody may have deleted by force (W14)."""
    return status.get("reason") in ("StorageReadError", "StoreReadError")


def retry_after_ms(headers: Mapping[str, str]) -> int:
    """Return how long the server asks to wait, in milliseconds; 0 when it does not, or names a date instead of seconds."""
    for name, value in headers.items():
        if name.lower() == "retry-after":
            text = value.strip()
            if text.isascii() and text.isdigit() and len(text) < 8:
                return min(int(text) * 1_000, RETRY_AFTER_MAX_MS)
    return 0


def told(code: int | None, status: Mapping[str, Any]) -> str:
    """Return a refusal as one short line: ``403 Forbidden: pods is forbidden``."""
    known = code if code is not None else status.get("code", "")
    parts = [f"{known} {status.get('reason') or ''}".strip(), str(status.get("message") or "")]
    return (
        " ".join(": ".join(part for part in parts if part).split())[:_TOLD_MAX] or "an error without a word"
    )
