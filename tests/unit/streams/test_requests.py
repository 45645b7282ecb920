"""What people ask for: a hold needs an end and ends, a release starts the return and never releases."""

from __future__ import annotations

from custody_run import Run
from facts_of import DAY, HOUR, MINUTE, T0, XID, dra, hold, lapsed, plugin, published, release, resumed, word

from sickbay.codec import fact_id
from sickbay.policy import Policy

POLICY = Policy()
HOLD_MS = POLICY.quarantine.min_hold_ms
OBSERVATION_MS = POLICY.staged_return.observation_only_ms
CARD = plugin(0)


def in_use():
    return Run().each([word(CARD, "Healthy", T0 - MINUTE, 1)])


def faulty():
    return Run().each([word(CARD, "Unhealthy", T0, 1)])


# --- hold ------------------------------------------------------------------------------------------------------------


def test_a_hold_takes_a_healthy_device_out_and_names_who_and_why():
    """A person's episode: cause hold, the actor and the reason in the record, the request as evidence."""
    request = hold(CARD, T0, T0 + HOUR)
    run = in_use().each([request])
    episode = run.episode(CARD)

    assert ("quarantined", "hold", "ann", "looks odd") == (
        run.phase(CARD), episode.cause, episode.actor, episode.reason,
    )  # fmt: skip
    assert ((fact_id(request),), ("hold",)) == (episode.evidence, episode.open_causes)


def test_a_hold_ends_at_its_end_and_the_device_is_back_at_once():
    """Nothing was ever wrong with it: no staged return."""
    run = in_use().each([hold(CARD, T0, T0 + 2 * DAY)])
    run.until(T0 + 2 * DAY - 1)

    assert "quarantined" == run.phase(CARD)

    run.until(T0 + 2 * DAY)

    assert ("in_service", "hold_ended") == (run.phase(CARD), run.of("device_released")[0].closed.outcome)


def test_a_hold_without_an_end_in_the_future_does_nothing():
    """A hold needs an end: one that is over when it is asked for is recorded and refused."""
    run = in_use()

    assert () == run.step(hold(CARD, T0, T0))
    assert "in_service" == run.phase(CARD)


def test_a_hold_on_a_device_that_is_not_known_does_nothing():
    """There is no such device on the node."""
    assert () == Run().step(hold(CARD, T0, T0 + HOUR))


def test_every_hold_is_an_episode_of_its_own():
    """Also on a device that had a fault, and a hold, long ago: an id is never used twice."""
    run = faulty().each([word(CARD, "Healthy", T0 + 1, 2)])
    run.until(T0 + DAY)
    for n in (1, 2):
        run.step(hold(CARD, T0 + n * DAY, T0 + n * DAY + HOUR, request=f"h{n}"))
        run.until(T0 + n * DAY + HOUR)

    assert (
        3 == len(run.of("device_released")) == len({d.closed.episode_id for d in run.of("device_released")})
    )


def test_a_second_hold_only_lengthens():
    """The later end counts, whoever asked for it."""
    run = in_use().each([hold(CARD, T0, T0 + 2 * HOUR), hold(CARD, T0 + 1, T0 + HOUR, request="h2")])
    run.until(T0 + HOUR)

    assert "quarantined" == run.phase(CARD)

    run.until(T0 + 2 * HOUR)

    assert "in_service" == run.phase(CARD)


def test_a_hold_on_a_faulty_device_keeps_it_out_beyond_its_recovery():
    """The return waits for both the fault's hold and the person's."""
    run = faulty().each([hold(CARD, T0 + MINUTE, T0 + 5 * HOUR), word(CARD, "Healthy", T0 + 2 * MINUTE, 2)])
    run.until(T0 + 5 * HOUR - 1)

    assert ("quarantined", ("hold",)) == (run.phase(CARD), run.episode(CARD).open_causes)

    run.until(T0 + 5 * HOUR)

    assert ("observing", ()) == (run.phase(CARD), run.episode(CARD).open_causes)


def test_a_hold_takes_a_device_off_its_way_back():
    """A person who is not convinced stops the observation."""
    run = faulty().each([word(CARD, "Healthy", T0 + MINUTE, 2)])
    run.until(T0 + HOUR)
    run.step(hold(CARD, T0 + HOUR, T0 + 3 * HOUR))

    assert ("quarantined", None) == (run.phase(CARD), run.episode(CARD).observing_at_ms)

    run.until(T0 + 3 * HOUR)

    assert "observing" == run.phase(CARD)


def test_a_fault_during_a_hold_outlasts_it():
    """The device turned bad while it was held: the end of the hold is not the end of the fault."""
    run = in_use().each([hold(CARD, T0, T0 + HOUR), word(CARD, "Unhealthy", T0 + MINUTE, 2)])
    run.until(T0 + 10 * HOUR)

    assert ("quarantined", "unhealthy", ("unhealthy",)) == (
        run.phase(CARD), run.episode(CARD).cause, run.episode(CARD).open_causes,
    )  # fmt: skip


