"""Ledgers of nodes as canonical JSON lines: written, read back, and held against one another.

The first line says of which instant and of which log the others are, and has a digest over all that the file says; every further
line is the ledger of one node. A file is evidence to compare with and never a source: a ledger is derived from its log. No I/O here, and no rule of
the ledger but that a balance is the sum of its entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from sickbay.decisions import Amount, Entry, Hold, ledger_version
from sickbay.errors import InputError, QuantityError
from sickbay.quantity import Quantity, parse

FORMAT: Final = "sickbay-ledger"
VERSION: Final = 1
#: Longest line that is read, 64 MiB: more than a node of any size has to say.
LINE_BYTES_MAX: Final = 1 << 26

_Struct = TypeVar("_Struct", bound=msgspec.Struct)

_ACCOUNTS: Final = ("supply", "pods", "claims", "overhead", "adjustment")
#: Book of an entry to the books whose balances it is part of; every other book is shown by itself.
_SHOWN_IN: Final = {"common": ("recorded", "derived")}
_REMEDY: Final = "export it again with `sickbay export ledger`"
#: What a line that is not ours may give rise to; one that is nested without end is no more than a bad line.
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Digest(Protocol):
    """A digest under way."""

    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


class LogPosition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a partition of the exported log stood: events with smaller offsets were known."""

    next_offset: int
    #: Hex of the hash chain's head there (``projections.chain``).
    chain_head: str


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line."""

    format: str
    version: int
    #: The instant of event time, in milliseconds since the epoch.
    at_ms: int
    #: Partition number to where it stood.
    positions: dict[int, LogPosition]
    #: The nodes that were asked for; empty for all.
    only: tuple[str, ...]
    #: Lines that follow.
    nodes: int
    #: Hex of the SHA-256 of the first line without this member, as canonical JSON, and of all lines that follow.
    digest: str


class Balance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a book has of one resource, as canonical quantities by account.

    The books ``recorded`` and ``derived`` contain what both share (``common``), as everywhere where balances are shown.
    """

    book: str
    resource: str
    supply: str
    pods: str
    claims: str
    overhead: str
    adjustment: str
    #: All of them but supply.
    used: str
    #: Supply less what is used; ``None`` where nothing is supplied, for then it says nothing.
    free: str | None


