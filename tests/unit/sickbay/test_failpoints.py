"""Failpoints act where and when they were told to, and are nothing otherwise."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from sickbay.errors import InputError
from sickbay.operations.failpoints import FailpointError, arm, reach


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    arm({})


def test_a_point_does_nothing_unless_it_was_armed() -> None:
    reach("publisher.acknowledged")
    arm({})
    reach("publisher.acknowledged")
    arm({"SICKBAY_FAILPOINT": "another:1:kill9"})
    reach("publisher.acknowledged")


def test_a_point_acts_the_nth_time_and_never_again() -> None:
    arm({"SICKBAY_FAILPOINT": "publisher.acknowledged:3:raise"})
    reach("publisher.acknowledged")
    reach("publisher.acknowledged")
    with pytest.raises(FailpointError, match=r"publisher\.acknowledged"):
        reach("publisher.acknowledged")
    reach("publisher.acknowledged")


def test_several_points_count_for_themselves() -> None:
    arm({"SICKBAY_FAILPOINT": "a:2:raise,b:1:raise,a:3:sleep_ms=20"})
    reach("a")
    with pytest.raises(FailpointError):
        reach("b")
    with pytest.raises(FailpointError):
        reach("a")
    before = time.monotonic()
    reach("a")
    assert time.monotonic() - before >= 0.02


def test_arming_again_begins_to_count_again() -> None:
    arm({"SICKBAY_FAILPOINT": "a:2:raise"})
    reach("a")
    arm({"SICKBAY_FAILPOINT": "a:2:raise"})
    reach("a")
    with pytest.raises(FailpointError):
        reach("a")


@pytest.mark.parametrize(
    "value",
    [
        "a",
        "a:1",
        "a:0:raise",
        "a:x:raise",
        "a:1:explode",
        "a:1:sleep_ms",
        "a:1:sleep_ms=999999",
        "A b:1:raise",
    ],
)
def test_what_is_no_failpoint_is_refused_with_the_form(value: str) -> None:
    with pytest.raises(InputError, match=r"SICKBAY_FAILPOINT has .*NAME:NTH:kill9"):
        arm({"SICKBAY_FAILPOINT": value})


PROGRAM = """
import os
from sickbay.operations.failpoints import arm, reach
arm(os.environ)
for _ in range(3):
    print("before", flush=True)
    reach("here")
print("after", flush=True)
"""


def test_kill9_ends_the_process_there() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"SICKBAY_FAILPOINT": "here:2:kill9"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (-signal.SIGKILL, "before\nbefore\n") == (run.returncode, run.stdout)
    assert "failpoint here reached for the 2. time: kill9" in run.stderr


def test_stop_holds_the_process_until_it_is_continued() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={"SICKBAY_FAILPOINT": "here:1:stop"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "before\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.send_signal(signal.SIGCONT)
        assert process.wait(30) == 0
        assert process.stdout.read() == "before\nbefore\nafter\n"
