"""What an administrator does to topics, right or wrong, for tests: coroutines that return when it is done everywhere."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import for_code

WAIT_S = 30


@asynccontextmanager
async def administering(bootstrap):
    """Give out a client that is started."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        async with asyncio.timeout(WAIT_S):
            await admin.start()
            yield admin
    finally:
        await admin.close()


async def names(bootstrap, prefix=""):
    """Return the names of topics, sorted."""
    async with administering(bootstrap) as admin:
        return sorted(name for name in await admin.list_topics() if name.startswith(prefix))


async def create(bootstrap, name, partitions=1, replication=1, **config):
    """Make a topic; ``_`` in names of its configuration stands for a dot."""
    configs = {key.replace("_", "."): value for key, value in config.items()}
    async with administering(bootstrap) as admin:
        response = await admin.create_topics([NewTopic(name, partitions, replication, topic_configs=configs)])
        _require(response.topic_errors)

        async def is_there():
            return name in await admin.list_topics()

        await _until(is_there)


async def delete(bootstrap, *topics):
    """Delete topics."""
    async with administering(bootstrap) as admin:
        response = await admin.delete_topics(list(topics))
        _require([(name, code, "") for name, code in response.topic_error_codes])

        async def are_gone():
            return not set(topics) & set(await admin.list_topics())

        await _until(are_gone)


async def configure(bootstrap, name, **config):
    """Give a topic this configuration and no other; ``_`` stands for a dot."""
    configs = {key.replace("_", "."): value for key, value in config.items()}
    async with administering(bootstrap) as admin:
        for response in await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, configs)]):
            _require([(entry[3], entry[0], entry[1]) for entry in response.resources])

        async def is_known():
            found = {}
            for response in await admin.describe_configs(
                [ConfigResource(ConfigResourceType.TOPIC, name, configs)]
            ):
                found |= {entry[0]: entry[1] for resource in response.resources for entry in resource[4]}
            return found == configs

        await _until(is_known)


async def add_partitions(bootstrap, name, total):
    """Raise the number of partitions of a topic."""
    async with administering(bootstrap) as admin:
        await admin.create_partitions({name: NewPartitions(total)})

        async def has_all():
            return len((await admin.describe_topics([name]))[0]["partitions"]) == total

        await _until(has_all)


async def delete_records(bootstrap, name, partition, before):
    """Delete what a partition holds before an offset, as a retention that ends does."""
    async with administering(bootstrap) as admin:
        await admin.delete_records({TopicPartition(name, partition): RecordsToDelete(before)})


async def committed(bootstrap, group):
    """Return (topic, partition) -> offset that a group told Kafka."""
    async with administering(bootstrap) as admin:
        offsets = await admin.list_consumer_group_offsets(group)
        return {(tp.topic, tp.partition): found.offset for tp, found in offsets.items()}


async def _until(holds):
    end = asyncio.get_running_loop().time() + WAIT_S
    while not await holds():
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.02)


def _require(errors):
    for name, code, message in errors:
        if code:
            raise for_code(code)(f"{name}: {message}")
