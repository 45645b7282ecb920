"""The ledger asked, exported, compared and judged: the fourth example must read from it as examples/README.md tells it."""

from __future__ import annotations

import json
import re
from typing import get_args

import pytest
from cli import example, log_of, misused, ok, refused, replay, rows, verified
from cli_recordings import write

from projections.engine import Store
from sickbay.decisions import DriftCause, HoldReason
from sickbay.ledger_words import DRIFT_WORDS, HOLD_WORDS

PAIR, SIM_0, SIM_1 = "ml/pair-cores", "ml/sim-0-cores", "ml/sim-1-cores"
OLD_RULES = 'version: old-rules\nledger:\n  emulate: "1.36"\n'


@pytest.fixture(scope="module")
def store(stores):
    return stores["double-count"]


def as_of(time):
    return ("--as-of", f"2026-07-01T{time}Z")


def at(time):
    return f"2026-07-01T{time}.000Z"


def ledger(store, *arguments, node="mix-1"):
    (found,) = rows("ledger", node, *arguments, db=store)
    return found


def told(store, *arguments, node="mix-1"):
    return ok("ledger", node, *arguments, "--db", store).out


def balance(found, resource="cpu", book="recorded"):
    (row,) = [b for b in found["balances"] if (b["resource"], b["book"]) == (resource, book)]
    return row


def short(claim):
    """A claim made from a template without the five random characters of its name."""
    return re.sub(r"-[0-9a-f]{5}$", "", claim)


def drifts(found):
    return {short(d["about"]): d for d in found["drifts"]}


def holds(found):
    return {(h["reason"], short(h["scope"])) for h in found["holds"]}


# --- the incident ------------------------------------------------------------------------------------------------------------


def test_both_books_begin_with_the_same_requests(store):
    """29.25 of 64 CPUs are requested, by both books, and nothing is wrong."""
    found = ledger(store, *as_of("08:00:30"))
    for book in ("recorded", "derived"):
        row = balance(found, book=book)
        assert ("64", "7250m", "22", "29250m", "34750m") == tuple(
            row[k] for k in ("supply", "pods", "claims", "used", "free")
        )
    assert ("open", "canary", [], []) == tuple(
        found[k] for k in ("verdict", "node_class", "drifts", "refused")
    )


def test_a_claim_that_two_pods_share_counts_once(store):
    """Only the 250m come that the second Pod asks for itself."""
    found = ledger(store, *as_of("08:04:00"))
    assert {"29500m"} == {balance(found, book=book)["used"] for book in ("recorded", "derived")}


def test_the_under_count_is_named_with_what_it_means(store):
    """The recorded book loses the claim, the derived one keeps it; half a minute later the cause is told, and nothing holds."""
    found = ledger(store, *as_of("08:05:15"))
    assert ("16", "22") == tuple(balance(found, book=b)["claims"] for b in ("recorded", "derived"))
    assert {} == drifts(found)
    found = ledger(store, *as_of("08:05:40"))
    drift = drifts(found)[PAIR]
    assert ("allocated_before_counting", 1, {}, {"cpu": "6"}, at("08:05:30")) == tuple(
        drift[k] for k in ("cause", "explained", "recorded", "derived", "found_at")
    )
    assert "open" == found["verdict"]
    text = told(store, *as_of("08:05:40"))
    assert f"{PAIR}: allocated_before_counting, since {at('08:05:30')}" in text
    assert "recorded nothing, derived cpu 6" in text
    assert "allocated before the Pod was scheduled, and the 1.36 scheduler skips such a claim" in text


def test_a_claim_counted_twice_is_refused_and_named(store):
    """Both entries of the careless controller are shown, nothing is added, and both are gone when it is rolled back."""
    before, found = (ledger(store, *as_of(time)) for time in ("08:14:59", "08:15:30"))
    assert [("sim-0", SIM_0), ("sim-1", SIM_0)] == sorted(
        (r["pod"], short(f"{r['namespace']}/{r['claim']}")) for r in found["refused"]
    )
    assert before["balances"] == found["balances"]
    text = told(store, *as_of("08:15:30"))
    assert "refused duplicates: 2" in text
    assert re.search(r"ml/sim-0-cores-\w+ for Pod ml/sim-1: cpu 8, since 2026-07-01T08:15:10", text)
    assert "counts already; a second contribution is never added" in text
    assert "refused duplicates: none" in told(store, *as_of("08:20:10"))


