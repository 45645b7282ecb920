"""``sickbay hold`` and ``sickbay release``: requests by people, written into an embedded store as facts and decided at once.

A request may be refused by the fold; it stands in the log all the same. Several people may ask at once: the store takes one
writer at a time, and a request that finds the log moved on is folded again over what is new.
"""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import click

from projections.audit import audit_view
from projections.engine import Store
from projections.log import Position
from projections.places import Place
from projections.records import LogRecord
from projections.sources import follows_kafka
from sickbay.cli import output
from sickbay.cli.continuing import linked
from sickbay.cli.folding import Fold
from sickbay.cli.options import MOMENT, db_option
from sickbay.cli.questions import find_episode
from sickbay.clock import SystemClock
from sickbay.codec import fact_id, open_envelope
from sickbay.decisions import CustodyDecision
from sickbay.envelope import derived_id, partition_of
from sickbay.errors import InputError, NotFoundError, StoreError
from sickbay.facts import Fact, HoldRequested, ReleaseRequested
from sickbay.timestamps import format_time_ms

#: Times that a request is folded over a log that moves on meanwhile: at least, and at most.
_ATTEMPTS_MIN: Final = 3
_ATTEMPTS_MAX: Final = 20
#: How long it is tried, in seconds, beyond the least number of times.
_PATIENCE_S: Final = 30.0
#: Pauses between two attempts, in seconds: the first, doubled up to the longest.
_PAUSE_S: Final = 0.05
_PAUSE_MAX_S: Final = 2.0

actor_option = click.option(
    "--actor", default=getpass.getuser, show_default="your user name", help="Who asks."
)
reason_option = click.option("--reason", required=True, help="Why; it stands in the audit for ever.")
at_option = click.option(
    "--at", "at_ms", type=MOMENT, help="When it was asked, for a store of the past.  [default: now]"
)
_form = output.output_option


def append(
    store: Store, requests: Mapping[int, Fact], *, check: Callable[[Fold], object] | None = None
) -> tuple[Fold, list[LogRecord]]:
    """Append a request to each of some partitions with what it leads to; return their fold and what was written.

    ``check`` sees the fold as the log stands, before the requests; what it raises is raised, and nothing is written. A log that
    moved on meanwhile is folded again, after pauses that grow, for half a minute. A request to a store that follows Kafka goes there,
    and is answered by the workers. Raises StoreError when that does not end, or the replay of the store has not; InputError and
    ServiceError for Kafka.
    """
    _require_ended(store)
    if follows_kafka(store.source_id):
        if check is not None:
            check(_restored(store, requests))
        from sickbay.cli.asking import ask_kafka  # a store in a file has no need of the client of Kafka

        written = ask_kafka(store, requests)
        return _restored(store, requests), written
    begun_s = time.monotonic()
    for attempt in range(_ATTEMPTS_MAX):
        positions = store.positions()
        fold, written = _folded(store, requests, check)
        if store.positions() == positions and _is_written(store, written, positions):
            return fold, written
        if attempt + 1 >= _ATTEMPTS_MIN and time.monotonic() - begun_s > _PATIENCE_S:
            break
        time.sleep(min(_PAUSE_S * 2**attempt, _PAUSE_MAX_S))
    raise StoreError(f"{store.place}: somebody else keeps writing; ask again")


def open_to_ask(place: str) -> Store:
    """Open a store for a request: for reading when it follows Kafka, where the request goes then.

    Raises StoreError when it is empty, or its replay has not ended.
    """
    store = Store.open(place, read_only=True)  # an empty store is refused before anything is written into it
    try:
        if not follows_kafka(store.source_id):
            store.close()
            store = Store.open(place)
        _require_ended(store)
    except BaseException:
        store.close()
        raise
    return store


def _require_ended(store: Store) -> None:
    if not (store.source_ended or follows_kafka(store.source_id)):
        raise StoreError(
            f"{store.place}: its replay was interrupted, and a request must not take the places of what is still to come;"
            " run the replay again to its end first"
        )


def _is_written(store: Store, records: Iterable[LogRecord], positions: Mapping[int, Position]) -> bool:
    """Write the records unless somebody else wrote first, who is found by the links or by what is skipped."""
    try:
        return not store.write(linked(records, positions)).skipped
    except StoreError:
        if store.positions() == positions:
            raise
        return False


def _folded(
    store: Store, requests: Mapping[int, Fact], check: Callable[[Fold], object] | None
) -> tuple[Fold, list[LogRecord]]:
    """Fold requests over the log as it stands; what is in the log already is not asked again."""
    written: list[LogRecord] = []
    fold = Fold(requests, store.partitions, written.extend)
    asked = {number: fact_id(request) for number, request in requests.items()}
    for number in requests:
        fold.restore(_watched(store.read(number), asked), open_envelope)
        if not fold.partitions[number].is_settled:
            raise StoreError(
                f"{store.place}: its log was decided by another build, and a request would decide all of it anew, as of now;"
                " replay the recordings into a new store and ask there"
            )
    if check is not None:
        check(fold)
    for number in asked:
        fold.request(number, requests[number])
    fold.flush()
    return fold, written


