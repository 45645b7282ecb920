"""`sickbay topics` against a real Kafka: what is made, what is accepted, and how each thing that loses history is told."""

from __future__ import annotations

import asyncio
import json
import time

import kafka_topics as administrator
import msgspec
import pytest
from cli import run
from kafka_server import KafkaCluster, KafkaServer
from ports import free_port

import sickbay.kafka
import sickbay.operations.topics
from sickbay.errors import ServiceError
from sickbay.kafka import topic_identity
from sickbay.operations.topics import apply_topics, check_topics, compare_topics

LOG = {
    "cleanup_policy": "delete",
    "retention_ms": "-1",
    "retention_bytes": "-1",
    "max_message_bytes": "1048588",
}


def variables(settings):
    return {
        "SICKBAY_KAFKA_BOOTSTRAP": settings.bootstrap,
        "SICKBAY_KAFKA_PREFIX": settings.prefix,
        "SICKBAY_KAFKA_PARTITIONS": str(settings.partitions),
        "SICKBAY_KAFKA_REPLICATION": str(settings.replication),
    }


def refused(settings):
    with pytest.raises(ServiceError) as caught:
        asyncio.run(check_topics(settings))
    assert 7 == caught.value.exit_code
    return str(caught.value)


def described(settings):
    async def ask():
        async with administrator.administering(settings.bootstrap) as admin:
            return {topic["topic"]: topic for topic in await admin.describe_topics()}

    return asyncio.run(ask())


def test_every_declared_topic_is_made_with_its_partitions_once(kafka_settings):
    declared = kafka_settings.topics.declared(4)
    assert sorted(t.name for t in declared) == sorted(asyncio.run(apply_topics(kafka_settings)))
    found = described(kafka_settings)
    assert {t.name: t.partitions for t in declared} == {
        t.name: len(found[t.name]["partitions"]) for t in declared
    }
    asyncio.run(check_topics(kafka_settings))
    assert [] == asyncio.run(apply_topics(kafka_settings))


def test_every_property_that_keeps_history_is_compared(kafka_ready):
    compared = asyncio.run(compare_topics(kafka_ready))
    assert all(each.is_right for each in compared)
    kept = {"partitions", "replication", *(name.replace("_", ".") for name in LOG)}
    assert kept == {each.setting for each in compared if each.topic == kafka_ready.topics.facts}
    assert {"partitions", "replication", "cleanup.policy", "max.message.bytes"} == {
        each.setting for each in compared if each.topic == kafka_ready.topics.state
    }


def test_a_missing_topic_is_named_with_the_command_that_makes_it(kafka_settings):
    told = refused(kafka_settings)
    assert kafka_settings.topics.facts in told
    assert "sickbay topics apply" in told
    assert "5 more" in told


def test_looking_makes_no_topic(kafka_settings):
    refused(kafka_settings)
    with pytest.raises(ServiceError, match=r"has no topic .*topics apply"):
        asyncio.run(topic_identity(kafka_settings, kafka_settings.topics.facts))
    assert [] == asyncio.run(administrator.names(kafka_settings.bootstrap, kafka_settings.prefix))


def test_what_is_missing_is_made_beside_what_is_there(kafka_ready):
    asyncio.run(administrator.delete(kafka_ready.bootstrap, kafka_ready.topics.known))
    assert [kafka_ready.topics.known] == asyncio.run(apply_topics(kafka_ready))
    asyncio.run(check_topics(kafka_ready))


def test_two_that_apply_at_once_make_each_topic_once(kafka_settings):
    async def both():
        return await asyncio.gather(apply_topics(kafka_settings), apply_topics(kafka_settings))

    first, second = asyncio.run(both())
    assert sorted(t.name for t in kafka_settings.topics.declared(4)) == sorted(first + second)


# T2


@pytest.mark.parametrize(
    ("changed", "value", "setting"),
    [
        ("cleanup_policy", "compact", "cleanup.policy"),
        ("cleanup_policy", "compact,delete", "cleanup.policy"),
        ("retention_ms", "604800000", "retention.ms"),
        ("retention_bytes", "1073741824", "retention.bytes"),
        ("max_message_bytes", "1000", "max.message.bytes"),
    ],
)
def test_a_log_that_may_lose_records_is_refused(kafka_ready, changed, value, setting):
    facts = kafka_ready.topics.facts
    asyncio.run(administrator.configure(kafka_ready.bootstrap, facts, **LOG | {changed: value}))
    told = refused(kafka_ready)
    wanted = LOG[changed]
    assert f"topic {facts} has {setting} {value} and must have {wanted}" in told
    assert f"--entity-name {facts} --add-config {setting}={wanted}" in told


