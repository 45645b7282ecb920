"""What a store promises on every database: order, positions, one row for each event, nothing lost, nothing taken for code."""

from __future__ import annotations

import multiprocessing

import msgspec
import pytest
from log_builder import History, custody, health, open_episode
from log_scenarios import every_kind, storm
from sqlalchemy import delete, select, text, update

from projections.chain import first_head, next_hash
from projections.engine import EMBEDDED, Store, Written
from projections.records import PARKED_RAW_BYTES_MAX, LogRecord, ParkedItem
from projections.tables import episode, event_log, request, transition
from sickbay.codec import encode
from sickbay.decisions import AlertRaised, DeviceSuspected, QuarantineOpened
from sickbay.errors import CodecError, StoreError, UnsupportedSchemaError
from sickbay.facts import HoldRequested, Tick


def ticks(count, *, chained=True, partition=0):
    log = History(4, chained)
    for number in range(count):
        log.fact(Tick(node="", partition=partition, observed_at_ms=1_000 * number))
    return log.records


def rows_of(store, table):
    with store.reading() as connection:
        return [tuple(row) for row in connection.execute(select(table))]


# --- what goes in comes out ---


def test_events_come_back_with_their_exact_bytes(open_store):
    """The log holds the bytes and the chain that were given, in order of offset."""
    store, records = open_store(), every_kind().records
    assert Written(rows=len(records), skipped=0, repeats=0) == store.write(records)
    for partition in range(4):
        expected = [(r.offset, r.data, r.chain) for r in records if r.partition == partition]
        assert expected == [(r.offset, r.data, r.chain) for r in store.read(partition)]


def test_reading_pages_by_partition_and_offset(open_store):
    """A reader starts at any offset, stops at any limit, and misses nothing across pages."""
    store, records = open_store(), ticks(2_345)
    store.write(records)
    assert list(range(2_345)) == [record.offset for record in store.read(0)]
    assert list(range(1_000, 2_001)) == [record.offset for record in store.read(0, 1_000, 1_001)]
    assert [] == list(store.read(0, 2_345))
    assert [] == list(store.read(0, 0, 0))
    assert [] == list(store.read(1))


def test_positions_say_next_offset_head_and_newest_time(open_store):
    """The position stands behind the last event, with its head and the newest event time, even when the last one is older."""
    store, log = open_store(), History(4)
    log.fact(Tick(node="", partition=2, observed_at_ms=9_000))
    log.fact(Tick(node="", partition=2, observed_at_ms=4_000))
    store.write(log.records)
    assert {2: (2, log.records[-1].chain, 9_000)} == store.positions()


def test_an_empty_batch_changes_nothing(open_store):
    """Writing nothing leaves every digest."""
    store = open_store()
    before = store.digests()
    assert Written(0, 0, 0) == store.write([])
    assert before == store.digests()
    assert {} == store.positions()


def test_equal_logs_give_equal_digests_however_they_are_cut(open_store):
    """Batches of 1, of 7 and of everything give the same rows, in another store, with and without decoded events."""
    records = every_kind().records
    whole = open_store()
    whole.write(records)
    for size in (1, 7):
        cut = open_store()
        for start in range(0, len(records), size):
            cut.write([record._replace(event=None) for record in records[start : start + size]])
        assert whole.digests() == cut.digests()


def test_the_store_chains_what_comes_unchained(open_store):
    """A log without hashes gets the same hashes from the store."""
    chained, unchained = open_store(), open_store()
    chained.write(every_kind().records)
    unchained.write(every_kind(chained=False).records)
    assert chained.digests() == unchained.digests()


# --- delivered again, twice, out of order ---


def test_what_stands_before_the_checkpoint_is_skipped(open_store):
    """Redelivery from the start, from the middle and of everything leaves the rows of one delivery."""
    store, records = open_store(), every_kind().records
    store.write(records[:30])
    assert Written(rows=len(records) - 30, skipped=30, repeats=0) == store.write(records)
    before = store.digests()
    assert Written(rows=0, skipped=len(records), repeats=0) == store.write(records)
    assert before == store.digests()


