"""The picture: nodes and their devices on one time axis, with what nobody saw as bands behind all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sickbay.report import tracks
from sickbay.report.axis import WHOLE, Axis, percent
from sickbay.report.markup import counted, text, utc
from sickbay.report.model import Bar, Device, Mark, Node, Report
from sickbay.timestamps import format_time_ms

#: Above this many rows they are drawn compact.
_ROOMY_ROWS: Final = 80
#: Ids of quiet devices that are written out for one node.
_QUIET_SHOWN: Final = 64
#: Quiet nodes that are written out.
_QUIET_NODES_SHOWN: Final = 500
_OF_THE_BREAKER: Final = frozenset({"breaker_opened", "breaker_closed"})
#: A label this close to the edge is set before its line instead of beside it.
_EDGE: Final = 94_000


def all_marks(report: Report) -> Iterator[Mark]:
    """Yield every mark of a page."""
    yield from report.marks
    for node in report.nodes:
        yield from node.marks
        for device in node.devices:
            yield from device.marks
    for books in report.ledger:
        yield from books.marks


def timeline(report: Report, axis: Axis, numbers: dict[str, int]) -> str:
    """Return the whole picture."""
    busy = [node for node in report.nodes if not node.is_quiet]
    quiet = [node for node in report.nodes if node.is_quiet]
    rows = sum(len(node.devices) for node in busy)
    density = tracks.ROOMY if rows <= _ROOMY_ROWS else tracks.COMPACT
    parts = [
        _ruler(axis),
        _cluster(report, axis, numbers),
        *(_node(node, axis, density, number, numbers) for number, node in enumerate(busy, start=1)),
    ]
    if not busy and not report.marks and not report.breakers:
        parts.append('<p class="none">Nothing happened to any device in this time.</p>')
    kinds = sorted({mark.kind for mark in all_marks(report)})
    compact = " compact" if density is tracks.COMPACT else ""
    return (
        f"{tracks.legend(kinds)}"
        f'<div class="chart{compact}" id="chart">{behind_track(report.gaps, axis)}{"".join(parts)}</div>{_quiet_nodes(quiet)}'
    )


def track(height: int, inner: str, label: str) -> str:
    """Return the drawing of a row."""
    return f'<svg class="track" height="{height}" role="group" aria-label="{label}">{inner}</svg>'


def row(name: str, label: str, drawing: str) -> str:
    """Return a row of label and drawing; both are markup."""
    return f'<div class="row {name}"><div class="lab">{label}</div>{drawing}</div>'


def ticks_of(axis: Axis) -> Iterator[tuple[int, str, str]]:
    """Yield place (thousandths of a per cent), time and label of each tick."""
    day = ""
    for at_ms in axis.ticks():
        full = utc(at_ms)
        label = full[5:10] if axis.has_days else full[11:16]
        if axis.step_ms() < 60_000:
            label = full[11:-1]
        elif not axis.has_days and full[:10] != day and day:
            label = f"{full[5:10]} {label}"
        day = full[:10]
        yield axis.place(at_ms), format_time_ms(at_ms), label


def ruler_track(axis: Axis) -> str:
    """Return the labels of the axis."""
    labels = []
    for number, (place, at, label) in enumerate(ticks_of(axis)):
        edge = ["e"] if place > _EDGE else ["b"] if place < WHOLE - _EDGE else []
        names = " ".join(
            [*edge, *(["o"] if number % 2 else [])]
        )  # every other one is left out where there is little room
        kind = f' class="{names}"' if names else ""
        labels.append(f'<text x="{percent(place)}" y="14"{kind} data-t="{at}">{label}</text>')
    return f'<svg class="track" height="20" aria-hidden="true">{"".join(labels)}</svg>'


def _ruler(axis: Axis) -> str:
    words = f'<span class="from">{utc(axis.from_ms)[:10]}</span> <span class="zone">UTC</span>'
    return f'<div class="row ruler"><div class="lab">{words}</div>{ruler_track(axis)}</div>'


def behind_track(gaps: Sequence[Bar], axis: Axis) -> str:
    """Return the lines of the ticks and the bands of watch gaps, as high as what they stand behind."""
    bands = []
    for gap in gaps:
        if axis.meets(gap.from_ms, gap.to_ms):
            begin, width = axis.span(gap.from_ms, gap.to_ms)
            drawn = max(width, 100)
            bands.append(
                f'<rect class="gapband" x="{percent(min(begin, WHOLE - drawn))}" width="{percent(drawn)}" height="100%"/>'
            )
    grid = "".join(
        f'<line x1="{percent(place)}" x2="{percent(place)}" y1="0" y2="100%"/>'
        for place, _, _ in ticks_of(axis)
    )
    return f'<svg class="behind" aria-hidden="true">{"".join(dict.fromkeys(bands))}{grid}</svg>'


def _cluster(report: Report, axis: Axis, numbers: dict[str, int]) -> str:
    rows = []
    density = tracks.ROOMY
    asked = [mark for mark in report.marks if mark.kind not in _OF_THE_BREAKER]
    told = [mark for mark in report.marks if mark.kind in _OF_THE_BREAKER]
    for what, bars, marks in (("breaker", report.breakers, told), ("asked for", (), asked)):
        for scope in dict.fromkeys([*(bar.label for bar in bars), *(mark.about for mark in marks)]):
            drawing = tracks.bars(axis, density, [bar for bar in bars if bar.label == scope], "breaker")
            drawing += tracks.marks(axis, density, [mark for mark in marks if mark.about == scope], numbers)
            words = f"{what} {text(scope)}"
            rows.append(
                row("cluster", f"{what} <bdi>{text(scope)}</bdi>", track(density.row, drawing, words))
            )
    for watched in dict.fromkeys(gap.label for gap in report.gaps):
        found = [gap for gap in report.gaps if gap.label == watched]
        rows.append(
            row(
                "cluster",
                f"nothing seen of <bdi>{text(watched)}</bdi>",
                track(
                    density.row,
                    tracks.bars(axis, density, found, "gap"),
                    f"watch gaps of {text(watched)}: {len(found)}",
                ),
            )
        )
    return "".join(rows)


def _node(
    node: Node,
    axis: Axis,
    density: tracks.Density,
    number: int,
    numbers: dict[str, int],
) -> str:
    name = text(node.name)
    total = len(node.devices) + len(node.quiet)
    drawing = tracks.bars(axis, tracks.ROOMY, node.incidents, "incident")
    drawing += tracks.marks(axis, tracks.ROOMY, node.marks, numbers)
    told = f"{len(node.devices)} of {total} with events"
    head = row(
        "node",
        f'<b><bdi>{name}</bdi></b> <span class="dim">{told}</span>',
        track(tracks.ROOMY.row, drawing, f"node {name}: {counted(len(node.incidents), 'incident')}"),
    )
    devices = "".join(_device(device, axis, density, numbers) for device in node.devices)
    return (
        f'<details class="nodeg" id="n{number}" open><summary>{head}</summary>'
        f"{devices}{_quiet(node.quiet)}</details>"
    )


def _device(device: Device, axis: Axis, density: tracks.Density, numbers: dict[str, int]) -> str:
    prefix, _, short = device.device_id.rpartition("/")
    label = (
        f'<span class="sh" title="{text(device.device_id)}"><bdi>{text(short or prefix)}</bdi></span>'
        f' <span class="dim"><bdi>{text(device.driver, 80)}</bdi></span>'
        f'<span class="vh">{text(device.device_id)}</span>'
    )
    drawing = (
        '<line class="base" x1="0" x2="100%" y1="50%" y2="50%"/>'
        + tracks.phase_bars(axis, density, device.phases)
        + tracks.lines(axis, density, device.episodes, "episode")
        + tracks.lines(axis, density, device.moves, "move")
        + tracks.marks(axis, density, device.marks, numbers)
    )
    words = f"{text(device.device_id)}: {counted(len(device.episodes), 'episode')}, {counted(len(device.marks), 'decision')}"
    return row("dev", label, track(density.row, drawing, words))


def _quiet(ids: Sequence[str]) -> str:
    if not ids:
        return ""
    shown = "".join(f"<li><bdi>{text(name)}</bdi></li>" for name in ids[:_QUIET_SHOWN])
    left = f"<li>and {len(ids) - _QUIET_SHOWN} more</li>" if len(ids) > _QUIET_SHOWN else ""
    return (
        f'<details class="quiet"><summary>{counted(len(ids), "quiet device")}: in service throughout</summary>'
        f"<ul>{shown}{left}</ul></details>"
    )


def _quiet_nodes(nodes: Sequence[Node]) -> str:
    if not nodes:
        return ""
    devices = sum(len(node.quiet) for node in nodes)
    shown = "".join(
        f"<li><b><bdi>{text(node.name)}</bdi></b>{_quiet(node.quiet)}</li>"
        for node in nodes[:_QUIET_NODES_SHOWN]
    )
    left = (
        f"<li>and {len(nodes) - _QUIET_NODES_SHOWN} more nodes</li>"
        if len(nodes) > _QUIET_NODES_SHOWN
        else ""
    )
    return (
        f'<details class="quiet nodes"><summary>{counted(len(nodes), "quiet node")} with {counted(devices, "device")}: nothing happened there'
        f"</summary><ul>{shown}{left}</ul></details>"
    )
