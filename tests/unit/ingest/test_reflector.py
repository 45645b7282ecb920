"""The reflector's state machine, without a network and without waiting. Rows are those of reference faults, B1."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_apiserver import EXPIRED, STORE_READ, TOO_LARGE, event_line, status

from ingest.framing import Unusable
from ingest.reflector import Reflector
from ingest.steps import FetchPage, Heard, OpenWatch, State, Timing, Wait

TIMING = Timing()
MODIFIED = {"metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "21"}}


def pod(name: str, rv: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": str(rv)}}


def bookmark(rv: int, **metadata: Any) -> bytes:
    return event_line("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(rv), **metadata}})


def page(rv: int, *items: Any, after: str = "") -> bytes:
    metadata = {"resourceVersion": str(rv)} | ({"continue": after} if after else {})
    return json.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}).encode()


class Driver:
    """Plays shell and server; time moves only when it is told to."""

    def __init__(self, *, version: int = 0, watch_list: bool = False, timing: Timing = TIMING) -> None:
        self.now_ms = 1_000_000
        self.machine = Reflector(timing, lambda _, most: most, dict, version=version, watch_list=watch_list)
        self.waits: list[Wait] = []

    def step(self) -> FetchPage | OpenWatch:
        """The next request, after whatever is to be waited for before it."""
        while isinstance(step := self.machine.next_step(), Wait):
            self.waits.append(step)
            self.now_ms += step.ms
        return step

    def query(self) -> dict[str, str]:
        return dict(self.step().query)

    def answer(self, body: bytes | dict[str, Any], code: int = 200, **headers: str) -> list[Any]:
        """Ask, and answer a page."""
        step = self.step()
        assert isinstance(step, FetchPage), step
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return list(self.machine.page(code, headers, data, self.now_ms))

    def open(self) -> dict[str, str]:
        step = self.step()
        assert isinstance(step, OpenWatch), step
        self.machine.opened(self.now_ms)
        return dict(step.query)

    def refuse(self, told: dict[str, Any], **headers: str) -> list[Any]:
        step = self.step()
        assert isinstance(step, OpenWatch), step
        return list(self.machine.refused(told["code"], headers, json.dumps(told).encode(), self.now_ms))

    def say(self, *lines: bytes) -> list[Any]:
        return list(self.machine.piece(b"".join(lines), self.now_ms))

    def later(self, ms: int) -> bool:
        self.now_ms += ms
        return self.machine.let_time_pass(self.now_ms)

    @property
    def state(self) -> State:
        return self.machine.state


def watching(*, rv: int = 20, **more: Any) -> Driver:
    """A driver whose watch is open from ``rv``, long enough after its list."""
    driver = Driver(**more)
    driver.answer(page(rv, pod("p", rv - 1)))
    driver.now_ms += 20_000
    driver.open()
    assert State("watching") == driver.state
    return driver


# --- the ordinary way ----------------------------------------------------------------------------------------------------


def test_pages_become_one_list_and_the_watch_follows_from_its_version():
    driver = Driver()
    assert {"limit": "500"} == driver.query()
    assert [] == driver.answer(page(20, pod("a", 3), after="t1"))
    assert {"limit": "500", "continue": "t1"} == driver.query()
    assert 0 == driver.machine.version
    (heard,) = driver.answer(page(21, pod("b", 4)))
    assert ("LIST", 20) == (heard.type, heard.version)
    assert ["a", "b"] == [item["metadata"]["name"] for item in heard.object["items"]]
    assert {"resourceVersion": "20"} == heard.object["metadata"]
    assert {
        "resourceVersion": "20",
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "600",
    } == driver.open()


def test_the_version_moves_only_behind_what_was_delivered():
    driver = watching()
    outputs = driver.machine.piece(
        event_line("MODIFIED", pod("p", 21)) + event_line("MODIFIED", pod("p", 22)), driver.now_ms
    )
    next(outputs)
    assert 20 == driver.machine.version
    next(outputs)
    assert 21 == driver.machine.version
    assert [] == list(outputs)
    assert 22 == driver.machine.version


def test_a_list_that_was_not_delivered_moves_nothing():
    driver = Driver()
    step = driver.step()
    outputs = driver.machine.page(200, {}, page(20), driver.now_ms)
    next(outputs)
    outputs.close()
    assert 0 == driver.machine.version
    assert step == driver.step()


@pytest.mark.case("C27")
def test_c27_a_bookmark_moves_the_version_and_is_not_decoded_any_further():
    """W6: a quiet resource keeps its version young."""
    driver = watching()
    odd = {"kind": "Pod", "spec": {"containers": None}, "metadata": {"resourceVersion": "30"}}
    (heard,) = driver.say(event_line("BOOKMARK", odd))
    assert ("BOOKMARK", 30) == (heard.type, heard.version)
    driver.machine.ended(driver.now_ms)
    assert "30" == driver.open()["resourceVersion"]


def test_an_orderly_end_opens_the_watch_again_at_once():
    driver = watching()
    driver.say(event_line("MODIFIED", pod("p", 21)))
    driver.machine.ended(driver.now_ms)
    assert "21" == driver.open()["resourceVersion"]
    assert [] == driver.waits
    assert 2 == driver.machine.watches


def test_w7_no_watch_without_a_version():
    driver = Driver()
    driver.answer(page(20))
    driver.refuse(EXPIRED)
    assert isinstance(driver.step(), FetchPage)
    assert 0 == driver.machine.version


# --- 410 -----------------------------------------------------------------------------------------------------------------


@pytest.mark.case("C28")
@pytest.mark.parametrize("in_stream", [True, False])
def test_c28_gone_tells_of_the_gap_drops_the_version_and_lists(in_stream):
    """W1"""
    driver = watching()
    if in_stream:
        heard = driver.say(event_line("MODIFIED", pod("p", 21)), event_line("ERROR", EXPIRED), bookmark(99))
        assert ["MODIFIED", "ERROR"] == [frame.type for frame in heard]
        assert not driver.machine.streaming
    else:
        driver.machine.ended(driver.now_ms + 20_000)
        heard = driver.refuse(EXPIRED)
    assert (410, 21 if in_stream else 20) == (heard[-1].object["code"], heard[-1].version)
    assert 0 == driver.machine.version
    assert {"limit": "500"} == driver.query()
    assert [] == driver.waits


@pytest.mark.case("C28")
def test_c28_gone_again_and_again_is_no_hot_loop():
    driver = Driver()
    for _ in range(8):
        driver.answer(page(20))
        driver.refuse(EXPIRED)
    driver.step()
    assert [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000] == [wait.ms for wait in driver.waits]


@pytest.mark.case("C28")
@pytest.mark.parametrize("code", [500, 504, 429, 418, 400])
def test_c28_another_error_of_the_stream_keeps_the_version_and_waits(code):
    """W13"""
    driver = watching()
    assert [] == driver.say(event_line("ERROR", status(code, "Whatever")))
    assert "20" == driver.query()["resourceVersion"]
    assert isinstance(driver.step(), OpenWatch)
    assert [500] == [wait.ms for wait in driver.waits]


# --- lists that go wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [1, 2, 3])
def test_w9_an_expired_token_voids_what_was_listed_before(at):
    driver = Driver()
    for number in range(at):
        assert [] == driver.answer(page(20, pod(f"old-{number}", 1), after=f"t{number}"))
    assert [] == driver.answer(EXPIRED, 410)
    assert {} == driver.query()
    (heard,) = driver.answer(page(25, pod("new", 24)))
    assert ["new"] == [item["metadata"]["name"] for item in heard.object["items"]]
    driver.open()
    driver.now_ms += 20_000
    driver.say(event_line("ERROR", STORE_READ))
    assert {"limit": "500"} == driver.query()


@pytest.mark.parametrize("told", TOO_LARGE)
def test_w5_too_large_a_version_lists_consistently_at_once_and_then_waits(told):
    driver = Driver(version=90)
    assert {"limit": "500", "resourceVersion": "90", "resourceVersionMatch": "NotOlderThan"} == driver.query()
    driver.answer(told, 504)
    assert {"limit": "500"} == driver.query()
    assert [] == driver.waits
    driver.answer(status(500), 500)
    driver.step()
    assert [1_000] == [wait.ms for wait in driver.waits]


@pytest.mark.parametrize("told", TOO_LARGE)
def test_w5_too_large_a_version_of_a_watch_lists_consistently(told):
    driver = watching()
    driver.say(event_line("ERROR", told))
    assert {"limit": "500"} == driver.query()


def test_w5_the_cause_alone_says_too_large():
    driver = Driver(version=90)
    driver.answer(
        status(504, "Timeout", "later", [{"reason": "ResourceVersionTooLarge", "message": "later"}]), 504
    )
    assert {"limit": "500"} == driver.query()


def test_w5_an_ordinary_504_is_waited_out():
    driver = Driver(version=90)
    driver.answer(status(504, "Timeout", "etcd is slow"), 504)
    assert "90" == driver.query()["resourceVersion"]
    assert [500] == [wait.ms for wait in driver.waits]


def test_w4_a_list_older_than_what_was_asked_for_is_not_believed():
    driver = Driver(version=90)
    assert [] == driver.answer(page(80))
    assert {"limit": "500"} == driver.query()
    (heard,) = driver.answer(page(95))
    assert 95 == heard.version


def test_w3_a_consistent_list_is_believed_even_if_it_is_older():
    driver = Driver(version=90)
    driver.answer(TOO_LARGE[0], 504)
    (heard,) = driver.answer(page(30))
    assert 30 == heard.version
    assert "30" == driver.open()["resourceVersion"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"kind":"PodList","metadata":{"resourceVersion":"20"}}',
        b'{"kind":"PodList","metadata":{"resourceVersion":"20"},"items":{}}',
        b'{"kind":"PodList","metadata":{"resourceVersion":"0"},"items":[]}',
        b'{"kind":"PodList","metadata":{},"items":[]}',
        b'{"kind":"PodList","items":[]}',
        b'{"kind":"PodList","metadata":{"resourceVersion":"20"},"items":[{"a":"\xff"}]}',
        b"[]",
        b"",
    ],
)
def test_w18_what_is_no_list_is_never_an_empty_one(body):
    driver = Driver()
    (parked,) = driver.answer(body)
    assert isinstance(parked, Unusable)
    assert "stale" == driver.state.name
    assert [] == driver.answer(body)  # told once
    (heard,) = driver.answer(b'{"kind":"PodList","metadata":{"resourceVersion":"20"},"items":null}')
    assert [] == heard.object["items"]
    assert State("listing") == driver.state


def test_a_list_whose_pages_never_end_is_given_up():
    driver = Driver()
    driver.answer(page(20, after="t"))
    (parked,) = driver.answer(page(20, after="t"))
    assert "names itself as the next" in parked.reason


def test_w15_a_page_that_is_too_large_is_asked_for_in_smaller_ones():
    driver = Driver(version=9)
    limits = []
    for _ in range(6):
        query = driver.query()
        limits.append((query.get("limit"), "resourceVersion" in query))
        driver.machine.page_too_large(64)
    assert [("500", True), ("500", False), ("62", False), ("7", False), ("1", False)] == limits[:5]
    assert "stale" == driver.state.name
    assert 60_000 == driver.waits[0].ms


# --- refusals ------------------------------------------------------------------------------------------------------------


def test_w13_too_many_requests_are_answered_by_waiting_and_never_by_a_relist():
    driver = watching()
    driver.machine.ended(driver.now_ms + 20_000)
    for number in range(9):
        headers = {"Retry-After": "7"} if number == 3 else {}
        assert [] == driver.refuse(status(429, "TooManyRequests"), **headers)
        assert "waiting" == driver.state.name
    assert "20" == driver.query()["resourceVersion"]
    assert isinstance(driver.step(), OpenWatch)
    assert [500, 1_000, 2_000, 7_000, 8_000, 16_000, 30_000, 30_000, 30_000] == [w.ms for w in driver.waits]
    assert 1 == driver.machine.lists


def test_w13_a_server_may_not_ask_for_silence_without_end():
    driver = watching()
    driver.machine.ended(driver.now_ms + 20_000)
    driver.refuse(status(503), **{"retry-after": "9999999"})
    driver.refuse(status(503), **{"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"})
    driver.step()
    assert [300_000, 1_000] == [wait.ms for wait in driver.waits]


def test_w13_a_page_is_asked_for_again_after_an_error_and_the_list_goes_on():
    driver = Driver()
    driver.answer(page(20, pod("a", 1), after="t"))
    driver.answer(status(500), 500)
    driver.machine.request_failed("no route to host")
    assert {"limit": "500", "continue": "t"} == driver.query()
    (heard,) = driver.answer(page(20, pod("b", 2)))
    assert 2 == len(heard.object["items"])


def test_w14_an_object_that_the_server_cannot_read_is_found_by_a_relist():
    driver = watching()
    assert [] == driver.say(event_line("ERROR", STORE_READ))
    assert {"limit": "500"} == driver.query()
    driver.answer(STORE_READ, 500)
    assert {"limit": "500"} == driver.query()
    assert [1_000] == [wait.ms for wait in driver.waits]


def test_w18_forbidden_is_stale_and_asked_again_seldom():
    driver = Driver()
    told = status(403, "Forbidden", "pods is forbidden")
    assert [] == driver.answer(told, 403)
    assert State("stale", "403 Forbidden: pods is forbidden") == driver.state
    assert [] == driver.answer(told, 403)
    driver.step()
    assert "stale" == driver.state.name
    assert [60_000, 60_000] == [wait.ms for wait in driver.waits]
    driver.answer(page(20))
    assert State("listing") == driver.state


def test_w18_a_watch_that_is_forbidden_keeps_its_version():
    driver = watching()
    driver.machine.ended(driver.now_ms + 20_000)
    assert [] == driver.refuse(status(403, "Forbidden"))
    assert "stale" == driver.state.name
    assert "20" == driver.open()["resourceVersion"]
    assert State("watching") == driver.state


def test_i16_credentials_are_read_anew_when_they_are_refused():
    driver = watching()
    driver.machine.ended(driver.now_ms + 20_000)
    driver.refuse(status(401, "Unauthorized"))
    assert State("stale", "401 Unauthorized: Unauthorized") == driver.state
    driver.refuse(status(401, "Unauthorized"))
    driver.step()
    driver.machine.request_failed("no route to host")
    assert "stale" == driver.state.name
    assert "20" == driver.open()["resourceVersion"]
    assert [(500, True), (1_000, True), (2_000, False)] == [(wait.ms, wait.reload) for wait in driver.waits]
    assert State("watching") == driver.state


def test_w19_an_api_that_is_not_there_is_unavailable_and_looked_for_again():
    driver = watching()
    driver.machine.ended(driver.now_ms + 20_000)
    assert [] == driver.refuse(status(404, "NotFound"))
    assert "unavailable" == driver.state.name
    # it was there: perhaps an upgrade took this version of it away
    assert "20" == driver.query()["resourceVersion"]
    assert [Wait(500, discover=True)] == driver.waits
    driver.answer(status(404, "NotFound"), 404)
    driver.answer(status(404, "NotFound"), 404)
    driver.answer(page(30))
    assert [Wait(180_000, discover=True)] * 2 == driver.waits[1:]
    driver.open()
    assert State("watching") == driver.state


def test_w19_what_was_never_there_is_looked_for_seldom():
    driver = Driver()
    driver.answer(status(404, "NotFound"), 404)
    driver.step()
    assert [Wait(180_000, discover=True)] == driver.waits


def test_a_version_that_the_server_has_no_use_for_is_listed_anew():
    driver = watching()
    driver.machine.ended(driver.now_ms + 20_000)
    driver.refuse(status(400, "BadRequest", "resourceVersion: Invalid value"))
    assert {"limit": "500"} == driver.query()


# --- streams that go wrong -----------------------------------------------------------------------------------------------


def test_w11_a_stream_that_breaks_inside_a_line_is_taken_up_from_before_it():
    driver = watching()
    driver.say(event_line("MODIFIED", pod("p", 21)), event_line("MODIFIED", pod("p", 22))[:-1])
    driver.machine.ended(driver.now_ms)
    assert "inside a line" in driver.state.reason
    assert "21" == driver.open()["resourceVersion"]


def test_w12_a_line_that_is_not_utf8_is_parked_and_the_stream_goes_on():
    driver = watching()
    parked, heard = driver.say(b'{"type":"ADDED","object":"\xff"}\n', event_line("MODIFIED", pod("p", 22)))
    assert isinstance(parked, Unusable)
    assert 22 == heard.version
    assert driver.machine.streaming


def test_w12_what_is_parked_moves_no_version_and_comes_again_with_the_stream():
    """Nobody can tell its version. So it is asked for again until something behind it came, and then the next list has it."""
    driver = watching()
    bad = b'{"type":"MODIFIED","object":{"metadata":{"resourceVersion":"21","name":"\xff"}}}\n'
    (parked,) = driver.say(bad)
    driver.machine.ended(driver.now_ms + 60_000)
    assert "20" == driver.open()["resourceVersion"]
    (again, heard) = driver.say(bad, event_line("MODIFIED", pod("q", 22)))
    assert (parked, 22) == (again, heard.version)
    driver.machine.ended(driver.now_ms + 60_000)
    assert "22" == driver.open()["resourceVersion"]
    driver.now_ms += TIMING.resync_ms * 2
    driver.say(bookmark(30))
    driver.later(0)
    assert {"limit": "500"} == driver.query()


def test_an_event_of_a_type_that_nobody_knows_is_parked():
    driver = watching()
    (parked,) = driver.say(event_line("REPLACED", pod("p", 21)))
    assert "unknown type" in parked.reason
    assert 20 == driver.machine.version


def test_a_watch_that_ends_as_soon_as_it_begins_is_no_hot_loop():
    driver = Driver()
    driver.answer(page(20))
    for _ in range(4):
        driver.open()
        driver.say(event_line("MODIFIED", pod("p", 20)))  # a repetition moves nothing
        driver.machine.ended(driver.now_ms)
    driver.step()
    assert [500, 1_000, 2_000, 4_000] == [wait.ms for wait in driver.waits]


@pytest.mark.case("C26")
def test_c26_a_silent_stream_is_given_up_and_taken_up_from_its_version():
    """W10"""
    driver = watching(timing=Timing(probe_ms=10**9, resync_ms=10**9))
    driver.say(event_line("MODIFIED", pod("p", 21)), event_line("MODIFIED", pod("p", 22)))
    heard_ms = driver.now_ms
    assert 200_000 == driver.machine.due_ms(driver.now_ms)
    driver.later(199_999)
    assert driver.machine.streaming
    driver.later(1)
    assert not driver.machine.streaming
    assert heard_ms == driver.machine.heard_ms
    assert "nothing was heard for 200 s" == driver.state.reason
    assert "22" == driver.open()["resourceVersion"]


def test_w10_silence_of_our_own_making_is_not_the_servers():
    """I11: a reader that takes nothing stops the reading."""
    driver = watching(timing=Timing(probe_ms=10**9, resync_ms=10**9))
    driver.now_ms += 900_000
    driver.machine.reading_again(driver.now_ms)
    driver.later(0)
    assert driver.machine.streaming


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED"])
def test_w21_a_repeated_event_is_handed_on_and_never_moves_the_version_back(kind):
    driver = watching()
    heard = driver.say(
        event_line(kind, pod("p", 22)), event_line(kind, pod("p", 22)), event_line(kind, pod("q", 21))
    )
    assert [(kind, 22), (kind, 22), (kind, 21)] == [(frame.type, frame.version) for frame in heard]
    assert 22 == driver.machine.version


def test_w17_an_object_made_anew_under_its_name_is_handed_on_as_it_came():
    """Who it is, is the mirror's business."""
    driver = watching()
    anew = {"metadata": {**MODIFIED["metadata"], "uid": "another"}}
    (heard,) = driver.say(event_line("MODIFIED", anew))
    assert Heard("MODIFIED", anew, 21, len(event_line("MODIFIED", anew))) == heard


