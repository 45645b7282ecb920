"""The written parts of a page: its head, the tables, and every decision with its evidence.

The picture links to the decisions here, and a script shows the same words beside a mark; so nothing is said by the picture alone,
and nothing needs the script.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sickbay.report.markup import duration, moment, table, text
from sickbay.report.model import Alert, Episode, Evidence, Mark, Parked, Report

#: Above this many decisions their list begins closed.
_OPEN_DECISIONS: Final = 150


def head(report: Report) -> str:
    """Return what the page is about, and by what right it says so."""
    policies = "; ".join(
        f"<code>{text(p.policy_hash)}</code> (version {text(p.version)}, from {moment(p.from_ms)})"
        for p in report.policies
    )
    facts = [
        (
            "when",
            f"{moment(report.from_ms)} to {moment(report.until_ms)} ({duration(report.until_ms - report.from_ms)})",
        ),
        ("policy", policies or "none that decided"),
        ("log", f"<code>{text(report.source)}</code>, store made by {text(report.created_by)}"),
    ]
    if report.narrowed_to:
        facts.insert(1, ("only", f"<bdi>{text(report.narrowed_to)}</bdi>"))
    listed = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    counts = "".join(f"<li><b>{count}</b> {text(name)}</li>" for name, count in report.counts)
    said = "".join(f"<p>{text(note)}</p>" for note in report.notes)
    notes = f'<div class="notes" role="note">{said}</div>' if said else ""
    positions = table(
        "Positions of the log and heads of its hash chain",
        ("partition", "next offset", "newest event", "chain head"),
        (
            (
                str(p.partition),
                str(p.next_offset),
                moment(p.newest_ms),
                f"<code>{text(p.chain_head)}</code>",
            )
            for p in report.positions
        ),
        name="positions",
    )
    return (
        f'<h1><bdi>{text(report.title)}</bdi></h1><dl class="facts">{listed}</dl><ul class="counts">{counts}</ul>'
        f'{notes}<details class="log"><summary>Log positions and chain heads</summary>{positions}</details>'
    )


def device_cell(device_id: str) -> str:
    """Return a device id that may wrap at its slashes."""
    return f'<bdi class="id">{text(device_id).replace("/", "/<wbr>")}</bdi>'


def episodes(found: Sequence[Episode], opened_by: dict[str, int]) -> str:
    """Return the table of episodes; ``opened_by`` is the number of the decision that opened each, where it is shown."""
    if not found:
        return '<p class="none">No quarantine episode in this time.</p>'

    def cells(row: Episode) -> tuple[str, ...]:
        number = opened_by.get(row.episode_id)
        identity = f"<code>{text(row.episode_id).replace('-', '-<wbr>')}</code>"
        held = "open" if row.closed_at_ms is None else duration(row.closed_at_ms - row.opened_at_ms)
        state = text(row.outcome) or f"open, {text(row.phase)}"
        return (
            f'<a href="#d{number}">{identity}</a>' if number else identity,
            f"<bdi>{text(row.node)}</bdi>",
            device_cell(row.device_id),
            f"{text(row.cause)}: <bdi>{text(row.reason)}</bdi>",
            moment(row.opened_at_ms),
            moment(row.closed_at_ms),
            held,
            state,
            str(row.flap_count),
            text(row.verification or "not begun"),
            f"{row.decisions} / {row.evidence_facts}",
        )

    heads = (
        "episode", "node", "device", "cause", "opened", "closed", "lasted", "outcome", "faults", "verification",
        "decisions / facts",
    )  # fmt: skip
    return table("Quarantine episodes", heads, map(cells, found), name="episodes")


def alerts(found: Sequence[Alert]) -> str:
    """Return the table of alerts, or nothing where there is none."""
    rows = (
        (
            text(row.alert),
            f"<bdi>{text(row.node)}</bdi>",
            device_cell(row.about),
            moment(row.raised_at_ms),
            moment(row.cleared_at_ms, "not cleared"),
            f"<bdi>{text(row.reason)}</bdi>",
            f"<bdi>{text(row.cleared_reason)}</bdi>",
        )
        for row in found
    )
    heads = ("alert", "node", "about", "raised", "cleared", "why raised", "why cleared")
    return f"<h2>Alerts</h2>{table('Alerts', heads, rows, name='alerts')}" if found else ""


def parked(found: Sequence[Parked]) -> str:
    """Return the table of what could not be used, or nothing."""
    rows = (
        (f"<bdi>{text(row.place)}</bdi>", f"<bdi>{text(row.reason)}</bdi>", str(row.raw_bytes))
        for row in found
    )
    heads = ("place", "why it could not be used", "bytes")
    return f"<h2>Parked</h2>{table('Parked', heads, rows, name='parked')}" if found else ""


def decisions(marks: Iterable[Mark], numbers: dict[str, int]) -> str:
    """Return every mark of the picture in words, in order of time, with the facts it rests on."""
    items = "".join(_decision(mark, numbers[mark.event_id]) for mark in marks)
    if not items:
        return '<p class="none">No decision in this time.</p>'
    is_open = " open" if len(numbers) <= _OPEN_DECISIONS else ""
    return f'<details class="decisions"{is_open}><summary>{len(numbers)} decisions and requests</summary><ol>{items}</ol></details>'


def _decision(mark: Mark, number: int) -> str:
    where = f" on <bdi>{text(mark.node)}</bdi>" if mark.node else ""
    about = f' <bdi class="id">{text(mark.about)}</bdi>' if mark.about else ""
    change = f" <em>{text(mark.before)} → {text(mark.after)}</em>" if mark.before != mark.after else ""
    reason = f'<p class="why"><bdi>{text(mark.reason)}</bdi></p>' if mark.reason else ""
    rule = []
    if mark.clause:
        rule.append(f"clause <code>{text(mark.clause)}</code>")
    if mark.policy:
        rule.append(f"policy <code>{text(mark.policy)}</code>")
    clause = f'<p class="by">{", ".join(rule)}</p>' if rule else ""
    facts = "".join(map(_fact, mark.evidence))
    if mark.evidence_left:
        facts += f"<li>and {mark.evidence_left} more facts</li>"
    evidence = f'<ul class="ev">{facts}</ul>' if facts else ""
    told = f'<p class="by">told by</p><ul class="ev">{_fact(mark.told_by)}</ul>' if mark.told_by else ""
    return (
        f'<li id="d{number}"><p>{moment(mark.at_ms)} <b>{text(mark.kind)}</b>{about}{where}{change}</p>{reason}{evidence}{told}'
        f'{clause}<p class="by">event <code>{text(mark.event_id)}</code> at {mark.partition}/{mark.offset}</p></li>\n'
    )


def _fact(fact: Evidence) -> str:
    if not fact.kind:
        return f"<li><code>{text(fact.event_id)}</code>: in no partition that this one can see</li>"
    said = f": <bdi>{text(fact.said)}</bdi>" if fact.said else ""
    return (
        f"<li>{moment(fact.at_ms)} <b>{text(fact.kind)}</b>{said}"
        f' <span class="by"><code>{text(fact.event_id)}</code> at {fact.partition}/{fact.offset}</span></li>'
    )
