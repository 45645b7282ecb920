"""Exported ledgers: whole or refused, the same bytes for the same ledger, and every difference named."""

from __future__ import annotations

import json
from hashlib import sha256

import pytest

from sickbay.decisions import Amount, Entry, Hold, ledger_version
from sickbay.errors import InputError
from sickbay.ledger_export import Difference, LogPosition, compared, node_ledger, read, written

AT_MS = 1_782_892_800_000
POSITIONS = {3: LogPosition(next_offset=12, chain_head="ab"), 0: LogPosition(next_offset=7, chain_head="cd")}


def amount(quantity, resource="cpu", numa="unknown"):
    return Amount(resource, numa, quantity)


def entry(book, key, account, *amounts, **more):
    return Entry(book=book, key=key, account=account, amounts=amounts, at_ms=AT_MS, **more)


def supply(*amounts):
    return entry("common", "node/uid-1", "supply", *amounts)


def pod(name, *amounts, **more):
    return entry("common", f"pod/{name}", "pods", *amounts, **more)


def claim(name, *amounts):
    return entry("recorded", f"claim/{name}", "claims", *amounts)


def ledger(node="node-1", *entries, **more):
    return node_ledger(node, entries or (supply(amount("8")), pod("a", amount("500m"))), **more)


def lines(*ledgers, **more):
    return written(ledgers, at_ms=AT_MS, positions=POSITIONS, **more)


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def differences(one, other):
    return compared({one.node: one}, {other.node: other})


# --- what is written ---------------------------------------------------------------------------------------------------------


def test_a_file_that_is_read_back_is_what_was_written():
    """Header and ledgers come back whole, with every field of verdict and entries."""
    hold = Hold(reason="slice_missing", scope="ml/c", since_ms=AT_MS, detail="gone")
    first = ledger("node-1", verdict="hold", holds=(hold,), node_class="canary", drivers=("b", "a"))
    second = ledger("node-2", verdict="open", node_class="stable")
    header, ledgers = read(lines(second, first, only=("node-2", "node-1")), "x.jsonl")
    assert {"node-1": first, "node-2": second} == ledgers
    assert ("sickbay-ledger", 1, AT_MS, 2) == (header.format, header.version, header.at_ms, header.nodes)
    assert POSITIONS == header.positions
    assert ("node-1", "node-2") == header.only
    assert ("a", "b") == ledgers["node-1"].drivers


def test_equal_ledgers_give_equal_bytes():
    """The order in which nodes, entries and positions come makes no difference."""
    one, two = supply(amount("8")), pod("a", amount("1"))
    forth = lines(ledger("node-1", one, two), ledger("node-2"))
    assert forth == written(
        [ledger("node-2"), ledger("node-1", two, one)],
        at_ms=AT_MS,
        positions=dict(reversed(POSITIONS.items())),
    )


def test_a_line_is_canonical_json():
    """Sorted keys, no blanks: anybody can write the same line, and the digest, with a few lines of code."""
    for line in lines(ledger()):
        assert canonical(json.loads(line)) == line
    head, *rest = lines(ledger("node-1"), ledger("node-2"))
    told = json.loads(head)
    digest = told.pop("digest")
    assert sha256(b"".join((canonical(told), *rest))).hexdigest() == digest


def test_a_balance_is_the_sum_of_the_entries_of_its_account():
    """8 CPUs of supply, 500m and 1 CPU of Pods, 2 of recorded claims: the derived book leaves 6500m free, recorded 2 CPUs less."""
    found = ledger(
        "node-1",
        supply(amount("8")),
        pod("a", amount("500m")),
        pod("b", amount("1")),
        claim("c", amount("2")),
    ).balances
    assert [
        ("derived", "cpu", "8", "1500m", "0", "1500m", "6500m"),
        ("recorded", "cpu", "8", "1500m", "2", "3500m", "4500m"),
    ] == [(b.book, b.resource, b.supply, b.pods, b.claims, b.used, b.free) for b in found]


