"""Events to canonical bytes and back, and what is refused instead of guessed at."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import pytest
from facts_of import T0, node, plugin, release, tick, word

from sickbay import codec
from sickbay.codec import (
    decode_envelope,
    encode,
    encode_payload,
    fact_id,
    open_envelope,
    wrap_decision,
    wrap_fact,
)
from sickbay.decisions import NodeIncidentClosed
from sickbay.errors import CodecError, UnknownEventError, UnsupportedSchemaError
from sickbay.events import KINDS
from sickbay.facts import Fact


class WeightObserved(Fact, frozen=True, kw_only=True):
    """A kind that only these tests know, in its third shape: grams, and who weighed."""

    KIND: ClassVar[str] = "weight_observed"
    SCHEMA_VERSION: ClassVar[int] = 3

    grams: int
    weighed_by: str


def lift_to_2(payload):
    """Kilograms became grams."""
    return {key: value for key, value in payload.items() if key != "kilograms"} | {
        "grams": payload["kilograms"] * 1000
    }


def lift_to_3(payload):
    """The weigher is named; before that it was always the scale."""
    return payload | {"weighed_by": "scale"}


@pytest.fixture
def weight(monkeypatch):
    """Register the kind and its upcasters for one test."""
    monkeypatch.setitem(KINDS, WeightObserved.KIND, WeightObserved)
    monkeypatch.setitem(codec._decoders, WeightObserved.KIND, msgspec.json.Decoder(WeightObserved))
    monkeypatch.setitem(codec.UPCASTERS, (WeightObserved.KIND, 1), lift_to_2)
    monkeypatch.setitem(codec.UPCASTERS, (WeightObserved.KIND, 2), lift_to_3)


def envelope(**changes):
    return msgspec.structs.replace(wrap_fact(word(plugin(0), "Unhealthy", T0, 12)), **changes)


def old_weight(version, **payload):
    body = {"node": "n", "observed_at_ms": 1, "epoch": 0, "rv": 7} | payload
    return envelope(
        kind="weight_observed", schema_version=version, payload=msgspec.Raw(msgspec.json.encode(body))
    )


def test_an_event_survives_its_bytes():
    """Encoded, read and opened it is the same event."""
    fact = word(plugin(0), "Unhealthy", T0, 12, message="ECC 12")

    assert fact == open_envelope(decode_envelope(encode(wrap_fact(fact))))


def test_the_bytes_are_canonical():
    """Sorted keys at every level, no spaces, UTF-8 as it is."""
    data = encode(wrap_fact(word(plugin(0), "Unhealthy", T0, 12, message="größer")))
    text = data.decode()
    again = msgspec.json.encode(msgspec.json.decode(data), order="sorted")

    assert (again, False, True) == (data, ": " in text, "größer" in text)


def test_equal_facts_have_equal_bytes_whatever_the_order_of_their_maps():
    """Dictionaries come from JSON objects in any order."""
    first = node(T0, 1)
    turned = msgspec.structs.replace(first, capacity=dict(reversed(first.capacity.items())))

    assert list(first.capacity) != list(turned.capacity)
    assert encode_payload(first) == encode_payload(turned)


def test_a_facts_envelope_names_its_stream_key_and_version():
    """node/device_id/status_version, the contract with Kafka's consumers."""
    wrapped = wrap_fact(word(plugin(0), "Unhealthy", T0, 12))

    assert f"node-g1/{plugin(0)}/pods:0:12" == wrapped.key
    assert ("node-g1", "", "", "sickbay", T0) == (
        wrapped.stream_id, wrapped.policy, wrapped.causation_id, wrapped.actor, wrapped.at_ms,
    )  # fmt: skip


def test_the_id_of_a_fact_is_the_id_in_its_envelope():
    """Evidence names facts by it."""
    fact = word(plugin(0), "Unhealthy", T0, 12)

    assert fact_id(fact) == wrap_fact(fact).event_id


def test_the_end_of_a_word_names_its_pod():
    """One LIST ends the words of several Pods on one device: they are several events."""
    ends = [word(plugin(0), "Unhealthy", T0, 12, pod=pod, live=False) for pod in ("pod-a", "pod-b")]

    assert 2 == len({fact_id(fact) for fact in ends})


def test_a_request_carries_its_actor():
    """Who asked stands on the outside."""
    assert "ann" == wrap_fact(release(plugin(0), T0, "episode")).actor


