"""Every command on every example, and what examples/README.md promises of each."""

from __future__ import annotations

import json
import re
from fractions import Fraction

import pytest
from cli import EXAMPLE_NAMES, EXAMPLES, VIEWS, log_of, ok, phases, rows

from sickbay.quantity import parse
from sickbay.timestamps import parse_time_ms

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
    """`verify` proves chain, rows, fold and ledger, in every form."""
    (result,) = ok("verify", "--db", stores[example], "-o", "json").json_lines()
    assert result["events"] == result["facts"] + result["decisions"] + sum(
        b'"kind":"census_taken"' in event for event in log_of(stores[example])
    )
    assert result["digests"] == {
        row["table"]: row["digest"] for row in ok("verify", "--db", stores[example], "-o", "csv").csv_rows()
    }
    told = ok("verify", "--db", stores[example]).out
    assert ["chain:", "rows:", "fold:", "ledger:"] == [line.split()[0] for line in told.splitlines()]


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


# --- double-count ---

CORES = "dra.cpu/mix-1"
CARDS = "gpu.nvidia.com/mix-1"
GIB = 1 << 30


def clock(at_ms):
    """The time of day of an instant of the recording, as README.md writes it."""
    seconds, rest_ms = divmod(at_ms - parse_time_ms(f"{DAY}00:00:00Z"), 1000)
    assert 0 == rest_ms
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


@pytest.fixture(scope="session")
def told(stores):
    """A function that returns time, kind and payload of the ledger's decisions of a node, in the order of the log."""
    events = [json.loads(event) for event in log_of(stores["double-count"])]

    def find(*kinds, node="mix-1"):
        return [
            (event["at_ms"], event["kind"], event["payload"])
            for event in events
            if event["stream_id"] == node and event["kind"] in kinds
        ]

    return find


def balance(told, time, resource):
    """What stood in each account of the two books at an instant, by NUMA bucket."""
    found = {}
    for at_ms, kind, payload in told("entry_posted", "entry_reversed"):
        entry = payload["entry"]
        if at_ms > parse_time_ms(f"{DAY}{time}Z") or entry["book"] not in {"common", "recorded", "derived"}:
            continue
        for amount in entry["amounts"]:
            if amount["resource"] == resource:
                place = (entry["book"], entry["account"], amount["numa"])
                sign = 1 if kind == "entry_posted" else -1
                found[place] = found.get(place, 0) + sign * parse(amount["quantity"]).units
    return {place: amount for place, amount in found.items() if amount}


def total(found, book, account):
    return sum(
        amount
        for (in_book, in_account, _), amount in found.items()
        if (in_book, in_account) == (book, account)
    )


def short(name):
    """A claim without the end that the claim controller made up."""
    return name if name.endswith("pair-cores") else name.rpartition("-")[0]


@pytest.mark.parametrize(
    ("time", "pods", "recorded", "derived"),
    [
        # web-0 4, train-0 and train-1 1 each, sim-0 and sim-1 0.5 each, pair-a 0.25; cards 2 + 2, cores 8 + 4 + 6
        ("08:00:30", "7.25", 22, 22),
        # pair-b asks for 0.25 itself; the claim counts once
        ("08:04:00", "7.5", 22, 22),
        # pair-a is over, and the entry of pair-cores with it
        ("08:05:15", "7.25", 16, 22),
        # what the careless controller writes is never added
        ("08:15:05", "7.25", 16, 22),
        ("08:15:20", "7.25", 16, 22),
        ("08:20:01", "7.25", 16, 22),
        # slices that are gone take nothing away
        ("08:25:20", "7.25", 16, 22),
        # the 4 cores of sim-1 take 8 CPUs
        ("08:26:00", "7.25", 16, 26),
        ("08:32:10", "7.25", 16, 26),
        # wide-0 asks for 1 and has two cards
        ("08:37:00", "8.25", 20, 30),
        ("08:49:59", "8.25", 20, 30),
    ],
)
def test_double_count_has_these_cpus_in_its_books(told, time, pods, recorded, derived):
    """Supply, what Pods ask for, and what claims take by what was recorded and by what is published."""
    found = balance(told, time, "cpu")
    assert 64 == total(found, "common", "supply")
    assert Fraction(pods) == total(found, "common", "pods")
    assert (recorded, derived) == (total(found, "recorded", "claims"), total(found, "derived", "claims"))
    assert {"supply", "pods", "claims"} == {account for _, account, _ in found}