def _restored(store: Store, numbers: Iterable[int]) -> Fold:
    """Return the fold of some partitions as the log stands."""
    fold = Fold(numbers, store.partitions, lambda _records: None)
    for number in numbers:
        fold.restore(store.read(number), open_envelope)
    return fold


def _watched(records: Iterable[LogRecord], asked: dict[int, str]) -> Iterator[LogRecord]:
    """Yield the records, and strike a request that is among them: asked again, it is one request."""
    for record in records:
        if record.envelope.event_id == asked.get(record.partition):
            del asked[record.partition]
        yield record


def ask(store: Store, node: str, request: Fact) -> list[CustodyDecision]:
    """Append a request to the partition of its node with what it leads to, and return the decisions on devices.

    Raises StoreError as ``append`` does.
    """
    _, written = append(store, {partition_of(node, store.partitions): request})
    return [record.event for record in written if isinstance(record.event, CustodyDecision)]


def _node_of(store: Store, device: str, node: str | None) -> str:
    view = audit_view("devices")
    with store.reading() as connection:
        where = {"device_id": device} | ({"node": node} if node else {})
        found = sorted({str(row[view.columns.index("node")]) for row in view.rows(connection, where=where)})
        if not found:
            inventory = audit_view("inventory")
            found = sorted(
                {str(row[inventory.columns.index("node")]) for row in inventory.rows(connection, where=where)}
            )
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{device} stands on the nodes {', '.join(found)}; name one with --node")
    if node:
        return node
    raise NotFoundError(
        f"the store knows no device {device!r}; `sickbay audit inventory` lists them, or name its --node"
    )


def _tell(decided: list[CustodyDecision], device: str, form: str) -> None:
    rows = [(d.at_ms, d.KIND, d.device_id, d.phase_before, d.record.phase, d.reason) for d in decided]
    columns = ("at_ms", "kind", "device_id", "phase_before", "phase_after", "reason")
    output.print_rows(columns, rows, form, empty=f"recorded; nothing changes for {device}")


@click.command()
@click.argument("device")
@reason_option
@click.option(
    "--until", "until_ms", type=MOMENT, required=True, help="When the hold ends; every hold has an end."
)
@actor_option
@at_option
@click.option("--node", help="The node, where one device id stands on several.")
@db_option
@_form
def hold(
    device: str,
    reason: str,
    until_ms: int,
    actor: str,
    at_ms: int | None,
    node: str | None,
    db: Place,
    form: str,
) -> None:
    """Keep DEVICE out of use until a time.

    \b
    Example:
      sickbay hold dra:gpu.nvidia.com/gpu-a1/gpu-2 --until 2026-07-02T08:00:00Z --reason "fan noise, ticket 4711"
    """
    require_words(reason, actor)
    with open_to_ask(db) as store:
        when = SystemClock().now_ms() if at_ms is None else at_ms
        if until_ms <= when:
            raise InputError(
                f"--until {format_time_ms(until_ms)} is not after {format_time_ms(when)}; a hold needs an end that is still to come"
            )
        place = _node_of(store, device, node)
        request = HoldRequested(
            node=place,
            observed_at_ms=when,
            request_id=derived_id("hold", place, device, actor, reason, str(when), str(until_ms)),
            device_id=device,
            actor=actor,
            reason=reason,
            until_ms=until_ms,
        )
        decided = ask(store, place, request)
    _tell(decided, device, form)


@click.command()
@click.argument("episode")
@reason_option
@actor_option
@at_option
@db_option
@_form
def release(episode: str, reason: str, actor: str, at_ms: int | None, db: Place, form: str) -> None:
    """Ask for the way back of an EPISODE to begin: a probe, or a longer observation. Nobody can force a release.

    EPISODE is an id, an unambiguous beginning of one, or `last`.

    \b
    Example:
      sickbay release last --reason "card replaced, ticket 4711"
    """
    require_words(reason, actor)
    with open_to_ask(db) as store:
        episode_id = find_episode(store, episode)
        view = audit_view("episodes")
        with store.reading() as connection:
            row = next(view.rows(connection, where={"episode_id": episode_id}))
        found = dict(zip(view.columns, row, strict=True))
        when = SystemClock().now_ms() if at_ms is None else at_ms
        request = ReleaseRequested(
            node=str(found["node"]),
            observed_at_ms=when,
            request_id=derived_id("release", episode_id, actor, reason, str(when)),
            device_id=str(found["device_id"]),
            actor=actor,
            episode_id=episode_id,
            reason=reason,
        )
        decided = ask(store, str(found["node"]), request)
    _tell(decided, str(found["device_id"]), form)


def require_words(reason: str, actor: str) -> None:
    """Raise InputError for a reason or an actor that says nothing."""
    if not reason.strip():
        raise InputError("--reason is empty; say why, the audit keeps it")
    if not actor.strip():
        raise InputError("--actor is empty; say who asks")
