"""The parts of a page: axis, words, counts."""

from __future__ import annotations

import pytest
from report_models import START_MS, at

from sickbay.decisions import MoveFinished, NodeIncidentOpened, VerdictChanged
from sickbay.facts import (
    ClaimGone,
    ClaimObserved,
    Consumer,
    DeviceHealthObserved,
    DeviceWithdrawn,
    HoldRequested,
    NodeObserved,
    PodGone,
    PodObserved,
    Tick,
    WatchGapFound,
)
from sickbay.report import Device, Node, Phase, Report
from sickbay.report.axis import Axis, percent
from sickbay.report.markup import duration, moment, printable, text, utc
from sickbay.report.overview import counted, most_at_once
from sickbay.report.saying import said
from sickbay.timestamps import LAST_MS

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


@pytest.mark.parametrize(
    ("place", "shown"), [(0, "0%"), (100_000, "100%"), (12_500, "12.5%"), (1, "0.001%"), (99_990, "99.99%")]
)
def test_a_position_is_written_without_rounding(place, shown):
    assert shown == percent(place)


@pytest.mark.parametrize(
    ("length_ms", "step_ms"),
    [
        (8, 1),
        (1_000, 1_000),
        (90_000, 15_000),
        (HOUR, 10 * MINUTE),
        (4 * HOUR, 30 * MINUTE),
        (DAY, 3 * HOUR),
        (9 * DAY, 2 * DAY),
    ],
)
def test_labels_are_round_and_few(length_ms, step_ms):
    """At most nine labels, each at a multiple of the step in UTC, however long the time is."""
    axis = Axis(START_MS + 1, START_MS + 1 + length_ms)
    assert step_ms == axis.step_ms()
    ticks = axis.ticks()
    assert len(ticks) <= 10
    assert all(tick % axis.step_ms() == 0 and axis.from_ms <= tick <= axis.until_ms for tick in ticks)


def test_an_axis_of_all_times_has_few_labels():
    """The longest step is long enough for what RFC 3339 can write."""
    assert len(Axis(0, LAST_MS).ticks()) <= 10


@pytest.mark.parametrize(
    ("length_ms", "words"),
    [
        (0, "0 s"),
        (5, "5 ms"),
        (61_000, "1 min 1 s"),
        (2 * HOUR + 10 * MINUTE + 5_000, "2 h 10 min"),
        (3 * DAY, "3 d"),
        (DAY + 5, "1 d"),
    ],
)
def test_a_length_of_time_has_two_units(length_ms, words):
    assert words == duration(length_ms)