def test_where_nothing_is_supplied_nothing_is_said_to_be_free():
    """A claim on a node whose Node object is not known is used, of nobody knows how much; a supply of nothing leaves less."""
    (unknown,) = ledger("node-1", claim("c", amount("2"))).balances
    assert ("recorded", "2", None) == (unknown.book, unknown.used, unknown.free)
    known = ledger("node-1", supply(amount("0")), claim("c", amount("2"))).balances
    assert {"derived": "0", "recorded": "-2"} == {b.book: b.free for b in known}


def test_books_of_devices_and_counters_stand_by_themselves():
    """What is common to the books of claims is no part of them."""
    found = ledger(
        "node-1",
        supply(amount("8")),
        entry("devices", "device/d", "supply", amount("80Gi", "gpu/pool:memory")),
        entry("devices", "use/d", "claims", amount("30Gi", "gpu/pool:memory")),
    ).balances
    assert [("derived", "cpu"), ("devices", "gpu/pool:memory"), ("recorded", "cpu")] == [
        (b.book, b.resource) for b in found
    ]
    assert str(50 * 2**30) == found[1].free


def test_a_sum_of_bytes_has_binary_suffixes_whatever_its_terms():
    """24 bytes and 1000 bytes are 1Ki, in any order."""
    terms = pod("a", amount("1k", "memory")), pod("b", amount("24", "memory"))
    for order in (terms, terms[::-1]):
        assert [("1Ki", "1Ki"), ("1Ki", "1Ki")] == [
            (b.pods, b.used) for b in ledger("node-1", *order).balances
        ]


def test_a_node_without_entries_has_a_ledger():
    """Its version is that of nothing, and it has no balance."""
    empty = node_ledger("node-1", ())
    assert (ledger_version(()), (), "") == (empty.ledger_version, empty.balances, empty.verdict)
    assert {"node-1": empty} == read(lines(empty), "x").ledgers


# --- what is refused ---------------------------------------------------------------------------------------------------------


def spoiled(line, **fields):
    return canonical(json.loads(line) | fields)


HEAD, NODE = lines(ledger())
#: Deeper than any decoder goes.
DEEP = 100_000


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([], "x.jsonl: is empty"),
        ([b"what\n"], "x.jsonl: is no exported ledger"),
        ([b"\xff\n"], "x.jsonl: is no exported ledger"),
        ([b'{"at":"2026-07-01T08:00:00Z","type":"LIST"}\n'], "x.jsonl: is no exported ledger"),
        ([spoiled(HEAD, version=2), NODE], "x.jsonl: has version 2 of the format, this build reads 1"),
        ([spoiled(HEAD, nodes="one"), NODE], "x.jsonl:1: Expected `int`"),
        ([spoiled(HEAD, author="me"), NODE], "x.jsonl:1: Object contains unknown field `author`"),
        ([HEAD], "was cut or changed"),
        ([HEAD, NODE, lines(ledger("node-2"))[1]], "was cut or changed"),
        ([HEAD, spoiled(NODE, verdict="open")], "was cut or changed"),
        ([HEAD, NODE.replace(b'"500m"', b'"501m"')], "do not follow from the entries"),
        ([HEAD, spoiled(NODE, ledger_version="0" * 16)], "do not follow from the entries"),
        ([HEAD, NODE.replace(b'"500m"', b'"half"')], "x.jsonl:2: "),
        ([HEAD, NODE, NODE], "x.jsonl:3: node node-1 stands there twice"),
        ([HEAD, NODE[:-20]], "x.jsonl:2: "),
        ([spoiled(HEAD, at_ms=AT_MS + 1), NODE], "was cut or changed"),
        ([spoiled(HEAD, only=["node-2"]), NODE], "was cut or changed"),
        (
            [spoiled(HEAD, positions={"0": {"next_offset": 7, "chain_head": "cd"}}), NODE],
            "was cut or changed",
        ),
        ([b"[" * DEEP + b"]" * DEEP + b"\n"], "x.jsonl: is no exported ledger"),
        ([HEAD, b'{"node":' + b"[" * DEEP + b"]" * DEEP + b"}\n"], "x.jsonl:2: "),
        ([HEAD, b'{"else":' + b"[" * DEEP + b"]" * DEEP + b"}\n"], "x.jsonl:2: "),
    ],
)
def test_a_file_that_is_not_whole_is_refused_with_its_place(given, problem):
    """Whatever was cut, changed in any line, doubled, nested without end or is of another kind is named, and so is the remedy."""
    with pytest.raises(InputError) as error:
        read(given, "x.jsonl")
    assert problem in str(error.value)
    assert "export it again" in str(error.value)