# --- probes and resyncs --------------------------------------------------------------------------------------------------


def probe(driver: Driver, code: int, body: bytes) -> None:
    assert driver.later(60_000)
    assert {"limit": "1"} == dict(driver.machine.probe_query())
    driver.machine.probed(code, {}, body)


def test_w3_a_probe_that_is_older_than_the_watch_lists_everything():
    driver = watching()
    driver.say(bookmark(30))
    probe(driver, 200, page(29))
    assert not driver.machine.streaming
    assert {"limit": "500"} == driver.query()
    (heard,) = driver.answer(page(29))
    assert 29 == heard.version
    assert "29" == driver.open()["resourceVersion"]


def test_w3_what_arrives_while_a_probe_is_under_way_does_not_make_it_old():
    driver = watching()
    assert driver.later(60_000)
    driver.say(bookmark(40))
    driver.machine.probed(200, {}, page(30))
    assert driver.machine.streaming
    assert State("watching") == driver.state


def test_w3_a_new_stream_is_probed_at_once_but_not_in_a_hot_loop():
    """A restore ends every stream; the new history may soon outgrow the version that was seen of the old one."""
    driver = watching()
    probe(driver, 200, page(20))
    driver.now_ms += 30_000
    driver.machine.ended(driver.now_ms, "the server went away")
    driver.open()
    assert 0 == driver.machine.due_ms(driver.now_ms)
    assert driver.later(0)
    probes = 0
    for number in range(50):
        driver.machine.ended(driver.now_ms, "cut")
        driver.open()
        driver.say(bookmark(30 + number))
        probes += driver.later(500)
    # a second for each stream: its wait and its life
    assert 7 <= probes <= 10


