"""Names of streams: part of the contract with every consumer."""

from __future__ import annotations

from facts_of import word

from sickbay import topics
from sickbay.codec import stream_of, wrap_fact
from sickbay.facts import Tick


def test_the_topics_are_named_as_the_design_says():
    """A renamed topic is another log."""
    assert ("sickbay.facts", "sickbay.decisions") == (topics.FACTS, topics.DECISIONS)
    assert 8 == topics.PARTITIONS_DEFAULT


def test_what_every_partition_hears_has_the_partitions_stream():
    """A tick belongs to its partition, a word to its node; the envelope says the same."""
    tick = Tick(node="", observed_at_ms=1, partition=5)

    assert topics.broadcast_stream(5) == stream_of(tick) == wrap_fact(tick).stream_id == "partition/5"
    assert "node-g1" == stream_of(word("plugin:x/y", "Healthy", 1, 1))