def test_an_event_sent_twice_is_one_row(open_store):
    """A repeat under a new offset moves the position and adds neither a row nor a link, in one batch and across batches."""
    once, twice = open_store(), open_store()
    records = ticks(3, chained=False)
    once.write(records)
    repeats = [record._replace(offset=record.offset + 3) for record in records]
    assert Written(rows=3, skipped=0, repeats=2) == twice.write([*records, *repeats[:2]])
    assert Written(rows=0, skipped=0, repeats=1) == twice.write(repeats[2:])
    assert [r.chain for r in once.read(0)] == [r.chain for r in twice.read(0)]
    assert 6 == twice.positions()[0].next_offset
    assert once.positions()[0].chain_head == twice.positions()[0].chain_head


@pytest.mark.parametrize("written", [0, 2])
def test_a_chained_repeat_is_refused_and_nothing_is_written(open_store, written):
    """A writer that chains cannot send one event twice, in one batch or in two: the error says how repeats are dropped."""
    store, records = open_store(), ticks(2)
    store.write(records[:written])
    repeat = records[0]._replace(offset=2, chain=next_hash(records[1].chain, records[0].data))
    with pytest.raises(StoreError, match="leave the chain to the store"):
        store.write([*records[written:], repeat])
    assert written == len(list(store.read(0)))


def test_gaps_in_offsets_are_allowed(open_store):
    """Kafka's offsets have gaps; only their order counts."""
    store = open_store()
    records = [record._replace(offset=record.offset * 10 + 3) for record in ticks(3)]
    store.write(records)
    assert [3, 13, 23] == [record.offset for record in store.read(0)]
    assert 24 == store.positions()[0].next_offset


@pytest.mark.parametrize("offsets", [(1, 0), (0, 0)])
def test_records_out_of_order_are_refused(open_store, offsets):
    """A batch whose offsets do not rise is refused whole."""
    store, records = open_store(), ticks(2, chained=False)
    with pytest.raises(StoreError, match="in the order of the log"):
        store.write([record._replace(offset=offset) for record, offset in zip(records, offsets, strict=True)])
    assert {} == store.positions()


def test_a_second_writer_of_a_partition_is_refused(open_store):
    """A chain that does not continue the head is refused: two writers never interleave in one partition."""
    store, records = open_store(), ticks(4)
    store.write(records[:2])
    with pytest.raises(StoreError, match="only one writer may own a partition"):
        store.write([records[3]])
    assert 2 == store.positions()[0].next_offset


def test_an_event_in_the_wrong_partition_is_refused(open_store):
    """A node's decision that stands in another node's partition is named, with the partition it belongs to."""
    store, log = open_store(), every_kind()
    wrong = next(record for record in log.records if record.envelope.kind == "quarantine_opened")
    with pytest.raises(StoreError, match=rf"belongs to {wrong.partition} of 4"):
        store.write([wrong._replace(partition=(wrong.partition + 1) % 4, offset=0, chain=b"")])


def test_a_partition_that_does_not_exist_is_refused(open_store):
    """Partition numbers are those of the store."""
    with pytest.raises(StoreError, match="partition 4 does not exist"):
        open_store().write([ticks(1)[0]._replace(partition=4, chain=b"")])


# --- what cannot be read ---


def test_an_unknown_kind_stays_in_the_log_and_is_parked(open_store):
    """A kind of a newer build is kept byte for byte, and an operator is told where it is."""
    store, tick = open_store(), ticks(1)[0]
    envelope = msgspec.structs.replace(tick.envelope, kind="device_dreamed")
    data = encode(envelope)
    store.write([LogRecord(0, 0, envelope, data)])
    assert [data] == [record.data for record in store.read(0)]
    with store.reading() as connection:
        place, reason = connection.execute(text("SELECT place, reason FROM audit_parked")).one()
    assert "partition 0 offset 0" == place
    assert "'device_dreamed' is unknown to this build" in reason


def test_a_newer_shape_stops_the_writer_and_writes_nothing(open_store):
    """A schema version of a newer build is never guessed at."""
    store, log = open_store(), every_kind()
    place = next(i for i, record in enumerate(log.records) if record.envelope.kind == "quarantine_opened")
    envelope = msgspec.structs.replace(log.records[place].envelope, schema_version=99)
    future = log.records[place]._replace(envelope=envelope, data=encode(envelope), chain=b"", event=None)
    with pytest.raises(UnsupportedSchemaError, match="99"):
        store.write([*log.records[:place], future])
    assert {} == store.positions()


