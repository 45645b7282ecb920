"""The shape of an aggregate: live decides once for what waits together, replay never decides."""

from __future__ import annotations

import pytest

from sickbay.decider import Decider


def evolve(state, event):
    """A thermostat: facts are temperatures, decisions are words."""
    state = dict(state)
    if isinstance(event, str):
        state["heating"] = event == "on"
    else:
        state["degrees"] = event
        state["heard"] = state.get("heard", 0) + 1
    return state


def decide(state):
    wanted = state.get("degrees", 20) < 18
    return () if wanted == state.get("heating", False) else ("on" if wanted else "off",)


THERMOSTAT = Decider(evolve=evolve, decide=decide)


def test_a_step_decides_once_for_the_facts_that_wait_together():
    """Cold and warm again before anybody looked: there is nothing to do."""
    state, decisions = THERMOSTAT.step({}, [10, 21])

    assert ((), 2) == (decisions, state["heard"])


def test_a_step_applies_what_it_decided():
    """The state that comes back is settled."""
    state, decisions = THERMOSTAT.step({}, [10])

    assert (("on",), True, ()) == (decisions, state["heating"], decide(state))


def test_a_fold_never_decides():
    """A replay of the facts alone leaves the gap open; the recorded decisions close it."""
    assert {"degrees": 10, "heard": 1} == THERMOSTAT.fold({}, [10])
    assert THERMOSTAT.step({}, [10])[0] == THERMOSTAT.fold({}, [10, "on"])


def test_a_step_without_facts_decides_what_is_open():
    """A process that starts again closes the gap that a crash left."""
    assert ("on",) == THERMOSTAT.step(THERMOSTAT.fold({}, [10]), [])[1]


def test_a_decider_that_does_not_settle_is_an_error():
    """One that would decide for ever is broken, and says so at once."""
    restless = Decider(evolve=evolve, decide=lambda _: ("on",))

    with pytest.raises(AssertionError, match="fixed point"):
        restless.step({}, [10])
