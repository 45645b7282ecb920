"""The register of the audit views that measure: times, shares and differences, each defined in docs/audit-views.md."""

from __future__ import annotations

from typing import Final

from projections import ledger_queries as ledger
from projections import measures
from projections.audit_view import AuditView, words

MEASURES: Final = (
    AuditView(
        "status-age",
        "How old the newest word on each device is: its health in a Pod's status, or its publication in a slice; of words that came out of"
        " order the one that was written last. NULL without any. A device that was withdrawn is left out.",
        words("node device_id driver word word_at_ms age_ms partition_number word_offset"),
        ("node", "device_id"),
        measures.status_age,
    ),
    AuditView(
        "time-to-quarantine",
        "For each episode that no person opened, how long it took from the first fact it rests on to the decision, until the taint rule"
        " was applied, and until it was read back (NULL: never told).",
        words(
            "episode_id node device_id driver cause fault_at_ms decided_at_ms applied_at_ms confirmed_at_ms to_decision_ms"
            " to_applied_ms to_confirmed_ms"
        ),
        ("fault_at_ms", "episode_id"),
        measures.time_to_quarantine,
    ),
    AuditView(
        "move-success",
        "Per driver, the moves off its devices by outcome, and how many in a million of those that were tried (done, failed, timed_out)"
        " were done; NULL when none was.",
        words(
            "driver moves unfinished done failed timed_out workload_gone episode_closed retracted success_per_million"
        ),
        ("driver",),
        measures.move_success,
    ),
    AuditView(
        "idle-time",
        "Per driver and phase but in_service, how many devices ever were in it and are now, and the device-milliseconds they spent there,"
        " up to the instant asked for. The difference of two instants is the time between them.",
        words("driver phase devices devices_now idle_ms"),
        ("driver", "phase"),
        measures.idle_time,
    ),
    AuditView(
        "ledger-difference",
        "What the book recorded has in use on each node beyond the book derived, for each resource where they differ; negative where it"
        " has less. Units and rests as in ledger-balances; the causes are in ledger-drift.",
        words(
            "node resource unit recorded derived difference recorded_rest_nano derived_rest_nano difference_rest_nano"
        ),
        ("node", "resource"),
        ledger.difference,
    ),
    AuditView(
        "mapping-age",
        "How long ago each mapping that a standing entry was counted by was first used on its device, and how many entries use it.",
        words("node device_id driver mapping_version entries first_used_at_ms age_ms"),
        ("node", "device_id", "mapping_version"),
        ledger.mapping_age,
    ),
)
