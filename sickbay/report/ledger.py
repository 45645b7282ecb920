"""What the ledger says of each node: holds and decisions on the same time axis, balances of both books, verdicts, drift, duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sickbay.ledger_words import HOLD_WORDS
from sickbay.report import tracks
from sickbay.report.axis import Axis
from sickbay.report.markup import counted, moment, table, text
from sickbay.report.model import Balance, LedgerNode, Report
from sickbay.report.timeline import behind_track, row, ruler_track, track

#: Reason to hold to what it means; one of a newer build has no words here.
_MEANINGS: Final = dict[str, str](HOLD_WORDS.items())
#: Above this many nodes the balances of each begin closed.
_OPEN_NODES: Final = 8


def ledger(report: Report, axis: Axis, numbers: dict[str, int]) -> str:
    """Return the whole section, in words alone where the store holds nothing of a ledger.

    ``numbers`` gives the number of a decision on the page by event id.
    """
    if not report.ledger:
        return '<p class="none">The store holds no ledger of these nodes.</p>'
    is_open = len(report.ledger) <= _OPEN_NODES
    nodes = "".join(
        _node(node, number, is_open=is_open) for number, node in enumerate(report.ledger, start=1)
    )
    return f"{_holds(report, axis, numbers)}{nodes}"


def _holds(report: Report, axis: Axis, numbers: dict[str, int]) -> str:
    rows = []
    for number, node in enumerate(report.ledger, start=1):
        if node.marks:
            label = f'<a href="#l{number}"><bdi>{text(node.name)}</bdi></a> <span class="dim">decided</span>'
            words = f"{text(node.name)}: {counted(len(node.marks), 'decision')} of the ledger"
            drawing = tracks.marks(axis, tracks.ROOMY, node.marks, numbers)
            rows.append(row("holds", label, track(tracks.ROOMY.row, drawing, words)))
        reasons = dict.fromkeys(hold.label for hold in node.holds if axis.meets(hold.from_ms, hold.to_ms))
        for reason in reasons:
            found = [hold for hold in node.holds if hold.label == reason]
            meaning = f"new claims wait: {_MEANINGS.get(reason, '')}"
            label = (
                f'<a href="#l{number}"><bdi>{text(node.name)}</bdi></a>'
                f' <span class="dim" title="{text(meaning)}">{text(reason)}</span>'
            )
            words = f"{text(node.name)} holds new claims: {text(reason)}, {counted(len(found), 'time')}"
            rows.append(
                row(
                    "holds",
                    label,
                    track(tracks.ROOMY.row, tracks.bars(axis, tracks.ROOMY, found, "hold"), words),
                )
            )
    if not rows:
        return '<p class="none">No node held new claims, and nothing was decided, in this time.</p>'
    return (
        f'<div class="chart">{behind_track(report.gaps, axis)}<div class="row ruler"><div class="lab">decided, and why new claims wait</div>'
        f"{ruler_track(axis)}</div>{''.join(rows)}</div>"
    )


def _meter(balance: Balance) -> str:
    if balance.used_per_mille is None:
        return ""
    width = min(balance.used_per_mille, 1_000)
    over = ' class="over"' if balance.used_per_mille > 1_000 else ""
    return (
        f'<svg class="meter" width="80" height="10" role="img"><title>{balance.used_per_mille // 10} % used</title>'
        f'<rect class="all" width="100%" height="100%"/><rect{over} width="{width // 10}.{width % 10}%" height="100%"/></svg>'
    )


def _balances(found: Sequence[Balance]) -> str:
    heads = (
        "resource", "book", "supply", "Pods", "claims", "overhead", "adjustment", "used", "free", "",
    )  # fmt: skip
    rows = (
        (
            f"<bdi>{text(b.resource)}</bdi>",
            text(b.book),
            *(
                f'<span class="n">{text(value)}</span>'
                for value in (b.supply, b.pods, b.claims, b.overhead, b.adjustment, b.used, b.free)
            ),
            _meter(b),
        )
        for b in found
    )
    return table("Balances at the end of the shown time", heads, rows, name="balances")


def _node(node: LedgerNode, number: int, *, is_open: bool) -> str:
    parts = []
    if node.balances:
        parts.append(_balances(node.balances))
    if node.verdicts:
        rows = ((moment(v.at_ms), text(v.verdict), f"<bdi>{text(v.holds)}</bdi>") for v in node.verdicts)
        parts.append(table("Verdict on new claims", ("since", "verdict", "holds"), rows, name="verdicts"))
    if node.drifts:
        heads = (
            "claim and Pod",
            "cause",
            "recorded",
            "derived",
            "exact",
            "found",
            "cleared",
            "what it means",
            "detail",
        )
        rows_of_drift = (
            (
                f'<bdi title="{text(d.about)}">{text(d.whose or d.about)}</bdi>',
                f"{text(d.cause)}{' (predicted)' if d.predicted else ''}",
                text(d.recorded),
                text(d.derived),
                text(d.exact),
                moment(d.found_at_ms),
                moment(d.cleared_at_ms, "not cleared"),
                text(d.meaning),
                f"<bdi>{text(d.detail)}</bdi>",
            )
            for d in node.drifts
        )
        parts.append(table("Drift between the books", heads, rows_of_drift, name="drift"))
    if node.refused:
        refused_heads = ("claim and Pod", "entry", "book", "contender", "amounts", "refused", "withdrawn")
        rows_refused = (
            (
                f"<bdi>{text(r.whose or r.entry_key)}</bdi>",
                f"<bdi>{text(r.entry_key)}</bdi>",
                text(r.book),
                f"<bdi>{text(r.contender)}</bdi>",
                text(r.amounts),
                moment(r.refused_at_ms),
                moment(r.withdrawn_at_ms, "still claimed"),
            )
            for r in node.refused
        )
        parts.append(table("Refused duplicates", refused_heads, rows_refused, name="refused"))
    told = ", ".join(
        f"{counted(len(ends), noun)} ({sum(end is None for end in ends)} standing)"
        for noun, ends in (
            ("hold", [hold.to_ms for hold in node.holds]),
            ("difference", [drift.cleared_at_ms for drift in node.drifts]),
            ("refused duplicate", [refused.withdrawn_at_ms for refused in node.refused]),
        )
    )
    shown = " open" if is_open else ""
    return (
        f'<details class="ledger" id="l{number}"{shown}><summary><b><bdi>{text(node.name)}</bdi></b>'
        f' <span class="dim">{told}</span></summary>{"".join(parts)}</details>'
    )
