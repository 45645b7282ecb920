"""Apache Kafka for tests: brokers of our own on the loopback interface, in KRaft mode, with their data in a throw-away folder.

A broker is Apache's own program, run by Java from the jars that ``make kafka`` fetched, or from Apache's image where a Docker
engine answers and has it. It ends with the process that started it, even when that is killed. A broker that somebody else
runs (SICKBAY_KAFKA) is used by the fixtures of tests/conftest.py alone: nothing here stops or pauses it.
"""

from __future__ import annotations

import atexit
import base64
import ctypes
import hashlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Protocol, Self

from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
POM = ROOT / "tests" / "services" / "kafka" / "pom.xml"
LOGGING = POM.with_name("log4j2.properties")
WAIT_S = 90

#: A broker that only tests use: no metrics, no JIT for the long run, little memory.
JVM = (
    "-Xms128M",
    "-Xmx384M",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
)
#: What makes a broker small and quick, and what Sickbay asks of a real one.
SETTINGS = {
    "auto.create.topics.enable": "false",
    "background.threads": "2",
    # a broker that crashed may come back, or be replaced by another one, after this long
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "5000",
    "group.coordinator.threads": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.index.size.max.bytes": "1048576",
    "num.io.threads": "2",
    "num.network.threads": "1",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "2",
    "share.coordinator.state.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "2",
}

_PR_SET_PDEATHSIG = 1
_STARTED = "Kafka Server started"
_REMEDY = (
    "no Kafka for the tests: `make kafka` fetches it (it needs Java 17 and Maven, which it installs on Debian as root);"
    " or give the bootstrap of a broker in SICKBAY_KAFKA"
)


class NoKafkaError(Exception):
    """There is no Kafka and no way to start one; a test without it fails, and is never skipped."""


@cache
def version() -> str:
    """Return the version of Kafka that the tests start."""
    found = re.search(r"<kafka\.version>([^<]+)<", POM.read_text(encoding="utf-8"))
    assert found is not None
    return found.group(1)


class Runtime(Protocol):
    """What runs Kafka's programs."""

    #: What the kernel sends to the program when the process that started it ends.
    parting: signal.Signals

    def command(self, name: str, folder: Path, *program: str) -> list[str]:
        """Return the command line of a Java class and its arguments; it may write to ``folder``."""

    def send(self, name: str, process: subprocess.Popen[bytes], how: signal.Signals) -> None:
        """Send a signal to the program."""


class Jars:
    """The jars that ``make kafka`` fetched."""

    parting = signal.SIGKILL

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def command(self, _name: str, _folder: Path, *program: str) -> list[str]:
        return ["java", *JVM, f"-Dlog4j2.configurationFile={LOGGING}", "-cp", f"{self._folder}/*", *program]

    def send(self, _name: str, process: subprocess.Popen[bytes], how: signal.Signals) -> None:
        process.send_signal(how)


class Image:
    """Apache's image, on the network of this machine and as the user of the tests."""

    #: the client passes it on to the container; it could not do so with SIGKILL
    parting = signal.SIGTERM

    def __init__(self, image: str) -> None:
        self._image = image

    def command(self, name: str, folder: Path, *program: str) -> list[str]:
        return [
            "docker", "run", "--rm", "--pull", "never", "--name", name, "--network", "host",
            "--user", f"{os.getuid()}:{os.getgid()}", "--volume", f"{folder}:{folder}",
            "--volume", f"{LOGGING}:{LOGGING}:ro", "--entrypoint", "java", self._image,
            *JVM, f"-Dlog4j2.configurationFile={LOGGING}", "-cp", "/opt/kafka/libs/*", *program,
        ]  # fmt: skip

    def send(self, name: str, _process: subprocess.Popen[bytes], how: signal.Signals) -> None:
        subprocess.run(
            ["docker", "kill", "--signal", how.name, name], capture_output=True, timeout=WAIT_S, check=False
        )


def runtime() -> Runtime:
    """Return what runs Kafka here: the image where an engine on this machine has it, else the jars. Raises NoKafkaError."""
    image = f"apache/kafka:{version()}"
    if sys.platform == "linux" and shutil.which("docker") and _answers("docker", "image", "inspect", image):
        return Image(image)
    jars = ROOT / ".cache" / "kafka" / version()
    if shutil.which("java") is None or not list(jars.glob("kafka_*.jar")):
        raise NoKafkaError(_REMEDY)
    return Jars(jars)


