"""What a watch is worth: seen once it was opened, and as old as its last word."""

import pytest

from ingest.sight import Sight
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


@pytest.fixture
def sight(watch):
    return Sight(lambda: watch, Now(), IDLE_MS)


def test_all_that_is_watched_is_seen(sight):
    assert sight.problem() is None
    assert [heard.heard_ms for heard in sight.heard()] == [1_000_000, 1_000_000]


@pytest.mark.parametrize(
    ("later", "problem"),
    [
        (status("watching", IDLE_MS + 1), "not seen: pods (watching)"),
        (status("stale", 5, "403 Forbidden"), "not seen: pods (403 Forbidden)"),
        (status("listing", 5), None),
        (status("waiting", 5, "connection reset"), None),
        (status("waiting", IDLE_MS + 1, "connection reset"), "not seen: pods (connection reset)"),
        (status("unavailable", None, "404"), None),
    ],
    ids=["silent", "refused", "listed again", "waits", "waits for long", "not served"],
)
def test_what_was_seen_stays_seen_for_as_long_as_its_word_is_good(watch, sight, later, problem):
    assert sight.problem() is None
    watch["pods"] = later
    assert sight.problem() == problem


@pytest.mark.parametrize("first", [status("listing", 5), status("waiting", 5), status("listing", None)])
def test_what_was_never_watched_is_not_seen_however_lately_it_was_heard(watch, sight, first):
    watch["pods"] = first
    assert sight.problem().startswith("not seen: pods")
    watch["pods"] = status()
    assert sight.problem() is None


def test_a_cluster_that_serves_nothing_is_not_seen(watch, sight):
    watch["pods"] = watch["nodes"] = status("unavailable", None)
    assert sight.problem() == "the cluster serves nothing that is watched"
