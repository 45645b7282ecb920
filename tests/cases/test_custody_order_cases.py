"""Cases of the catalogue about the order of versions, and about what outlives a slice or a person's word."""

from __future__ import annotations

import pytest
from custody_run import Run
from facts_of import HOUR, MINUTE, SECOND, T0, dra, plugin, published, release, withdrawn, word

from streams.custody.state import HEALTHY


@pytest.mark.case("C24")
def test_c24_versions_are_numbers_and_an_older_one_does_not_overwrite():
    """9 is older than 10: the word that holds is that of the newer version, whichever came first."""
    run = Run().each([word(dra(0), "Healthy", T0, 10), word(dra(0), "Unknown", T0 + 5, 9)])
    run.until(T0 + HOUR)

    assert (HEALTHY, "in_service") == (run.unit(dra(0)).verdict, run.phase(dra(0)))


@pytest.mark.case("C24")
def test_c24_a_fault_of_an_older_version_is_a_fault_that_is_over():
    """Late inside the horizon it still opens its episode, with no cause left open: the newer Healthy is what holds."""
    run = Run().each([word(dra(0), "Healthy", T0, 12), word(dra(0), "Unhealthy", T0 + 5, 11)])

    assert HEALTHY == run.unit(dra(0)).verdict
    assert ("quarantined", ()) == (run.phase(dra(0)), run.episode(dra(0)).open_causes)


@pytest.mark.case("C24")
def test_c24_versions_of_two_pods_are_not_compared():
    """A lower version of another Pod is not older: it is another object."""
    run = Run().each([word(dra(0), "Healthy", T0, 12), word(dra(0), "Unhealthy", T0 + 5, 11, pod="pod-b")])

    assert ("quarantined", ("unhealthy",), T0 + 5) == (
        run.phase(dra(0)), run.episode(dra(0)).open_causes, run.episode(dra(0)).opened_at_ms,
    )  # fmt: skip


@pytest.mark.case("C33")
def test_c33_devices_whose_slices_were_wiped_and_published_again_are_the_same_devices():
    """Driver, pool and name are the identity: the quarantine goes on under the new slice."""
    run = Run().each([published(0, T0 - 9, 1, generation=7), word(dra(0), "Unhealthy", T0, 2)])
    episode = run.episode(dra(0))
    run.step(withdrawn(0, T0 + MINUTE, 5, "slice_deleted"))
    run.step(published(0, T0 + MINUTE + 30 * SECOND, 9, generation=1))
    run.until(T0 + HOUR)

    assert (episode.episode_id, "quarantined") == (run.episode(dra(0)).episode_id, run.phase(dra(0)))
    assert 1 == len(run.of("quarantine_opened"))


@pytest.mark.case("C19")
def test_c19_a_release_by_a_person_acknowledges_what_stands_and_nothing_new():
    """The same word on a newer version of the Pod does not re-open; a new transition does."""
    run = Run().each([word(plugin(0), "Unhealthy", T0, 2)])
    run.step(release(plugin(0), T0 + 5, run.episode(plugin(0)).episode_id))

    assert ("observing", ()) == (run.phase(plugin(0)), run.episode(plugin(0)).open_causes)

    run.step(word(plugin(0), "Unhealthy", T0 + MINUTE, 3))

    assert "observing" == run.phase(plugin(0))

    run.step(word(plugin(0), "Healthy", T0 + 2 * MINUTE, 4))
    run.step(word(plugin(0), "Unhealthy", T0 + 3 * MINUTE, 5))

    assert ("quarantined", ("unhealthy",)) == (run.phase(plugin(0)), run.episode(plugin(0)).open_causes)
