"""The query behind each audit view of the ledger, for any moment. Names, words and columns stand in ``projections.audit``.

A balance is the sum of journal lines that were known and whose event time had come, answered from one index. Sums are taken in
two halves of 32 bits, so that no amount that a Pod may ask for overflows one; what comes out beyond 2^60 units stands as 2^60.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    Subquery,
    and_,
    case,
    cast,
    exists,
    func,
    literal,
    or_,
    select,
    union_all,
)

from projections.audit_queries import found_alerts
from projections.ledger_tables import (
    ledger_drift,
    ledger_driver,
    ledger_entry,
    ledger_hold,
    ledger_line,
    ledger_refusal,
    ledger_verdict,
)
from projections.tables import NUMBER, device_inventory
from projections.temporal import Moment, happened, live, newest_ms, runs, standing
from sickbay.quantity import NANO_PER_MILLI, NANO_PER_UNIT

_HALF: Final = 1 << 32
_BALANCE_MAX: Final = 1 << 60
_BALANCE_MAX_HALVES: Final = _BALANCE_MAX // _HALF
_ACCOUNTS: Final = ("supply", "pods", "claims", "overhead", "adjustment")
#: Books that are shown to those that they add up: the requests of a node are what both books of claims share, and one of them.
_BALANCED: Final = (
    ("recorded", "common"),
    ("recorded", "recorded"),
    ("derived", "common"),
    ("derived", "derived"),
    ("devices", "devices"),
    ("counters", "counters"),
)
_PLACEMENT_ALERTS: Final = ("numa_spanned", "numa_missed")
_REBUILDING: Final = "driver_rebuilding"
#: The one reason to hold that is a person's.
GATE_CLOSED: Final = "claims_gate_closed"


def named(
    source: FromClause, names: tuple[str, ...], **other: ColumnElement[Any]
) -> list[ColumnElement[Any]]:
    """Return the columns by name, those in ``other`` from there."""
    return [other[name].label(name) if name in other else source.c[name] for name in names]


def total(value: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return a sum as a 64-bit integer; PostgreSQL would make it a decimal."""
    return cast(func.sum(value), NUMBER)


def counted(condition: ColumnElement[bool]) -> ColumnElement[Any]:
    return total(case((condition, 1), else_=0))


# --- balances --------------------------------------------------------------------------------------------------------


def _is_cpu(source: FromClause) -> ColumnElement[bool]:
    return and_(source.c.book.in_(("common", "recorded", "derived")), source.c.resource == "cpu")


def _unit(source: FromClause) -> ColumnElement[Any]:
    return case(
        (_is_cpu(source), literal("millicores")),
        (source.c.book.in_(("common", "recorded", "derived")), literal("bytes")),
        else_=literal("units"),
    )


def _unit_nano(source: FromClause) -> ColumnElement[Any]:
    return case((_is_cpu(source), literal(NANO_PER_MILLI, NUMBER)), else_=literal(NANO_PER_UNIT, NUMBER))


def _sums(moment: Moment, keys: tuple[str, ...]) -> Subquery:
    """Return for each key and account the sum of lines as ``high`` and ``low`` halves of units, and ``rest`` in nano-units.

    One aggregate and no more: SQLite hands a condition on the node down through one of them to the index, and not through two.
    """
    parts = union_all(
        *(select(literal(book).label("book"), literal(part).label("part")) for book, part in _BALANCED)
    ).subquery("parts")
    line = ledger_line.c
    halves = {
        "high": line.amount_units // _HALF,
        "low": line.amount_units % _HALF,
        "rest": line.amount_rest_nano,
    }
    grouped = [parts.c.book if key == "book" else line[key] for key in keys]
    return (
        select(
            *grouped,
            *(
                total(case((line.account == account, value), else_=0)).label(f"{account}_{half}")
                for account in _ACCOUNTS
                for half, value in halves.items()
            ),
        )
        .select_from(ledger_line.join(parts, parts.c.part == line.book))
        .where(happened(ledger_line, moment))
        .group_by(*grouped)
        .subquery("summed")
    )