@pytest.mark.parametrize(
    ("time", "pods", "claims"),
    [("08:00:30", 37, 8), ("08:04:00", 38, 8), ("08:20:01", 37, 8), ("08:49:59", 41, 16)],
)
def test_double_count_has_this_memory_in_its_books(told, time, pods, claims):
    """Only cards take memory, 4Gi each, and about them the books agree."""
    found = balance(told, time, "memory")
    assert (256 * GIB, pods * GIB) == (total(found, "common", "supply"), total(found, "common", "pods"))
    assert claims * GIB == total(found, "recorded", "claims") == total(found, "derived", "claims")


@pytest.mark.parametrize(
    ("time", "first", "second"),
    [
        # card 0 2, sim-0 8, pair-cores 6; card 3 2, sim-1 4
        ("08:00:30", 16, 6),
        ("08:26:00", 16, 10),
        # cards 1 and 2, by the old cache on one NUMA node, and then not
        ("08:37:00", 20, 10),
        ("08:41:29", 20, 10),
        ("08:41:30", 18, 12),
    ],
)
def test_double_count_has_its_cpus_on_these_numa_nodes(told, time, first, second):
    """What claims take hangs on the NUMA node of their devices."""
    found = balance(told, time, "cpu")
    assert {"0": first, "1": second} == {
        numa: amount
        for (book, account, numa), amount in found.items()
        if (book, account) == ("derived", "claims")
    }


def test_double_count_holds_three_times(told):
    """A driver's restart, a generation that fell, and a pool that came by halves; the other machine is open throughout."""
    changes = []
    for at_ms, _, payload in told("verdict_changed"):
        if not changes or changes[-1][1] != payload["verdict"]:
            changes.append((clock(at_ms), payload["verdict"]))
    assert [
        ("08:00:00", "open"),
        ("08:25:00", "hold"),
        ("08:26:10", "open"),
        ("08:32:05", "hold"),
        ("08:32:35", "open"),
        ("08:40:00", "hold"),
        ("08:41:30", "open"),
    ] == changes
    assert {"open"} == {payload["verdict"] for _, _, payload in told("verdict_changed", node="mix-2")}
    classes = [told("verdict_changed", node=node)[-1][2]["node_class"] for node in ("mix-1", "mix-2")]
    assert ["canary", "stable"] == classes


@pytest.mark.parametrize(
    ("time", "holds"),
    [
        ("08:24:59", set()),
        (
            "08:25:20",
            {
                ("driver_rebuilding", CORES),
                ("slice_missing", "ml/pair-cores"),
                ("slice_missing", "ml/sim-0-cores"),
                ("slice_missing", "ml/sim-1-cores"),
            },
        ),
        ("08:25:40", {("driver_rebuilding", CORES)}),
        ("08:26:10", set()),
        ("08:32:04", set()),
        ("08:32:20", {("generation_back", CARDS)}),
        ("08:32:35", set()),
        ("08:40:59", {("pool_incomplete", CARDS)}),
        ("08:41:00", {("pool_incomplete", CARDS), ("slice_stale", CARDS)}),
        ("08:41:30", set()),
        ("08:49:59", set()),
    ],
)
def test_double_count_holds_for_these_reasons(told, time, holds):
    """Each reason lasts exactly as long as its cause, and what follows it."""
    until_ms = parse_time_ms(f"{DAY}{time}Z")
    newest = [payload for at_ms, _, payload in told("verdict_changed") if at_ms <= until_ms][-1]
    found = {(hold["reason"], hold["scope"]) for hold in newest["holds"]}
    assert holds == {(r, short(scope) if r == "slice_missing" else scope) for r, scope in found}