def test_a_device_whose_health_is_unknown_when_its_hold_ends_is_suspect_and_not_forgotten():
    """The doubt that was there goes on under its own rule."""
    run = in_use().each([hold(CARD, T0, T0 + HOUR), word(CARD, "Unknown", T0 + MINUTE, 2)])
    run.until(T0 + HOUR)

    assert "suspect" == run.phase(CARD)

    run.until(T0 + HOUR + POLICY.unknown.window_ms)

    assert "restricted" == run.phase(CARD)


# --- release ---------------------------------------------------------------------------------------------------------


def test_a_release_starts_the_return_before_the_hold_is_over():
    """A person's word shortens the waiting and nothing else; the record names the person."""
    run = faulty().each([word(CARD, "Healthy", T0 + MINUTE, 2)])
    run.step(release(CARD, T0 + 2 * MINUTE, run.episode(CARD).episode_id))

    assert ("observing", "ann", T0 + 2 * MINUTE) == (
        run.phase(CARD), run.episode(CARD).release_actor, run.episode(CARD).observing_at_ms,
    )  # fmt: skip

    run.until(T0 + 2 * MINUTE + OBSERVATION_MS)

    assert "in_service" == run.phase(CARD)


def test_a_release_never_releases():
    """Nobody says healthy: the device stays under observation until a person is asked again."""
    run = faulty()
    run.step(release(CARD, T0 + MINUTE, run.episode(CARD).episode_id))
    run.until(T0 + 3 * DAY)

    assert ("observing", []) == (run.phase(CARD), run.of("device_released"))
    assert 3 == len(run.of("quarantine_review_due"))


def test_a_release_of_another_or_a_closed_episode_does_nothing():
    """A command names its episode."""
    run = faulty()
    first = run.episode(CARD).episode_id

    assert () == run.step(release(CARD, T0 + 1, "another"))

    run.step(word(CARD, "Healthy", T0 + 2, 2))
    run.until(T0 + DAY)

    assert "in_service" == run.phase(CARD)

    run.step(word(CARD, "Unhealthy", T0 + DAY, 3))

    assert () == run.step(release(CARD, T0 + DAY + 1, first, request="r2"))
    assert "quarantined" == run.phase(CARD)


def test_a_release_while_the_return_runs_does_nothing():
    """The path has begun already."""
    run = faulty().each([word(CARD, "Healthy", T0 + MINUTE, 2)])
    run.until(T0 + HOLD_MS)

    assert () == run.step(release(CARD, T0 + HOUR, run.episode(CARD).episode_id))


def test_a_release_acknowledges_the_drivers_taint_until_it_changes():
    """The slice still carries the taint: it is muted. Taken back and set again it counts."""
    run = Run().each([published(0, T0, 1, taints=[XID]), word(dra(0), "Healthy", T0 + 1, 1)])
    run.step(release(dra(0), T0 + MINUTE, run.episode(dra(0)).episode_id))
    run.step(published(0, T0 + 2 * MINUTE, 2, taints=[XID], generation=2))

    assert ("observing", ()) == (run.phase(dra(0)), run.episode(dra(0)).open_causes)

    run.each([published(0, T0 + 3 * MINUTE, 3), published(0, T0 + 4 * MINUTE, 4, taints=[XID])])

    assert ("quarantined", ("driver_taint",)) == (run.phase(dra(0)), run.episode(dra(0)).open_causes)


def test_a_release_acknowledges_only_the_words_that_stand():
    """Another Pod's new Unhealthy is a new fault."""
    run = faulty()
    run.step(release(CARD, T0 + 1, run.episode(CARD).episode_id))
    run.step(word(CARD, "Unhealthy", T0 + MINUTE, 5, pod="pod-b"))

    assert ("quarantined", 1) == (run.phase(CARD), run.episode(CARD).flap_count)


def test_a_release_ends_a_persons_hold():
    """One person held the device, another wants it back: the return begins."""
    run = faulty().each([hold(CARD, T0 + 1, T0 + 10 * HOUR)])
    run.step(release(CARD, T0 + MINUTE, run.episode(CARD).episode_id))

    assert ("observing", ()) == (run.phase(CARD), run.episode(CARD).open_causes)


def test_a_release_of_a_held_device_rests_on_the_request():
    """Nobody said anything new of the device: who asked for it back is what the end rests on."""
    run = in_use().each([hold(CARD, T0, T0 + 10 * HOUR)])
    request = release(CARD, T0 + MINUTE, run.episode(CARD).episode_id)
    run.step(request)
    run.until(T0 + MINUTE + OBSERVATION_MS)

    assert [("returned", (fact_id(request),))] == [
        (d.closed.outcome, d.evidence) for d in run.of("device_released")
    ]


def test_a_release_during_a_node_incident_waits_for_its_end():
    """While the node is lost nothing is tried on it; the request is not forgotten."""
    run = faulty().each([lapsed(T0 + MINUTE, 2, T0 + 1)])
    run.step(release(CARD, T0 + 2 * MINUTE, run.episode(CARD).episode_id))

    assert "quarantined" == run.phase(CARD)

    run.step(resumed(T0 + HOUR, 3))
    run.until(T0 + HOUR + POLICY.node_incident.settle_ms)

    assert ("observing", "ann") == (run.phase(CARD), run.episode(CARD).release_actor)
