"""The servers of a run: Kafka and PostgreSQL of its own, started as the tests start theirs, and gone with it."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sickbay.operations.topics import apply_topics
from sickbay.settings import KafkaSettings

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "support"))
_numbers = itertools.count(1)
#: A record's time is the broker's, so that times of two topics can be compared; what was deleted is soon cleaned away.
_SETTINGS: Final = {"log.message.timestamp.type": "LogAppendTime", "log.cleaner.backoff.ms": "1000"}


class Services:
    """Where the servers are."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        self._bootstrap = bootstrap
        self._partitions = partitions

    def installation(self, *, state_segment_ms: int | None = None) -> KafkaSettings:
        """Return the settings of a new installation whose topics are made.

        With ``state_segment_ms`` segments of its state topic end that soon, so that the broker may compact them.
        """
        from kafka_topics import configure

        settings = KafkaSettings(
            bootstrap=self._bootstrap,
            security="plaintext",
            prefix=f"bench{os.getpid()}-{next(_numbers)}",
            partitions=self._partitions,
            replication=1,
        )
        asyncio.run(apply_topics(settings))
        if state_segment_ms is not None:
            state = next(t for t in settings.topics.declared() if t.name == settings.topics.state)
            config = dict(state.config) | {
                "segment.ms": f"{state_segment_ms}",
                "min.cleanable.dirty.ratio": "0.01",
                "delete.retention.ms": "1000",
            }
            changed = {name.replace(".", "_"): value for name, value in config.items()}
            asyncio.run(configure(self._bootstrap, state.name, **changed))
        return settings

    @staticmethod
    def database() -> str:
        """Return the URL of a new, empty database."""
        from postgresql import server

        return str(server().empty())


@contextmanager
def services(partitions: int) -> Iterator[Services]:
    """Start Kafka, and stop it; PostgreSQL comes with the first database that is asked for and goes with this process."""
    from kafka_server import KafkaServer

    with KafkaServer(settings=_SETTINGS) as kafka:
        yield Services(kafka.bootstrap, partitions)


def environment(settings: KafkaSettings) -> dict[str, str]:
    """Return the environment in which a row finds Kafka."""
    from live_processes import environment as found

    return dict(found(settings))
