"""What a watch is worth: seen once its list was taken, and as old as its last word."""

import asyncio

import pytest
from virtual_time import LoopTimes, run_virtually

from ingest.frames import Frame
from ingest.sight import Sight
from ingest.ticker import Beat, live_items
from ingest.watching import Status

IDLE_MS = 200_000


class Now:
    ms = 1_000_000

    def monotonic_ms(self):
        return self.ms

    def now_ms(self):
        raise AssertionError("only durations count")


def status(state="watching", age_ms=0, reason=""):
    return Status(state=state, reason=reason, age_ms=age_ms, version=5, relists=0, reconnects=0, bytes_read=0)


@pytest.fixture
def watch():
    return {"pods": status(), "nodes": status()}


def frame(resource, kind="LIST"):
    return Frame(at_ms=1, resource=resource, type=kind, object={}, place="watch")


@pytest.fixture
def unread(watch):
    return Sight(lambda: watch, Now(), IDLE_MS)


@pytest.fixture
def sight(unread):
    unread.took(frame("pods"))
    unread.took(frame("nodes"))
    return unread


def test_all_that_is_watched_is_seen(sight):
    assert sight.problem() is None
    assert [heard.heard_ms for heard in sight.heard()] == [1_000_000, 1_000_000]


@pytest.mark.parametrize(
    ("later", "problem"),
    [
        (status("watching", IDLE_MS + 1), "not seen: pods (watching)"),
        (status("stale", 5, "403 Forbidden"), "not seen: pods (403 Forbidden)"),
        (status("listing", 5), None),
        (status("waiting", 5, "connection reset"), "not seen: pods (connection reset)"),
        (status("unavailable", None, "404 NotFound"), "not seen: pods (404 NotFound)"),
    ],
    ids=["silent", "refused", "listed again", "cut off", "not served"],
)
def test_what_was_seen_stays_seen_for_as_long_as_its_word_is_good(watch, sight, later, problem):
    assert sight.problem() is None
    watch["pods"] = later
    assert sight.problem() == problem


def test_what_was_not_taken_yet_is_not_seen_however_well_it_is_watched(watch, unread):
    """A list that waits for its reader shows nobody anything: a tick before it would rest on a silence of our own making."""
    unread.took(frame("pods"))
    unread.took(frame("nodes", "MODIFIED"))
    assert unread.problem() == "not seen: nodes (watching)"
    unread.took(frame("nodes"))
    assert unread.problem() is None


def test_w19_a_cluster_without_dra_is_seen(watch, sight):
    watch["resourceslices"] = watch["resourceclaims"] = status("unavailable", None)
    assert sight.problem() is None


def test_a_watch_of_nothing_that_is_served_sees_nothing(watch, sight):
    watch.clear()
    watch["resourceslices"] = status("unavailable", None)
    assert sight.problem() == "the cluster serves nothing that is watched"


def test_no_tick_comes_before_the_first_list_of_everything_was_taken():
    """The first list of a large cluster takes its time, and the others wait in the queue meanwhile."""

    async def scene():
        times = LoopTimes()
        sight = Sight(lambda: {"pods": status(), "nodes": status()}, times, IDLE_MS)

        async def frames():
            for resource in ("pods", "nodes"):
                await asyncio.sleep(6)
                yield Frame(at_ms=times.now_ms(), resource=resource, type="LIST", object={}, place="watch")
            await asyncio.sleep(60)

        seen = []
        async for item in live_items(frames(), times=times, watches=sight.heard):
            seen.append("beat" if isinstance(item, Beat) else item.type)
            if seen[-1] == "LIST":
                await asyncio.sleep(20)
            sight.took(item)
        assert seen[:4] == ["LIST", "LIST", "TICK", "beat"]

    run_virtually(scene())