def test_w3_probes_come_every_minute():
    driver = watching()
    probes = 0
    for number in range(59):
        driver.say(bookmark(30 + number))
        probes += driver.later(10_000)
    assert 10 == probes


@pytest.mark.parametrize("code", [500, 429, 200])
def test_a_probe_without_an_answer_is_told_and_changes_nothing_else(code):
    driver = watching()
    probe(driver, code, b"not json")
    assert driver.machine.streaming
    assert "watching" == driver.state.name
    assert driver.state.reason.startswith("probe: ")
    driver.machine.probe_failed("no route to host")
    assert State("watching", "probe: no route to host") == driver.state
    probe(driver, 200, page(20))
    assert State("watching") == driver.state


@pytest.mark.parametrize(("code", "name"), [(401, "stale"), (403, "stale"), (404, "unavailable")])
def test_w18_a_watch_does_not_outlive_the_right_to_it(code, name):
    driver = watching()
    probe(driver, code, json.dumps(status(code, "No")).encode())
    assert not driver.machine.streaming
    assert name == driver.state.name
    assert "20" == driver.query()["resourceVersion"]


def test_what_moves_ends_the_memory_of_errors():
    driver = watching()
    for _ in range(5):
        driver.machine.ended(driver.now_ms, "cut")
        driver.open()
    driver.say(bookmark(30))
    probe(driver, 401, b"")
    driver.step()
    assert 500 == driver.waits[-1].ms


