"""The measures over a log that can be counted by hand, on each database, now and at earlier moments."""

from __future__ import annotations

import msgspec
import pytest
from log_builder import History, custody, health, open_episode, published, released
from log_scenarios import GPU, MINUTE, SECOND, gpu

from projections.audit import AUDIT_VIEWS
from sickbay.decisions import MoveFinished, MoveLeaseGranted, MovePlanned, QuarantineOpened
from sickbay.facts import DeviceWithdrawn, ExclusionReported, MoveStepReported, Tick

NODE = "node-a"
#: Outcomes of the moves off gpu-0; the last one has none.
OUTCOMES = ("done", "done", "failed", "workload_gone", "")


def told(second, state, effect="NoSchedule", *, rule="rule-0", episode_id="", detail=""):
    return ExclusionReported(
        node=NODE,
        observed_at_ms=10 * MINUTE + second * SECOND,
        request_id=f"x/{second}",
        device_id=gpu(NODE, 0),
        actor="excluder",
        episode_id=episode_id,
        rule=rule,
        effect=effect,
        state=state,
        detail=detail,
    )


def counted():
    """One partition: gpu-0 fails at minute 10, is known to at 10:03, gets its rule at 10:05, and is back at 30; gpu-1 fails at 40.

    Moves of gpu-0 end as ``OUTCOMES`` says, the first after two leases. gpu-2 is withdrawn. The newest event is that of minute 50.
    """
    log = History(1)
    for number in range(3):
        log.fact(published(NODE, gpu(NODE, number), number * MINUTE, rv=1 + number))
    device = gpu(NODE, 0)
    fault = log.fact(health(NODE, device, 10 * MINUTE, "Unhealthy", rv=10))
    opened = open_episode(device, 10 * MINUTE, evidence=(fault.event_id,))
    tick = log.fact(Tick(node="", partition=0, observed_at_ms=10 * MINUTE + 3 * SECOND))
    move = {"node": NODE, "device_id": device, "episode_id": opened.episode_id, "namespace": "ml", "pod": "p"}
    decisions = [
        custody(QuarantineOpened, NODE, device, 10 * MINUTE, "in_service", "quarantined", episode=opened)
    ]
    for number, outcome in enumerate(OUTCOMES):
        which = move | {"move_id": f"move-{number}", "pod_uid": f"uid-{number}", "at_ms": 10 * MINUTE}
        decisions.append(MovePlanned(ability="checkpoint", topology="whole", **which))
        decisions += [
            MoveLeaseGranted(token=token, expires_at_ms=11 * MINUTE, **which)
            for token in ((1, 2) if number == 0 else (1,))
        ]
        if outcome:
            decisions.append(MoveFinished(token=1, outcome=outcome, **which))
    log.decide(tick, *decisions)
    mine = {"episode_id": opened.episode_id}
    log.fact(told(5, "applied", **mine))
    log.fact(told(35, "confirmed", **mine))
    log.fact(told(95, "confirmed", **mine))
    log.fact(told(100, "repaired", detail="the effect was None", **mine))
    log.fact(
        MoveStepReported(
            node=NODE,
            observed_at_ms=11 * MINUTE,
            request_id="s",
            device_id=device,
            actor="mover",
            move_id="move-0",
            token=2,
            step="evicted",
        )
    )
    back = log.fact(health(NODE, device, 30 * MINUTE, "Healthy", rv=20))
    closed = msgspec.structs.replace(opened, closed_at_ms=30 * MINUTE, outcome="returned")
    log.decide(back, released(NODE, device, 30 * MINUTE, "quarantined", closed))
    log.fact(told(21 * 60, "removed", "", **mine))
    log.fact(told(22 * 60, "applied"))
    log.fact(
        DeviceWithdrawn(
            node=NODE, observed_at_ms=35 * MINUTE, rv=30, device_id=gpu(NODE, 2), driver=GPU, pool=NODE, device="gpu-2",
            reason="generation",
        )
    )  # fmt: skip
    second = log.fact(health(NODE, gpu(NODE, 1), 40 * MINUTE, "Unhealthy", rv=40))
    other = open_episode(gpu(NODE, 1), 40 * MINUTE, evidence=(second.event_id,))
    log.decide(
        second,
        custody(
            QuarantineOpened, NODE, gpu(NODE, 1), 40 * MINUTE, "in_service", "quarantined", episode=other
        ),
    )
    log.fact(Tick(node="", partition=0, observed_at_ms=50 * MINUTE))
    return log.records


@pytest.fixture
def ask(open_store):
    """Return a function that asks a view for some columns."""
    store = open_store(partitions=1)
    store.write(counted())

    def asked(name, *columns, **moment):
        view = AUDIT_VIEWS[name]
        with store.reading() as connection:
            rows = [dict(zip(view.columns, row, strict=True)) for row in view.rows(connection, **moment)]
            if not moment:
                sql = connection.exec_driver_sql(
                    f"SELECT {', '.join(view.columns)} FROM {view.sql_name}"
                ).all()
                assert sorted(map(repr, (tuple(row.values()) for row in rows))) == sorted(
                    repr(tuple(row)) for row in sql
                )
        return [tuple(row[column] for column in columns) for row in rows]

    return asked