def test_a_driver_that_restarts_holds_new_claims_until_all_is_well(store):
    """Its slices and the devices of three claims are missing; they come back, and half a minute later the node is open."""
    missing = {("slice_missing", claim) for claim in (PAIR, SIM_0, SIM_1)}
    found = ledger(store, *as_of("08:25:10"))
    assert ("hold", missing | {("driver_rebuilding", "dra.cpu/mix-1")}) == (found["verdict"], holds(found))
    assert "22" == balance(found, book="derived")["claims"]
    text = told(store, *as_of("08:25:10"))
    assert "node mix-1: hold since" in text
    assert "new claims wait, and what is bound stays:" in text
    assert f"driver_rebuilding dra.cpu/mix-1, since {at('08:25:00')}" in text
    assert "a bound claim holds a device that is not published" in text
    assert {("driver_rebuilding", "dra.cpu/mix-1")} == holds(ledger(store, *as_of("08:25:50")))
    assert "open" == ledger(store, *as_of("08:26:10"))["verdict"]


def test_a_verdict_tells_since_when_it_holds_and_since_when_for_these_reasons(store):
    """On hold since the slices went at 08:25:00; at 08:25:50 for one reason, which is what was left when the claims' devices came."""
    found = ledger(store, *as_of("08:25:50"))
    assert at("08:25:00") == found["since"]
    (last,) = {
        row["held_until"]
        for row in rows(
            "audit", "ledger-holds", "--where", "node=mix-1", "--where", "reason=slice_missing", db=store
        )
    }
    assert last == found["reasons_since"]
    assert f"node mix-1: hold since {at('08:25:00')}, its reasons since {last} (" in told(
        store, *as_of("08:25:50")
    )
    (row,) = rows("audit", "ledger-verdicts", "--where", "node=mix-1", *as_of("08:25:50"), db=store)
    assert (at("08:25:00"), last) == (row["since"], row["reasons_since"])


def test_past_holds_are_pointed_to(store):
    """Only where there were some, and where the question is about now."""
    past = sum(
        row["held_until"] is not None
        for row in rows("audit", "ledger-holds", "--where", "node=mix-1", db=store)
    )
    assert told(store).endswith(
        f"\npast holds: {past}; `sickbay audit ledger-holds --where node=mix-1` lists them\n"
    )
    assert "past holds" not in told(store, *as_of("08:26:10"))
    assert "past holds" not in told(store, node="mix-2")


def test_a_changed_mapping_is_named(store):
    """A core of NUMA node 1 takes two CPUs since: 4 are recorded, 8 are derived."""
    drift = drifts(ledger(store, *as_of("08:27:00")))[SIM_1]
    assert ("mapping_changed", {"cpu": "4"}, {"cpu": "8"}) == tuple(
        drift[k] for k in ("cause", "recorded", "derived")
    )


def test_a_generation_that_goes_back_holds_the_node(store):
    """The driver that reads an old cache was never gone: only its generation tells."""
    found = ledger(store, *as_of("08:32:10"))
    assert ("hold", {("generation_back", "gpu.nvidia.com/mix-1")}) == (found["verdict"], holds(found))
    assert "fell back to an older generation" in told(store, *as_of("08:32:10"))
    assert "open" == ledger(store, *as_of("08:32:35"))["verdict"]


def test_numa_buckets_show_where_the_claims_are_and_add_up(store):
    """4 CPUs and 8Gi on NUMA node 0; half of it moves to node 1 once the truth is published, and an alert says so."""

    def buckets(found, resource):
        return {row["numa"]: row["claims"] for row in found["numa"] if row["resource"] == resource}

    first, last = ledger(store, *as_of("08:37:00")), ledger(store)
    assert {"0": "20", "1": "10", "unknown": "0"} == buckets(first, "cpu")
    assert {"0": "12Gi", "1": "4Gi", "unknown": "0"} == buckets(first, "memory")
    assert {"0": "18", "1": "12", "unknown": "0"} == buckets(last, "cpu")
    assert {"0": "8Gi", "1": "8Gi", "unknown": "0"} == buckets(last, "memory")
    assert [] == first["alerts"]
    assert ["numa_spanned"] == [alert["alert"] for alert in last["alerts"]]
    text = told(store, "--numa")
    assert "derived, by NUMA node" in text
    assert "numa_spanned ml/wide-0" in text