def test_an_answer_to_a_probe_that_comes_after_its_stream_is_nobodys():
    driver = watching()
    driver.later(60_000)
    driver.machine.ended(driver.now_ms)
    driver.machine.probed(200, {}, page(1))
    driver.machine.probe_failed("late")
    assert isinstance(driver.step(), OpenWatch)


def test_w22_everything_is_listed_again_every_ten_minutes():
    driver = watching(timing=Timing(idle_ms=10**9, probe_ms=10**9))
    driver.later(600_000 + 60_000 - 20_000 - 1)  # the tenth of it is drawn
    assert driver.machine.streaming
    driver.later(1)
    assert not driver.machine.streaming
    assert {"limit": "500"} == driver.query()
    driver.answer(page(30))
    assert "30" == driver.open()["resourceVersion"]
    assert 660_000 == driver.machine.due_ms(driver.now_ms)


# --- lists by watch ------------------------------------------------------------------------------------------------------

END = {"annotations": {"k8s.io/initial-events-end": "true"}}


def test_w7_initial_events_in_any_order_become_one_list_at_the_bookmark():
    driver = Driver(version=9, watch_list=True)
    query = driver.open()
    assert ("9", "NotOlderThan", "true", "true") == (
        query["resourceVersion"],
        query["resourceVersionMatch"],
        query["sendInitialEvents"],
        query["allowWatchBookmarks"],
    )
    assert [] == driver.say(
        *(event_line("ADDED", pod(name, rv)) for name, rv in [("c", 17), ("a", 3), ("b", 12)])
    )
    assert [] == driver.say(bookmark(18))
    assert [] == driver.say(event_line("MODIFIED", pod("a", 19)), event_line("DELETED", pod("c", 20)))
    assert 9 == driver.machine.version
    list_, after = driver.say(bookmark(20, **END), event_line("ADDED", pod("d", 21)))
    assert ("LIST", 20) == (list_.type, list_.version)
    assert [("a", "19"), ("b", "12")] == [
        (item["metadata"]["name"], item["metadata"]["resourceVersion"]) for item in list_.object["items"]
    ]
    assert ("ADDED", 21) == (after.type, after.version)
    assert State("watching") == driver.state
    driver.machine.ended(driver.now_ms)
    assert "sendInitialEvents" not in driver.open()


