"""The outside of every event: ids that are derived, partitions that every producer computes alike."""

from __future__ import annotations

import uuid

import msgspec
import pytest

from sickbay.envelope import NAMESPACE, Envelope, derived_id, partition_of


@pytest.mark.parametrize(
    "parts", [("a",), ("a", "b"), ("", ""), ("kind", "nöde", "dra:x/y/z", "pods:0:12"), ()]
)
def test_a_derived_id_is_the_uuid5_of_its_parts(parts):
    """RFC 9562, version 5, over the parts joined by NUL: other programs can compute it."""
    assert str(uuid.uuid5(uuid.UUID(bytes=NAMESPACE), "\0".join(parts))) == derived_id(*parts)


def test_two_lists_of_parts_never_meet():
    """Where one part ends and the next begins is part of the id."""
    assert 4 == len({derived_id("ab", "c"), derived_id("a", "bc"), derived_id("abc"), derived_id("abc", "")})


def test_ids_are_what_they_were():
    """Changing the namespace changes every id ever written."""
    assert "88ef217e-b738-52de-ac1a-f4f61d979d6d" == derived_id(
        "device_health_observed", "node-g1", "plugin:nvidia.com/gpu/GPU-0", "pods:0:12"
    )


@pytest.mark.parametrize(
    ("node", "partition"), [("", 4), ("node-g1", 7), ("node-g2", 4), ("10.0.0.7", 3), ("nöde", 6)]
)
def test_a_nodes_partition_is_what_it_was(node, partition):
    """Every producer must agree, for ever: the first 8 bytes of SHA-256, modulo the count."""
    assert partition == partition_of(node, 8)


def test_nodes_are_spread_over_all_partitions():
    """A thousand nodes leave none of sixteen partitions idle or with twice its share."""
    counts = [0] * 16
    for n in range(1000):
        counts[partition_of(f"node-{n}", 16)] += 1

    assert 1000 == sum(counts)
    assert min(counts) > 30
    assert max(counts) < 125


def test_the_fields_stand_in_the_order_of_the_canonical_bytes():
    """The hash chain covers them in this order: alphabetical, as sorted keys would give."""
    names = [field.name for field in msgspec.structs.fields(Envelope)]

    assert sorted(names) == names


def test_an_envelope_holds_no_time_of_writing():
    """Equal inputs give equal bytes: the only time is the event's."""
    assert ["at_ms"] == [
        f.name for f in msgspec.structs.fields(Envelope) if f.name.endswith(("_ms", "_at", "_time"))
    ]