def _balances(moment: Moment, keys: tuple[str, ...]) -> Subquery:
    """Return a row for each key that has something standing: units and rest of every account, of ``used`` and of ``free``."""
    summed = _sums(moment, keys)
    unit_nano = _unit_nano(summed)
    columns = named(summed, keys)
    for name in _ACCOUNTS:
        high, rest = summed.c[f"{name}_high"], summed.c[f"{name}_rest"]
        low = summed.c[f"{name}_low"] + rest // unit_nano
        halves = high + low // _HALF
        units = case(
            (halves >= _BALANCE_MAX_HALVES, literal(_BALANCE_MAX, NUMBER)),
            (halves <= -_BALANCE_MAX_HALVES, literal(-_BALANCE_MAX, NUMBER)),
            else_=high * literal(_HALF, NUMBER) + low,
        )
        columns += [units.label(name), (rest % unit_nano).label(f"{name}_rest_nano")]
    account = select(*columns).subquery("account_balance")
    rests = sum((account.c[f"{name}_rest_nano"] for name in _ACCOUNTS[2:]), account.c.pods_rest_nano)
    used = sum((account.c[name] for name in _ACCOUNTS[2:]), account.c.pods) + rests // _unit_nano(account)
    found = (
        select(account, used.label("used"), (rests % _unit_nano(account)).label("used_rest_nano"))
        .where(or_(*(column != 0 for column in account.c if column.name not in keys)))
        .subquery("used_balance")
    )
    is_short = found.c.supply_rest_nano < found.c.used_rest_nano
    borrowed = case((is_short, _unit_nano(found)), else_=0)
    return select(
        found,
        _unit(found).label("unit"),
        (found.c.supply - found.c.used - case((is_short, 1), else_=0)).label("free"),
        (found.c.supply_rest_nano - found.c.used_rest_nano + borrowed).label("free_rest_nano"),
    ).subquery("balance")