def test_a_payload_that_does_not_fit_its_kind_stops_the_writer(open_store):
    """A decision without its record is an error that names the event, and nothing of the batch is written."""
    store, log = open_store(), every_kind()
    record = next(r for r in log.records if r.envelope.kind == "quarantine_opened")
    envelope = msgspec.structs.replace(record.envelope, payload=msgspec.Raw(b'{"node":"n","at_ms":1}'))
    with pytest.raises(CodecError, match=record.envelope.event_id):
        store.write([LogRecord(record.partition, 0, envelope, encode(envelope))])
    assert {} == store.positions()


def test_parking_twice_is_parking_once(open_store):
    """A parked item has a derived id; a big one is cut, and its size is kept."""
    store = open_store()
    items = [
        ParkedItem("a.jsonl:7", "not JSON", b"\xff\x00"),
        ParkedItem("a.jsonl:8", "too big", b"x" * 100_000, 5),
    ]
    store.park(items)
    store.park(items)
    store.write([], park=items[:1])
    store.park([])
    with store.reading() as connection:
        rows = connection.execute(
            text("SELECT seq, place, reason, at_ms, raw_bytes, length(raw) FROM parked")
        ).all()
    assert [
        (1, "a.jsonl:7", "not JSON", None, 2, 2),
        (2, "a.jsonl:8", "too big", 5, 100_000, PARKED_RAW_BYTES_MAX),
    ] == sorted(tuple(row) for row in rows)


def test_an_integer_beyond_64_bits_is_refused_with_the_remedy(open_store):
    """SQLite and PostgreSQL hold 64 bits; a larger time is the sender's to park."""
    store = open_store()
    log = History(4)
    log.fact(Tick(node="", partition=0, observed_at_ms=2**63))
    with pytest.raises(StoreError, match="beyond 64 bits"):
        store.write(log.records)
    assert {} == store.positions()


# --- text is data ---

#: Everything that a schema consists of, as each database tells it.
SCHEMAS = {
    "sqlite": "SELECT name, sql FROM sqlite_master ORDER BY name",
    "postgresql": "SELECT relname, relkind, relrowsecurity, relhastriggers, attname, atttypid, attnotnull,"
    " pg_get_viewdef(pg_class.oid) FROM pg_class LEFT JOIN pg_attribute ON attrelid = pg_class.oid"
    " WHERE relnamespace = 'sickbay'::regnamespace ORDER BY relname, attnum",
}


def schema_of(store):
    with store.reading() as connection:
        rows = connection.execute(text(SCHEMAS[connection.dialect.name])).all()
    assert len(rows) > 30
    return rows


NASTY = (
    "'; DROP TABLE event_log; --",
    '"; DELETE FROM episode; --',
    "\\'; UPDATE event_log SET data = x'' --",
    "%(name)s :name ? {0} %s",
    "e\u0301 vs \u00e9 \u0130i\u0131 \U0001f525 \u202egnp.exe",
    "NUL \x00 in the middle and \\u0000 spelled out",
    "\r\n\t\x1b[31m",
    "=1+1",
    "",
)


@pytest.mark.parametrize("payload", NASTY)
def test_text_is_stored_as_text(open_store, payload):
    """Names, reasons and messages of any content come back as they were, and the schema stays; U+0000 is shown as its picture."""
    store, log = open_store(), History(4)
    node, device = "node-a", f"dra:{payload}/pool/gpu"
    fact = log.fact(health(node, device, 1, "Unhealthy", rv=1, message=payload))
    opened = msgspec.structs.replace(open_episode(device, 1), reason=payload, actor=payload)
    decision = msgspec.structs.replace(
        custody(QuarantineOpened, node, device, 1, "in_service", "quarantined", episode=opened),
        reason=payload,
    )
    log.decide(
        fact, decision, AlertRaised(node=node, at_ms=1, alert_id=payload, alert=payload, about=payload)
    )
    log.fact(
        HoldRequested(
            node=node,
            observed_at_ms=2,
            device_id=device,
            request_id="a/" + payload,
            actor=payload,
            reason=payload,
            until_ms=3,
        )
    )
    before = schema_of(store)
    store.write(log.records)
    shown = payload.replace("\0", "\u2400")
    assert before == schema_of(store)
    with store.reading() as connection:
        assert (shown, shown) == tuple(connection.execute(select(episode.c.reason, episode.c.actor)).one())
        assert (shown, f"a/{shown}") == tuple(
            connection.execute(select(request.c.reason, request.c.request_id)).one()
        )
        assert shown == connection.execute(select(transition.c.reason)).scalar_one()
        named = connection.execute(
            select(event_log.c.device_id).where(event_log.c.device_id.is_not(None))
        ).scalars()
        assert {f"dra:{shown}/pool/gpu"} == set(named)
    assert [record.data for record in log.records] == [
        record.data for partition in range(4) for record in store.read(partition)
    ]