def test_the_end_is_what_the_example_promises(store):
    """Of 64 CPUs the recorded book leaves 35.75 free, the derived one 25.75, and two differences are true."""
    found = ledger(store)
    assert ("35750m", "25750m") == tuple(balance(found, book=b)["free"] for b in ("recorded", "derived"))
    assert {PAIR: "allocated_before_counting", SIM_1: "mapping_changed"} == {
        about: d["cause"] for about, d in drifts(found).items()
    }


def test_without_a_node_there_is_a_line_for_each(store):
    """Verdict, what is free by both books, and what is wrong."""
    mix_1, mix_2 = rows("ledger", db=store)
    assert ("mix-1", "canary", "open", "", "35750m", "25750m", 2, 0) == tuple(
        mix_1[k]
        for k in (
            "node",
            "node_class",
            "verdict",
            "holds",
            "free_cpu",
            "free_cpu_derived",
            "drifts",
            "refused",
        )
    )
    assert ("mix-2", "stable", "open", 0) == tuple(
        mix_2[k] for k in ("node", "node_class", "verdict", "drifts")
    )


def test_the_summary_of_a_replay_tells_what_was_found_and_what_still_stands(store):
    """Both duplicates were withdrawn; the views have as many differences, of which two last."""
    found = rows("audit", "ledger-drift", db=store)
    assert 2 == sum(row["ended_at"] is None for row in found)
    done = ok("replay", example("double-count"), "--db", store, "--quiet")
    assert (
        f"ledger: 0 nodes on hold, {len(found)} differences between the books (2 standing), 2 refused duplicates (0 standing)"
    ) in done.out
    (summary,) = ok("replay", example("double-count"), "--db", store, "--quiet", "-o", "json").json_lines()
    assert (len(found), 2, 2, 0) == tuple(
        summary[k] for k in ("drifts", "open_drifts", "refused_duplicates", "standing_duplicates")
    )


def test_the_moment_that_was_asked_for_is_told(store):
    """Next to the version, which is that moment's."""
    now, then = ledger(store), ledger(store, *as_of("08:04:00"), "--known-at", "90")
    assert (None, None) == (now["as_of"], now["known_at"])
    assert (at("08:04:00"), {"0": 90}) == (then["as_of"], then["known_at"])
    assert f"ledger version {then['ledger_version']}, as of {at('08:04:00')}, as known at 0:90" in told(
        store, *as_of("08:04:00"), "--known-at", "90"
    )
    assert now["ledger_version"] != then["ledger_version"]


def test_every_reason_and_every_cause_has_words(store):
    """What may be shown can be explained."""
    assert (set(get_args(HoldReason)), set(get_args(DriftCause))) == (set(HOLD_WORDS), set(DRIFT_WORDS))


# --- forms -------------------------------------------------------------------------------------------------------------------


def test_the_forms_say_the_same(store):
    """JSON has everything, CSV the balances, or the entries, or the journal; a table names the same figures."""
    found = ledger(store, "--entries", "--journal")
    csv_rows = ok("ledger", "mix-1", "--db", store, "-o", "csv").csv_rows()
    assert found["balances"] == csv_rows
    numa = ok("ledger", "mix-1", "--numa", "--db", store, "-o", "csv").csv_rows()
    assert len(found["balances"]) + len(found["numa"]) == len(numa)
    entries = ok("ledger", "mix-1", "--entries", "--db", store, "-o", "csv").csv_rows()
    assert [entry["key"] for entry in found["entries"]] == [row["key"] for row in entries]
    journal = ok("ledger", "mix-1", "--journal", "--db", store, "-o", "csv").csv_rows()
    assert [(str(r["log_offset"]), r["amount"]) for r in found["journal"]] == [
        (r["log_offset"], r["amount"].removeprefix("'")) for r in journal
    ]
    text = told(store, "--entries", "--journal", "--devices", "--counters")
    for title in ("devices: capacity", "counters of", "entries that stand", "journal"):
        assert f"\n{title}" in text