def test_a_decision_names_its_cause_and_its_policy():
    """Two decisions of one cause have two ids, and a repeat has the same."""
    cause = wrap_fact(tick(T0))
    decision = NodeIncidentClosed(node="n", at_ms=T0, incident_id="i", cause="node_lost", opened_at_ms=1)
    first, again, second = (wrap_decision(decision, cause, ordinal, "hash") for ordinal in (0, 0, 1))

    assert (cause.event_id, "hash", "i", "n") == (
        first.causation_id, first.policy, first.correlation_id, first.stream_id,
    )  # fmt: skip
    assert first == again
    assert first.event_id != second.event_id


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"kind": 1}', "not json", b"null"])
def test_bytes_that_are_no_event_are_refused(data):
    """Say what was expected."""
    with pytest.raises(CodecError, match="not a Sickbay event"):
        decode_envelope(data)


def test_an_unknown_kind_is_refused_and_named():
    """A newer build wrote it; the remedy stands in the error."""
    with pytest.raises(
        UnknownEventError, match="'weight_observed' is unknown to this build; read it with a newer"
    ):
        open_envelope(envelope(kind="weight_observed"))


def test_a_newer_schema_is_refused_and_named():
    """Never guessed at."""
    with pytest.raises(UnsupportedSchemaError, match="schema version 99, this build reads up to 1"):
        open_envelope(envelope(schema_version=99))


@pytest.mark.parametrize("payload", [b"{}", b"[]", b'{"node": "n"}', b"null"])
def test_a_payload_that_does_not_fit_its_kind_is_refused_with_its_id(payload):
    """The event can be found again."""
    with pytest.raises(CodecError, match=envelope().event_id):
        open_envelope(envelope(payload=msgspec.Raw(payload)))


def test_a_health_word_that_is_none_of_the_three_is_refused():
    """The fact's own vocabulary is closed; what the source said stands in health_raw."""
    body = msgspec.json.decode(envelope().payload) | {"health": "Sick"}
    with pytest.raises(CodecError, match="health"):
        open_envelope(envelope(payload=msgspec.Raw(msgspec.json.encode(body))))


def test_an_old_shape_is_lifted_one_version_at_a_time(weight):
    """Version 1 goes through 2 to 3, version 2 to 3; bytes at rest stay as they are."""
    first, second = old_weight(1, kilograms=3), old_weight(2, grams=3000)
    before = bytes(first.payload)
    expected = WeightObserved(node="n", observed_at_ms=1, rv=7, grams=3000, weighed_by="scale")

    assert expected == open_envelope(first) == open_envelope(second)
    assert before == bytes(first.payload)


def test_todays_shape_goes_through_no_upcaster(weight):
    """Version 3 is read as it stands."""
    third = old_weight(3, grams=5, weighed_by="ann")

    assert WeightObserved(node="n", observed_at_ms=1, rv=7, grams=5, weighed_by="ann") == open_envelope(third)


def test_an_old_shape_without_an_upcaster_is_refused(weight, monkeypatch):
    """A version that nobody can lift is not guessed at."""
    monkeypatch.delitem(codec.UPCASTERS, (WeightObserved.KIND, 2))
    with pytest.raises(CodecError, match="weight_observed"):
        open_envelope(old_weight(1, kilograms=3))


def test_an_old_shape_that_lifts_to_nonsense_is_refused(weight):
    """The lifted payload is checked like any other."""
    with pytest.raises(CodecError, match="weight_observed"):
        open_envelope(old_weight(1, kilograms="three"))


def test_every_kind_has_one_name_and_a_version():
    """Wire names are snake case and unique; versions count from 1."""
    assert len(KINDS) == len(set(KINDS.values()))
    assert [] == [kind for kind, cls in KINDS.items() if kind != cls.KIND or cls.SCHEMA_VERSION < 1]
    assert [] == [kind for kind in KINDS if kind != kind.lower() or " " in kind or not kind]


@pytest.mark.parametrize("depth", [1_100, 100_000])
def test_nesting_beyond_all_reason_is_refused(depth):
    """The decoder gives up on it by an error of Python, which would end a worker."""
    nested = b"[" * depth + b"]" * depth
    data = encode(envelope()).replace(b'"payload":{', b'"payload":{"more":' + nested + b",")

    with pytest.raises(CodecError):
        open_envelope(decode_envelope(data))


@pytest.mark.parametrize("version", [1, 3])
def test_nesting_that_only_the_inside_is_refused_for(weight, version):
    """A payload is passed over first and read later, perhaps where less room is left."""
    nested = msgspec.Raw(b'{"more":' + b"[" * 1_100 + b"]" * 1_100 + b"}")

    with pytest.raises(CodecError, match="recursion"):
        open_envelope(envelope(kind="weight_observed", schema_version=version, payload=nested))
