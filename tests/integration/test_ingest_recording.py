"""``sickbay ingest --from-recording`` against a real Kafka: killed midway, what the topic says in the end is the same."""

from __future__ import annotations

import asyncio
import signal

from cli import run, start
from cli_recordings import frame, pod, write
from facts_topic import told, variables

from ingest.kafka_log import KafkaFactLog
from sickbay.codec import stream_of
from sickbay.facts import PolicyChanged, Tick


def recording(path):
    """Eight cards that turn bad and well in turns for five minutes."""
    lines = []
    for second in range(0, 300, 5):
        for number in range(8):
            health = "Unhealthy" if (second // 5 + number) % 4 == 0 else "Healthy"
            at = f"08:{second // 60:02d}:{second % 60:02d}"
            kind = "ADDED" if second == 0 else "MODIFIED"
            version = 100 + second * 8 + number
            lines.append(
                frame(at, kind, pod(f"p{number}", f"GPU-{number}", health, version, node=f"n{number}"))
            )
    return write(path, lines)


def newest(facts):
    """Fold facts to the newest content of each subject."""
    found = {}
    for _, _, fact in facts:
        subject = (fact.KIND, stream_of(fact), fact.subject, getattr(fact, "pod_uid", ""))
        version = (fact.epoch, fact.rv, fact.observed_at_ms)
        if subject not in found or found[subject][0] <= version:
            found[subject] = (version, fact)
    return found


def ingest(settings, path, speed=0, **env):
    return run(
        "ingest",
        "--from-recording",
        path,
        "--speed",
        speed,
        "--log-format",
        "text",
        env=variables(settings, **env),
    )


def test_killed_midway_and_started_again_the_topic_says_the_same(kafka_ready, tmp_path):
    path = recording(tmp_path / "r.jsonl")
    for nth in (1, 40, 120):
        killed = ingest(kafka_ready, path, SICKBAY_FAILPOINT=f"ingester.published:{nth}:kill9")
        assert killed.code == -signal.SIGKILL, killed.err
    done = ingest(kafka_ready, path)
    assert done.code == 0, done.err
    facts = told(kafka_ready)
    # what was told in each life stands under its own epoch, and the epochs go up in every partition
    assert len({epoch for epoch, _, _ in facts}) >= 3
    kept = [(event_id, fact) for _, event_id, fact in facts]
    by_id = dict(kept)
    assert all(by_id[event_id] == fact for event_id, fact in kept)

    done = ingest(kafka_ready, path)
    assert done.code == 0, done.err
    again = told(kafka_ready)
    assert newest(again) == newest(facts)
    # all that is new are repeats of the last tick, for the rest stands before it
    repeats = again[len(facts) :] if again[: len(facts)] == facts else [f for f in again if f not in facts]
    assert {type(fact) for _, _, fact in repeats} <= {Tick}
    assert sum(isinstance(fact, PolicyChanged) for _, _, fact in facts) == kafka_ready.partitions

    words = [fact for fact in by_id.values() if fact.KIND == "device_health_observed"]
    assert {fact.node for fact in words} == {f"n{number}" for number in range(8)}
    memory = asyncio.run(_memory(kafka_ready))
    assert memory.ingest_epoch == max(epoch for epoch, _, _ in again)


async def _memory(settings):
    log = KafkaFactLog(settings)
    await log.start()
    try:
        return await log.recall()
    finally:
        await log.close()


def test_a_stop_keeps_what_was_taken_and_the_next_run_goes_on(kafka_ready, tmp_path):
    path = recording(tmp_path / "r.jsonl")
    process = start(
        "ingest", "--from-recording", path, "--speed", 60, "--log-format", "text", env=variables(kafka_ready)
    )
    try:
        while not told(kafka_ready):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err.decode()
    assert b"Traceback" not in err
    assert ingest(kafka_ready, path).code == 0
    last = max(fact.observed_at_ms for _, _, fact in told(kafka_ready) if isinstance(fact, Tick))
    assert last == 1_782_892_800_000 + 300_000


def test_without_topics_it_says_how_they_are_made(kafka_settings, tmp_path):
    done = ingest(kafka_settings, recording(tmp_path / "r.jsonl"))
    assert done.code == 7
    assert "sickbay topics apply" in done.err


def test_without_a_broker_named_it_says_which_variable_is_missing(tmp_path):
    done = run(
        "ingest", "--from-recording", recording(tmp_path / "r.jsonl"), env={"SICKBAY_KAFKA_BOOTSTRAP": ""}
    )
    assert done.code == 2
    assert "SICKBAY_KAFKA_BOOTSTRAP" in done.err
