"""The containers of `make up`, held against what the tests start and what the processes are: without an engine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path

import click
import kafka_server
import postgresql
import pytest
import yaml
from packaging.requirements import Requirement

from sickbay.cli import cli
from sickbay.settings import kafka_settings

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("sickbay", "ingest", "streams", "projections", "responders", "migrations")
PROCESSES = ("topics", "migrate", "ingest", "work", "project")
LONG_RUNNING = ("ingest", "work", "project")
#: Where a broker is, and how much it may take: different for tests by purpose.
OF_A_PLACE = {
    "advertised.listeners", "controller.quorum.voters", "heap.opts", "inter.broker.listener.name", "listeners",
    "listener.security.protocol.map", "log.dirs",
}  # fmt: skip


def with_defaults(text):
    """What compose makes of ``${NAME:-default}`` and ``${NAME:?why}`` where nothing is set but the password."""
    text = re.sub(r"\$\{SICKBAY_POSTGRES_PASSWORD:\?[^}]*\}", "open-sesame", text)
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load(with_defaults((ROOT / "docker-compose.yml").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def services(compose):
    return compose["services"]


@pytest.fixture(scope="module")
def dockerfile():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]


def broker_of(services):
    environment = services["kafka"]["environment"]
    return {name.removeprefix("KAFKA_").lower().replace("_", "."): v for name, v in environment.items()}


# Kafka and PostgreSQL are those of the tests


def test_kafka_is_the_version_that_the_tests_start(services):
    assert f"apache/kafka:{kafka_server.version()}" == services["kafka"]["image"]


def test_kafka_behaves_as_the_one_that_the_tests_start(services):
    server = kafka_server.KafkaServer()
    lines = (server.folder / "server.properties").read_text(encoding="utf-8").splitlines()
    server.remove()
    tested = dict(line.split("=", 1) for line in lines)
    shipped = {name: value for name, value in broker_of(services).items() if name not in OF_A_PLACE}
    assert {name: tested.get(name) for name in shipped} == shipped
    replicated = {name for name in tested if name.endswith(("replication.factor", ".isr"))}
    assert {"auto.create.topics.enable", "min.insync.replicas", *replicated} <= shipped.keys()


def test_every_listener_of_kafka_is_told_to_clients_and_has_a_protocol(services):
    broker = broker_of(services)
    listeners = {entry.split("://")[0] for entry in broker["listeners"].split(",")}
    advertised = {entry.split("://")[0] for entry in broker["advertised.listeners"].split(",")}
    protocols = {entry.split(":")[0] for entry in broker["listener.security.protocol.map"].split(",")}
    assert listeners == protocols == advertised | {broker["controller.listener.names"]}


def test_postgresql_is_set_as_the_one_that_the_tests_start(services):
    assert f"postgres:{postgresql.SERVER_MIN}" == services["postgresql"]["image"]
    source = Path(postgresql.__file__).read_text(encoding="utf-8")
    settings = [word for word in services["postgresql"]["command"] if "=" in word]
    assert settings
    assert [] == [setting for setting in settings if f'"{setting}"' not in source]
    initdb = services["postgresql"]["environment"]["POSTGRES_INITDB_ARGS"]
    assert '"UTF8"' in source
    assert "--encoding=UTF8" in initdb
    assert '"--locale=C"' in source
    assert "--locale=C" in initdb


# The processes


def test_every_process_of_sickbay_is_there_by_its_command(services):
    assert {"kafka", "postgresql", *PROCESSES} == services.keys()
    assert {
        "topics": ["topics", "apply"],
        "migrate": ["migrate"],
        "ingest": ["ingest", "--kubeconfig", "/etc/sickbay/kubeconfig"],
        "work": ["work"],
        "project": ["project"],
    } == {name: services[name]["command"] for name in PROCESSES}


@pytest.mark.parametrize("name", PROCESSES)
def test_the_command_line_knows_every_command_and_its_options(services, name):
    command, arguments = cli, list(services[name]["command"])
    context = click.Context(command)
    while isinstance(command, click.Group):
        context = click.Context(command, parent=context)
        command = command.get_command(context, arguments.pop(0))
        assert command is not None, services[name]["command"]
    command.make_context(name, arguments, parent=context)


def test_every_service_has_a_healthcheck_or_is_run_once(services):
    once = {name for name, service in services.items() if service.get("restart") == "no"}
    assert {"topics", "migrate"} == once
    assert {name for name, service in services.items() if "healthcheck" in service} == services.keys() - once


def test_who_waits_waits_for_health_or_for_the_end(services):
    once = {"topics", "migrate"}
    waits = {
        (name, other): how["condition"]
        for name, service in services.items()
        for other, how in service.get("depends_on", {}).items()
    }
    assert {other: condition for (_, other), condition in waits.items()} == {
        "kafka": "service_healthy",
        "postgresql": "service_healthy",
        "topics": "service_completed_successfully",
        "migrate": "service_completed_successfully",
    }
    assert once <= {other for _, other in waits}
    assert {("project", "migrate"), *((name, "topics") for name in LONG_RUNNING)} <= waits.keys()


@pytest.mark.parametrize("name", PROCESSES)
def test_a_process_may_do_nothing_but_its_work(services, name):
    service = services[name]
    assert "65532:65532" == service["user"]
    assert service["read_only"] is True
    assert ["ALL"] == service["cap_drop"]
    assert ["no-new-privileges:true"] == service["security_opt"]
    assert "ports" not in service
    assert not {"privileged", "network_mode", "pid", "volumes", "cap_add"} & service.keys()


@pytest.mark.parametrize("name", ["kafka", "postgresql"])
def test_a_port_is_open_to_this_machine_alone(services, name):
    assert all(port.startswith("127.0.0.1:") for port in services[name]["ports"])


@pytest.mark.parametrize("name", PROCESSES)
def test_the_settings_of_a_process_lead_to_the_services_beside_it(services, name):
    environment = services[name]["environment"]
    settings = kafka_settings(environment)
    assert ("plaintext", 1, 8) == (settings.security, settings.replication, settings.partitions)
    host, _, port = settings.bootstrap.partition(":")
    assert f"INSIDE://{host}:{port}" in services["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert host in services
    assert "postgresql://postgres@postgresql/sickbay" == environment["SICKBAY_DB"]
    assert environment["PGPASSWORD"] == services["postgresql"]["environment"]["POSTGRES_PASSWORD"]


def test_the_kubeconfig_comes_from_a_file_that_is_no_part_of_the_repository(compose):
    (secret,) = compose["services"]["ingest"]["secrets"]
    assert compose["services"]["ingest"]["command"][-1] == secret["target"]
    assert {"file": "./secrets/kubeconfig"} == compose["secrets"][secret["source"]]
    assert "/secrets/" in (ROOT / ".gitignore").read_text(encoding="utf-8").split()


def health(code):
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(code if self.path == "/readyz" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            return

    return HTTPServer(("127.0.0.1", 0), Answer)


@pytest.mark.parametrize("name", LONG_RUNNING)
@pytest.mark.parametrize(("code", "is_healthy"), [(200, True), (503, False)])
def test_the_healthcheck_asks_whether_a_process_is_ready(services, name, code, is_healthy):
    kind, python, *words = services[name]["healthcheck"]["test"]
    assert ("CMD", "python") == (kind, python)
    port = services[name]["environment"]["SICKBAY_HTTP_PORT"]
    assert f"127.0.0.1:{port}/readyz" in words[-1]
    with health(code) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        words[-1] = words[-1].replace(f":{port}/", f":{server.server_port}/")
        done = subprocess.run([sys.executable, *words], capture_output=True, timeout=30, check=False)
        server.shutdown()
    assert is_healthy == (done.returncode == 0)


# The image


def test_the_image_is_built_on_a_python_that_the_metadata_allows_and_ends_as_nobody(dockerfile):
    bases = [words.split()[0] for instruction, words in dockerfile if instruction == "FROM"]
    assert ["python:3.11-slim"] * 2 == bases
    assert "65532:65532" == [words for instruction, words in dockerfile if instruction == "USER"][-1]


def test_the_image_holds_every_package(dockerfile):
    copied = {
        source
        for instruction, words in dockerfile
        if instruction == "COPY" and "--from" not in words
        for source in words.split()[:-1]
    }
    assert {*PACKAGES, "pyproject.toml", "README.md", "LICENSE", "requirements/runtime.txt"} <= copied
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in allowed
    assert copied == {line[1:] for line in allowed if line.startswith("!")}


def test_nothing_is_installed_without_a_hash(dockerfile):
    commands = [
        command.strip()
        for instruction, words in dockerfile
        if instruction == "RUN"
        for command in re.split(r"&&|;", words)
    ]
    installs = [command for command in commands if re.match(r"pip .*\binstall\b", command)]
    assert 3 == len(installs)
    assert [] == [each for each in installs if "--require-hashes" not in each and "--no-index" not in each]


def test_the_build_backend_is_installed_with_all_that_it_needs(dockerfile):
    (names,) = (
        re.findall(r"for name in ([^;]+);", words)[0].split()
        for instruction, words in dockerfile
        if instruction == "RUN" and "for name in" in words
    )
    needed, asked = set(), ["hatchling"]
    while asked:
        name = asked.pop()
        needed.add(name)
        wanted = [Requirement(text) for text in metadata.requires(name) or []]
        asked += [each.name for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    assert needed == set(names)
    pinned = (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8")
    assert [] == [name for name in names if f"\n{name}==" not in pinned]


def test_compose_itself_accepts_the_file():
    """Where the engine's client has the plugin; what it would refuse is judged above as far as YAML can tell."""
    docker = shutil.which("docker")
    if (
        docker is None
        or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode
    ):
        return
    done = subprocess.run(
        [docker, "compose", "--file", str(ROOT / "docker-compose.yml"), "config", "--quiet"],
        env=os.environ | {"SICKBAY_POSTGRES_PASSWORD": "open-sesame"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (0, "") == (done.returncode, done.stderr)
