"""Names and shapes of the event streams: data, not calls.

The embedded store and Kafka use the same partition count rule, so that a log moves between them unchanged. Topics are declared
here once; ``sickbay topics apply`` creates them and every process checks them before it starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

FACTS: Final = "sickbay.facts"
DECISIONS: Final = "sickbay.decisions"

#: Partitions of a new store. Eight feeds four workers twice over and keeps the ticks, which go to every partition, few.
PARTITIONS_DEFAULT: Final = 8
#: The largest record in bytes, key and headers included: Kafka's own default limit, less what the protocol adds.
RECORD_BYTES_MAX: Final = 1_000_000


def broadcast_stream(partition: int) -> str:
    """Return the stream id of events that every partition hears: ticks, gaps, breaker states, policies."""
    return f"partition/{partition}"


class Topic(NamedTuple):
    """One topic as it must be."""

    name: str
    partitions: int
    #: Topic configuration, name to value as Kafka writes it. What is not named is the broker's own business.
    config: Mapping[str, str]


class Topics:
    """The topics of one installation; ``prefix`` lets several share a Kafka cluster.

    ``facts``, ``decisions``, ``known`` and ``state`` have the same partitions, so that partition N of each belongs together.
    """

    def __init__(self, prefix: str = "sickbay") -> None:
        self.prefix: Final = prefix
        #: What was seen and asked for. Never compacted, never deleted: replay needs all of it (reference faults, T1, T2).
        self.facts: Final = f"{prefix}.facts"
        #: What was decided: records of one facts record each, in its partition and in its order.
        self.decisions: Final = f"{prefix}.decisions"
        #: The newest fact of each subject, compacted: what an ingester reads to know what was told before it started.
        self.known: Final = f"{prefix}.known"
        #: What could not be used, with its place and the reason.
        self.parked: Final = f"{prefix}.parked"
        #: The newest state of each alert, compacted: for whoever wants alerts from Kafka, and what `respond alert` told whom.
        self.alerts: Final = f"{prefix}.alerts"
        #: Application id and consumer group of the workers.
        self.work_id: Final = f"{prefix}-work"
        #: Snapshots of the workers: the changelog of their one table, under the name that Faust gives it.
        self.state: Final = f"{prefix}-work-state-changelog"
        #: Consumer group of the projectors.
        self.project_group: Final = f"{prefix}-project"

    def declared(self, partitions: int = PARTITIONS_DEFAULT) -> tuple[Topic, ...]:
        """Return every topic with its partitions and configuration."""
        log = {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "max.message.bytes": "1048588",
        }
        # compacted only: a changelog with deletion loses state that nobody wrote lately (faust-streaming #597, #651)
        newest = {
            "cleanup.policy": "compact",
            "max.message.bytes": "4194304",
            # only closed segments are compacted: small ones keep what a start must read close to what is live
            "segment.bytes": "33554432",
            "segment.ms": "600000",
            "min.cleanable.dirty.ratio": "0.2",
        }
        return (
            Topic(self.facts, partitions, log),
            Topic(self.decisions, partitions, log),
            Topic(self.known, partitions, newest),
            Topic(self.parked, 1, log),
            Topic(self.alerts, 1, newest),
            Topic(self.state, partitions, newest),
        )
