"""The claims gate, closed and opened by people in a store that a replay left."""

from __future__ import annotations

import time

import pytest
from cli import example, log_of, misused, ok, refused, replay, rows, verified
from cli_recordings import frame, pod, write

from projections.engine import Store
from sickbay.cli import requesting
from sickbay.cli.requesting import append
from sickbay.errors import StoreError
from sickbay.facts import ClaimsGateRequested

AT, LATER, LAST = (("--at", f"2026-07-01T08:{minute}:00Z") for minute in (51, 52, 53))
ANN = ("--actor", "ann", "--reason", "driver upgrade, ticket 4711")
BOB = ("--actor", "bob", "--reason", "checked")
GPU = "driver:gpu.nvidia.com"
NOT_REFUSED = dict.fromkeys(
    ("refused_at", "refused_actor", "refused_reason", "refused_ledger_version"),
)


@pytest.fixture
def store(copy_of):
    """Two nodes, both open, with the drivers dra.cpu and gpu.nvidia.com on each."""
    return copy_of("double-count")


def gate(*arguments, store):
    return ok("gate", *arguments, "--db", store, "-o", "json")


def verdicts(done):
    return {row["node"]: (row["verdict"], row["holds"]) for row in done.json_lines()}


def version_of(node, store):
    """The version of a node's ledger, as a request that changes nothing tells it."""
    done = gate("open", f"node:{node}", *AT, "--actor", "eve", "--reason", "looking", store=store)
    (row,) = done.json_lines()
    return row["ledger_version"]


def test_a_closed_gate_holds_every_node_that_hears_of_it(store):
    """The cluster's gate holds both nodes, and opening it lets both go; everything is in the log and proven."""
    closed = gate("close", "cluster", *AT, *ANN, store=store)
    assert dict.fromkeys(("mix-1", "mix-2"), ("hold", "claims_gate_closed cluster")) == verdicts(closed)
    opened = gate("open", "cluster", *LATER, *BOB, store=store)
    assert dict.fromkeys(("mix-1", "mix-2"), ("open", "")) == verdicts(opened)
    assert "" == closed.err + opened.err
    verified(store)


def test_the_gate_of_a_node_is_that_nodes_alone(store):
    """The other stays open, and is not told of."""
    assert {"mix-2": ("hold", "claims_gate_closed node")} == verdicts(
        gate("close", "node:mix-2", *AT, *ANN, store=store)
    )
    (row,) = rows("ledger", "mix-1", db=store)
    assert "open" == row["verdict"]
    verified(store)


def test_the_gate_of_a_driver_holds_the_nodes_that_it_publishes_on(store):
    """A driver that is nowhere yet holds none, and its gate is closed all the same when it comes."""
    assert {"hold"} == {
        verdict for verdict, _ in verdicts(gate("close", GPU, *AT, *ANN, store=store)).values()
    }
    nowhere = ok("gate", "close", "driver:nic.example.com", *AT, *ANN, "--db", store)
    assert "recorded; no node hears of driver:nic.example.com now\n" == nowhere.out
    assert {GPU: 2, "driver:nic.example.com": 0} == {
        row["gate"]: row["nodes_on_hold"] for row in rows("gate", "status", db=store)
    }
    verified(store)


def test_gates_of_several_scopes_do_not_open_one_another(store):
    """Who opened the cluster has not opened the node."""
    gate("close", "cluster", *AT, *ANN, store=store)
    assert {"mix-1": ("hold", "claims_gate_closed cluster; claims_gate_closed node")} == verdicts(
        gate("close", "node:mix-1", *AT, *ANN, store=store)
    )
    assert {"mix-1": ("hold", "claims_gate_closed node"), "mix-2": ("open", "")} == verdicts(
        gate("open", "cluster", *LATER, *BOB, store=store)
    )


def test_status_says_which_gate_is_closed_by_whom_and_why(store):
    """One line for each gate, with the newest request."""
    assert "no gate was ever closed or opened\n" == ok("gate", "status", "--db", store).out
    gate("close", "cluster", *AT, *ANN, store=store)
    gate("close", "node:mix-2", *AT, *ANN, store=store)
    gate("open", "cluster", *LATER, *BOB, store=store)
    assert [
        {
            "gate": "cluster",
            "state": "open",
            "since": "2026-07-01T08:52:00.000Z",
            "actor": "bob",
            "reason": "checked",
            "nodes_on_hold": 0,
        }
        | NOT_REFUSED,
        {
            "gate": "node:mix-2",
            "state": "closed",
            "since": "2026-07-01T08:51:00.000Z",
            "actor": "ann",
            "reason": "driver upgrade, ticket 4711",
            "nodes_on_hold": 1,
        }
        | NOT_REFUSED,
    ] == rows("gate", "status", db=store)