def test_a_state_topic_with_deletion_is_refused(kafka_ready):
    state = kafka_ready.topics.state
    asyncio.run(
        administrator.configure(
            kafka_ready.bootstrap, state, cleanup_policy="compact,delete", max_message_bytes="4194304"
        )
    )
    assert f"{state} has cleanup.policy compact,delete and must have compact" in refused(kafka_ready)


def test_what_serves_speed_alone_may_differ(kafka_ready):
    asyncio.run(
        administrator.configure(
            kafka_ready.bootstrap, kafka_ready.topics.facts, **LOG, segment_bytes="16777216"
        )
    )
    asyncio.run(check_topics(kafka_ready))


def test_apply_repairs_no_configuration(kafka_ready):
    """Setting it back would hide that records may be missing."""
    facts = kafka_ready.topics.facts
    asyncio.run(administrator.configure(kafka_ready.bootstrap, facts, **LOG | {"cleanup_policy": "compact"}))
    with pytest.raises(ServiceError, match=r"cleanup\.policy compact"):
        asyncio.run(apply_topics(kafka_ready))
    assert "cleanup.policy compact" in refused(kafka_ready)


# T4


def test_a_topic_made_again_under_its_name_is_another_one(kafka_ready):
    async def story():
        facts = kafka_ready.topics.facts
        before = [await topic_identity(kafka_ready, facts) for _ in range(2)]
        await administrator.delete(kafka_ready.bootstrap, facts)
        await apply_topics(kafka_ready)
        return before, await topic_identity(kafka_ready, facts)

    before, after = asyncio.run(story())
    assert before[0] == before[1]
    assert after != before[0]
    assert after.split("/")[0] == before[0].split("/")[0]


def test_topics_of_one_cluster_differ_in_the_second_part_alone(kafka_ready):
    async def both():
        names = kafka_ready.topics.facts, kafka_ready.topics.decisions
        return [await topic_identity(kafka_ready, name) for name in names]

    facts, decisions = (identity.split("/") for identity in asyncio.run(both()))
    assert facts[0] == decisions[0]
    assert facts[1] != decisions[1]


# T5


def test_partitions_that_were_added_are_refused_and_never_changed(kafka_ready):
    facts = kafka_ready.topics.facts
    asyncio.run(administrator.add_partitions(kafka_ready.bootstrap, facts, 6))
    told = refused(kafka_ready)
    assert f"topic {facts} has partitions 6 and must have 4" in told
    assert "SICKBAY_KAFKA_PREFIX" in told
    with pytest.raises(ServiceError, match="partitions 6 and must have 4"):
        asyncio.run(apply_topics(kafka_ready))


def test_another_partition_count_than_the_topics_have_makes_nothing(kafka_ready):
    asyncio.run(administrator.delete(kafka_ready.bootstrap, kafka_ready.topics.parked))
    wider = msgspec.structs.replace(kafka_ready, partitions=8)
    with pytest.raises(ServiceError, match="partitions 4 and must have 8"):
        asyncio.run(apply_topics(wider))
    found = described(kafka_ready)
    assert kafka_ready.topics.parked not in found
    assert 4 == len(found[kafka_ready.topics.facts]["partitions"])


# T7


def test_a_topic_that_a_broker_made_by_itself_is_refused(kafka_settings):
    """One partition and the broker's own retention are what a misspelt name or an early producer leaves."""
    facts = kafka_settings.topics.facts
    asyncio.run(administrator.create(kafka_settings.bootstrap, facts))
    with pytest.raises(ServiceError) as caught:
        asyncio.run(apply_topics(kafka_settings))
    assert f"{facts} has partitions 1 and must have 4" in str(caught.value)
    assert [facts] == asyncio.run(administrator.names(kafka_settings.bootstrap, kafka_settings.prefix))


@pytest.mark.slow
def test_looking_makes_no_topic_where_a_broker_makes_them_by_itself(kafka_settings):
    with KafkaServer(settings={"auto.create.topics.enable": "true"}) as server:
        settings = msgspec.structs.replace(kafka_settings, bootstrap=server.bootstrap)
        assert "is missing" in refused(settings)
        with pytest.raises(ServiceError, match="has no topic"):
            asyncio.run(topic_identity(settings, settings.topics.facts))
        time.sleep(2)  # a broker that makes a topic answers before it has
        assert [] == asyncio.run(administrator.names(server.bootstrap, settings.prefix))


def test_a_topic_with_too_few_replicas_is_refused(kafka_ready):
    told = refused(msgspec.structs.replace(kafka_ready, replication=2))
    assert "has replication 1 and must have 2 or more" in told
    assert "SICKBAY_KAFKA_REPLICATION" in told


def test_more_replicas_than_brokers_are_told_with_the_setting(kafka_settings):
    with pytest.raises(
        ServiceError, match=r"does not make topic .* with replication 3.*SICKBAY_KAFKA_REPLICATION"
    ):
        asyncio.run(apply_topics(msgspec.structs.replace(kafka_settings, replication=3)))


