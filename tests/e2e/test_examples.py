"""Every command on every example, and what examples/README.md promises of each."""

from __future__ import annotations

import json

import pytest
from cli import EXAMPLE_NAMES, VIEWS, log_of, ok, phases, rows

GPU_3 = "dra:gpu.nvidia.com/gpu-a1/gpu-3"
GPU_4 = "dra:gpu.nvidia.com/gpu-a2/gpu-4"
GPU_1 = "dra:gpu.nvidia.com/gpu-a1/gpu-1"
DAY = "2026-07-01T"


def at(time):
    return f"{DAY}{time}.000Z"


def as_of(time):
    return ("--as-of", f"{DAY}{time}Z")


def only(found):
    (row,) = found
    return row


def test_every_view_is_listed(stores):
    """`sickbay audit` names the views that these tests go through."""
    assert set(VIEWS) == {row["view"] for row in rows("audit", db=stores["one-card"])}


@pytest.mark.parametrize("example", EXAMPLE_NAMES)
@pytest.mark.parametrize("question", [("episodes",), *(("audit", view) for view in VIEWS)], ids=" ".join)
def test_an_answer_says_the_same_in_json_and_csv(stores, example, question):
    """JSON parses line by line; CSV has a header, as many fields in each line, and the same cells."""
    answered = rows(*question, db=stores[example])
    table = ok(*question, "--db", stores[example], "-o", "csv").csv_rows()
    assert [{k: "" if v is None else str(v) for k, v in row.items()} for row in answered] == table


@pytest.mark.parametrize("example", EXAMPLE_NAMES)
def test_a_table_has_a_line_for_each_row(stores, example):
    """The table says what JSON says; an answer without rows says so in words."""
    devices = rows("audit", "devices", db=stores[example])
    table = ok("audit", "devices", "--db", stores[example]).out
    assert all(row["phase"] in table for row in devices)
    assert "nothing to show\n" == ok("audit", "requests", "--db", stores[example]).out


@pytest.mark.parametrize("example", EXAMPLE_NAMES)
def test_a_verified_store_says_what_was_compared(stores, example):
    """`verify` proves chain, rows and fold, in every form."""
    (result,) = ok("verify", "--db", stores[example], "-o", "json").json_lines()
    assert result["events"] == result["facts"] + result["decisions"] + sum(
        b'"kind":"census_taken"' in event for event in log_of(stores[example])
    )
    assert result["digests"] == {
        row["table"]: row["digest"] for row in ok("verify", "--db", stores[example], "-o", "csv").csv_rows()
    }
    told = ok("verify", "--db", stores[example]).out
    assert ["chain:", "rows:", "fold:"] == [line.split()[0] for line in told.splitlines()]