def test_a_gate_opens_for_the_ledger_that_was_checked(store):
    """With its version the gate opens."""
    version = version_of("mix-2", store)
    gate("close", "node:mix-2", *LATER, *ANN, store=store)
    opened = gate("open", "node:mix-2", *LAST, *BOB, "--ledger-version", version, store=store)
    assert ({"mix-2": ("open", "")}, "") == (verdicts(opened), opened.err)
    verified(store)


def test_a_gate_stays_closed_when_the_ledger_is_another_by_now(store):
    """The request stands in the log, and the note names the version that would do."""
    version = version_of("mix-2", store)
    gate("close", "node:mix-2", *LATER, *ANN, store=store)
    kept = gate("open", "node:mix-2", *LAST, *BOB, "--ledger-version", "0123456789abcdef", store=store)
    assert {"mix-2": ("hold", "claims_gate_closed node")} == verdicts(kept)
    assert (
        f"recorded, and the gate of node:mix-2 stays closed: its ledger is {version} by now and not 0123456789abcdef"
        in kept.err
    )
    (status,) = rows("gate", "status", db=store)
    assert {
        "gate": "node:mix-2",
        "state": "closed",
        "since": "2026-07-01T08:52:00.000Z",
        "actor": "ann",
        "reason": "driver upgrade, ticket 4711",
        "nodes_on_hold": 1,
        "refused_at": "2026-07-01T08:53:00.000Z",
        "refused_actor": "bob",
        "refused_reason": "checked",
        "refused_ledger_version": "0123456789abcdef",
    } == status
    text = ok("gate", "status", "--db", store).out
    assert (
        "node:mix-2: bob asked at 2026-07-01T08:53:00.000Z to open it (checked), which was refused: it named the ledger"
        " 0123456789abcdef, and the node had another\n"
    ) in text
    verified(store)


def test_a_refused_opening_is_forgotten_once_the_gate_is_closed_again(store):
    """The newest request was followed, so nothing of the one before is left to tell; the gate is closed since it was first."""
    for arguments in (
        ("close", "node:mix-2", *AT, *ANN),
        ("open", "node:mix-2", *LATER, *BOB, "--ledger-version", "0123456789abcdef"),
        ("close", "node:mix-2", *LAST, *BOB),
    ):
        gate(*arguments, store=store)
    (status,) = rows("gate", "status", db=store)
    assert ("closed", "2026-07-01T08:51:00.000Z", "ann", None) == tuple(
        status[k] for k in ("state", "since", "actor", "refused_at")
    )


def test_a_closing_that_came_too_late_closed_nothing(store):
    """It stands in the log, the nodes are open, and the status says both."""
    done = gate("close", "cluster", "--at", "2026-06-01T08:00:00Z", *ANN, store=store)
    assert {("open", "")} == set(verdicts(done).values())
    assert (
        "the gate of cluster stays open: it is of 2026-06-01T08:00:00.000Z, which is beyond the lateness horizon"
        in done.err
    )
    (status,) = rows("gate", "status", db=store)
    assert ("open", None, "", "2026-06-01T08:00:00.000Z", "ann", None) == tuple(
        status[k]
        for k in ("state", "since", "actor", "refused_at", "refused_actor", "refused_ledger_version")
    )
    assert (
        "to close it (driver upgrade, ticket 4711), which was refused: it came later than the lateness horizon"
        in (ok("gate", "status", "--db", store).out)
    )


def test_the_gate_of_a_node_without_a_verdict_is_what_was_asked_last(tmp_path):
    """No verdict says otherwise."""
    recording = write(tmp_path / "r.jsonl", [frame("08:00:00", "ADDED", pod("a", "GPU-1", "Healthy", 1))])
    replay(recording, db=tmp_path / "s.db")
    ok("gate", "close", "node:node-1", "--at", "2026-07-01T08:01:00Z", *ANN, "--db", tmp_path / "s.db")
    (status,) = rows("gate", "status", db=tmp_path / "s.db")
    assert ("closed", 0, "ann") == tuple(status[k] for k in ("state", "nodes_on_hold", "actor"))


