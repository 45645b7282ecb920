"""Golden records: one event of each kind and schema version, as it was written once and must be read for ever.

The records are never changed. A new kind, or a new version of one, gets a file of its own: ``<kind>.<schema_version>.json``,
one canonical envelope and a newline. They are written by hand or by the build that introduces the version, never by a test.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sickbay.codec import (
    UPCASTERS,
    decode_envelope,
    encode,
    encode_payload,
    fact_id,
    open_envelope,
    stream_of,
)
from sickbay.errors import UnknownEventError, UnsupportedSchemaError
from sickbay.events import KINDS
from sickbay.facts import Fact

FOLDER = Path(__file__).parent / "events"
RECORDS = sorted(FOLDER.glob("*.json"))


def name(path):
    return path.name.removesuffix(".json")


def record(path):
    data = path.read_bytes()
    assert data.endswith(b"}\n"), f"{path.name}: one envelope and a newline"
    return data[:-1]


each = pytest.mark.parametrize("path", RECORDS, ids=name)


def test_every_kind_has_a_record_of_each_of_its_versions():
    """Versions count from 1; none is forgotten when the shape moves on, and no record is left of a kind that is not there."""
    wanted = {
        f"{kind}.{version}" for kind, cls in KINDS.items() for version in range(1, cls.SCHEMA_VERSION + 1)
    }

    assert wanted == {name(path) for path in RECORDS}


@each
def test_a_record_is_named_after_what_it_holds(path):
    """The file says kind and version; so does the envelope."""
    envelope = decode_envelope(record(path))

    assert name(path) == f"{envelope.kind}.{envelope.schema_version}"


@each
def test_a_record_decodes_into_its_type_with_something_to_lose(path):
    """Every field of the type is present in the record, so that a renamed or dropped one shows."""
    envelope = decode_envelope(record(path))
    event = open_envelope(envelope)
    cls = KINDS[envelope.kind]

    assert type(event) is cls
    if envelope.schema_version == cls.SCHEMA_VERSION:
        assert {f.name for f in msgspec.structs.fields(cls)} == set(msgspec.json.decode(envelope.payload))


@each
def test_a_record_is_encoded_again_to_the_same_bytes(path):
    """The hash chain covers bytes: an event of today's version is written as it was."""
    data = record(path)
    envelope = decode_envelope(data)
    event = open_envelope(envelope)

    assert data == encode(envelope)
    if envelope.schema_version == type(event).SCHEMA_VERSION:
        assert bytes(envelope.payload) == encode_payload(event)


@each
def test_the_identity_of_a_recorded_fact_is_what_it_was(path):
    """Ids are derived: were they computed otherwise, every repeat would be news."""
    envelope = decode_envelope(record(path))
    event = open_envelope(envelope)
    if isinstance(event, Fact):
        assert (envelope.event_id, envelope.stream_id) == (fact_id(event), stream_of(event))
        assert envelope.key == f"{stream_of(event)}/{event.subject}/{event.status_version}"
    else:
        assert (envelope.correlation_id, envelope.stream_id) == (event.correlation_id, event.node)
        assert "" not in (envelope.causation_id, envelope.policy)


@each
def test_a_newer_version_of_a_recorded_kind_is_refused(path):
    """What this build does not read it does not guess at."""
    envelope = decode_envelope(record(path))
    newer = msgspec.structs.replace(envelope, schema_version=KINDS[envelope.kind].SCHEMA_VERSION + 1)

    with pytest.raises(UnsupportedSchemaError, match=envelope.kind):
        open_envelope(newer)


@each
def test_a_record_under_a_kind_that_is_not_known_is_refused(path):
    """A renamed kind does not fall back to another."""
    stranger = msgspec.structs.replace(decode_envelope(record(path)), kind=f"{name(path)}_of_tomorrow")

    with pytest.raises(UnknownEventError, match="of_tomorrow"):
        open_envelope(stranger)


def test_every_older_version_can_be_lifted():
    """A kind whose version rose has an upcaster for each step."""
    steps = {(kind, version) for kind, cls in KINDS.items() for version in range(1, cls.SCHEMA_VERSION)}

    assert steps == UPCASTERS.keys()


def lifted(kind):
    """Version 1 of a kind as this build reads it, and version 2 beside it."""
    return [open_envelope(decode_envelope(record(FOLDER / f"{kind}.{version}.json"))) for version in (1, 2)]


def test_a_claim_of_version_1_asked_for_nothing_that_was_read():
    """Wishes came with version 2; all else of the same claim is told alike."""
    old, new = lifted("claim_observed")

    assert ((), ()) == (old.together, old.selected)
    assert old == msgspec.structs.replace(new, together=(), selected=())


def test_a_pod_of_version_1_reports_nothing_of_its_resize():
    """What is actuated and allocated for the whole Pod came with version 2; absent is not zero."""
    old, new = lifted("pod_observed")

    assert (None, None) == (old.pod_level_actuated, old.pod_level_allocated)
    assert old == msgspec.structs.replace(new, pod_level_actuated=None, pod_level_allocated=None)


def test_a_gate_request_of_version_1_keeps_its_identity():
    """It was about a device and named no ledger; a newer one is about its scope."""
    old, new = lifted("claims_gate_requested")

    assert ("", None) == (old.ledger_version, old.partition)
    assert (old.device_id, "gate:node") == (old.subject, new.subject)


def test_a_move_report_of_version_1_is_read_as_it_was():
    """Version 2 added a word for the outcome and no field; an old report says done or failed."""
    old, new = lifted("move_reported")

    assert ("done", "checkpoint 4711", "deferred") == (old.outcome, old.detail, new.outcome)
