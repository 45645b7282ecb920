"""Parts of Faust that would lose something as they are, with the least changed that keeps it; ``streams.app`` puts them in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from faust.assignor.partition_assignor import PartitionAssignor
from faust.transport.drivers.aiokafka import Consumer, Producer
from faust.types import TP


class _ReadOffsets(defaultdict[TP, "int | None"]):
    """What was read of each partition, but for some topics, of which Faust is told nothing.

    By it Faust drops what it believes to have read. After a rebalance it may have dropped the record itself, between a seek and
    the clearing of its queues: it notes a record as read after the seek that went back before it. The worker alone knows what it
    has folded, and a recovery that begins again what it has put into the table.
    """

    def __init__(self, untold: frozenset[str]) -> None:
        super().__init__(lambda: None)
        self._untold = untold

    def __getitem__(self, tp: TP) -> int | None:
        return None if tp.topic in self._untold else super().__getitem__(tp)


def bounded_consumer(facts: str, state: str, limit: Callable[[int], int]) -> type[Consumer]:
    """Return a consumer that delivers every record of both topics, and commits no offset of facts above ``limit(partition)``.

    A stream acknowledges the record that it holds when it is cancelled, ``noack`` or not, and then Faust would commit past a record
    that is in no snapshot: a hole that no later start can mend.
    """

    class BoundedConsumer(Consumer):
        # what it logs is Faust's word, as loud as Faust's
        __module__ = Consumer.__module__

        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            self._read_offset = _ReadOffsets(frozenset((facts, state)))

        def _new_offset(self, tp: TP) -> int | None:
            offset = super()._new_offset(tp)
            if offset is None or tp.topic != facts:
                return offset
            # never 0, which is the limit of a partition that was let go of: its next owner would read everything again
            return min(offset, limit(tp.partition)) or None

        def begins(self, tp: TP) -> int:
            """Return the offset from which a partition is read."""
            return self._committed_offset[tp] or 0

    return BoundedConsumer


class IdempotentProducer(Producer):
    """A producer of which nothing is written behind a batch that the broker refused, and none twice (P1, P3, P7).

    Faust has one only for transactions. Without it an answer could be lost and the next one be written, before the worker hears
    of it: whoever reads the decisions takes the facts between them as answered by nothing.
    """

    def _settings_extra(self) -> Mapping[str, Any]:
        return {"enable_idempotence": True}


def sure_assignor(topics: Sequence[str], partitions: int) -> type[PartitionAssignor]:
    """Return an assignor that divides these topics even where the client has just lost sight of them.

    A broker that restarts is without topics for a moment. Faust leaves out what it does not see, and nobody divides again: every
    worker is in the group, ready, and has nothing.
    """

    class Seen:
        def __init__(self, cluster: Any) -> None:
            self._cluster = cluster

        def partitions_for_topic(self, topic: str) -> set[int]:
            found: set[int] | None = self._cluster.partitions_for_topic(topic)
            return found or (set(range(partitions)) if topic in topics else set())

    class SureAssignor(PartitionAssignor):
        @classmethod
        def _get_copartitioned_groups(cls, topics: set[str], cluster: Any, subscriptions: Any) -> Any:
            return super()._get_copartitioned_groups(topics, cast("Any", Seen(cluster)), subscriptions)

    return SureAssignor