def test_status_age_is_that_of_the_newest_word(ask):
    """gpu-0 spoke at minute 30, gpu-1 at 40; gpu-2 is gone. At minute 20 the newest words are those of then."""
    columns = ("device_id", "word", "age_ms")
    assert [
        (gpu(NODE, 0), "device_health_observed", 20 * MINUTE),
        (gpu(NODE, 1), "device_health_observed", 10 * MINUTE),
    ] == ask("status-age", *columns)
    assert [
        (gpu(NODE, 0), "device_health_observed", 10 * MINUTE),
        (gpu(NODE, 1), "device_published", 19 * MINUTE),
        (gpu(NODE, 2), "device_published", 18 * MINUTE),
    ] == ask("status-age", *columns, as_of_ms=20 * MINUTE)
    assert [(gpu(NODE, 0), "device_published", 2 * MINUTE)] == ask(
        "status-age", *columns, known_at={0: 3}, where={"device_id": gpu(NODE, 0)}
    )


def test_time_to_quarantine_is_from_the_fault_to_decision_rule_and_confirmation(ask):
    """A tick brought the decision out 3 s after the fault; nothing excluded gpu-1."""
    columns = ("device_id", "to_decision_ms", "to_applied_ms", "to_confirmed_ms")
    assert [(gpu(NODE, 0), 3_000, 5_000, 35_000), (gpu(NODE, 1), 0, None, None)] == ask(
        "time-to-quarantine", *columns
    )
    assert [(gpu(NODE, 0), 3_000, 5_000, None)] == ask(
        "time-to-quarantine", *columns, as_of_ms=10 * MINUTE + 30 * SECOND
    )


def test_move_success_counts_what_was_tried(ask):
    """Two of three; a workload that went, and a move without an end, do not count. Leases given back count in moves."""
    assert [(GPU, 5, 1, 2, 1, 0, 1, 666_666)] == ask(
        "move-success",
        *(
            "driver",
            "moves",
            "unfinished",
            "done",
            "failed",
            "timed_out",
            "workload_gone",
            "success_per_million",
        ),
    )
    assert [2, 1, 1, 1, 1] == [leases for (leases,) in ask("moves", "leases")]
    assert [] == ask("move-success", "driver", known_at={0: 3})


def test_success_is_not_known_where_nothing_was_tried(ask):
    """Not zero, and not everything."""
    planned = next(r.offset for r in counted() if r.event.KIND == "move_lease_granted")
    assert [(GPU, 1, None)] == ask(
        "move-success", "driver", "unfinished", "success_per_million", known_at={0: planned + 1}
    )


def test_idle_time_adds_up_over_devices_and_a_window_is_a_difference(ask):
    """gpu-0 was out for 20 minutes, gpu-1 has been for 10; between minutes 20 and 45 it was 15 device-minutes."""
    columns = ("phase", "devices", "devices_now", "idle_ms")
    assert [("quarantined", 2, 1, 30 * MINUTE)] == ask("idle-time", *columns)
    ((before,),) = ask("idle-time", "idle_ms", as_of_ms=20 * MINUTE)
    ((after,),) = ask("idle-time", "idle_ms", as_of_ms=45 * MINUTE)
    assert (10 * MINUTE, 15 * MINUTE) == (before, after - before)


def test_a_rule_is_what_was_told_of_it_last(ask):
    """Since when it is so, and how often it was mended; a rule that is made again begins anew."""
    columns = ("state", "effect", "since_ms", "told_at_ms", "repairs", "episode_id")
    (row,) = ask("exclusions", *columns)
    assert ("applied", "NoSchedule", 32 * MINUTE, 32 * MINUTE, 0, "") == row
    confirmed = ask("exclusions", *columns[:5], as_of_ms=10 * MINUTE + 99 * SECOND)
    since = 10 * MINUTE + 35 * SECOND
    assert [("confirmed", "NoSchedule", since, since + MINUTE, 0)] == confirmed
    assert [("repaired", 1)] == ask("exclusions", "state", "repairs", as_of_ms=20 * MINUTE)
    assert [("removed", 1)] == ask("exclusions", "state", "repairs", as_of_ms=31 * MINUTE)


def test_steps_say_with_which_token_they_were_done(ask):
    """One step."""
    assert [("move-0", 2, "evicted", "mover", 11 * MINUTE)] == ask(
        "move-steps", "move_id", "token", "step", "actor", "at_ms"
    )
    assert [] == ask("move-steps", "step", as_of_ms=11 * MINUTE - 1)
