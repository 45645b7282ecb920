"""`sickbay respond alert` on a real Kafka: decisions as a worker writes them, an Alertmanager, and the example consumer as webhook."""

from __future__ import annotations

import base64
import json
import sys
import time
from pathlib import Path

import alerting as a
import facts_of as f
import pytest
from live_processes import Process, eventually, produce, read_topic, run

from sickbay.cloudevents import header, single
from sickbay.codec import encode, wrap_decision, wrap_fact
from sickbay.envelope import partition_of
from streams.answers import answer_messages
from streams.live import Answer, Opened

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
from alert_consumer import Consumer

KEY = b"k" * 32
POINTS = ("alert.planned", "alert.kept", "alert.sent", "alert.noted")
SCOPE = f"driver:{f.DRIVER}"


class Hook(a.Receiver):
    """The example consumer behind a receiver that keeps what came."""

    def __init__(self):
        super().__init__()
        self.consumer = Consumer([KEY])

    async def take(self, request):
        if self.status != 200:
            return await super().take(request)
        await super().take(request)
        answer = await self.consumer.receive(request)
        assert answer.status == 204
        return answer

    @property
    def stands(self):
        return set(self.consumer.standing)


class Decided:
    """The decisions topic, written as a worker answers facts."""

    def __init__(self, settings):
        self.settings = settings
        self._offsets = dict.fromkeys(range(settings.partitions), 0)

    def write(self, *decisions, repeat=False):
        records = []
        for decision in decisions:
            number = partition_of(decision.node, self.settings.partitions) if decision.node else 0
            cause = wrap_fact(f.tick(f.T0 + self._offsets[number]))
            envelope = wrap_decision(decision, cause, 0, "policy")
            opened = Opened(envelope, encode(envelope))
            messages = answer_messages(number, self._offsets[number], Answer("taken", [opened], []))
            records += [(number, message) for message in messages] * (2 if repeat else 1)
            self._offsets[number] += 1
        produce(self.settings, self.settings.topics.decisions, records)


@pytest.fixture
def secret(tmp_path):
    file = tmp_path / "secret"
    file.write_text(base64.b64encode(KEY).decode())
    return file


@pytest.fixture
def group_wait_ms():
    return 1_000


@pytest.fixture
def policy(tmp_path, group_wait_ms):
    file = tmp_path / "policy.yaml"
    file.write_text(f"respond: {{alerts: {{group_wait_ms: {group_wait_ms}, resend_ms: 2000}}}}\n")
    return file


@pytest.fixture
def receivers():
    with a.Receivers(a.Receiver(), Hook()) as both:
        yield both


@pytest.fixture
def process(kafka_ready, tmp_path, secret, policy, receivers):
    manager, hook = receivers
    with_options = (
        "respond", "alert", "--alertmanager", manager.url, "--webhook", hook.url, "--webhook-secret-file", str(secret),
        "--policy", str(policy), "--log-format", "text",
    )  # fmt: skip
    process = Process(kafka_ready, tmp_path, "alert", *with_options)
    yield process
    process.kill()


def kept(settings):
    """Return alert id to (change, who was told) of what the topic holds."""
    found = {}
    for record in read_topic(settings, settings.topics.alerts, partitions=1)[0]:
        alert_id = record.key.decode()
        if record.value is None:
            found.pop(alert_id, None)
        else:
            told = json.loads(header(record.headers, "sickbay-told"))
            found[alert_id] = (json.loads(record.value)["change"], len(told))
    return found


def at_manager(manager):
    """Return the ids of the alerts that the Alertmanager would show now."""
    newest = {}
    for alert in manager.alerts:
        newest[json.dumps(alert["labels"], sort_keys=True)] = alert
    now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    return {alert["labels"]["alert_id"] for alert in newest.values() if alert["endsAt"] > now}


# what ends a group's wait is the time since its first alert, and three hundred and their cause are to come within it
@pytest.mark.parametrize("group_wait_ms", [3_000])
@pytest.mark.timeout(180)
def test_only_what_stands_is_told_and_a_storm_is_one_alert_and_what_ends_is_cleared(
    kafka_ready, process, receivers
):
    manager, hook = receivers
    decided = Decided(kafka_ready)
    history = [d for n in range(40) for d in (a.quarantined(n), a.released(n))]
    decided.write(*history, a.quarantined(77), repeat=True)
    process.start()
    eventually(lambda: hook.stands, "what stands", processes=[process])
    assert {"quarantine/episode-77"} == hook.stands
    decided.write(*(a.incident(node=f"n{n}") for n in range(300)), a.opened(), a.opened("cluster"))
    decided.write(a.raised("breaker", SCOPE, node=""), a.quarantined(5, node="n5", held=True))
    decided.write(a.quarantined(6, node="n6"))
    both = {"quarantine/episode-77", "quarantine/episode-6", f"breaker/{SCOPE}"}
    eventually(lambda: both == hook.stands == at_manager(manager), "what stands", processes=[process])
    time.sleep(4.5)  # what waits was due by now, and what stands was repeated
    assert both == hook.stands == at_manager(manager)
    members = {m["kind"]: m["count"] for m in hook.consumer.standing[f"breaker/{SCOPE}"]["members"]}
    assert {"node_incident": 300, "quarantine": 1} == members
    decided.write(a.released(6, node="n6"), a.released(77))
    decided.write(*(a.incident_over(node=f"n{n}") for n in range(300)))
    decided.write(a.released(5, node="n5"), a.closed(), a.closed("cluster"))
    eventually(lambda: hook.stands == at_manager(manager) == set(), "nothing stands", processes=[process])
    eventually(lambda: kept(kafka_ready) == {}, "nothing is remembered", processes=[process])
    assert process.stop() == 0
    raises = [event for event in hook.documents if event["type"] == "dev.sickbay.alert.raised.v1"]
    assert sorted(both) == sorted(event["subject"] for event in raises)