def test_a_time_is_written_in_utc_and_says_so():
    assert "2026-07-01 02:30:00Z" == utc(at(2.5))
    assert "2026-07-01 02:30:00.007Z" == utc(at(2.5) + 7)
    assert '<time datetime="2026-07-01T02:30:00.000Z">2026-07-01 02:30:00Z</time>' == moment(at(2.5))


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("a\x00b", "a\\x00b"),
        ("\u202egnp", "\\u202egnp"),
        ("\x1b[2J", "\\x1b[2J"),
        ("Grüße", "Grüße"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_cannot_be_seen_is_spelled(words, shown):
    assert shown == printable(words)


def test_markup_is_escaped_in_text_and_attributes():
    assert "&lt;b&gt; &amp; &quot;c&quot; &#x27;d&#x27;" == text("<b> & \"c\" 'd'")


# --- what events say -------------------------------------------------------------------------------------------------


def word(**changes) -> DeviceHealthObserved:
    values = {
        "node": "n",
        "observed_at_ms": 0,
        "device_id": "d",
        "health": "Unhealthy",
        "health_raw": "Unhealthy",
        "pod_uid": "u",
        "namespace": "ml",
        "pod": "train",
    }
    return DeviceHealthObserved(**(values | changes))


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (word(message="XID 79"), 'ml/train says Unhealthy: "XID 79"'),
        (word(live=False), "ml/train says Unhealthy (frozen: the Pod ended)"),
        (
            word(health="Unknown", health_raw=None, absence="report_vanished"),
            "ml/train says Unknown (report_vanished)",
        ),
        (
            HoldRequested(node="n", observed_at_ms=0, device_id="d", request_id="r", actor="ana", reason="loud", until_ms=at(1)),
            "reason loud, actor ana, until 2026-07-01 01:00:00Z",
        ),
        (
            WatchGapFound(node="", observed_at_ms=0, watched="pods", from_ms=at(0), to_ms=at(1), from_rv=1, to_rv=2),
            "nothing seen of pods from 2026-07-01 00:00:00Z to 2026-07-01 01:00:00Z",
        ),
        (NodeObserved(node="n", observed_at_ms=0, node_uid="u", ready="False", ready_reason="KubeletDown"), "ready False, ready reason KubeletDown"),
        (NodeIncidentOpened(node="n", at_ms=0, incident_id="i", cause="node_lost"), "cause node_lost"),
        (
            MoveFinished(node="n", at_ms=0, device_id="d", move_id="m", episode_id="", pod_uid="u", namespace="a", pod="p", token=7, outcome="done"),
            "outcome done, token 7",
        ),
        (ClaimGone(node="n", observed_at_ms=0, claim_uid="u", namespace="ml", claim="c"), "ml/c is gone"),
        (
            ClaimObserved(node="n", observed_at_ms=0, claim_uid="u", namespace="ml", claim="c", consumers=(Consumer(resource="pods", name="p", uid="v"),)),
            "ml/c, 0 devices, 1 consumer",
        ),
        (PodObserved(node="n", observed_at_ms=0, pod_uid="u", namespace="ml", pod="p", phase="Running"), "ml/p: phase Running"),
        (PodGone(node="n", observed_at_ms=0, pod_uid="u", namespace="ml", pod="p"), "ml/p is gone"),
        (
            DeviceWithdrawn(node="n", observed_at_ms=0, device_id="dra:d/p/gpu-0", driver="d", pool="p", device="gpu-0", reason="slice_deleted"),
            "gpu-0: reason slice_deleted",
        ),
        (VerdictChanged(node="n", at_ms=0, verdict="open"), "open: new claims may come"),
        (Tick(node="", observed_at_ms=0), ""),
        (None, "an event of a newer build"),
    ],
)  # fmt: skip
def test_an_event_says_what_it_holds(event, words):
    assert words == said(event)


# --- the overview ----------------------------------------------------------------------------------------------------


def report_of(*devices) -> Report:
    found = tuple(Device(f"d{number}", "d", phases) for number, phases in enumerate(devices))
    return Report("t", at(0), at(10), "s", "b", nodes=(Node("n", found),))


def quarantined(begin, end) -> Phase:
    return Phase("quarantined", "", at(begin), None if end is None else at(end))


def test_devices_that_follow_one_another_are_never_out_together():
    """One is out until five, the other from five on: one at once, though both touch one step of the strip."""
    report = report_of((quarantined(1, 5),), (quarantined(5, None),))
    assert (1, at(1)) == most_at_once(report, Axis(report.from_ms, report.until_ms))


def test_the_first_time_of_the_most_is_named():
    """Two from three to four, and two again later."""
    report = report_of((quarantined(1, 4), quarantined(6, 8)), (quarantined(3, 5), quarantined(7, 9)))
    assert (2, at(3)) == most_at_once(report, Axis(report.from_ms, report.until_ms))


def test_what_began_before_the_shown_time_counts_from_its_beginning():
    report = report_of((quarantined(-3, 2),), (Phase("observing", "", at(-2), at(1)),))
    assert (2, at(0)) == most_at_once(report, Axis(report.from_ms, report.until_ms))


def test_a_device_counts_once_in_a_step_and_in_one_layer():
    """A device that passes through three phases within a step is one device, and the gravest phase counts."""
    phases = (
        Phase("suspect", "", at(5), at(5) + 1_000),
        Phase("quarantined", "", at(5) + 1_000, at(5) + 2_000),
        Phase("observing", "", at(5) + 2_000, at(5) + 3_000),
    )
    report = report_of(phases)
    out, returning, suspect = counted(report, Axis(report.from_ms, report.until_ms))
    assert (1, 0, 0) == (sum(out), sum(returning), sum(suspect))
    assert 1 == out[len(out) // 2]


def test_a_device_in_service_is_in_no_layer():
    report = report_of((Phase("in_service", "", at(1), at(2)),))
    axis = Axis(report.from_ms, report.until_ms)
    assert 0 == sum(map(sum, counted(report, axis)))
    assert (0, at(0)) == most_at_once(report, axis)