def test_double_count_refuses_what_the_careless_controller_wrote(told):
    """One claim twice in its own Pod, once more in another Pod; the rollback takes both back."""
    refused = [
        (
            clock(at_ms),
            kind,
            payload["entry"]["book"],
            short(payload["entry"]["claim"]),
            payload["entry"]["pod"],
        )
        for at_ms, kind, payload in told("duplicate_refused", "duplicate_withdrawn")
    ]
    assert [
        ("08:15:00", "duplicate_refused", "recorded", "sim-0-cores", "sim-0"),
        ("08:15:10", "duplicate_refused", "recorded", "sim-0-cores", "sim-1"),
        ("08:20:00", "duplicate_withdrawn", "recorded", "sim-0-cores", "sim-0"),
        ("08:20:00", "duplicate_withdrawn", "recorded", "sim-0-cores", "sim-1"),
    ] == refused


def standing_drift(told, time):
    """Cause and amounts of every difference that stood at an instant."""
    found = {}
    for at_ms, kind, payload in told("drift_found", "drift_cleared"):
        if at_ms <= parse_time_ms(f"{DAY}{time}Z"):
            drift = payload["drift"]
            found.pop(short(drift["about"]), None)
            if kind == "drift_found":
                found[short(drift["about"])] = (drift["cause"], drift["recorded"], drift["derived"])
    return found


SKIPPED = {"ml/pair-cores": ("allocated_before_counting", {}, {"cpu": "6"})}
MAPPED = {"ml/sim-1-cores": ("mapping_changed", {"cpu": "4"}, {"cpu": "8"})}


@pytest.mark.parametrize(
    ("time", "drift"),
    [
        ("08:05:29", {}),
        ("08:05:30", SKIPPED),
        ("08:24:59", SKIPPED),
        ("08:26:10", SKIPPED | MAPPED),
        ("08:49:59", SKIPPED | MAPPED),
    ],
)
def test_double_count_explains_where_its_books_differ(told, time, drift):
    """The scheduler's under-count and the driver's new mapping are found after their grace, and stay true to the end."""
    assert drift == standing_drift(told, time)


def test_double_count_finds_nothing_before_its_grace_is_over(told):
    """Objects that follow one another are no difference, not even for a moment."""
    first = {}
    for at_ms, _, payload in told("drift_found"):
        first.setdefault(short(payload["drift"]["about"]), clock(at_ms))
    assert {"ml/pair-cores": "08:05:30", "ml/sim-1-cores": "08:26:10"} == first
    assert [] == told("drift_found", node="mix-2")


def test_double_count_has_one_claim_off_its_numa_node(told):
    """wide-0 asked for one NUMA node; sim-0 and sim-1 asked for theirs by number and got it."""
    alerts = [
        (clock(at_ms), payload["alert"], short(payload["about"]))
        for node in ("mix-1", "mix-2")
        for at_ms, kind, payload in told("alert_raised", "alert_cleared", node=node)
    ]
    assert [("08:41:30", "numa_spanned", "ml/wide-0-gpu")] == alerts


def commands_of_the_story():
    """The questions that examples/README.md asks the store of this example."""
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"`?sickbay ((?:ledger|audit|verify)[^`\n]*) --db double-count\.db", text)
    return sorted(set(found))


@pytest.mark.parametrize("question", commands_of_the_story())
def test_double_count_is_explained_by_the_commands_that_the_story_names(stores, question):
    """Each of them has an answer."""
    done = ok(*question.split(), "--db", stores["double-count"])
    assert done.out.strip()
    assert "nothing to show" not in done.out