def test_the_journal_adds_up_to_the_balances(store):
    """A balance is the sum of what was posted and taken back."""
    found = ledger(store, "--journal")
    cpu = [r for r in found["journal"] if r["resource"] == "cpu" and r["account"] == "claims"]

    def millis(text):
        return int(text[:-1]) if text.endswith("m") else 1000 * int(text)

    assert 20_000 == sum(millis(r["amount"]) for r in cpu if r["book"] == "recorded")
    assert 30_000 == sum(millis(r["amount"]) for r in cpu if r["book"] == "derived")
    assert {"posted", "reversed"} == {r["direction"] for r in cpu}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("mix-9",), "the ledger has no node 'mix-9'; it has mix-1, mix-2"),
        (("mix-1", *as_of("07:00:00")), "the ledger has no node 'mix-1' at that moment; it has none"),
        (("mix-1", "--known-at", "99999"), "name one up to it"),
        (("mix-1", "--known-at", "8:1"), "has the partitions 0 to 7"),
        (
            ("--known-at", "10"),
            "--known-at 10 names no partition, and the question no node; write it as 0:10",
        ),
    ],
)
def test_what_is_not_there_is_named_with_what_is(store, arguments, problem):
    assert problem in refused("ledger", *arguments, "--db", store, code=2)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--numa",), "go with a NODE"),
        (("mix-1", "--entries", "--journal", "-o", "csv"), "CSV has one table"),
        (("mix-1", "--known-at", "0:1,0:2"), "partition 0 is named twice"),
        (("mix-1", "--known-at", "-1"), "is no PARTITION:OFFSET"),
        (("mix-1", "--known-at", "0:"), "is no PARTITION:OFFSET"),
    ],
)
def test_what_is_no_question_is_a_usage_error(store, arguments, problem):
    assert problem in misused("ledger", *arguments, "--db", store)


