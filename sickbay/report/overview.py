"""The strip above the picture: how many devices were out at a time, of all that are shown."""

from __future__ import annotations

from collections import Counter
from typing import Final

from sickbay.report.axis import WHOLE, Axis, percent
from sickbay.report.markup import counted as count_of
from sickbay.report.markup import utc
from sickbay.report.model import Report
from sickbay.report.timeline import behind_track, ruler_track

_STEPS: Final = 240
_HEIGHT: Final = 60
#: Layers from below, each with the phases that it counts and its pattern.
_LAYERS: Final = (
    ("out", ("quarantined", "restricted"), "quarantined"),
    ("returning", ("probing", "canary", "observing"), "observing"),
    ("suspect", ("suspect",), "suspect"),
)
_LAYER_OF: Final = {phase: number for number, (_, phases, _) in enumerate(_LAYERS) for phase in phases}


def counted(report: Report, axis: Axis) -> list[list[int]]:
    """Return, for each layer, how many devices were in it within each of the equal steps of the axis.

    A device counts once in a step, in the lowest of its layers, so that a short phase is seen however long the time is.
    """
    layers = [[0] * _STEPS for _ in _LAYERS]
    for node in report.nodes:
        for device in node.devices:
            lowest: dict[int, int] = {}
            for phase in device.phases:
                if phase.phase in _LAYER_OF and axis.meets(phase.from_ms, phase.to_ms):
                    layer = _LAYER_OF[phase.phase]
                    begin, width = axis.span(phase.from_ms, phase.to_ms)
                    first = min(begin * _STEPS // WHOLE, _STEPS - 1)
                    last = min(max((begin + width - 1) * _STEPS // WHOLE, first), _STEPS - 1)
                    for step in range(first, last + 1):
                        lowest[step] = min(lowest.get(step, layer), layer)
            for step, layer in lowest.items():
                layers[layer][step] += 1
    return layers


def most_at_once(report: Report, axis: Axis) -> tuple[int, int]:
    """Return how many devices at most were not plainly in service at one instant, and the first such instant."""
    changes: Counter[int] = Counter()
    for node in report.nodes:
        for device in node.devices:
            for phase in device.phases:
                if phase.phase in _LAYER_OF and axis.meets(phase.from_ms, phase.to_ms):
                    changes[max(phase.from_ms, axis.from_ms)] += 1
                    if phase.to_ms is not None:
                        changes[phase.to_ms] -= 1
    total, most, at_ms = 0, 0, axis.from_ms
    for instant, change in sorted(changes.items()):
        total += change
        if total > most:
            most, at_ms = total, instant
    return most, at_ms


def overview(report: Report, axis: Axis) -> str:
    """Return the strip with its words."""
    layers = counted(report, axis)
    sums = [sum(values) for values in zip(*layers, strict=True)]
    top = max(*sums, 1)
    below = [0] * _STEPS
    drawn = []
    for (name, _, pattern), values in zip(_LAYERS, layers, strict=True):
        for step, value in enumerate(values):
            if value:
                height = value * _HEIGHT * 10 // top
                level = (below[step] + value) * _HEIGHT * 10 // top
                begin = step * WHOLE // _STEPS
                width = (step + 1) * WHOLE // _STEPS - begin
                drawn.append(
                    f'<rect class="o {name}" fill="url(#p-{pattern})" x="{percent(begin)}" width="{percent(width)}"'
                    f' y="{_HEIGHT - level // 10}" height="{max(height // 10, 1)}"/>'
                )
            below[step] += value
    most, at_ms = most_at_once(report, axis)
    words = (
        f"At most {count_of(most, 'device')} at once not plainly in service, first at {utc(at_ms)}."
        if most
        else "Every device was in service throughout."
    )
    picture = f'<svg class="track" height="{_HEIGHT}" role="img" aria-label="{words}">{"".join(drawn)}</svg>'
    label = (
        f'<div class="lab"><b>devices out</b><span class="dim">top line is {top}; from below: kept away, returning, suspect'
        "</span></div>"
    )
    return (
        f'<p class="told">{words}</p><div class="chart strip">{behind_track(report.gaps, axis)}'
        f'<div class="row over">{label}{picture}</div>'
        f'<div class="row ruler"><div class="lab"></div>{ruler_track(axis)}</div></div>'
    )