def test_what_changes_nothing_says_that_it_was_so_already(store):
    """An opening of an open gate, and a closing that is asked twice."""
    opened = gate("open", "node:mix-1", *AT, *BOB, store=store)
    assert "recorded, and nothing changes: the gate of node:mix-1 was open already\n" == opened.err
    assert "" == gate("close", "cluster", *LATER, *ANN, store=store).err
    again = gate("close", "cluster", *LATER, *ANN, store=store)
    assert "recorded, and nothing changes: the gate of cluster was closed already\n" == again.err


def test_an_opening_that_is_asked_again_is_refused_again(store):
    """With the same cause."""
    version = version_of("mix-2", store)
    wrong = version[::-1]
    gate("close", "node:mix-2", *LATER, *ANN, store=store)
    again = ("open", "node:mix-2", *LAST, *BOB, "--ledger-version", wrong)
    told = [gate(*again, store=store).err for _ in range(2)]
    assert told[0] == told[1]
    assert f"its ledger is {version} by now and not {wrong}" in told[0]


def test_an_older_request_changes_nothing(store):
    """The newest request for a scope decides, whenever the others arrive; a note says so."""
    gate("open", "cluster", *LATER, *BOB, store=store)
    late = gate("close", "cluster", *AT, *ANN, store=store)
    assert {("open", "")} == set(verdicts(late).values())
    assert (
        "recorded, and the gate of cluster stays open: a newer request decides, that of bob at 2026-07-01T08:52:00.000Z"
    ) in late.err
    verified(store)


def test_the_same_request_again_is_one_request(store):
    """What has the same words and time has the same id, and is in each partition once."""
    gate("close", "cluster", *AT, *ANN, store=store)
    before = log_of(store)
    assert {("hold", "claims_gate_closed cluster")} == set(
        verdicts(gate("close", "cluster", *AT, *ANN, store=store)).values()
    )
    assert before == log_of(store)


def test_the_audit_says_who_asked(store):
    """In every partition that heard of it."""
    gate("close", "cluster", *AT, *ANN, store=store)
    asked = rows("audit", "requests", "--where", "kind=claims_gate_requested", db=store)
    assert {("ann", "cluster", 1, "driver upgrade, ticket 4711")} == {
        (row["actor"], row["scope"], row["closed"], row["reason"]) for row in asked
    }
    assert list(range(8)) == [row["partition_number"] for row in asked]


def cluster_request(number):
    return ClaimsGateRequested(
        node="", partition=number, observed_at_ms=1_782_896_000_000, request_id="r", device_id="", actor="ann",
        scope="cluster", closed=True, reason="x",
    )  # fmt: skip


def overtaken(store, times):
    """Ask while somebody else asks so many times before the request is written; return the verdicts of the fold."""
    left = [f"--at=2026-07-01T09:00:{n:02}Z" for n in range(times)]

    def overtake(_fold):
        if left:
            gate("close", "node:mix-1", left.pop(), *ANN, store=store)

    with Store.open(store) as mine:
        fold, _ = append(mine, {n: cluster_request(n) for n in range(8)}, check=overtake)
    return {
        name: {hold.scope for hold in state.announced.verdict.holds}
        for partition in fold.partitions.values()
        for name, state in partition.ledgers.items()
    }


def test_a_request_that_is_overtaken_is_folded_again(store):
    """Both requests stand, each in the state that the other left."""
    assert {"mix-1": {"cluster", "node"}, "mix-2": {"cluster"}} == overtaken(store, 1)
    assert 9 == len(rows("audit", "requests", db=store))
    verified(store)


def test_a_request_that_is_overtaken_often_waits_longer_each_time_and_is_written(store, monkeypatch):
    """Ten writers that come first do not make it give up."""
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    assert {"mix-1": {"cluster", "node"}, "mix-2": {"cluster"}} == overtaken(store, 10)
    assert sorted(pauses) == pauses
    assert (10, 2.0) == (len(pauses), pauses[-1])
    assert 18 == len(rows("audit", "requests", db=store))


@pytest.mark.parametrize(("patience_s", "times"), [(1e9, 20), (-1.0, 3)])
def test_a_request_that_is_overtaken_all_the_time_gives_up(store, monkeypatch, patience_s, times):
    """After twenty times, or when its time is over; nothing of it is written, and who asks is told to ask again."""
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(requesting, "_PATIENCE_S", patience_s)
    with pytest.raises(StoreError, match="somebody else keeps writing; ask again"):
        overtaken(store, 59)
    assert ["node"] * times == [row["scope"] for row in rows("audit", "requests", db=store)]