# --- what was known ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shorter(store, tmp_path_factory):
    """The store as it stood when two thirds of each partition were written, and the positions of that."""
    path = tmp_path_factory.mktemp("shorter") / "shorter.db"
    with (
        Store.open(store, read_only=True) as whole,
        Store.open(path, create=True, partitions=whole.partitions, source_id=whole.source_id) as part,
    ):
        for partition, position in whole.positions().items():
            part.write(list(whole.read(partition, limit=position.next_offset * 2 // 3)))
        known = ",".join(f"{p}:{position.next_offset}" for p, position in part.positions().items())
    return path, known


@pytest.mark.parametrize(
    "question",
    [("ledger",), ("gate", "status"), ("audit", "alerts"), ("episodes",)],
    ids=" ".join,
)
def test_an_answer_of_a_store_whose_replay_was_interrupted_says_so(store, shorter, question):
    """Beside the answer, and only there."""
    path, _ = shorter
    assert (
        f"note: the replay into {path} was interrupted, and this is of the log so far"
        in ok(*question, "--db", path).err
    )
    assert "" == ok(*question, "--db", store).err


@pytest.mark.parametrize(
    "question",
    [
        ("ledger",),
        ("ledger", "mix-1", "--entries", "--journal"),
        ("ledger", "mix-1", "--as-of", "2026-07-01T08:04:00Z"),
        ("episodes",),
        ("audit", "ledger-balances"),
        ("audit", "devices"),
        ("audit", "ledger-holds"),
    ],
    ids=" ".join,
)
def test_what_was_known_is_what_a_store_of_that_length_says(store, shorter, question):
    """Every question answers at a position as it was answered then."""
    path, known = shorter
    short, then = rows(*question, db=path), rows(*question, "--known-at", known, db=store)
    assert [row | {"known_at": None} for row in short] == [row | {"known_at": None} for row in then]


def test_a_bare_offset_is_one_of_the_nodes_partition(store, shorter):
    """For a question about one node the partition need not be named."""
    _, known = shorter
    positions = dict(part.split(":") for part in known.split(","))
    partition = str(ledger(store, "--journal")["journal"][0]["partition_number"])
    assert ledger(store, "--known-at", f"{partition}:{positions[partition]}") == ledger(
        store, "--known-at", positions[partition]
    )
    assert rows(
        "audit", "ledger-entries", "--where", "node=mix-1", "--known-at", positions[partition], db=store
    )


# --- exported and compared ---------------------------------------------------------------------------------------------------


def exported(store, path, *arguments):
    ok("export", "ledger", *arguments, "--file", path, "--db", store)
    return path


def checked(path, *arguments, code=0):
    return ok("import", path, "--check", *arguments, "-o", "json", code=code)


def test_an_export_is_the_same_bytes_every_time_and_equal_to_its_store(store, tmp_path):
    """To a file and to standard output."""
    one = exported(store, tmp_path / "one.jsonl")
    piped = ok("export", "ledger", "--db", store, cwd=tmp_path)
    assert one.read_text(encoding="utf-8") == piped.out
    done = checked(one, "--db", store)
    assert ([], "") == (done.json_lines(), done.err)
    assert "are equal as of 2026-07-01T08:" in ok("import", one, "--check", "--db", store).out
    again = ok("import", "-", "--check", "--db", store, "-o", "json", stdin=piped.out.encode())
    assert [] == again.json_lines()


def test_an_export_says_where_its_log_stood(store, tmp_path):
    """The positions and chain heads are those of the store."""
    header, *nodes = exported(store, tmp_path / "x.jsonl").read_text(encoding="utf-8").splitlines()
    with Store.open(store, read_only=True) as opened:
        assert {
            str(number): {"next_offset": p.next_offset, "chain_head": p.chain_head.hex()}
            for number, p in opened.positions().items()
        } == json.loads(header)["positions"]
    found = [json.loads(line) for line in nodes]
    assert ["mix-1", "mix-2"] == [node["node"] for node in found]
    assert ledger(store)["ledger_version"] == found[0]["ledger_version"]
    shown = {(b["book"], b["resource"]): b for b in ledger(store)["balances"]}
    assert shown == {
        (b["book"], b["resource"]): b for b in found[0]["balances"] if (b["book"], b["resource"]) in shown
    }


def test_an_export_of_what_was_known_then_is_that_of_the_shorter_store(store, shorter, tmp_path):
    """Byte for byte, chain heads included."""
    path, known = shorter
    then = exported(store, tmp_path / "then.jsonl", "--known-at", known)
    short = exported(path, tmp_path / "short.jsonl")
    assert short.read_bytes() == then.read_bytes()


def test_an_export_of_an_interrupted_store_says_so(shorter, tmp_path):
    path, _ = shorter
    assert "was interrupted" in ok("export", "ledger", "-o", tmp_path / "x.jsonl", "--db", path).err


def test_another_moment_differs_and_every_difference_is_named(store, tmp_path):
    """Before the first Pod of two goes, and at the end."""
    early = exported(store, tmp_path / "early.jsonl", "--at", "2026-07-01T08:04:00Z")
    late = exported(store, tmp_path / "late.jsonl")
    done = checked(early, "--against", late, code=6)
    differences = done.json_lines()
    assert {"mix-1"} == {d["node"] for d in differences}
    assert {"entry", "balance"} <= {d["what"] for d in differences}
    (cpu,) = [d for d in differences if d["about"] == "recorded/cpu"]
    assert ("claims 22", "claims 20") == tuple(
        next(part for part in cpu[side].split(", ") if part.startswith("claims "))
        for side in ("one", "other")
    )
    assert "is as of 2026-07-01T08:04:00.000Z" in done.err
    assert f"differ in {len(differences)} places" in done.err
    assert [] == checked(early, "--db", store).json_lines()


def test_rules_that_count_otherwise_differ_in_the_derived_book(store, tmp_path):
    """The same recording under the rules of 1.36: the claim that this scheduler skips is missing, and nothing else."""
    policy = tmp_path / "old.yaml"
    policy.write_text(OLD_RULES, encoding="utf-8")
    replay(example("double-count"), "--policy", policy, db=tmp_path / "old.db")
    done = checked(exported(store, tmp_path / "exact.jsonl"), "--db", tmp_path / "old.db", code=6)
    assert {"derived"} == {d["about"].split("/")[0] for d in done.json_lines()}
    (cpu,) = [d for d in done.json_lines() if d["about"] == "derived/cpu"]
    assert [("claims 30", "free 25750m"), ("claims 24", "free 31750m")] == [
        tuple(part for part in cpu[side].split(", ") if part.startswith(("claims ", "free ")))
        for side in ("one", "other")
    ]
    assert "is not the one that the file was exported from" in done.err


def test_only_the_nodes_that_were_asked_for_are_compared(store, tmp_path):
    """An export of one node is equal to its store, and to an export of all."""
    one = exported(store, tmp_path / "one.jsonl", "--node", "mix-2")
    everything = exported(store, tmp_path / "all.jsonl")
    assert 2 == len(one.read_text(encoding="utf-8").splitlines())
    assert [] == checked(one, "--db", store).json_lines()
    assert [] == checked(everything, "--against", one).json_lines()


def test_nothing_is_written_over_unless_asked(store, tmp_path):
    path = exported(store, tmp_path / "x.jsonl", "--node", "mix-2")
    before = path.read_bytes()
    assert "there is a file already" in refused("export", "ledger", "--file", path, "--db", store, code=2)
    assert before == path.read_bytes()
    assert before != exported(store, path, "--force").read_bytes()
    assert [path] == list(tmp_path.iterdir())


@pytest.mark.parametrize("form", ["json", "table", "csv"])
def test_a_form_is_not_taken_for_the_file_of_an_export(store, tmp_path, form):
    """-o is the file here; a file of such a name can be had."""
    assert f"-o {form}: -o names the file here" in misused("export", "ledger", "-o", form, "--db", store)
    ok("export", "ledger", "-o", f"./{form}", "--db", store, cwd=tmp_path)
    assert [tmp_path / form] == list(tmp_path.iterdir())


def test_an_import_only_compares(store, tmp_path):
    """Without --check it is refused with the reason, and the store is as before with it."""
    path = exported(store, tmp_path / "x.jsonl")
    before = log_of(store)
    assert "a ledger is derived from its log" in misused("import", path, "--db", store)
    checked(path, "--db", store)
    assert before == log_of(store)


def test_a_file_that_was_changed_is_refused(store, tmp_path):
    """A digest tells."""
    path = exported(store, tmp_path / "x.jsonl")
    whole = path.read_bytes()
    for one, other in ((b'"stable"', b'"canary"'), (b'"at_ms":17', b'"at_ms":16')):
        path.write_bytes(whole.replace(one, other, 1))
        assert "was cut or changed" in refused("import", path, "--check", "--db", store, code=2)
    path.write_bytes(b"[" * 100_000)
    assert "is no exported ledger" in refused("import", path, "--check", "--db", store, code=2)
    other = write(tmp_path / "r.jsonl", ["{}"])
    assert "is no exported ledger" in refused("import", other, "--check", "--db", store, code=2)
    assert "cannot be read" in refused("import", tmp_path / "none", "--check", "--db", store, code=2)


def test_a_node_that_is_not_there_cannot_be_exported(store):
    assert "the ledger has no node mix-9 at that moment" in refused(
        "export", "ledger", "--node", "mix-9", "--db", store, code=2
    )


# --- promotion ---------------------------------------------------------------------------------------------------------------


def report(store, *arguments):
    return {found["node_class"]: found for found in rows("promotion", *arguments, db=store)}


def criteria(found):
    return {c["name"]: (c["met"], c["found"], c["wanted"]) for c in found["criteria"]}


def test_the_canary_of_the_example_is_not_ready_for_want_of_time(store):
    """One driver was rebuilt, holds were short, nothing is unexplained: only the day without a difference is missing."""
    found = report(store)["canary"]
    assert ("not ready", ["mix-1"], {"dra.cpu": 1, "gpu.nvidia.com": 1}, 1) == tuple(
        found[k] for k in ("verdict", "nodes", "drivers", "drills")
    )
    met = criteria(found)
    assert ["window_ms"] == [name for name, (is_met, *_) in met.items() if not is_met]
    assert 86_400_000 == met["window_ms"][2]


def test_the_stable_class_went_through_nothing(store):
    """No rebuild there."""
    found = report(store, "--class", "stable")
    assert ["stable"] == list(found)
    assert (False, 0, 1) == criteria(found["stable"])["drills"]


def test_a_day_later_the_canary_is_ready(copy_of):
    """A request moves the time on by a day; the report of the time before stays what it was."""
    store = copy_of("double-count")
    before = report(store, *as_of("08:40:00"))
    asked = ("--at", "2026-07-02T08:50:00Z", "--actor", "ann", "--reason", "daily check")
    ok("gate", "open", "node:mix-1", *asked, "--db", store)
    assert "ready" == report(store)["canary"]["verdict"]
    assert before == report(store, *as_of("08:40:00"))
    assert "class canary: ready" in ok("promotion", "--class", "canary", "--db", store).out


def test_time_after_the_log_ended_makes_no_canary_ready(store):
    """Nobody watched then, so the window without a difference is as long as the log and no longer."""
    found = report(store, "--as-of", "2026-07-09T08:50:00Z")["canary"]
    assert "not ready" == found["verdict"]
    assert criteria(report(store)["canary"])["window_ms"] == criteria(found)["window_ms"]


def test_a_closed_gate_is_a_drill_once_it_is_open_again(copy_of):
    """And counts as a hold."""
    store = copy_of("double-count")
    for action, time in (("close", "08:51:00"), ("open", "08:52:00")):
        ok("gate", action, "cluster", "--at", at(time), "--reason", "drill", "--db", store)
    stable = report(store)["stable"]
    assert (1, 1, 60_000) == (stable["drills"], stable["holds"], stable["hold_max_ms"])
    csv_rows = ok("promotion", "--db", store, "-o", "csv").csv_rows()
    assert ["1"] == [r["met"] for r in csv_rows if (r["node_class"], r["criterion"]) == ("stable", "drills")]


def test_before_the_log_there_is_no_policy_to_judge_by(store):
    assert "the log holds no policy at that time" in refused(
        "promotion", *as_of("07:00:00"), "--db", store, code=2
    )


# --- what-if and verify ------------------------------------------------------------------------------------------------------


def test_what_if_names_the_under_count_that_other_rules_foresee(tmp_path):
    """Under the rules of 1.36 the difference is predicted, and the derived book has nothing of it."""
    policy = tmp_path / "old.yaml"
    policy.write_text(OLD_RULES, encoding="utf-8")
    (found,) = [
        row
        for row in ok("what-if", example("double-count"), "--policy", policy, "-o", "json").json_lines()
        if f"about {PAIR}, " in row["base"]
    ]
    assert ("moves", "mix-1", "difference of the ledger") == (found["change"], found["node"], found["what"])
    assert f"about {PAIR}, derived cpu=6, predicted 0" == found["base"]
    assert f"about {PAIR}, derived nothing, predicted 1" == found["other"]


def test_what_if_names_holds_that_last_longer(tmp_path):
    """Twice the time to settle after a driver's restart."""
    policy = tmp_path / "slow.yaml"
    policy.write_text("version: slow\nledger:\n  rebuild_settle_ms: 60000\n", encoding="utf-8")
    done = ok("what-if", example("double-count"), "--policy", policy, "-o", "json")
    (found,) = [r for r in done.json_lines() if "reason driver_rebuilding" in r["base"]]
    assert ("moves", "hold") == (found["change"], found["what"])
    assert found["base"].endswith(f"held_until {at('08:26:10')}")
    assert found["other"].endswith(f"held_until {at('08:26:40')}")


def test_verify_counts_the_ledger_again(store):
    """It names how many ledgers and entries it held against the objects."""
    (result,) = ok("verify", "--db", store, "-o", "json").json_lines()
    assert (2, len(rows("audit", "ledger-entries", db=store))) == (result["ledgers"], result["entries"])
    assert verified(store) == result["digests"]