def test_ids_that_differ_by_case_or_normal_form_stay_apart(open_store):
    """Ids are compared byte by byte."""
    store, log = open_store(), History(4)
    devices = ["dra:d/p/caf\u00e9", "dra:d/p/cafe\u0301", "dra:d/p/CAFE", "dra:d/p/cafe", "dra:d/p/cafe "]
    for number, device in enumerate(devices):
        fact = log.fact(health("node-a", device, 1, "Unknown", rv=number))
        log.decide(fact, custody(DeviceSuspected, "node-a", device, 1, "in_service", "suspect"))
    store.write(log.records)
    with store.reading() as connection:
        found = connection.execute(text("SELECT device_id FROM device_current")).scalars().all()
    assert sorted(devices) == sorted(found)


# --- the log is append-only ---


@pytest.mark.parametrize("change", ["update", "delete", "replace"])
def test_the_log_refuses_change(open_store, change):
    """UPDATE, DELETE and a replacing INSERT of a logged event abort."""
    store = open_store()
    store.write(ticks(3))
    replacing = {
        "sqlite": "INSERT OR REPLACE INTO event_log SELECT * FROM event_log WHERE log_offset = 1",
        "postgresql": "INSERT INTO event_log SELECT * FROM event_log WHERE log_offset = 1"
        " ON CONFLICT (partition_number, log_offset) DO UPDATE SET actor = 'mallory'",
    }
    statement = {
        "update": update(event_log).values(actor="mallory"),
        "delete": delete(event_log),
        "replace": text(replacing[store.engine.dialect.name]),
    }[change]
    before = store.digests()
    with pytest.raises(Exception, match="append-only"), store.engine.begin() as connection:
        connection.execute(statement)
    assert before == store.digests()


# --- whose store it is ---


def test_source_and_partition_count_are_pinned(open_store, new_place):
    """A store that follows one log refuses to be taken for another's."""
    place = new_place()
    assert (EMBEDDED, 4) == ((store := open_store(place)).source_id, store.partitions)
    with pytest.raises(StoreError, match="follows the log 'embedded' and not 'kafka/topic'"):
        open_store(place, source_id="kafka/topic")
    with pytest.raises(StoreError, match="has 4 partitions and not 8"):
        open_store(place, partitions=8)
    assert 4 == open_store(place, create=False, partitions=None).partitions


def test_a_read_only_store_answers_and_refuses_to_write(open_store, new_place):
    """An auditor's connection sees the same digests and cannot write."""
    place = new_place()
    writer = open_store(place)
    writer.write(every_kind().records)
    auditor = open_store(place, create=False, read_only=True)
    assert writer.digests() == auditor.digests()
    with pytest.raises(StoreError, match="cannot be written"):
        auditor.write(ticks(1))


def _write_partitions(place, numbers, log):
    with Store.open(place) as store:
        for number in numbers:
            records = [record for record in log if record.partition == number]
            for start in range(0, len(records), 25):
                store.write(records[start : start + 25])


def test_processes_write_their_partitions_side_by_side(open_store, new_place):
    """Two processes on two partitions each of one database give the rows of one writer."""
    log, place = storm(nodes=24, devices=2, rounds=4, partitions=4), new_place()
    one, many = open_store(), open_store(place)
    one.write(log.records)
    undecoded = [record._replace(event=None) for record in log.records]
    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=_write_partitions, args=(place, numbers, undecoded))
        for numbers in ((0, 2), (1, 3))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [0, 0] == [worker.exitcode for worker in workers]
    assert one.digests() == many.digests()


def test_heads_start_from_the_partition_number():
    """Every test above would also pass with one chain for all partitions; this says that there are several."""
    assert 4 == len({first_head(partition) for partition in range(4)})