@pytest.mark.parametrize(
    ("example", "device"), [("one-card", GPU_3), ("one-card", GPU_4), ("flapping", GPU_1)]
)
def test_a_timeline_tells_facts_and_decisions_in_order(stores, example, device):
    """Each form shows the same events, and an instant cuts off what came later."""
    told = rows("timeline", device, db=stores[example])
    assert [row["offset"] for row in told] == sorted(row["offset"] for row in told)
    assert {"device_published", "device_health_observed", "device_suspected"} & {row["kind"] for row in told}
    table = ok("timeline", device, "--db", stores[example], "-o", "csv").csv_rows()
    assert [row["event_id"] for row in told] == [row["event_id"] for row in table]
    assert all(row["kind"] in ok("timeline", device, "--db", stores[example]).out for row in told)
    middle = told[len(told) // 2]["at"]
    before = rows("timeline", device, "--as-of", middle, db=stores[example])
    assert [row for row in told if row["at"] <= middle] == before


@pytest.mark.parametrize("example", ["one-card", "flapping"])
def test_an_explanation_leads_from_fact_to_consequence(stores, example):
    """Every step names its cause, its clause and the policy; each phase begins where the one before ended."""
    explained = json.loads(ok("explain", "last", "--db", stores[example], "-o", "json").out)
    steps = explained["steps"]
    assert "in_service" == steps[0]["phase_before"] == steps[-1]["phase_after"]
    assert [step["phase_after"] for step in steps[:-1]] == [step["phase_before"] for step in steps[1:]]
    assert all(step["cause_event_id"] and step["clause"] and step["policy"] for step in steps)
    table = ok("explain", explained["episode"]["episode_id"][:8], "--db", stores[example], "-o", "csv")
    assert [step["event_id"] for step in steps] == [row["event_id"] for row in table.csv_rows()]
    told = ok("explain", "last", "--db", stores[example]).out
    assert len(steps) == told.count("  so        ")
    assert len(steps) > len(
        json.loads(ok("explain", "last", "--db", stores[example], *as_of("08:06:00"), "-o", "json").out)[
            "steps"
        ]
    )


# --- one-card ---


def test_one_card_is_one_episode_that_ends_well(stores):
    """One card fails and comes back: opened with the fault, observed from 08:15:00, released at 10:15:00."""
    episode = only(rows("episodes", db=stores["one-card"]))
    assert (GPU_3, at("08:05:00"), at("08:15:00"), at("08:15:00"), at("10:15:00"), "returned", 1) == tuple(
        episode[k]
        for k in (
            "device_id",
            "opened_at",
            "hold_until",
            "observing_at",
            "closed_at",
            "outcome",
            "flap_count",
        )
    )
    assert ("observation_only", "in_service", "[]") == tuple(
        episode[k] for k in ("verification", "phase", "open_causes")
    )
    for view in ("node-incidents", "breaker-history", "moves", "open-episodes"):
        assert [] == rows("audit", view, db=stores["one-card"])


@pytest.mark.parametrize(
    ("time", "phase"),
    [
        ("08:04:59", "in_service"),
        ("08:05:00", "quarantined"),
        ("08:12:08", "quarantined"),
        ("08:14:59", "quarantined"),
        ("08:15:00", "observing"),
        ("10:14:59", "observing"),
        ("10:15:00", "in_service"),
    ],
)
def test_one_card_stands_where_it_stood_at_an_instant(stores, time, phase):
    """As of an instant, device, episode and open episodes say what held then."""
    assert phase == phases(stores["one-card"], *as_of(time))[GPU_3]
    found = rows("episodes", *as_of(time), db=stores["one-card"])
    is_open = phase != "in_service"
    assert ([] if time < "08:05:00" else [phase]) == [row["phase"] for row in found]
    assert is_open == bool(rows("episodes", "--open", *as_of(time), db=stores["one-card"]))
    assert is_open == bool(rows("audit", "open-episodes", *as_of(time), db=stores["one-card"]))


def test_one_card_has_two_causes_while_the_driver_taints_it(stores):
    """The taint is a second cause of the same episode; when it is gone and the Pod is frozen, none is left."""
    causes = {
        time: json.loads(only(rows("episodes", *as_of(time), db=stores["one-card"]))["open_causes"])
        for time in ("08:05:00", "08:05:02", "08:07:20", "08:10:00")
    }
    expected = {
        "08:05:00": ["unhealthy"],
        "08:05:02": ["unhealthy", "driver_taint"],
        "08:07:20": ["driver_taint"],
        "08:10:00": [],
    }
    assert expected == causes


@pytest.mark.parametrize(
    ("time", "phase"),
    [
        ("11:09:59", "in_service"),
        ("11:10:00", "suspect"),
        ("11:14:29", "suspect"),
        ("11:14:30", "in_service"),
    ],
)
def test_the_undecided_card_is_only_suspect(stores, time, phase):
    """Unknown inside the window is an alert and no more, cleared after the hold-down."""
    assert phase == phases(stores["one-card"], *as_of(time))[GPU_4]


# --- node-level ---


def test_node_level_has_two_incidents_and_no_episode(stores):
    """A plugin restart and a lost machine are one incident each; no card is condemned."""
    assert [] == rows("episodes", db=stores["node-level"])
    found = [
        (row["node"], row["cause"], row["opened_at"], row["closed_at"], len(json.loads(row["devices"])))
        for row in rows("audit", "node-incidents", db=stores["node-level"])
    ]
    assert [
        ("gpu-b1", "plugin_down", at("08:05:00"), at("08:06:40"), 8),
        ("gpu-b2", "node_lost", at("08:15:40"), at("08:19:45"), 8),
    ] == found


@pytest.mark.parametrize(
    ("time", "kinds"),
    [
        ("08:05:00", []),
        ("08:05:04", ["restricted"] * 8),
        ("08:07:39", ["restricted"] * 8),
        ("08:07:43", []),
        ("08:15:39", []),
        ("08:15:40", ["suspect"] * 8),
        ("08:19:44", ["suspect"] * 8),
        ("08:19:45", []),
    ],
)
def test_node_level_touches_the_cards_of_one_node_at_a_time(stores, time, kinds):
    """The cards are kept away while the incident lasts and come back with it."""
    adverse = [
        phase for phase in phases(stores["node-level"], *as_of(time)).values() if phase != "in_service"
    ]
    assert kinds == adverse


# --- flapping ---


def test_flapping_is_one_episode_with_three_faults(stores):
    """Faults inside the flap window join one episode, each doubling its hold, and the third asks a person."""
    episode = only(rows("episodes", db=stores["flapping"]))
    assert ("gpu-b1", at("08:05:00"), at("08:52:00"), at("08:52:00"), at("10:52:00"), "returned", 3) == tuple(
        episode[k]
        for k in ("node", "opened_at", "hold_until", "observing_at", "closed_at", "outcome", "flap_count")
    )
    assert "quarantine_review_due" in {
        row["kind"] for row in rows("audit", "transitions", db=stores["flapping"])
    }


@pytest.mark.parametrize(
    ("time", "hold_until", "faults"),
    [("08:06:00", "08:15:00", 1), ("08:10:00", "08:29:31", 2), ("08:12:00", "08:52:00", 3)],
)
def test_flapping_doubles_the_hold_with_each_fault(stores, time, hold_until, faults):
    """As of each fault, the episode holds until the time that was known then."""
    episode = only(rows("episodes", *as_of(time), db=stores["flapping"]))
    assert (at(hold_until), faults) == (episode["hold_until"], episode["flap_count"])


def test_flapping_words_of_two_sources_raise_one_alert(stores):
    """Twenty turns between Unknown and Healthy are one suspicion and one alert."""
    alert = only(
        [row for row in rows("audit", "alerts", db=stores["flapping"]) if row["alert"] == "flapping"]
    )
    assert (GPU_1, f"{DAY}08:20:39.500Z") == (alert["about"], alert["cleared_at"])
    assert "suspect" == phases(stores["flapping"], *as_of("08:20:39"))[GPU_1]
    assert "in_service" == phases(stores["flapping"], *as_of("08:20:40"))[GPU_1]
    assert [] == rows("episodes", "--device", GPU_1, db=stores["flapping"])


def test_flapping_notes_the_gap_and_the_deletion_that_the_watch_missed(stores):
    """A 410 and a LIST without a Pod are a gap in every partition and one tombstone."""
    events = [json.loads(event) for event in log_of(stores["flapping"])]
    gone = only([event for event in events if event["kind"] == "pod_gone"])
    gaps = {event["stream_id"] for event in events if event["kind"] == "watch_gap_found"}
    assert ("search-5", {f"partition/{number}" for number in range(8)}) == (gone["payload"]["pod"], gaps)