# Kafka out of reach


def test_a_kafka_that_is_not_there_is_told_with_its_place(kafka_settings, monkeypatch):
    monkeypatch.setattr(sickbay.kafka, "_PAUSES_S", ())
    nowhere = msgspec.structs.replace(kafka_settings, bootstrap=f"127.0.0.1:{free_port()}")
    assert f"Kafka at {nowhere.bootstrap} cannot be used" in refused(nowhere)
    with pytest.raises(ServiceError, match="cannot be used"):
        asyncio.run(topic_identity(nowhere, "any"))


def test_a_connection_that_is_cut_within_the_answer_is_made_again(proxied_kafka):
    proxied_kafka.proxy.cut_after(100, "replies")
    asyncio.run(check_topics(proxied_kafka.settings))
    assert proxied_kafka.proxy.cuts


def test_a_kafka_that_hangs_is_told_within_the_limit(proxied_kafka, monkeypatch):
    monkeypatch.setattr(sickbay.operations.topics, "_LIMIT_S", 0.5)
    monkeypatch.setattr(sickbay.kafka, "_LIMIT_S", 0.5)
    proxied_kafka.proxy.swallow()
    started = time.monotonic()
    assert "cannot be used" in refused(proxied_kafka.settings)
    with pytest.raises(ServiceError, match="cannot be used"):
        asyncio.run(topic_identity(proxied_kafka.settings, "any"))
    assert time.monotonic() - started < 5


# The command


def test_the_command_makes_topics_and_says_which(kafka_settings):
    first = run("topics", "apply", "--output", "json", env=variables(kafka_settings))
    assert (0, "") == (first.code, first.err)
    assert {"made"} == {row["result"] for row in first.json_lines()}
    again = run("topics", "apply", "--output", "csv", env=variables(kafka_settings))
    assert [(t.name, str(t.partitions), "was there") for t in kafka_settings.topics.declared(4)] == [
        (row["topic"], row["partitions"], row["result"]) for row in again.csv_rows()
    ]


def test_the_command_compares_and_ends_with_its_exit_code(kafka_ready):
    right = run("topics", "check", "--output", "json", env=variables(kafka_ready))
    assert (0, "") == (right.code, right.err)
    assert {"right"} == {row["result"] for row in right.json_lines()}

    asyncio.run(administrator.add_partitions(kafka_ready.bootstrap, kafka_ready.topics.known, 5))
    wrong = run("topics", "check", "--output", "json", env=variables(kafka_ready))
    assert 7 == wrong.code
    assert [(kafka_ready.topics.known, "partitions", "5", "4")] == [
        (row["topic"], row["setting"], row["found"], row["wanted"])
        for row in map(json.loads, wrong.out.splitlines())
        if row["result"] == "differs"
    ]
    assert 1 == len(wrong.err.splitlines())
    assert f"{kafka_ready.topics.known} has partitions 5" in wrong.err


def test_the_command_without_a_kafka_says_so_on_one_line(kafka_settings):
    nowhere = f"127.0.0.1:{free_port()}"
    done = run("topics", "check", env=variables(kafka_settings) | {"SICKBAY_KAFKA_BOOTSTRAP": nowhere})
    assert (7, "") == (done.code, done.out)
    assert 1 == len(done.err.splitlines())
    assert nowhere in done.err


def test_the_command_without_settings_names_the_variable():
    done = run("topics", "apply", env={"SICKBAY_KAFKA_BOOTSTRAP": ""})
    assert 2 == done.code
    assert "SICKBAY_KAFKA_BOOTSTRAP" in done.err


# Three brokers


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_three_replicas_need_two_in_sync_and_outlive_a_broker(kafka_settings):
    with KafkaCluster(3, settings={"min.insync.replicas": "1"}) as cluster:
        settings = msgspec.structs.replace(kafka_settings, bootstrap=cluster.bootstrap, replication=3)
        asyncio.run(apply_topics(settings))
        compared = asyncio.run(compare_topics(settings))
        in_sync = [each for each in compared if each.setting == "min.insync.replicas"]
        assert [("2", "2 or more")] * 6 == [(each.found, each.wanted) for each in in_sync]

        cluster.servers[0].kill()
        identities = {asyncio.run(topic_identity(settings, settings.topics.facts)) for _ in range(8)}
        assert 1 == len(identities)
        for _ in range(4):
            asyncio.run(check_topics(settings))
        cluster.servers[0].start()

        asyncio.run(
            administrator.configure(cluster.bootstrap, settings.topics.facts, **LOG, min_insync_replicas="1")
        )
        assert "has min.insync.replicas 1 and must have 2 or more" in refused(settings)