def test_a_request_that_another_writer_meets_while_it_is_written_is_folded_again(store, monkeypatch):
    """Its links do not fit any more, and that is no error of whoever asks."""
    monkeypatch.setattr(time, "sleep", lambda _: None)
    written, other = Store.write, []

    def write(self, records, **options):
        if not other:
            other.append(gate("close", "node:mix-1", "--at=2026-07-01T09:00:00Z", *ANN, store=store))
        return written(self, records, **options)

    monkeypatch.setattr(Store, "write", write)
    assert {"mix-1": {"cluster", "node"}, "mix-2": {"cluster"}} == overtaken(store, 0)
    monkeypatch.undo()
    verified(store)


@pytest.mark.parametrize(
    "command",
    [
        ("gate", "close", "cluster", *ANN),
        ("hold", "dra:x", "--until", "2099-01-01T00:00:00Z", "--reason", "x"),
        ("release", "last", "--reason", "x"),
    ],
    ids=lambda command: command[0],
)
def test_an_empty_store_takes_no_request_and_stays_empty(tmp_path, command):
    """Whose log it is, the first replay says."""
    path = tmp_path / "empty.db"
    ok("migrate", "--db", path)
    assert "holds no events yet; `sickbay replay" in refused(*command, "--db", path, code=5)
    replay(example("double-count"), "--until", "2026-07-01T08:01:00Z", db=path)


def test_a_store_whose_replay_stopped_halfway_takes_no_request(stores, tmp_path):
    """A request would stand where the replay goes on."""
    path = tmp_path / "halfway.db"
    with (
        Store.open(stores["double-count"], read_only=True) as whole,
        Store.open(path, create=True, partitions=whole.partitions, source_id=whole.source_id) as half,
    ):
        for partition, position in whole.positions().items():
            half.write(list(whole.read(partition, limit=position.next_offset // 2)))
    for command in (
        ("gate", "close", "cluster", *ANN),
        ("gate", "close", "node:none", *ANN),
        ("hold", "dra:none", "--until", "2099-01-01T00:00:00Z", "--reason", "x"),
        ("release", "none", "--reason", "x"),
    ):
        assert "run the replay again to its end first" in refused(*command, "--db", path, code=5)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("close", "node:none", *ANN), "the store knows no node 'none'; `sickbay ledger` lists the nodes"),
        (("close", "cluster", "--reason", " "), "--reason is empty"),
        (("close", "cluster", "--reason", "x", "--actor", ""), "--actor is empty"),
    ],
)
def test_a_request_without_words_or_a_target_is_refused(store, arguments, problem):
    """The refusal names what is missing, and nothing is written."""
    before = log_of(store)
    assert problem in refused("gate", *arguments, *AT, "--db", store, code=2)
    assert before == log_of(store)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("close",), "name a scope: cluster, driver:NAME or node:NAME"),
        (("close", "gpu-a1", *ANN), "'gpu-a1' is no scope; write cluster, driver:NAME or node:NAME"),
        (("open", "node:", *ANN), "'node:' is no scope"),
        (("open", "cluster"), "Missing option '--reason'"),
        (
            ("open", "cluster", *ANN, "--ledger-version", "x"),
            "--ledger-version goes with `gate open node:NAME`",
        ),
        (
            ("close", "node:mix-1", *ANN, "--ledger-version", "x"),
            "--ledger-version goes with `gate open node:NAME`",
        ),
        (("status", "cluster"), "gate status takes no scope"),
    ],
)
def test_what_is_no_gate_command_is_a_usage_error(store, arguments, problem):
    """The usage, and what to write instead."""
    assert problem in misused("gate", *arguments, "--db", store)


def test_a_node_that_only_custody_knows_has_no_gate_to_tell_of(tmp_path):
    """Without its Node object or a pool there is no verdict; the request is recorded and applies when there is one."""
    recording = write(tmp_path / "r.jsonl", [frame("08:00:00", "ADDED", pod("a", "GPU-1", "Healthy", 1))])
    replay(recording, db=tmp_path / "s.db")
    done = ok("gate", "close", "node:node-1", "--at", "2026-07-01T08:01:00Z", *ANN, "--db", tmp_path / "s.db")
    assert "recorded; no node hears of node:node-1 now\n" == done.out
