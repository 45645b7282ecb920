"""One row of the time axis: bars, marks and their legend, as SVG whose places are per cent of the width.

Colour never says anything alone: each phase has a pattern, a letter and a word, each kind of mark a shape of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sickbay.report.axis import WHOLE, Axis, percent
from sickbay.report.markup import duration, text, utc
from sickbay.report.model import Bar, Mark, Phase

#: Phase to its letter; the style and the pattern have the phase's name.
LETTERS: Final = {
    "suspect": "S",
    "restricted": "R",
    "quarantined": "Q",
    "probing": "P",
    "canary": "C",
    "observing": "O",
}
#: Kind of decision or request to its shape (``SHAPES``); every other kind is a dot.
_SHAPES: Final = {
    "device_suspected": "ask", "device_restricted": "bar", "device_cleared": "ring",
    "quarantine_opened": "down", "quarantine_extended": "plus", "quarantine_review_due": "bang",
    "probe_started": "step", "canary_started": "step", "observation_started": "step", "device_released": "up",
    "node_incident_opened": "box", "node_incident_closed": "boxo", "breaker_opened": "cross", "breaker_closed": "crosso",
    "move_planned": "right", "move_lease_granted": "right", "move_finished": "right",
    "hold_requested": "gem", "release_requested": "gem", "probe_reported": "gem", "canary_reported": "gem",
    "move_reported": "gem", "claims_gate_requested": "gem",
    "verdict_changed": "gate", "drift_found": "books", "drift_cleared": "bookso", "duplicate_refused": "twice",
    "duplicate_withdrawn": "twiceo",
}  # fmt: skip
#: Shape to its path, drawn about (0, 0) within 5 pixels each way, and the words of the legend.
SHAPES: Final = {
    "down": ("M-5-4H5L0 5Z", "quarantine opened"),
    "plus": ("M-1.5-5h3v3.500h3.500v3h-3.500v3.500h-3v-3.500h-3.500v-3h3.500Z", "extended"),
    "bang": ("M-2-5H2L1 1H-1ZM-1.500 2.500h3v2.500h-3Z", "review due"),
    "step": ("M-5 4V1h3V-2h3V-5h4V4Z", "return: probe, canary, observation"),
    "up": ("M-5 4H5L0-5Z", "released"),
    "ask": ("M-4-2a4 3.500 0 1 1 5 3.300V2.500h-2.500v-3h1a1.500 1.500 0 1 0-1.500-1.500ZM-1.500 3.200h2.500v2h-2.500Z", "suspected"),
    "bar": ("M-5-2H5V2H-5Z", "restricted"),
    "ring": ("M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0ZM-2 0a2 2 0 1 1 4 0a2 2 0 1 1-4 0Z", "cleared"),
    "box": ("M-5-5H5V5H-5Z", "node incident opened"),
    "boxo": ("M-5-5H5V5H-5ZM-2.500-2.500V2.500H2.500V-2.500Z", "node incident closed"),
    "cross": ("M-5-3l2-2L0-2l3-3l2 2L2 0l3 3l-2 2L0 2l-3 3l-2-2L-2 0Z", "breaker opened"),
    "crosso": ("M-5 0L0-5L5 0L0 5ZM-2.500 0L0 2.500L2.500 0L0-2.500Z", "breaker closed"),
    "right": ("M-5-1.500H0V-5L5 0L0 5V1.500H-5Z", "move of a workload"),
    "gem": ("M-4 0L0-5L4 0L0 5Z", "a person or an executor asked or reported"),
    "gate": ("M-4.500-5h3v10h-3ZM1.500-5h3v10h-3Z", "verdict on new claims"),
    "books": ("M-5-4h10v2.500h-10ZM-5 1.500h5v2.500h-5Z", "the two books differ"),
    "bookso": ("M-5-4h10v2.500h-10ZM-5 1.500h10v2.500h-10Z", "the two books agree again"),
    "twice": ("M-5-5h6v6h-6ZM-1-1h6v6h-6Z", "duplicate refused"),
    "twiceo": ("M-5-5h6v6h-6ZM-3.500-3.500v3h3v-3Z", "duplicate withdrawn"),
    "dot": ("M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0Z", "other decision"),
}  # fmt: skip
#: A bar that is narrower is drawn this wide, a fifth of a per cent, or it could not be seen.
_WIDTH_MIN: Final = 200
#: From these widths on a bar has its word, or its letter, in it.
_WIDTH_OF_WORD: Final = 7_000
_WIDTH_OF_LETTER: Final = 1_500
#: Marks that are closer than this share of the axis are set at different heights.
_CLOSE: Final = 900


@dataclass(frozen=True, slots=True)
class Density:
    """How high a row is, in pixels."""

    row: int
    bar: int
    #: Heights of marks that would lie upon one another, the first for one that stands alone.
    levels: tuple[int, ...]


ROOMY: Final = Density(26, 16, (12, 6, 19))
COMPACT: Final = Density(18, 12, (8, 4, 13))


def shape_of(kind: str) -> str:
    """Return the shape of a kind of mark."""
    return _SHAPES.get(kind, "dot")


def stretch(from_ms: int, to_ms: int | None) -> str:
    """Return a stretch of time in words."""
    if to_ms is None:
        return f"from {utc(from_ms)}, not ended"
    return f"{utc(from_ms)} to {utc(to_ms)}, {duration(to_ms - from_ms)}"


def _bar(density: Density, begin: int, width: int, name: str, word: str, letter: str, title: str) -> str:
    drawn = max(width, _WIDTH_MIN)
    place = min(begin, WHOLE - drawn)
    inside = word if drawn >= _WIDTH_OF_WORD else letter if drawn >= _WIDTH_OF_LETTER else ""
    label = f'<text x="50%" y="{density.bar - 4}">{text(inside, 60)}</text>' if inside else ""
    top = (density.row - density.bar) // 2 - 1
    return (
        f'<svg class="b {name}" x="{percent(place)}" y="{top}" width="{percent(drawn)}" height="{density.bar}" role="img">'
        f'<title>{title}</title><rect width="100%" height="100%"/>{label}</svg>'
    )


def phase_bars(axis: Axis, density: Density, phases: Sequence[Phase]) -> str:
    """Return the bars of a device; being in service is the line beneath them."""
    drawn = []
    for phase in phases:
        if phase.phase not in LETTERS or not axis.meets(phase.from_ms, phase.to_ms):
            continue
        begin, width = axis.span(phase.from_ms, phase.to_ms)
        cause = f", cause {phase.cause}" if phase.cause else ""
        title = text(f"{phase.phase}{cause}: {stretch(phase.from_ms, phase.to_ms)}")
        drawn.append(_bar(density, begin, width, phase.phase, phase.phase, LETTERS[phase.phase], title))
    return "".join(drawn)


def bars(axis: Axis, density: Density, found: Sequence[Bar], name: str) -> str:
    """Return bars of one kind: incidents, gaps, open breakers, holds."""
    drawn = []
    for bar in found:
        if axis.meets(bar.from_ms, bar.to_ms):
            begin, width = axis.span(bar.from_ms, bar.to_ms)
            title = text(
                f"{bar.label}{f' ({bar.detail})' if bar.detail else ''}: {stretch(bar.from_ms, bar.to_ms)}"
            )
            drawn.append(_bar(density, begin, width, name, bar.label, "", title))
    return "".join(drawn)


def lines(axis: Axis, density: Density, found: Sequence[Bar], name: str) -> str:
    """Return thin lines along the lower edge, with an end where they have ended: episodes, or moves along the upper edge."""
    level = 1 if name == "move" else density.row - 2
    drawn = []
    for bar in found:
        if axis.meets(bar.from_ms, bar.to_ms):
            begin, width = axis.span(bar.from_ms, bar.to_ms)
            end = percent(min(begin + max(width, _WIDTH_MIN), WHOLE))
            title = text(f"{bar.label} {bar.detail}: {stretch(bar.from_ms, bar.to_ms)}")
            shut = (
                ""
                if bar.to_ms is None
                else f'<line x1="{end}" x2="{end}" y1="{level - 3}" y2="{level + 2}"/>'
            )
            drawn.append(
                f'<g class="{name}" role="img"><title>{title}</title><line x1="{percent(begin)}" x2="{end}"'
                f' y1="{level}" y2="{level}"/>{shut}</g>'
            )
    return "".join(drawn)


def marks(axis: Axis, density: Density, found: Sequence[Mark], numbers: dict[str, int]) -> str:
    """Return the marks of a row as links to the decisions below; a script moves the focus among them.

    ``numbers`` gives the decision's number on the page by event id.
    """
    drawn = []
    before, level = -WHOLE, 0
    for number, mark in enumerate(found):
        place = axis.place(mark.at_ms)
        level = (level + 1) % len(density.levels) if place - before < _CLOSE else 0
        before = place
        shape = shape_of(mark.kind)
        label = text(f"{mark.kind} {utc(mark.at_ms)} {mark.about}: {mark.reason}", 200)
        # without a script the first mark of a row is a tab stop, and with one a single mark of the page
        stop = ' tabindex="-1"' if number else ""
        drawn.append(
            f'<a class="m" href="#d{numbers[mark.event_id]}"{stop} aria-label="{label}">'
            f'<use href="#k-{shape}" x="{percent(place)}" y="{density.levels[level]}"/></a>'
        )
    return "".join(drawn)


def definitions() -> str:
    """Return the patterns and shapes that every row refers to, in an element of no size."""
    patterns = "".join(
        f'<pattern id="p-{name}" width="{size}" height="{size}" patternUnits="userSpaceOnUse">'
        f'<rect class="t" width="{size}" height="{size}"/><path class="s" d="{path}"/></pattern>'
        for name, size, path in _PATTERNS
    )
    shapes = "".join(
        f'<symbol id="k-{name}" overflow="visible"><circle class="hit" r="9"/><path d="{path}" fill-rule="evenodd"/></symbol>'
        for name, (path, _) in SHAPES.items()
    )
    return f'<svg class="defs" width="0" height="0" aria-hidden="true"><defs>{patterns}{shapes}</defs></svg>'


#: Name, size in pixels, and strokes of each pattern.
_PATTERNS: Final = (
    ("suspect", 6, "M1 1h1M4 4h1"),
    ("restricted", 8, "M-2 6L6-2M0 8L8 0M2 10L10 2"),
    ("quarantined", 5, "M0 0L5 5M5 0L0 5"),
    ("probing", 5, "M1 0V5"),
    ("canary", 5, "M0 1H5"),
    ("observing", 8, "M-2 2L6 10M0 0L8 8M2-2L10 6"),
    ("incident", 10, "M0 5H5V0M5 10V5H10"),
    ("breaker", 8, "M0 0H4V4H0ZM4 4H8V8H4Z"),
    ("gap", 7, "M-2 5L5-2M0 7L7 0M2 9L9 2"),
    ("hold", 6, "M0 3H6M3 0V6"),
)


def legend(kinds: Sequence[str]) -> str:
    """Return what bars and marks mean; only kinds that are on the page are explained."""
    said = {
        "suspect": "suspect: health not known, inside the tolerance; takes work",
        "restricted": "restricted: no new work, cause on the node or unknown",
        "quarantined": "quarantined: no new work",
        "probing": "probing: on its way back",
        "canary": "canary: canary work only",
        "observing": "observing: a ramp of work, watched",
        "incident": "node incident",
        "breaker": "breaker open",
        "gap": "watch gap: nothing was seen",
        "hold": "new claims wait",
    }
    swatches = "".join(
        f'<li><svg width="34" height="14" aria-hidden="true"><svg class="b {name}" width="34" height="14">'
        f'<rect width="100%" height="100%"/><text x="50%" y="11">{LETTERS.get(name, "")}</text></svg></svg> {words}</li>'
        for name, words in said.items()
    )
    shown = dict.fromkeys(shape_of(kind) for kind in kinds)
    shapes = "".join(
        f'<li><svg class="m" width="14" height="14" aria-hidden="true"><use href="#k-{name}" x="7" y="7"/></svg>'
        f" {SHAPES[name][1]}</li>"
        for name in SHAPES
        if name in shown
    )
    return (
        f'<details class="legend" open><summary>What is what</summary><ul>{swatches}</ul><ul>{shapes}</ul>'
        "<p>The line under a bar is its episode, the one above it a move of a workload. An empty row is a device in service."
        "</p></details>"
    )
