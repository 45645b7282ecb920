"""The brokers that tests start do what tests believe of them: they keep their data and place, and end with the run."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import kafka_server
import kafka_topics as administrator
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition
from kafka_server import KafkaServer, NoKafkaError

SUPPORT = Path(kafka_server.__file__).parent


async def write(bootstrap, topic, *values):
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", request_timeout_ms=5_000)
    try:
        await producer.start()
        for value in values:
            await producer.send_and_wait(topic, value, partition=0)
    finally:
        await producer.stop()


async def read(bootstrap, topic, count):
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest")
    try:
        await consumer.start()
        consumer.assign([TopicPartition(topic, 0)])
        async with asyncio.timeout(20):
            return [(await consumer.getone()).value for _ in range(count)]
    finally:
        await consumer.stop()


@pytest.fixture(scope="module")
def server():
    with KafkaServer() as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("end", [KafkaServer.stop, KafkaServer.kill], ids=["stopped", "killed"])
def test_a_broker_keeps_its_data_and_its_place(server, end, kafka_prefix):
    bootstrap = server.bootstrap
    asyncio.run(administrator.create(bootstrap, kafka_prefix))
    asyncio.run(write(bootstrap, kafka_prefix, b"1", b"2"))
    end(server)
    assert not server.running
    server.start()
    assert bootstrap == server.bootstrap
    assert [b"1", b"2"] == asyncio.run(read(bootstrap, kafka_prefix, 2))


def test_a_paused_broker_answers_nobody_until_it_goes_on(server):
    server.pause()
    with pytest.raises((TimeoutError, KafkaError)):
        asyncio.run(asyncio.wait_for(administrator.names(server.bootstrap), 0.5))
    assert server.running
    server.resume()
    asyncio.run(administrator.names(server.bootstrap))


@pytest.mark.slow
def test_a_paused_broker_is_stopped_all_the_same(server):
    server.pause()
    server.restart()
    asyncio.run(administrator.names(server.bootstrap))


def test_no_topic_comes_by_itself(server, kafka_prefix):
    with pytest.raises((TimeoutError, KafkaError)):
        asyncio.run(asyncio.wait_for(write(server.bootstrap, kafka_prefix, b"1"), 1))
    assert [] == asyncio.run(administrator.names(server.bootstrap, kafka_prefix))


def test_clients_that_come_through_the_proxy_stay_behind_it(proxied_kafka):
    topic = proxied_kafka.settings.topics.parked
    asyncio.run(write(proxied_kafka.settings.bootstrap, topic, b"seen"))
    proxied_kafka.proxy.cut(refuse=True)
    with pytest.raises((TimeoutError, KafkaError)):
        asyncio.run(asyncio.wait_for(read(proxied_kafka.settings.bootstrap, topic, 1), 2))
    assert [b"seen"] == asyncio.run(read(proxied_kafka.direct.bootstrap, topic, 1))


def test_a_broker_that_cannot_start_is_told_with_its_log():
    server = KafkaServer(settings={"log.cleaner.dedupe.buffer.size": "none"})
    with pytest.raises(NoKafkaError, match="dedupe"):
        server.start()
    server.remove()
    assert not server.folder.exists()


def test_a_broker_ends_with_a_process_that_is_killed():
    script = textwrap.dedent(
        f"""
        import sys, time
        sys.path.insert(0, {str(SUPPORT)!r})
        from kafka_server import KafkaServer
        server = KafkaServer()
        server.start()
        print(server._process.pid, server.folder, flush=True)
        time.sleep(100)
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pid, folder = starter.stdout.readline().split()
        assert alive(int(pid))
        starter.kill()
    end = time.monotonic() + 10
    while alive(int(pid)) and time.monotonic() < end:
        time.sleep(0.05)
    is_left = alive(int(pid))
    with suppress(ProcessLookupError):
        os.kill(int(pid), signal.SIGKILL)
    subprocess.run(["rm", "-r", folder], check=True)
    assert not is_left


def alive(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except FileNotFoundError:
        return False


# An engine is not everywhere, so a stand-in takes its place: it runs what it is told to run, from the jars.
DOCKER = """\
#!{python}
import os, signal, subprocess, sys
words = sys.argv[1:]
with open(os.environ["DOCKER_TOLD"], "a") as told:
    print(*words, file=told)
if words[:2] == ["image", "inspect"]:
    sys.exit(0)
elif words[0] == "run":
    name, entry = words[words.index("--name") + 1], words[words.index("--entrypoint") + 1]
    rest = words[words.index("--entrypoint") + 3:]
    rest[rest.index("-cp") + 1] = {jars!r}
    open(os.environ["DOCKER_TOLD"] + name, "w").write(str(os.getpid()))
    os.execvp(entry, [entry, *rest])
elif words[0] == "kill":
    pid = int(open(os.environ["DOCKER_TOLD"] + words[3]).read())
    os.kill(pid, getattr(signal, words[2]))
"""


@pytest.mark.slow
def test_an_engine_that_has_the_image_runs_it(tmp_path, monkeypatch, kafka_prefix):
    jars = kafka_server.ROOT / ".cache" / "kafka" / kafka_server.version() / "*"
    docker = tmp_path / "docker"
    docker.write_text(DOCKER.format(python=sys.executable, jars=str(jars)), encoding="utf-8")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_TOLD", str(tmp_path / "told"))
    monkeypatch.setattr(kafka_server, "_runtime", kafka_server.runtime)
    with KafkaServer() as server:
        asyncio.run(administrator.create(server.bootstrap, kafka_prefix))
        server.pause()
        server.resume()
        server.restart()
        assert [kafka_prefix] == asyncio.run(administrator.names(server.bootstrap))
        folder = server.folder
    told = (tmp_path / "told").read_text(encoding="utf-8").splitlines()
    assert f"image inspect apache/kafka:{kafka_server.version()}" == told[0]
    runs = [line for line in told if line.startswith("run ")]
    assert 3 == len(runs)
    assert all(f"--volume {folder}:{folder}" in line for line in runs)
    assert ["SIGSTOP", "SIGCONT", "SIGTERM", "SIGKILL"] == [
        line.split()[2] for line in told if line.startswith("kill ")
    ]


def test_without_java_or_jars_the_remedy_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoKafkaError, match="make kafka"):
        kafka_server.runtime()
