"""The same fold as a stateful application of Quix Streams: ``python -m live.quix_row whole|least FACTS LIMIT_S``.

It runs in an environment of its own (``bench/live/quix.in``). Quix has no other place for state than what a record writes, so
``whole`` writes, for every record, the state of the nodes that it touched, as our snapshots would hold them: the least with
which it could go on after a crash. Reading it back is spared, the states stay in memory. ``least`` writes a position and nothing
else, so it could not go on at all: no stateful fold by Quix is faster. Both write their answers to one topic; what is forwarded
goes there too.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from typing import Any, Final

import msgspec
from quixstreams import Application, State, message_context

from sickbay.cloudevents import INGEST_EPOCH, batches, unpack, whole_header
from sickbay.settings import KafkaSettings, kafka_settings
from streams.live import Live, read_record
from streams.pieces import pack
from streams.snapshot import dump_node

from .measured import Course, Measured, facts_among, on_one_core


class Timed(Application):
    """An application whose course ends with its last checkpoint, before it lets go of its consumer and its store."""

    course: Course
    measured: Measured

    def _run_dataframe(self, *arguments: Any, **more: Any) -> None:
        super()._run_dataframe(*arguments, **more)
        self.measured = self.course.end()


class Folder:
    """The fold as a function of Quix; it stops the application when all is folded, or the time is over."""

    def __init__(self, app: Application, course: Course, total: int, limit_s: int, *, whole: bool) -> None:
        self._app = app
        self._course = course
        self._total = total
        self._lives = [Live(number, total) for number in range(total)]
        self._whole = whole
        self._limit_s = limit_s
        self._until: float | None = None

    def take(self, value: bytes, _key: object, _timestamp: int, headers: Any, state: State) -> list[bytes]:
        """Fold one record and return the records of its answer."""
        self._course.begin()
        now = time.monotonic()
        if self._until is None:
            self._until = now + self._limit_s
        place = message_context()
        live = self._lives[place.partition]
        opened = unpack(value, headers)
        epoch = whole_header(headers, INGEST_EPOCH)
        answer = live.take(place.offset, read_record(opened, epoch, place.partition, self._total))
        if self._whole:
            touched, live.partition.touched = live.partition.touched, set()
            for name in touched:
                state.set_bytes(name, pack(dump_node(live, name)))
        else:
            state.set("position", place.offset)
        self._course.took(facts_among(opened), (o.envelope.kind for o in answer.decisions))
        if self._course.whole or now > self._until:
            self._app.stop()
        said = [opened.data for _, opened in answer.forwarded]
        if answer.decisions:
            key = answer.decisions[0].envelope.stream_id or "partition"
            said += [
                message.value for message in batches(key, [(o.envelope, o.data) for o in answer.decisions])
            ]
        return said


_READ_MAX: Final = 16 * 1024 * 1024


def run(settings: KafkaSettings, facts: int, limit_s: int, *, whole: bool) -> Measured:
    """Fold the facts topic, until every fact is folded and the checkpoint is committed, or the time is over."""
    course = Course(facts)
    with tempfile.TemporaryDirectory(prefix="sickbay-bench-quix-") as folder:
        app = Timed(
            settings.bootstrap,
            consumer_group=f"{settings.prefix}-quix",
            auto_offset_reset="earliest",
            state_dir=folder,
            loglevel="WARNING",
            consumer_extra_config={"max.partition.fetch.bytes": _READ_MAX},
        )
        app.course = course
        source = app.topic(settings.topics.facts, value_deserializer="bytes", key_deserializer="bytes")
        answers = app.topic(f"{settings.prefix}.quix", value_serializer="bytes", key_serializer="bytes")
        folder_ = Folder(app, course, settings.partitions, limit_s, whole=whole)
        frame = app.dataframe(source)
        frame = frame.apply(folder_.take, stateful=True, metadata=True, expand=True)
        frame.to_topic(answers)
        app.run()
        return app.measured


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("state", choices=("whole", "least"))
    parser.add_argument("facts", type=int)
    parser.add_argument("limit_s", type=int)
    options = parser.parse_args()
    on_one_core()
    measured = run(kafka_settings(os.environ), options.facts, options.limit_s, whole=options.state == "whole")
    sys.stdout.buffer.write(msgspec.json.encode(measured))


if __name__ == "__main__":
    main()
