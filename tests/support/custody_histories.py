"""Generated histories of one node: what a cluster might say in a few minutes, in the order in which it became true."""

from __future__ import annotations

import facts_of as f
from hypothesis import strategies as st

from sickbay.policy import policy_from_yaml

#: Windows short against the span of a history, so that every deadline falls both inside and after it.
SHORT = policy_from_yaml(
    """
version: short
lateness_horizon_ms: 600000
unknown: {window_ms: 30000, hold_down_ms: 3000, settle_ms: 8000, window_max_ms: 120000}
quarantine: {min_hold_ms: 20000, hold_max_ms: 200000, lease_ms: 100000, flap_window_ms: 120000}
staged_return: {observation_ms: 10000, observation_only_ms: 25000, observation_after_restart_ms: 40000}
node_incident: {burst_ms: 10000, settle_ms: 9000, lead_ms: 2000, restart_grace_ms: 15000}
moves: {enabled: true, lease_ms: 15000, attempts: 2}
""",
    place="short",
)
PROBED = policy_from_yaml(
    """
version: probed
unknown: {window_ms: 30000, hold_down_ms: 3000, settle_ms: 8000, window_max_ms: 120000}
quarantine: {min_hold_ms: 20000, hold_max_ms: 200000, lease_ms: 100000, flap_window_ms: 120000}
staged_return:
  {prober: job, probe_timeout_ms: 12000, canary_timeout_ms: 12000, observation_ms: 10000, observation_only_ms: 25000}
""",
    place="probed",
)
DAY_MS = 86_400_000
SPAN_MS = 300_000
START_MS = 1_000_000

_devices = st.sampled_from(
    [f.plugin(0), f.plugin(1), f.plugin(2), f.plugin(3), f.dra(0), f.dra(1), f.dra(2), f.dra(3)]
)
_healths = st.sampled_from(["Healthy", "Unhealthy", "Unknown", "Healthy"])
_pods = st.sampled_from(["pod-a", "pod-b"])
_dra = st.integers(0, 3)


@st.composite
def histories(draw, *, max_size=25):
    """A list of facts in order of event time; versions of each resource rise with it, as an API server gives them."""
    size = draw(st.integers(1, max_size))
    steps = draw(
        st.lists(
            st.one_of(st.integers(0, 3_000), st.integers(0, 2 * SPAN_MS // size)),
            min_size=size,
            max_size=size,
        )
    )
    at_ms, facts = START_MS, []
    for index, step in enumerate(steps):
        at_ms = min(at_ms + step, START_MS + SPAN_MS)
        rv = 10 + index
        kind = draw(
            st.sampled_from(
                ["word"] * 8
                + [
                    "all",
                    "end",
                    "published",
                    "tainted",
                    "withdrawn",
                    "node",
                    "lapsed",
                    "resumed",
                    "breaker",
                    "gap",
                ]
                + ["hold", "workload", "gone", "unmonitored", "tick", "replaced", "excluded", "reset"]
            )
        )
        match kind:
            case "word":
                facts.append(f.word(draw(_devices), draw(_healths), at_ms, rv, pod=draw(_pods)))
            case "all":
                health = draw(_healths)
                facts += [f.word(f.plugin(i), health, at_ms, rv, pod="pod-a") for i in range(4)]
            case "end":
                device = draw(_devices)
                facts.append(f.word(device, draw(_healths), at_ms, rv, pod=draw(_pods), live=False))
            case "published":
                facts.append(f.published(draw(_dra), at_ms, rv))
            case "tainted":
                facts.append(f.published(draw(_dra), at_ms, rv, taints=[f.XID]))
            case "unmonitored":
                facts.append(f.published(draw(_dra), at_ms, rv, taints=[f.UNMONITORED]))
            case "withdrawn":
                facts.append(f.withdrawn(draw(_dra), at_ms, rv))
            case "node":
                facts.append(
                    f.node(
                        at_ms, rv,
                        allocatable=draw(st.sampled_from(["8", "7", "0"])),
                        ready=draw(st.sampled_from(["True", "True", "Unknown"])),
                    )
                )  # fmt: skip
            case "replaced":
                facts.append(f.node(at_ms, rv, uid=f"node-uid-{index}"))
            case "lapsed":
                facts.append(f.lapsed(at_ms, rv, at_ms - 5_000))
            case "resumed":
                facts.append(f.resumed(at_ms, rv))
            case "breaker":
                facts.append(
                    f.breaker(
                        at_ms, draw(st.sampled_from(["cluster", f"driver:{f.DRIVER}"])), draw(st.booleans())
                    )
                )
            case "gap":
                facts.append(f.gap(at_ms - draw(st.integers(0, 20_000)), at_ms))
            case "hold":
                facts.append(f.hold(draw(_devices), at_ms, at_ms + 50_000, request=f"hold-{index}"))
            case "excluded":
                state = draw(st.sampled_from(["applied", "confirmed", "repaired", "removed"]))
                facts.append(f.excluded(draw(_devices), at_ms, state, f"excluded-{index}"))
            case "reset":
                facts.append(f.breaker_reset(at_ms, f"reset-{index}"))
            case "workload":
                facts.append(
                    f.workload(
                        at_ms, rv, pod=draw(_pods), ability=draw(st.sampled_from(["checkpoint", "neither"]))
                    )
                )
            case "gone":
                facts.append(f.pod_gone(at_ms, rv, pod=draw(_pods)))
            case "tick":
                facts.append(f.tick(at_ms))
    return facts


@st.composite
def with_requests(draw, policy):
    """A history in which people and executors answer the episodes that it opens."""
    from custody_run import Run

    facts = draw(histories())
    run, answered = Run(policy), []
    for index, fact in enumerate(facts):
        answered.append(fact)
        for decision in run.step(fact):
            if decision.KIND == "move_lease_granted" and draw(st.booleans()):
                reports = [
                    f.move_step(decision, fact.observed_at_ms, f"move-step-{index}"),
                    f.move_report(
                        decision,
                        fact.observed_at_ms,
                        f"move-{index}",
                        outcome=draw(st.sampled_from(["done", "failed", "deferred"])),
                    ),
                ]
                answered += reports
                run.each(reports)
                break
            record = getattr(decision, "record", None)
            if record is None or record.episode is None or not draw(st.booleans()):
                continue
            episode, at_ms = record.episode, fact.observed_at_ms
            if record.phase == "quarantined":
                request = f.release(decision.device_id, at_ms, episode.episode_id, request=f"release-{index}")
            elif record.phase in ("probing", "canary"):
                request = f.step_report(
                    record.phase, decision.device_id, at_ms, episode, draw(st.booleans()), f"step-{index}"
                )
            else:
                continue
            answered.append(request)
            run.step(request)
            break
    return answered
