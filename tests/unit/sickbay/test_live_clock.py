"""The clock of a live process: never back, not moved by steps, caught up after the machine slept."""

import pytest

from sickbay.operations.live_clock import LiveClock

_START_MS = 1_790_000_000_000


class Machine:
    """A wall clock and a monotonic one, moved by hand."""

    def __init__(self) -> None:
        self.wall_ms = _START_MS
        self.elapsed_ms = 5_000

    def clock(self) -> LiveClock:
        return LiveClock(lambda: self.wall_ms * 1_000_000, lambda: self.elapsed_ms * 1_000_000)

    def pass_(self, ms: int) -> None:
        self.wall_ms += ms
        self.elapsed_ms += ms


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_time_goes_with_the_monotonic_clock(machine):
    clock = machine.clock()
    assert clock.now_ms() == _START_MS
    machine.pass_(1_234)
    assert (clock.now_ms(), clock.monotonic_ms()) == (_START_MS + 1_234, 6_234)


@pytest.mark.parametrize("step_ms", [-86_400_000, -1, 4_999, 86_400_000])
def test_a_step_of_the_wall_clock_moves_nothing(machine, step_ms):
    clock = machine.clock()
    machine.wall_ms += step_ms
    machine.pass_(10)
    assert clock.now_ms() == _START_MS + 10


def test_a_wall_clock_that_stays_behind_is_never_followed(machine):
    clock = machine.clock()
    machine.wall_ms -= 3_600_000
    seen = []
    for _ in range(100):
        machine.pass_(10_000)
        seen.append(clock.now_ms())
    assert seen == [_START_MS + 10_000 * (n + 1) for n in range(100)]


def test_a_wall_clock_that_stays_ahead_for_a_minute_is_followed_forward(machine):
    clock = machine.clock()
    machine.wall_ms += 3_600_000
    clock.now_ms()
    machine.pass_(60_000)
    assert clock.now_ms() == _START_MS + 60_000
    machine.pass_(1)
    assert clock.now_ms() == _START_MS + 3_600_000 + 60_001 == machine.wall_ms


def test_a_step_that_is_taken_back_within_the_minute_counts_anew(machine):
    clock = machine.clock()
    machine.wall_ms += 3_600_000
    clock.now_ms()
    machine.wall_ms -= 3_600_000
    machine.pass_(50_000)
    clock.now_ms()
    machine.wall_ms += 3_600_000
    machine.pass_(50_000)
    assert clock.now_ms() == _START_MS + 100_000


def test_five_seconds_ahead_is_no_sleep(machine):
    clock = machine.clock()
    machine.wall_ms += 5_000
    for _ in range(20):
        machine.pass_(10_000)
        now_ms = clock.now_ms()
    assert now_ms == _START_MS + 200_000


def test_it_goes_on_after_what_an_earlier_process_told(machine):
    clock = machine.clock()
    clock.begin_after(_START_MS + 7_000)
    assert clock.now_ms() == _START_MS + 7_001
    machine.pass_(5)
    assert clock.now_ms() == _START_MS + 7_006
    clock.begin_after(_START_MS)
    assert clock.now_ms() == _START_MS + 7_006


def test_the_machines_own_clocks_serve():
    clock = LiveClock()
    before = clock.now_ms(), clock.monotonic_ms()
    assert clock.now_ms() >= before[0] > _START_MS - 365 * 86_400_000
    assert clock.monotonic_ms() >= before[1]