def balances(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """What each node has, what is spoken for and what is free."""
    return select(*named(_balances(moment, ("node", "book", "resource")), columns))


def numa(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """The derived book by NUMA bucket."""
    found = _balances(moment, ("node", "book", "resource", "numa"))
    return select(*named(found, columns)).where(found.c.book == "derived")


def journal(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """Every line."""
    return select(*named(ledger_line, columns, unit=_unit(ledger_line))).where(happened(ledger_line, moment))


# --- what stands -----------------------------------------------------------------------------------------------------


def _entries(moment: Moment) -> Subquery:
    return standing(ledger_entry, ("entry_key", "book", "node"), moment)


def entries(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """Entries that were posted and not reversed."""
    found = _entries(moment)
    return select(*named(found, columns)).where(found.c.state == "posted")


def verdicts(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """The verdict of each node that stood."""
    found = standing(ledger_verdict, ("node",), moment)
    return select(*named(found, columns))


def claims(moment: Moment, _columns: tuple[str, ...]) -> Select[Any]:
    """Each claim over all nodes on which an entry of it stands."""
    found, verdict = _entries(moment), standing(ledger_verdict, ("node",), moment)
    charged = (
        select(*named(found, ("claim_uid", "namespace", "claim", "node")))
        .where(found.c.state == "posted", found.c.claim_uid != "")
        .distinct()
        .subquery("charged")
    )
    on_hold = verdict.c.verdict == "hold"
    by_claim = (
        select(
            charged.c.claim_uid,
            func.max(charged.c.namespace).label("namespace"),
            func.max(charged.c.claim).label("claim"),
            func.count(charged.c.node.distinct()).label("nodes"),
            func.count(case((on_hold, charged.c.node)).distinct()).label("nodes_on_hold"),
            func.min(case((on_hold, charged.c.node))).label("held_by"),
            counted(verdict.c.verdict.is_(None)).label("nodes_unknown"),
        )
        .select_from(charged.outerjoin(verdict, verdict.c.node == charged.c.node))
        .group_by(charged.c.claim_uid)
        .subquery("by_claim")
    )
    word = case(
        (by_claim.c.nodes_on_hold > 0, "hold"), (by_claim.c.nodes_unknown > 0, "unknown"), else_="open"
    )
    return select(
        *named(by_claim, ("claim_uid", "namespace", "claim", "nodes", "nodes_on_hold", "held_by")),
        word.label("verdict"),
    )


# --- what was held, refused, found -----------------------------------------------------------------------------------


def found_holds(moment: Moment) -> Subquery:
    """Return every run of a hold with how long it lasted, and whether it was a drill.

    A gate that a person opened again was one, and a rebuild if the verdict that ended it names the driver: a driver that did
    not come back ends its hold too, and nothing was tried.
    """
    found = runs(ledger_hold, ("node", "reason", "scope"), moment)
    driver = ledger_driver.c
    is_back = exists().where(
        live(ledger_driver),
        driver.partition_number == found.c.partition_number,
        driver.node == found.c.node,
        driver.driver == found.c.driver,
        driver.published == 1,
        driver.log_offset <= found.c.log_offset,
        or_(driver.superseded_offset.is_(None), driver.superseded_offset > found.c.log_offset),
    )
    went_well = or_(found.c.reason == GATE_CLOSED, and_(found.c.reason == _REBUILDING, is_back))
    return select(
        found,
        (found.c.held_until_ms - found.c.held_since_ms).label("duration_ms"),
        case((and_(found.c.held_until_ms.is_not(None), went_well), 1), else_=0).label("drill"),
    ).subquery("holds")


def holds(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """Each reason for which new claims waited, how long, and whether it was a drill."""
    return select(*named(found_holds(moment), columns))


def found_drifts(moment: Moment) -> Subquery:
    """Return every run of drift with its end: cleared, or found with another cause."""
    found = runs(ledger_drift, ("about", "node"), moment)
    following = func.lead(found.c.found_at_ms).over(
        partition_by=[found.c.partition_number, found.c.about, found.c.node], order_by=found.c.run
    )
    ended_at_ms = func.coalesce(found.c.cleared_at_ms, following).label("ended_at_ms")
    return select(found, ended_at_ms).subquery("drifts")


def drifts(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """Where the two books differed, and since when they do not."""
    return select(*named(found_drifts(moment), columns))


def duplicates(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """Second contributions under one key."""
    found = runs(ledger_refusal, ("entry_key", "book", "node", "contender"), moment)
    return select(*named(found, columns))


def placement_failures(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """Alerts that a claim's devices span NUMA nodes, or miss the one that was asked for."""
    found = found_alerts(moment)
    return select(*named(found, columns)).where(found.c.alert.in_(_PLACEMENT_ALERTS))


# --- measures --------------------------------------------------------------------------------------------------------


def difference(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """What the book recorded has in use on each node beyond the book derived; below nothing where it has less."""
    found = _balances(moment, ("node", "book", "resource"))
    keys = ("node", "resource", "unit")

    def used_in(book: str, name: str) -> ColumnElement[Any]:
        # a book has one row of a resource on a node, or none
        return func.coalesce(func.max(case((found.c.book == book, found.c[name]))), 0)

    both = (
        select(
            *named(found, keys),
            *(
                used_in(book, f"used{rest}").label(f"{book}{rest}")
                for book in ("recorded", "derived")
                for rest in ("", "_rest_nano")
            ),
        )
        .where(found.c.book.in_(("recorded", "derived")))
        .group_by(*(found.c[name] for name in keys))
        .subquery("both_books")
    )
    is_short = both.c.recorded_rest_nano < both.c.derived_rest_nano
    unit_nano = case(
        (both.c.unit == "millicores", literal(NANO_PER_MILLI, NUMBER)), else_=literal(NANO_PER_UNIT, NUMBER)
    )
    rest = both.c.recorded_rest_nano - both.c.derived_rest_nano + case((is_short, unit_nano), else_=0)
    units = both.c.recorded - both.c.derived - case((is_short, 1), else_=0)
    found_difference = select(both, units.label("difference"), rest.label("difference_rest_nano")).subquery(
        "difference"
    )
    return select(*named(found_difference, columns)).where(
        or_(found_difference.c.difference != 0, found_difference.c.difference_rest_nano != 0)
    )


def mapping_age(moment: Moment, _columns: tuple[str, ...]) -> Select[Any]:
    """Each mapping that an entry which stands was counted by, since it was first used on its device."""
    found = _entries(moment)
    names = ("partition_number", "node", "device_id", "mapping_version")
    in_use = (
        select(*named(found, names), func.count().label("entries"))
        .where(found.c.state == "posted", found.c.mapping_version != "")
        .group_by(*(found.c[name] for name in names))
        .subquery("in_use")
    )
    first = (
        select(*named(ledger_entry, names), func.min(ledger_entry.c.posted_at_ms).label("first_used_at_ms"))
        .where(happened(ledger_entry, moment), ledger_entry.c.mapping_version != "")
        .group_by(*(ledger_entry.c[name] for name in names))
        .subquery("first")
    )
    inventory = standing(device_inventory, ("node", "device_id"), moment)
    newest = newest_ms(in_use.c.partition_number, moment)
    age_ms = case((newest > first.c.first_used_at_ms, newest - first.c.first_used_at_ms), else_=0)
    return select(
        *named(in_use, ("node", "device_id")),
        func.coalesce(inventory.c.driver, "").label("driver"),
        *named(in_use, ("mapping_version", "entries")),
        first.c.first_used_at_ms,
        age_ms.label("age_ms"),
    ).select_from(
        in_use.join(first, and_(*(in_use.c[name] == first.c[name] for name in names))).outerjoin(
            inventory,
            and_(inventory.c.node == in_use.c.node, inventory.c.device_id == in_use.c.device_id),
        )
    )
