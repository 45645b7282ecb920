"""Commands that run for long take the same options and end alike, seen from outside."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

PROGRAM = """
import logging
import click
from sickbay.cli import cli
from sickbay.cli.processes import process_options, run_to_exit
from sickbay.clock import SystemClock
from sickbay.errors import ServiceError
from sickbay.operations.health import Progress, Told
from sickbay.operations.http import HealthServer
from sickbay.operations.metrics import new_registry
from sickbay.operations.stage_metrics import WorkMetrics

@click.command()
@process_options
@click.option("--fail", is_flag=True)
def toy(log_format, http_host, http_port, fail):
    async def main(stop):
        if fail:
            raise ServiceError("Kafka at kafka:9092 cannot be used: sasl_plain_password='c4nary'")
        registry = new_registry("work")
        WorkMetrics(registry, SystemClock()).parked()
        async with HealthServer(registry, [Told("kafka")], [Progress("facts")], host=http_host, port=http_port) as server:
            print(server.port, flush=True)
            await stop.wait()
        logging.getLogger("sickbay.toy").debug("ended")
    run_to_exit(main, log_format)

cli.add_command(toy)
cli.get_command = lambda ctx, name: toy
from sickbay.cli import main as run
run()
"""


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def asked(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_process_serves_and_ends_when_it_is_asked_to(number: signal.Signals, code: int) -> None:
    with start("--verbose", "toy") as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        live, ready, metrics = (asked(port, path) for path in ("/livez", "/readyz", "/metrics"))
        process.send_signal(number)
        _, told = process.communicate(timeout=30)
    assert (200, 503, 200) == (live[0], ready[0], metrics[0])
    assert "it has not started yet" in ready[1]
    assert "sickbay_work_parked_total 1.0" in metrics[1]
    assert code == process.returncode
    lines = [json.loads(line) for line in told.splitlines()]
    assert ["health and metrics are served", "stopping", "ended"] == [line["message"] for line in lines]
    assert number.name == lines[1]["signal"]


def test_an_error_of_ours_is_one_line_without_secrets_and_its_code() -> None:
    with start("toy", "--fail", SICKBAY_LOG_FORMAT="text") as process:
        _, told = process.communicate(timeout=30)
    assert (7, 1) == (process.returncode, len(told.splitlines()))
    assert " ERROR sickbay.operations.running: Kafka at kafka:9092 cannot be used" in told
    assert "c4nary" not in told


def test_a_failpoint_acts_only_where_the_variable_is_set() -> None:
    with start("toy", "--fail", SICKBAY_FAILPOINT="not a failpoint") as process:
        _, told = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "sickbay: SICKBAY_FAILPOINT has" in told