@pytest.mark.parametrize("sent", [0, 1, 2])
def test_w8_initial_events_that_break_off_are_no_list(sent):
    driver = Driver(watch_list=True)
    driver.open()
    assert [] == driver.say(*(event_line("ADDED", pod(f"p{n}", n + 1)) for n in range(sent)))
    driver.machine.ended(driver.now_ms)
    assert "ended before the initial events did" in driver.state.reason
    driver.open()
    (heard,) = driver.say(event_line("ADDED", pod("q", 5)), bookmark(6, **END))
    assert ["q"] == [item["metadata"]["name"] for item in heard.object["items"]]


@pytest.mark.parametrize("code", [400, 422])
def test_a_server_that_knows_no_initial_events_is_listed(code):
    driver = Driver(watch_list=True)
    driver.refuse(status(code, "Invalid"))
    assert {"limit": "500"} == driver.query()
    assert [] == driver.waits


def test_a_server_that_passes_over_initial_events_is_listed():
    driver = Driver(watch_list=True)
    driver.open()
    for _ in range(3):
        driver.later(39_999)
        driver.say(event_line("ADDED", pod("p", 3)))
    driver.later(3)
    assert not driver.machine.streaming
    assert {"limit": "500"} == driver.query()


def test_w9_gone_among_initial_events_begins_anew_without_telling_of_a_gap():
    driver = Driver(version=9, watch_list=True)
    driver.open()
    assert [] == driver.say(event_line("ADDED", pod("p", 3)), event_line("ERROR", EXPIRED))
    assert "resourceVersion" not in driver.query()
