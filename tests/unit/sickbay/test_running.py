"""A process ends when it is asked to, in time, and its exit code says how it went."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from sickbay.errors import InputError, ServiceError, StoreError
from sickbay.operations.failpoints import arm, reach
from sickbay.operations.running import Stop, run_process


def run(main, **options) -> int:
    return run_process(main, environment={}, **options)


def test_work_that_ends_ends_the_process_with_0() -> None:
    async def main(stop: Stop) -> None:
        assert not stop.requested
        assert not await stop.wait(0.001)

    assert run(main) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_asks_and_the_work_ends_by_itself(number: signal.Signals, code: int) -> None:
    steps = []

    async def main(stop: Stop) -> None:
        os.kill(os.getpid(), number)
        assert await stop.wait(10)
        assert stop.requested
        steps.append("finished what was taken")

    assert (code, ["finished what was taken"]) == (run(main), steps)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_work_that_goes_on_is_cancelled_at_the_deadline(number: signal.Signals) -> None:
    async def main(stop: Stop) -> None:
        os.kill(os.getpid(), number)
        await stop.wait()
        await Stop().wait()

    before = time.monotonic()
    assert run(main, grace_s=0.05) == (130 if number == signal.SIGINT else 1)
    assert time.monotonic() - before < 5


def test_a_second_signal_cancels_at_once() -> None:
    async def main(stop: Stop) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await Stop().wait()

    before = time.monotonic()
    assert run(main, grace_s=60) == 1
    assert time.monotonic() - before < 5


def test_the_handlers_of_before_are_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]

    async def main(stop: Stop) -> None:
        stop.request()

    assert run(main) == 0
    assert before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


@pytest.mark.parametrize(
    ("error", "code"), [(ServiceError("x"), 7), (StoreError("x"), 5), (InputError("x"), 2)]
)
def test_an_error_of_ours_is_one_line_and_its_own_code(error, code, caplog) -> None:
    async def main(_stop: Stop) -> None:
        raise error

    assert run(main) == code
    (record,) = caplog.records
    assert ("ERROR", "x", None) == (record.levelname, record.getMessage(), record.exc_info)


def test_a_group_of_ours_has_the_code_of_its_first(caplog) -> None:
    async def main(_stop: Stop) -> None:
        raise ExceptionGroup("tasks", [ServiceError("a"), ExceptionGroup("more", [StoreError("b")])])

    assert run(main) == 7
    assert ["a", "b"] == [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    "error", [ValueError("x"), ExceptionGroup("tasks", [ServiceError("a"), KeyError("b")])]
)
def test_any_other_error_is_logged_once_with_its_traceback_and_is_1(error, caplog) -> None:
    async def main(_stop: Stop) -> None:
        raise error

    assert run(main) == 1
    (record,) = [record for record in caplog.records if record.levelname == "CRITICAL"]
    assert record.exc_info[1] is error


def test_failpoints_are_armed_from_the_environment() -> None:
    async def main(_stop: Stop) -> None:
        reach("here")

    try:
        assert run_process(main, environment={"SICKBAY_FAILPOINT": "here:1:raise"}) == 1
        assert run_process(main, environment={}) == 0
        with pytest.raises(InputError):
            run_process(main, environment={"SICKBAY_FAILPOINT": "here"})
    finally:
        arm({})


STUBBORN = {
    "a loop that is blocked": "os.kill(os.getpid(), signal.SIGTERM); await asyncio.sleep(0.01); time.sleep(60)",
    "work that refuses to be cancelled": """os.kill(os.getpid(), signal.SIGTERM)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass""",
    "a thread that does not end": "await asyncio.wait({asyncio.create_task(asyncio.to_thread(time.sleep, 60))}, timeout=0.01)",
}


@pytest.mark.parametrize("name", STUBBORN)
def test_nothing_keeps_a_process_from_its_end(name: str) -> None:
    program = f"""
import asyncio, os, signal, sys, time
from sickbay.operations.logs import setup_logging
from sickbay.operations.running import run_process
async def main(stop):
    {STUBBORN[name]}
setup_logging()
sys.exit(run_process(main, environment={{}}, grace_s=0.2, cancel_s=0.2))
"""
    before = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30, check=False)
    assert done.returncode == 1, done.stderr
    assert time.monotonic() - before < 10
    last = json.loads(done.stderr.splitlines()[-1])
    assert "CRITICAL" == last["level"]