class NodeLedger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ledger of one node at the instant."""

    node: str
    ledger_version: str
    #: Empty where nothing was ever said of whether new claims may come.
    verdict: Literal["open", "hold", ""]
    node_class: Literal["canary", "stable", ""]
    drivers: tuple[str, ...]
    holds: tuple[Hold, ...]
    balances: tuple[Balance, ...]
    entries: tuple[Entry, ...]


class Export(NamedTuple):
    """A file that was read: its header and its ledgers by node."""

    header: Header
    ledgers: dict[str, NodeLedger]


class Difference(NamedTuple):
    """One thing that two sets of ledgers do not share; ``one`` and ``other`` are how each has it, empty where it has it not."""

    node: str
    what: Literal["node", "verdict", "entry", "balance"]
    about: str
    one: str
    other: str


def node_ledger(
    node: str,
    entries: Iterable[Entry],
    *,
    verdict: Literal["open", "hold", ""] = "",
    node_class: Literal["canary", "stable", ""] = "",
    drivers: Iterable[str] = (),
    holds: Iterable[Hold] = (),
) -> NodeLedger:
    """Return the ledger of a node from its standing entries; version and balances follow from them."""
    standing = tuple(sorted(entries, key=lambda entry: (entry.book, entry.key)))
    return NodeLedger(
        node=node,
        ledger_version=ledger_version(standing),
        verdict=verdict,
        node_class=node_class,
        drivers=tuple(sorted(drivers)),
        holds=tuple(sorted(holds)),
        balances=balances(standing),
        entries=standing,
    )


def balances(entries: Iterable[Entry]) -> tuple[Balance, ...]:
    """Return the sums of entries by shown book, resource and account, in order."""
    sums: dict[tuple[str, str], dict[str, int]] = {}
    for entry in entries:
        for book in _SHOWN_IN.get(entry.book, (entry.book,)):
            for amount in entry.amounts:
                accounts = sums.setdefault((book, amount.resource), {})
                accounts[entry.account] = accounts.get(entry.account, 0) + parse(amount.quantity).nano
    return tuple(_balance(book, resource, accounts) for (book, resource), accounts in sorted(sums.items()))


def _balance(book: str, resource: str, accounts: Mapping[str, int]) -> Balance:
    used = sum(accounts.get(name, 0) for name in _ACCOUNTS if name != "supply")
    texts = {name: _text(resource, accounts.get(name, 0)) for name in _ACCOUNTS}
    free = _text(resource, accounts["supply"] - used) if "supply" in accounts else None
    return Balance(book=book, resource=resource, **texts, used=_text(resource, used), free=free)


def _text(resource: str, nano: int) -> str:
    """Write a sum, bytes with binary suffixes whatever the family of its terms."""
    is_bytes = resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-")
    return Quantity(nano, "BinarySI" if is_bytes else "DecimalSI").canonical()


def written(
    ledgers: Iterable[NodeLedger],
    *,
    at_ms: int,
    positions: Mapping[int, LogPosition],
    only: Iterable[str] = (),
) -> list[bytes]:
    """Return the lines of a file, each with its line end; equal ledgers at equal positions give equal bytes."""
    lines = [
        msgspec.json.encode(ledger, order="sorted") + b"\n"
        for ledger in sorted(ledgers, key=lambda ledger: ledger.node)
    ]
    header = Header(
        format=FORMAT,
        version=VERSION,
        at_ms=at_ms,
        positions={number: positions[number] for number in sorted(positions)},
        only=tuple(sorted(only)),
        nodes=len(lines),
        digest="",
    )
    plain = msgspec.to_builtins(header, str_keys=True)
    digest = _digest_of(plain)
    for line in lines:
        digest.update(line)
    return [_line(plain | {"digest": digest.hexdigest()}), *lines]


def _line(value: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(value, order="sorted") + b"\n"


def _digest_of(header: Mapping[str, Any]) -> _Digest:
    """Begin the digest of a file with its first line, of which the digest itself is no part."""
    return sha256(_line({name: value for name, value in header.items() if name != "digest"}))


def read(lines: Iterable[bytes], place: str) -> Export:
    """Read a file back and check that it is whole and does not contradict itself.

    ``place`` names it in errors. Raises InputError for what is no such file, was cut or changed, or was written by another
    version.
    """
    header: Header | None = None
    ledgers: dict[str, NodeLedger] = {}
    digest: _Digest = sha256()
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_BYTES_MAX:
            raise InputError(f"{place}:{number}: the line is longer than {LINE_BYTES_MAX} bytes; {_REMEDY}")
        if header is None:
            header, digest = _header(line, place)
            continue
        digest.update(line)
        ledger = _decoded(line, NodeLedger, f"{place}:{number}")
        if ledger.node in ledgers:
            raise InputError(f"{place}:{number}: node {ledger.node} stands there twice; {_REMEDY}")
        _require_sums(ledger, f"{place}:{number}")
        ledgers[ledger.node] = ledger
    if header is None:
        raise InputError(f"{place}: is empty; {_REMEDY}")
    if len(ledgers) != header.nodes or digest.hexdigest() != header.digest:
        raise InputError(
            f"{place}: was cut or changed: it does not have the digest that its first line tells; {_REMEDY}"
        )
    return Export(header, ledgers)


def _header(line: bytes, place: str) -> tuple[Header, _Digest]:
    """Read the first line; return it, and the digest that the other lines go on with."""
    try:
        begin = msgspec.json.decode(line)
    except _UNREADABLE:
        begin = None
    if not isinstance(begin, dict) or begin.get("format") != FORMAT:
        raise InputError(f"{place}: is no exported ledger; {_REMEDY}")
    if begin.get("version") != VERSION:
        raise InputError(
            f"{place}: has version {begin.get('version')} of the format, this build reads {VERSION}; {_REMEDY}, with this build"
        )
    header = _decoded(line, Header, f"{place}:1")
    return header, _digest_of(begin)


def _decoded(line: bytes, cls: type[_Struct], place: str) -> _Struct:
    try:
        return msgspec.json.decode(line, type=cls)
    except _UNREADABLE as error:
        raise InputError(f"{place}: {error}; {_REMEDY}") from error


def _require_sums(ledger: NodeLedger, place: str) -> None:
    try:
        right = balances(ledger.entries)
    except QuantityError as error:
        raise InputError(f"{place}: {error}; {_REMEDY}") from error
    if right != ledger.balances or ledger_version(ledger.entries) != ledger.ledger_version:
        raise InputError(
            f"{place}: node {ledger.node}: balances or ledger version do not follow from the entries; {_REMEDY}"
        )


def compared(one: Mapping[str, NodeLedger], other: Mapping[str, NodeLedger]) -> list[Difference]:
    """Return what two sets of ledgers do not share, by node. Times alone make no difference: they depend on the order of arrival."""
    found: list[Difference] = []
    for node in sorted(one.keys() | other.keys()):
        left, right = one.get(node), other.get(node)
        if left is None or right is None:
            found.append(Difference(node, "node", "", *(_node(ledger) for ledger in (left, right))))
            continue
        told = [_verdict(ledger) for ledger in (left, right)]
        if told[0] != told[1]:
            found.append(Difference(node, "verdict", "", *told))
        if left.ledger_version == right.ledger_version:
            continue
        found += _unequal(node, "entry", _entries(left), _entries(right))
        found += _unequal(node, "balance", _balances(left), _balances(right))
    return found


def _unequal(
    node: str, what: Literal["entry", "balance"], mine: Mapping[str, str], theirs: Mapping[str, str]
) -> list[Difference]:
    return [
        Difference(node, what, about, mine.get(about, ""), theirs.get(about, ""))
        for about in sorted(mine.keys() | theirs.keys())
        if mine.get(about) != theirs.get(about)
    ]


def _node(ledger: NodeLedger | None) -> str:
    return "" if ledger is None else f"ledger {ledger.ledger_version}, {len(ledger.entries)} entries"


def _verdict(ledger: NodeLedger) -> str:
    reasons = "; ".join(f"{hold.reason} {hold.scope}".strip() for hold in ledger.holds)
    words = [ledger.verdict or "no verdict", reasons and f"({reasons})", ledger.node_class, *ledger.drivers]
    return " ".join(word for word in words if word)


def _entries(ledger: NodeLedger) -> dict[str, str]:
    return {f"{entry.book}/{entry.key}": _entry(entry) for entry in ledger.entries}


def _entry(entry: Entry) -> str:
    covered = f", covered {_amounts(entry.covered)}" if entry.covered else ""
    return f"{entry.account} {_amounts(entry.amounts)}{covered}"


def _amounts(amounts: Iterable[Amount]) -> str:
    return ", ".join(f"{a.resource}@{a.numa} {a.quantity}" for a in amounts) or "nothing"


def _balances(ledger: NodeLedger) -> dict[str, str]:
    return {
        f"{balance.book}/{balance.resource}": ", ".join(
            f"{name} {getattr(balance, name)}"
            for name in (*_ACCOUNTS, "free")
            if getattr(balance, name) not in ("0", None)
        )
        for balance in ledger.balances
    }
