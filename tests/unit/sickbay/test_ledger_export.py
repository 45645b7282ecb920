"""Exported ledgers: whole or refused, the same bytes for the same ledger, and every difference named."""

from __future__ import annotations

import json

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
        assert json.dumps(json.loads(line), sort_keys=True, separators=(",", ":")).encode() + b"\n" == line


def test_a_balance_is_the_sum_of_the_entries_of_its_account():
    """8 CPUs of supply, 500m and 1 CPU of Pods, 2 of claims: of common 6500m are free, and recorded takes 2."""
    found = ledger(
        "node-1",
        supply(amount("8")),
        pod("a", amount("500m")),
        pod("b", amount("1")),
        claim("c", amount("2")),
    ).balances
    assert [
        ("common", "cpu", "8", "1500m", "0", "6500m"),
        ("recorded", "cpu", "0", "0", "2", "-2"),
    ] == [(b.book, b.resource, b.supply, b.pods, b.claims, b.free) for b in found]


def test_a_sum_of_bytes_has_binary_suffixes_whatever_its_terms():
    """24 bytes and 1000 bytes are 1Ki, in any order."""
    terms = pod("a", amount("1k", "memory")), pod("b", amount("24", "memory"))
    for order in (terms, terms[::-1]):
        (balance,) = ledger("node-1", *order).balances
        assert ("1Ki", "-1Ki") == (balance.pods, balance.free)


def test_a_node_without_entries_has_a_ledger():
    """Its version is that of nothing, and it has no balance."""
    empty = node_ledger("node-1", ())
    assert (ledger_version(()), (), "") == (empty.ledger_version, empty.balances, empty.verdict)
    assert {"node-1": empty} == read(lines(empty), "x").ledgers


# --- what is refused ---------------------------------------------------------------------------------------------------------


def spoiled(line, **fields):
    return json.dumps(json.loads(line) | fields, sort_keys=True, separators=(",", ":")).encode() + b"\n"


HEAD, NODE = lines(ledger())


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
    ],
)
def test_a_file_that_is_not_whole_is_refused_with_its_place(given, problem):
    """Whatever was cut, changed, doubled or is of another kind is named, and so is the remedy."""
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
        Difference("node-1", "balance", "recorded/cpu", "claims 3, free -3", "claims 4, free -4"),
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