@pytest.mark.timeout(300)
def test_a_kill_at_every_named_place_repeats_under_the_same_id_and_loses_no_end(
    kafka_ready, process, receivers
):
    manager, hook = receivers
    decided, number, expected = Decided(kafka_ready), 0, set()
    for point in POINTS:
        for ends_meanwhile in (False, True):
            number += 1
            process.start(SICKBAY_FAILPOINT=f"{point}:1:kill9")
            eventually(
                lambda: "read what was decided so far" in process.log_since_start or not process.is_running,
                "a start",
            )
            decided.write(a.quarantined(number))
            eventually(lambda: not process.is_running, f"a kill at {point}")
            if ends_meanwhile:
                decided.write(a.released(number))
            else:
                expected.add(f"quarantine/episode-{number}")
    process.start()
    # the process before it may have told all of it
    eventually(
        lambda: "read what was decided so far" in process.log_since_start, "a start", processes=[process]
    )
    eventually(lambda: expected == hook.stands == at_manager(manager), "what stands", processes=[process])
    whole = dict.fromkeys(expected, ("raised", 2))
    eventually(lambda: kept(kafka_ready) == whole, "all is noted", processes=[process])
    assert process.stop() == 0
    bodies = {}
    for event in hook.documents:
        bodies.setdefault(event["id"], []).append(event)
    assert all(event == events[0] for events in bodies.values() for event in events)
    raised = [
        events[0]["subject"] for events in bodies.values() if events[0]["type"].split(".")[3] == "raised"
    ]
    assert sorted(set(raised)) == sorted(raised)
    assert any(len(events) > 1 for events in bodies.values())
    got = len(hook.documents)
    process.start()
    eventually(
        lambda: "read what was decided so far" in process.log_since_start, "a start", processes=[process]
    )
    time.sleep(1.5)
    assert got == len(hook.documents)


@pytest.mark.timeout(120)
def test_a_webhook_that_is_down_keeps_the_alertmanager_waiting_for_nothing_and_is_told_once_it_is_up(
    kafka_ready, process, receivers
):
    manager, hook = receivers
    hook.status = 503
    decided = Decided(kafka_ready)
    process.start()
    decided.write(a.quarantined(1))
    eventually(lambda: at_manager(manager), "the Alertmanager is told", processes=[process])
    eventually(lambda: "were not told" in process.log, "the failure is logged", processes=[process])
    decided.write(a.quarantined(2), a.released(1))
    eventually(lambda: at_manager(manager) == {"quarantine/episode-2"}, "told on", processes=[process])
    assert set() == hook.stands
    hook.status = 200
    eventually(lambda: hook.stands == {"quarantine/episode-2"}, "the webhook is told", processes=[process])
    assert process.stop() == 0


@pytest.mark.timeout(120)
def test_what_is_none_of_ours_in_the_topic_is_passed_over(kafka_ready, process, receivers):
    _, hook = receivers
    decided = Decided(kafka_ready)
    odd = single(wrap_fact(f.tick(f.T0)))
    produce(kafka_ready, kafka_ready.topics.alerts, [(0, odd), (0, odd)])
    process.start()
    decided.write(a.quarantined(1))
    eventually(lambda: hook.stands == {"quarantine/episode-1"}, "what stands", processes=[process])
    assert "is passed over: not the state of an alert" in process.log


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--webhook", "http://h.invalid"), "belong together"),
        (("--webhook-secret-file", "secret"), "belong together"),
        (("--no-topic",), "nobody would be told"),
        (("--alertmanager", "h.invalid:9093"), "--alertmanager needs an address"),
        (
            ("--webhook", "http://h.invalid", "--webhook-secret-file", "secret", "--no-topic"),
            "needs the topic",
        ),
        (("--webhook", "http://h.invalid", "--webhook-secret-file", "missing"), "cannot be read"),
        (("--alertmanager", "http://h.invalid", "--alertmanager", "http://h.invalid/"), "named twice"),
    ],
)
def test_what_makes_no_sense_is_refused(kafka_ready, arguments, told):
    done = run(kafka_ready, "respond", "alert", *arguments, check=False)
    assert done.returncode in (2, 7)
    assert told in done.stderr


def test_without_its_topics_it_ends_with_what_to_do(kafka_settings):
    done = run(kafka_settings, "respond", "alert", check=False)
    assert done.returncode == 7
    assert "sickbay topics apply" in done.stderr
