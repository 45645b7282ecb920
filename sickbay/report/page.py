"""The page as a whole. Its policy for the browser lets its own style and script run, by their hash, and nothing else.

Equal models give equal bytes: there is no time of writing, and no number that is drawn.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files

from sickbay.report import ledger, overview, sections, timeline, tracks
from sickbay.report.axis import Axis
from sickbay.report.markup import counted, text
from sickbay.report.model import Report

_KEYS = (
    ("← →", "earlier and later mark"),
    ("↑ ↓", "nearest mark of the row above or below"),
    ("Home End", "first and last mark of the row"),
    ("n p", "next and previous episode"),
    ("Enter", "keep the evidence open, and let it be read and copied"),
    ("Escape", "close it"),
    ("/", "filter"),
    ("t", "light or dark"),
    ("u", "UTC or local time"),
    ("?", "this help"),
)


@cache
def _asset(name: str) -> str:
    """Return a part of the program that stands in a file of its own; it is read once."""
    return files("sickbay.report").joinpath(name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"


def render(report: Report) -> str:
    """Return the page of a report. ``from_ms`` must lie before ``until_ms``."""
    axis = Axis(report.from_ms, report.until_ms)
    style, script = _asset("page.css"), _asset("page.js")
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    marks = sorted(timeline.all_marks(report), key=lambda mark: (mark.at_ms, mark.partition, mark.offset))
    numbers = {mark.event_id: number for number, mark in enumerate(marks, start=1)}
    opened_by = {
        bar.detail: numbers[mark.event_id]
        for node in report.nodes
        for device in node.devices
        for bar in device.episodes
        for mark in device.marks
        if mark.kind == "quarantine_opened" and mark.at_ms == bar.from_ms
    }
    rows = sum(len(node.devices) for node in report.nodes)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{text(report.title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#devices">To the devices</a><a class="skip" href="#episodes">To the episodes</a>'
        '<a class="skip" href="#ledger">To the ledger</a><a class="skip" href="#decisions">To the decisions</a>\n'
        f"{tracks.definitions()}\n<header>{sections.head(report)}</header>\n{_tools(rows)}\n<main>\n"
        f'<section aria-labelledby="overview"><h2 id="overview">Overview</h2>{overview.overview(report, axis)}</section>\n'
        '<section aria-labelledby="devices"><h2 id="devices" tabindex="-1">Devices</h2>'
        f"{timeline.timeline(report, axis, numbers)}</section>\n"
        '<section aria-labelledby="episodes"><h2 id="episodes" tabindex="-1">Episodes</h2>'
        f"{sections.episodes(report.episodes, opened_by)}{sections.alerts(report.alerts)}</section>\n"
        f'<section aria-labelledby="ledger"><h2 id="ledger" tabindex="-1">Ledger</h2>{ledger.ledger(report, axis, numbers)}</section>\n'
        '<section aria-labelledby="decisions"><h2 id="decisions" tabindex="-1">Decisions and their evidence</h2>'
        f"{sections.decisions(marks, numbers)}{sections.parked(report.parked)}</section>\n</main>\n"
        f'<div id="card" role="tooltip" hidden></div>\n{_help()}\n<p id="say" class="vh" role="status"></p>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _tools(rows: int) -> str:
    """Return the controls, which only a script can serve; it shows them."""
    return (
        '<div class="tools" role="toolbar" aria-label="View" hidden><label for="filter">Filter</label>'
        '<input id="filter" type="search" autocomplete="off" spellcheck="false" placeholder="node, device, phase, cause">'
        f'<span id="shown" role="status">{counted(rows, "row")}</span><button type="button" id="prev">Previous episode</button>'
        '<button type="button" id="next">Next episode</button><button type="button" id="zone" aria-pressed="false">Local time'
        '</button><button type="button" id="theme">Light or dark</button><button type="button" id="keys">Keys (?)</button></div>'
    )


def _help() -> str:
    keys = "".join(
        f"<div><dt>{' '.join(f'<kbd>{key}</kbd>' for key in name.split())}</dt><dd>{words}</dd></div>"
        for name, words in _KEYS
    )
    return (
        f'<dialog id="help" aria-labelledby="helph"><h2 id="helph">Keys</h2><dl>{keys}</dl>'
        '<button type="button" id="shut">Close</button></dialog>'
    )