def _answers(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


_runtime = cache(runtime)
_numbers = itertools.count(1)


class KafkaServer:
    """One broker that is its own controller; with ``voters`` one of several.

    ``settings`` go over those above. ``advertised_port`` is that of a proxy (see ``tcp_proxy``): whoever is let in by the
    listener ``behind`` is told to come back by it, and whoever comes by ``bootstrap`` goes past it.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        advertised_port: int | None = None,
        node_id: int = 1,
        voters: Mapping[int, int] | None = None,
        cluster: str = "",
    ) -> None:
        self._runtime = _runtime()
        self.folder = Path(tempfile.mkdtemp(prefix="sickbay-kafka-"))
        self._owner = os.getpid()
        self._name = f"sickbay-kafka-{os.getpid()}-{next(_numbers)}"
        self._cluster = cluster or cluster_id(self._name + str(time.time_ns()))
        self._process: subprocess.Popen[bytes] | None = None
        self._log_from = 0
        self._stopped = False
        #: The port of the broker; it keeps it when it is started again.
        self.port = free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        #: The listener for a proxy to connect to: host and port.
        self.behind = ("127.0.0.1", free_port())
        voters = voters or {node_id: free_port()}
        listeners = {"DIRECT": self.port, "BEHIND": self.behind[1], "CONTROLLER": voters[node_id]}
        advertised = {"DIRECT": self.port, "BEHIND": advertised_port or self.behind[1]}
        replicas = min(3, len(voters))
        values = SETTINGS | {
            "node.id": str(node_id),
            "process.roles": "broker,controller",
            "controller.quorum.voters": ",".join(f"{node}@127.0.0.1:{port}" for node, port in voters.items()),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "DIRECT",
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items()),
            "advertised.listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in advertised.items()),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
            "log.dirs": str(self.folder / "data"),
            "default.replication.factor": str(replicas),
            "offsets.topic.replication.factor": str(replicas),
            "share.coordinator.state.topic.replication.factor": str(replicas),
            "share.coordinator.state.topic.min.isr": str(max(1, replicas - 1)),
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(max(1, replicas - 1)),
            "min.insync.replicas": str(max(1, replicas - 1)),
        } | dict(settings or {})  # fmt: skip
        self._properties = self.folder / "server.properties"
        self._properties.write_text(
            "".join(f"{key}={value}\n" for key, value in values.items()), encoding="utf-8"
        )
        self._log = self.folder / "server.log"
        atexit.register(self.remove)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def log(self) -> str:
        """What the broker wrote, since it was made."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    @property
    def running(self) -> bool:
        """Whether its process is there, paused or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the broker and wait until it serves. Raises NoKafkaError with its log when it does not."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start the broker without waiting; its folder is formatted the first time."""
        assert not self.running, "it is running already"
        if not (self.folder / "data").exists():
            self._format()
        self._log_from = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._runtime.command(self._name, self.folder, "kafka.Kafka", str(self._properties)),
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=self._end_with_parent,  # noqa: PLW1509 - it only asks the kernel for a signal
            )  # fmt: skip

    def wait(self) -> None:
        """Wait until it serves."""
        end = time.monotonic() + WAIT_S
        while self.running and time.monotonic() < end:
            if _STARTED.encode() in self._log.read_bytes()[self._log_from :]:
                return
            time.sleep(0.05)
        told = self.log[-3_000:]
        self.kill()
        raise NoKafkaError(f"Kafka did not start: {told}")

    def _format(self) -> None:
        done = subprocess.run(
            self._runtime.command(
                f"{self._name}-format", self.folder, "kafka.tools.StorageTool", "format",
                f"--cluster-id={self._cluster}", "--config", str(self._properties),
            ),
            cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WAIT_S, check=False,
            preexec_fn=self._end_with_parent,
        )  # fmt: skip
        if done.returncode:
            raise NoKafkaError(f"the folder of a broker was not formatted: {done.stdout}{done.stderr}")

    def _end_with_parent(self) -> None:
        """Make the kernel stop the broker when the thread that started it ends, however it ends."""
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, self._runtime.parting)

    def stop(self) -> None:
        """Stop it in good order, as an update of a cluster does."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            if self._stopped and how is not signal.SIGKILL:
                self._runtime.send(self._name, process, signal.SIGCONT)
            self._runtime.send(self._name, process, how)
            try:
                process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                self._runtime.send(self._name, process, signal.SIGKILL)
                process.kill()
        process.wait(WAIT_S)
        self._stopped = False

    def pause(self) -> None:
        """Stop its clock: connections stay and nothing is answered, as with a machine that hangs."""
        assert self._process is not None
        self._runtime.send(self._name, self._process, signal.SIGSTOP)
        self._stopped = True

    def resume(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._runtime.send(self._name, self._process, signal.SIGCONT)
        self._stopped = False

    def restart(self) -> None:
        """Stop it in good order, unless it has ended already, and start it with the same data on the same port."""
        self.stop()
        self.start()

    def remove(self) -> None:
        """End it and take everything away; a forked child that ends leaves it alone."""
        if os.getpid() == self._owner:
            self.kill()
            shutil.rmtree(self.folder, ignore_errors=True)
            atexit.unregister(self.remove)


class KafkaCluster:
    """Several brokers, each a controller too; a topic with three replicas takes records while two are there."""

    def __init__(self, brokers: int = 3, *, settings: Mapping[str, str] | None = None) -> None:
        voters = {node: free_port() for node in range(1, brokers + 1)}
        cluster = cluster_id(f"{os.getpid()}/{next(_numbers)}/{time.time_ns()}")
        self.servers = [
            KafkaServer(node_id=node, voters=voters, cluster=cluster, settings=settings) for node in voters
        ]
        self.bootstrap = ",".join(server.bootstrap for server in self.servers)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def start(self) -> None:
        """Start all of them: none serves before most are there."""
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.wait()

    def stop(self) -> None:
        """Stop all of them; the last ones have nobody to hand their work to, so they are ended."""
        for server in self.servers:
            server.kill()

    def remove(self) -> None:
        """End them and take everything away."""
        with ExitStack() as all_of_them:
            for server in self.servers:
                all_of_them.callback(server.remove)


def cluster_id(seed: str) -> str:
    """Return an id in the form that Kafka gives to clusters."""
    return base64.urlsafe_b64encode(hashlib.sha256(seed.encode()).digest()[:16]).decode().rstrip("=")