# --- what differs ------------------------------------------------------------------------------------------------------------


def test_a_ledger_differs_from_itself_in_nothing():
    """Nor from one that came to the same by another way: times and the words of a hold are left out."""
    early = Hold(reason="watch_gap", scope="pods", since_ms=1, detail="one")
    late = Hold(reason="watch_gap", scope="pods", since_ms=2, detail="other")
    one = ledger("node-1", pod("a", amount("1")), verdict="hold", holds=(early,))
    moved = Entry(book="common", key="pod/a", account="pods", amounts=(amount("1"),), at_ms=AT_MS + 9)
    assert [] == differences(one, one)
    assert [] == differences(one, ledger("node-1", moved, verdict="hold", holds=(late,)))


def test_a_node_that_only_one_side_has_is_named():
    """With its version and the number of its entries on the side that has it."""
    one = ledger("node-1")
    shown = f"ledger {one.ledger_version}, 2 entries"
    assert [Difference("node-1", "node", "", shown, "")] == compared({"node-1": one}, {})
    assert [Difference("node-1", "node", "", "", shown)] == compared({}, {"node-1": one})


def test_another_verdict_is_named_with_its_reasons():
    """Another reason is another verdict, though both hold."""
    hold = Hold(reason="claims_gate_closed", scope="cluster", since_ms=1)
    one, other = ledger(verdict="open", node_class="canary"), ledger(verdict="hold", holds=(hold,))
    assert [
        Difference("node-1", "verdict", "", "open canary", "hold (claims_gate_closed cluster)")
    ] == differences(one, other)


def test_entries_and_balances_that_differ_are_named():
    """An entry on one side only, one with another amount, and the balance that comes of it."""
    one = ledger("node-1", supply(amount("8")), claim("x", amount("2")), claim("y", amount("1")))
    other = ledger("node-1", supply(amount("8")), claim("x", amount("3")), claim("z", amount("1", numa="0")))
    assert [
        Difference("node-1", "entry", "recorded/claim/x", "claims cpu@unknown 2", "claims cpu@unknown 3"),
        Difference("node-1", "entry", "recorded/claim/y", "claims cpu@unknown 1", ""),
        Difference("node-1", "entry", "recorded/claim/z", "", "claims cpu@0 1"),
        Difference(
            "node-1", "balance", "recorded/cpu", "supply 8, claims 3, free 5", "supply 8, claims 4, free 4"
        ),
    ] == differences(one, other)


def test_the_same_amount_on_another_numa_node_is_another_entry_and_the_same_balance():
    """Balances are by resource; buckets are the entries'."""
    one = ledger("node-1", claim("x", amount("2", numa="0")))
    other = ledger("node-1", claim("x", amount("2", numa="1")))
    assert ["entry"] == [found.what for found in differences(one, other)]


def test_what_is_covered_makes_a_difference():
    """An entry that moves nothing, because a Pod-level request contains it, is not the same as one that moves it."""
    covering = entry("recorded", "claim/x", "claims", covered=(amount("2"),))
    found = differences(ledger("node-1", covering), ledger("node-1", claim("x", amount("2"))))
    assert (
        Difference(
            "node-1",
            "entry",
            "recorded/claim/x",
            "claims nothing, covered cpu@unknown 2",
            "claims cpu@unknown 2",
        )
        == found[0]
    )
