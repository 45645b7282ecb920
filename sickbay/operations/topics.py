"""Making the topics of an installation, and comparing those that are there with what they must be (faults T2, T5, T7).

A topic that is not as it must be loses history without a word: compacted facts, a retention that ends, one replica. So nothing
here repairs one. What was lost meanwhile is not known here; a person looks, and is told what to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import TopicAlreadyExistsError, for_code

from sickbay.errors import ServiceError
from sickbay.kafka import asked, client_arguments, translated
from sickbay.settings import KafkaSettings
from sickbay.topics import Topic

#: What decides whether history stays. Others of a topic's settings are for speed, and a person may change them.
_KEPT: Final = ("cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes")
#: With this many replicas, losing one broker must not lose a record that was acknowledged.
_REPLICATION_SAFE: Final = 3
_IN_SYNC_MIN: Final = 2
#: How long all of it may take.
_LIMIT_S: Final = 60.0
_LOOK_AGAIN_S: Final = 0.1


class Compared(NamedTuple):
    """One property of one topic, as it was found and as it must be."""

    topic: str
    #: ``topic`` for whether it is there, ``partitions``, ``replication``, or the name of a topic configuration.
    setting: str
    found: str
    wanted: str
    is_right: bool


class _Found(NamedTuple):
    """A topic as Kafka has it."""

    partitions: int
    #: Of the partition that has fewest.
    replication: int
    config: Mapping[str, str]


async def check_topics(settings: KafkaSettings) -> None:
    """Return when every topic is as it must be; every process asks before it starts.

    Raises ServiceError naming a topic, what was found, what is wanted and what to do.
    """
    require(await compare_topics(settings))


def require(compared: Iterable[Compared]) -> None:
    """Raise ServiceError for the first property that is not right; the text says how many more there are."""
    wrong = [each for each in compared if not each.is_right]
    if wrong:
        more = f"; and {len(wrong) - 1} more, see `sickbay topics check`" if len(wrong) > 1 else ""
        raise ServiceError(_complaint(wrong[0]) + more)


async def compare_topics(settings: KafkaSettings) -> list[Compared]:
    """Return every property of every topic, beside what it must be. Raises ServiceError when Kafka cannot be asked."""
    async with _admin(settings) as admin:
        return _compared(settings, await _look(admin, settings))


async def apply_topics(settings: KafkaSettings) -> list[str]:
    """Make the topics that are missing, and return their names in the order of their declaration.

    A topic that is there stays as it is: its partitions decide where the events of a node are (T5). Two that run at once make
    each topic once. Raises ServiceError, before anything is made, for one that is not as it must be; and when Kafka refuses.
    """
    async with _admin(settings) as admin:
        there = await _look(admin, settings)
        require(each for each in _compared(settings, there) if each.topic in there)
        missing = [topic for topic in _declared(settings) if topic.name not in there]
        made = await _create(admin, settings, missing)
        # a broker answers before all of them know
        while any(topic.name not in there for topic in missing):
            await asyncio.sleep(_LOOK_AGAIN_S)
            there = await _look(admin, settings)
    require(_compared(settings, there))
    return made


@asynccontextmanager
async def _admin(settings: KafkaSettings) -> AsyncIterator[AIOKafkaAdminClient]:
    with translated(settings):
        admin = AIOKafkaAdminClient(**client_arguments(settings, "sickbay-topics"))
        try:
            async with asyncio.timeout(_LIMIT_S):
                await asked(admin.start)
                yield admin
        finally:
            await admin.close()


def _declared(settings: KafkaSettings) -> tuple[Topic, ...]:
    return settings.topics.declared(settings.partitions)


async def _look(admin: AIOKafkaAdminClient, settings: KafkaSettings) -> dict[str, _Found]:
    """Return the topics of ours that are there, by name.

    All topics are asked for, because asking for one by name makes it where the broker makes topics by itself (T7).
    """
    names = {topic.name for topic in _declared(settings)}
    described = [
        topic
        for topic in await asked(admin.describe_topics)
        if topic["topic"] in names and topic["partitions"]
    ]
    if not described:
        return {}
    configs = await asked(lambda: _configs(admin, [topic["topic"] for topic in described]))
    return {
        topic["topic"]: _Found(
            len(topic["partitions"]),
            min(len(partition["replicas"]) for partition in topic["partitions"]),
            configs[topic["topic"]],
        )
        for topic in described
        if topic["topic"] in configs
    }


async def _configs(admin: AIOKafkaAdminClient, names: list[str]) -> dict[str, dict[str, str]]:
    wanted = dict.fromkeys((*_KEPT, "min.insync.replicas"), "")
    resources = [ConfigResource(ConfigResourceType.TOPIC, name, wanted) for name in names]
    found: dict[str, dict[str, str]] = {}
    for response in await admin.describe_configs(resources):
        for code, message, _, name, entries in response.resources:
            if code:
                raise for_code(code)(f"the configuration of topic {name}: {message}")
            found[name] = {entry[0]: entry[1] for entry in entries}
    return found


async def _create(admin: AIOKafkaAdminClient, settings: KafkaSettings, missing: list[Topic]) -> list[str]:
    if not missing:
        return []
    safe = {"min.insync.replicas": str(_IN_SYNC_MIN)} if settings.replication >= _REPLICATION_SAFE else {}
    new = [
        NewTopic(topic.name, topic.partitions, settings.replication, topic_configs=dict(topic.config) | safe)
        for topic in missing
    ]
    response = await asked(lambda: admin.create_topics(new))
    made = []
    for name, code, message in response.topic_errors:
        if code == 0:
            made.append(name)
        elif code != TopicAlreadyExistsError.errno:
            raise ServiceError(
                f"Kafka at {settings.bootstrap} does not make topic {name} with replication {settings.replication}:"
                f" {(message or for_code(code).__name__).rstrip('.')}; mend that, or set SICKBAY_KAFKA_REPLICATION to what it can hold"
            )
    return made


def _compared(settings: KafkaSettings, there: Mapping[str, _Found]) -> list[Compared]:
    return [
        each for topic in _declared(settings) for each in _compare(settings, topic, there.get(topic.name))
    ]


def _compare(settings: KafkaSettings, topic: Topic, found: _Found | None) -> Iterator[Compared]:
    if found is None:
        yield Compared(topic.name, "topic", "missing", "there", is_right=False)
        return

    def exact(setting: str, is_: str, must: str) -> Compared:
        return Compared(topic.name, setting, is_, must, is_ == must)

    def at_least(setting: str, is_: str, must: int) -> Compared:
        return Compared(topic.name, setting, is_, f"{must} or more", is_.isdigit() and int(is_) >= must)

    yield exact("partitions", str(found.partitions), str(topic.partitions))
    yield at_least("replication", str(found.replication), settings.replication)
    for name in _KEPT:
        if name in topic.config:
            yield exact(name, found.config.get(name, "unknown"), topic.config[name])
    if settings.replication >= _REPLICATION_SAFE:
        in_sync = "min.insync.replicas"
        yield at_least(in_sync, found.config.get(in_sync, "unknown"), _IN_SYNC_MIN)


def _complaint(wrong: Compared) -> str:
    """Return what is wrong with a topic and what to do."""
    topic, setting, found, wanted, _ = wrong
    if setting == "topic":
        return f"topic {topic} is missing: run `sickbay topics apply` first"
    told = f"topic {topic} has {setting} {found} and must have {wanted}: "
    if setting == "partitions":
        return (
            f"{told}either SICKBAY_KAFKA_PARTITIONS is not what it was made with, or partitions were added, which moves nodes"
            " and cannot be undone; make new topics under another SICKBAY_KAFKA_PREFIX then, and observe anew"
        )
    if setting == "replication":
        return f"{told}give it more replicas (kafka-reassign-partitions), or set SICKBAY_KAFKA_REPLICATION to what it has"
    value = wanted.partition(" ")[0]
    return (
        f"{told}set it (kafka-configs --alter --entity-type topics --entity-name {topic} --add-config {setting}={value}), and"
        " see whether records are missing already"
    )
