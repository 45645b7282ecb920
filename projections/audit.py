"""The register of audit views: what can be asked of the store, in which words, with which columns.

Each view answers for any moment: ``as_of_ms`` is an instant of event time, ``known_at`` a position of each partition. The SQL views
``audit_…`` of the schema have the same columns and answer for now. Times are milliseconds; spelling them out is the caller's.
"""

from __future__ import annotations

from typing import Final

from projections import audit_queries as queries
from projections.audit_ledger import LEDGER_VIEWS
from projections.audit_measures import MEASURES
from projections.audit_view import AuditView, words
from sickbay.errors import NotFoundError

_VIEWS: Final = (
    AuditView(
        "devices",
        "Where every device stands: custody's phase, and in_service for a published device that never faulted. published is 0 for"
        " a device that no slice names any more, or that a device plugin reports.",
        words("node device_id driver phase since_ms cause episode_id incident_id published"),
        ("node", "device_id"),
        queries.devices,
    ),
    AuditView(
        "device-timeline",
        "The history of each device as intervals: phase, cause, episode and incident from valid_from_ms until valid_to_ms (NULL:"
        " not ended). A late fact corrects earlier intervals; known_at shows them as they were believed at a position.",
        words(
            "node device_id driver phase cause episode_id incident_id valid_from_ms valid_to_ms partition_number"
            " known_from_offset"
        ),
        ("node", "device_id", "valid_from_ms"),
        queries.device_timeline,
    ),
    AuditView(
        "open-episodes",
        "Quarantine episodes that have not ended, with the causes that keep them open and the end of their lease.",
        words(
            "episode_id node device_id driver phase cause reason actor opened_at_ms expires_at_ms hold_until_ms lease_holder"
            " extensions flap_count failures held open_causes"
        ),
        ("opened_at_ms", "episode_id"),
        queries.open_episodes,
    ),
    AuditView(
        "episodes",
        "Every quarantine episode with its outcome and how many decisions and facts it has; the decisions themselves are rows of"
        " transitions, the facts rows of episode-evidence, both with its episode_id.",
        words(
            "episode_id node device_id driver phase cause reason actor opened_at_ms closed_at_ms outcome verification"
            " expires_at_ms hold_until_ms lease_holder extensions flap_count failures attempt return_at_ms canary_at_ms"
            " observing_at_ms after_restart held release_actor incident_id open_causes decisions evidence_facts"
        ),
        ("opened_at_ms", "episode_id"),
        queries.episodes,
    ),
    AuditView(
        "episode-evidence",
        "Every fact that an episode rested on, and the place in the log of the first decision that cited it. The columns of the"
        " fact are NULL when it is not in the log.",
        words("episode_id event_id kind at_ms node device_id partition_number fact_offset cited_at_offset"),
        ("episode_id", "cited_at_offset", "event_id"),
        queries.evidence,
    ),
    AuditView(
        "transitions",
        "Every custody decision: the phase before and after, the policy clause and hash that decided, the event that caused it,"
        " and latency_ms, the distance between the event times of cause and decision.",
        words(
            "partition_number log_offset at_ms kind node device_id driver episode_id incident_id phase_before phase_after cause"
            " clause reason policy event_id causation_id cause_at_ms latency_ms"
        ),
        ("partition_number", "log_offset"),
        queries.transitions,
    ),
    AuditView(
        "false-quarantine-rate",
        "Per driver, the closed episodes that should not have been, in a million. False is an episode that a node incident absorbed,"
        " that a late fact retracted, or that is unconfirmed: one single fault, no failed step, and a prober found the device"
        " sound. Holds by people do not count.",
        words("driver closed absorbed retracted unconfirmed false_total false_per_million"),
        ("driver",),
        queries.false_quarantine_rate,
    ),
    AuditView(
        "unknown-duration",
        "Each run in which a device's health was not known, and whether it led to a restriction. A run that goes on has no ended_ms"
        " and is counted up to the instant asked for, else to the newest event of its partition. lower_bound is 1 when a watch gap of"
        " pods, resourceslices or nodes lies in the run or ends where it begins: what is unseen may be longer.",
        words("node device_id driver unknown_since_ms ended_ms duration_ms restricted lower_bound"),
        ("node", "device_id", "unknown_since_ms"),
        queries.unknown_duration,
    ),
    AuditView(
        "decision-latency",
        "Per kind of custody decision, how far its event time lies from that of its cause: nearest-rank percentiles and the"
        " maximum. A timer that a tick finds late and a fact that comes late both count; decisions whose cause is in another"
        " partition do not.",
        words("kind decisions p50_ms p90_ms p99_ms max_ms"),
        ("kind",),
        queries.decision_latency,
    ),
    AuditView(
        "node-incidents",
        "One cause on a node that explains many devices: node lost, plugin down, mass turn.",
        words("incident_id node cause scope devices opened_at_ms closed_at_ms outcome clause reason policy"),
        ("opened_at_ms", "incident_id"),
        queries.node_incidents,
    ),
    AuditView(
        "breaker-history",
        "Every opening and closing of the breaker, for the cluster and for each driver, with the counts that decided.",
        words(
            "at_ms scope state opened_at_ms adverse known threshold clause reason policy partition_number log_offset"
        ),
        ("partition_number", "log_offset"),
        queries.breaker,
    ),
    AuditView(
        "moves",
        "Every move of a workload off a device: planned, leased (with its fencing token), finished and how. leases counts how often it"
        " was leased, leases that the mover gave back too; the mover's words are in move-steps and requests.",
        words(
            "move_id node device_id episode_id namespace pod pod_uid state ability topology planned_at_ms token"
            " lease_expires_at_ms finished_at_ms outcome clause reason policy leases"
        ),
        ("node", "move_id"),
        queries.moves,
    ),
    AuditView(
        "move-steps",
        "Each step of a move that its mover told, with the token that it held: what was done to the workload, and when.",
        words(
            "at_ms move_id node device_id token step actor detail request_id event_id partition_number log_offset"
        ),
        ("partition_number", "log_offset"),
        queries.move_steps,
    ),
    AuditView(
        "exclusions",
        "The taint rule of each device as its keeper told last: effect, state, since when both are so, and how often somebody else's"
        " change was mended since it was made.",
        words(
            "node rule device_id episode_id effect state since_ms told_at_ms repairs actor detail event_id partition_number"
            " log_offset"
        ),
        ("node", "rule"),
        queries.exclusions,
    ),
    AuditView(
        "alerts",
        "Every alert, when and why it was raised (clause, reason, policy, causation_id), and when and why its cause went away.",
        words(
            "alert_id alert about node raised_at_ms cleared_at_ms clause reason policy causation_id cleared_reason"
        ),
        ("node", "alert_id"),
        queries.alerts,
    ),
    AuditView(
        "requests",
        "Who asked for what: holds, releases, changes of a gate, resets of the breaker, and the reports of probes, canaries and"
        " movers. That it was asked does"
        " not mean it was done: a request for a closed or other episode is recorded and does nothing. What is asked of the gate of the"
        " cluster or of a driver has a row in each partition, all with one request_id.",
        words(
            "at_ms actor kind node device_id episode_id move_id scope reason detail until_ms attempt passed token outcome closed"
            " ledger_version request_id event_id partition_number log_offset"
        ),
        ("partition_number", "log_offset"),
        queries.requests,
    ),
    AuditView(
        "inventory",
        "What is published about each device: driver, pool, card, NUMA nodes as a JSON list (empty: not known), and when it was"
        " withdrawn.",
        words(
            "node device_id driver pool device physical_id numa_nodes node_uid published_at_ms withdrawn_at_ms withdrawn_reason"
            " status_epoch resource_version"
        ),
        ("node", "device_id"),
        queries.inventory,
    ),
    AuditView(
        "late-facts",
        "Facts that came later than the lateness horizon: recorded, counted, alerted, and not acted on.",
        words(
            "fact_id node about fact_at_ms found_at_ms late_by_ms reason alert_id partition_number log_offset"
        ),
        ("partition_number", "log_offset", "fact_id"),
        queries.late_facts,
    ),
    AuditView(
        "watch-gaps",
        "When nothing was seen of a resource type: from the last that was heard until the list that followed, with their versions."
        " Every partition hears of a gap, so each gap has a row in each. A gap that goes on has no to_ms and no to_rv.",
        words("watched from_ms to_ms from_rv to_rv partition_number log_offset"),
        ("partition_number", "log_offset"),
        queries.watch_gaps,
    ),
    *LEDGER_VIEWS,
    *MEASURES,
    AuditView(
        "parked",
        "What could not be used: the place it came from, the reason, and its size. The first 64 KiB are in the table parked."
        " Parked things have no place in the log, so known_at does not narrow them.",
        words("seq place reason at_ms raw_bytes"),
        ("seq",),
        queries.parked_items,
    ),
)

AUDIT_VIEWS: Final[dict[str, AuditView]] = {view.name: view for view in _VIEWS}


def audit_view(name: str) -> AuditView:
    """Return a view by name. Raises NotFoundError with the names that exist."""
    view = AUDIT_VIEWS.get(name)
    if view is None:
        raise NotFoundError(f"there is no audit view {name!r}; there are {', '.join(sorted(AUDIT_VIEWS))}")
    return view
