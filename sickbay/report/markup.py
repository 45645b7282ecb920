"""How words of the cluster become text of the page, and never markup.

Every text that is not ours passes through ``text``. Control and bidirectional characters are shown escaped, as the command line
shows them, so that a message can neither paint a false line nor turn one around.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

from sickbay.timestamps import LAST_MS, format_time_ms

#: Longest text of the cluster that is shown, in characters; the log has the whole of it.
TEXT_MAX: Final = 400


def printable(words: str) -> str:
    """Return ``words`` with control and bidirectional characters escaped."""
    if words.isprintable():
        return words
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)


def text(words: object, limit: int = TEXT_MAX) -> str:
    """Return a value as text for an element or a quoted attribute, cut at ``limit`` characters."""
    shown = str(words)
    if len(shown) > limit:
        shown = shown[: limit - 1] + "…"
    return escape(printable(shown))


def utc(at_ms: int) -> str:
    """Return a time as people read it: ``2026-07-01 08:05:00Z``, with milliseconds where there are some."""
    full = format_time_ms(min(max(at_ms, 0), LAST_MS))
    seconds, _, fraction = full[:-1].partition(".")
    return seconds.replace("T", " ") + ("" if fraction == "000" else f".{fraction}") + "Z"


def moment(at_ms: int | None, missing: str = "–") -> str:  # noqa: RUF001 - a dash that is no minus sign
    """Return a ``time`` element, or a dash for a time that is not."""
    if at_ms is None:
        return missing
    return f'<time datetime="{format_time_ms(min(max(at_ms, 0), LAST_MS))}">{utc(at_ms)}</time>'


def duration(length_ms: int) -> str:
    """Return a length of time in its two largest units: ``2 h 10 min``, ``3 d``, ``12 s``."""
    parts = []
    rest = max(length_ms, 0)
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2]) or "0 s"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 node``, ``2 nodes``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def table(caption: str, heads: Iterable[str], rows: Iterable[Iterable[str]], *, name: str) -> str:
    """Return a table that scrolls by itself; heads and cells are markup already, the first cell of a row is its head."""
    body = []
    for row in rows:
        first, *rest = row
        cells = "".join(f"<td>{cell}</td>" for cell in rest)
        body.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
    head = "".join(f'<th scope="col">{title}</th>' for title in heads)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}"><table class="{name}">'
        f"<caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )
