"""The example consumer against the real sender over HTTP, and against everybody else."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import alerting as a
import msgspec
import pytest

from responders.alerts.book import Book
from responders.alerts.event import signature_headers, structured
from responders.alerts.plan import plan
from responders.alerts.posting import new_session
from responders.alerts.sinks import Webhook
from sickbay.clock import SystemClock
from sickbay.policy import AlertPolicy

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "alert_consumer.py"
KEY, OTHER = b"k" * 32, b"o" * 32
POLICY = AlertPolicy()
NOW_S = 1_790_000_000


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("alert_consumer", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["alert_consumer"] = module
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def serving(consumer):
    runner = aiohttp.web.AppRunner(consumer.app(), access_log=None)
    await runner.setup()
    await aiohttp.web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


def told(*stories):
    """The notices of one book for decisions that come in several looks."""
    view, book, found = a.view_of(), Book(POLICY, ()), []
    for number, story in enumerate(stories):
        for decision in story:
            view.fold(decision)
        now_ms = a.NOW + number
        notices = book.look(plan(view, POLICY, now_ms), now_ms)
        book.take(notices)
        found.append(notices)
    return found


STORIES = ([a.quarantined(1), a.quarantined(2)], [a.review_due(1)], [a.released(2)])


def test_what_the_sender_sends_stands_and_ends_and_a_repeat_changes_nothing(example, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(f"whsec_{base64.b64encode(KEY).decode()}\n")

    async def run():
        consumer = example.Consumer(example.read_keys(secret))
        async with serving(consumer) as url, new_session() as session:
            sink = Webhook(session, url, secret, SystemClock())
            for notices in told(*STORIES):
                for _ in range(2):
                    assert notices == (await sink.send(notices)).taken
            async with session.get(url) as answer:
                return consumer, await answer.json()

    consumer, shown = asyncio.run(run())
    assert ["quarantine/episode-1"] == [alert["alert_id"] for alert in shown]
    assert "critical" == shown[0]["severity"]
    assert [
        "changed quarantine/episode-1",
        "cleared quarantine/episode-2",
        "raised quarantine/episode-1",
        "raised quarantine/episode-2",
    ] == sorted(consumer.told)


def test_events_that_come_in_the_wrong_order_leave_the_newest(example):
    consumer = example.Consumer([KEY])
    (raises, changes, clears) = told(*STORIES)
    for notice in [*clears, *changes, *raises]:
        event = msgspec.json.decode(structured(notice))
        consumer.take(event["type"], notice.alert_id, notice.version, event["data"])
    assert ["quarantine/episode-1"] == list(consumer.standing)
    assert "critical" == consumer.standing["quarantine/episode-1"]["severity"]


def post(example, body, headers, now_s=NOW_S, keys=(KEY,)):
    async def run():
        consumer = example.Consumer(list(keys), lambda: now_s)
        async with (
            serving(consumer) as url,
            new_session() as session,
            session.post(url, data=body, headers=headers) as answer,
        ):
            return answer.status, consumer

    return asyncio.run(run())


def signed(keys=(KEY,), at_s=NOW_S):
    (notice,) = told([a.quarantined()])[0]
    body = structured(notice)
    return body, signature_headers(notice, body, keys, at_s)


@pytest.mark.parametrize("keys", [(KEY,), (OTHER, KEY), (KEY, OTHER)])
def test_one_key_of_several_is_enough(example, keys):
    status, consumer = post(example, *signed(keys), keys=(KEY, b"z" * 32))
    assert (204, 1) == (status, len(consumer.standing))


@pytest.mark.parametrize("seconds", [-301, 301])
def test_an_event_that_was_signed_long_ago_or_later_is_refused(example, seconds):
    status, consumer = post(example, *signed(), now_s=NOW_S + seconds)
    assert (401, 0) == (status, len(consumer.standing))


def test_an_event_of_lately_is_taken(example):
    assert 204 == post(example, *signed(), now_s=NOW_S + 299)[0]


def test_a_wrong_signature_is_refused(example):
    body, headers = signed((OTHER,))
    assert 401 == post(example, body, headers)[0]


@pytest.mark.parametrize(
    "changed",
    [
        {"webhook-signature": ""},
        {"webhook-signature": "v1,"},
        {"webhook-signature": "v1,###"},
        {"webhook-timestamp": ""},
        {"webhook-timestamp": str(NOW_S + 1)},
        {"webhook-timestamp": "\u0661".encode().decode("latin-1")},
        {"webhook-id": "another"},
    ],
)
def test_what_the_signature_does_not_cover_is_refused(example, changed):
    body, headers = signed()
    assert 401 == post(example, body, headers | changed)[0]


def test_a_signature_of_another_version_does_not_count(example):
    body, headers = signed()
    headers["webhook-signature"] = headers["webhook-signature"].replace("v1,", "v9,")
    assert 401 == post(example, body, headers)[0]


def test_a_body_that_was_changed_is_refused(example):
    body, headers = signed()
    assert 401 == post(example, body.replace(b"warning", b"info"), headers)[0]


def test_a_signed_body_that_is_no_event_is_refused_as_such(example):
    (notice,) = told([a.quarantined()])[0]
    for body in (b"{}", b"[1]", b"\xff"):
        headers = signature_headers(notice, body, (KEY,), NOW_S)
        assert 400 == post(example, body, headers)[0]


def test_what_is_remembered_is_bounded(example):
    known = {}
    for number in range(example.REMEMBERED + 10):
        example.remember(known, str(number), number)
    assert example.REMEMBERED == len(known)
    assert "9" not in known
