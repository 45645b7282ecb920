"""The register of the audit views of the ledger; docs/ledger.md says what the words mean."""

from __future__ import annotations

from typing import Final

from projections import ledger_promotion
from projections import ledger_queries as ledger
from projections.audit_view import AuditView, words

LEDGER_VIEWS: Final = (
    AuditView(
        "ledger-balances",
        "What each node has, what is spoken for and what is free. Books recorded and derived contain what both share. Amounts are whole"
        " units rounded down, and *_rest_nano is what is above them, in nano-units. free is supply less used and may be negative.",
        words(
            "node book resource unit supply pods claims overhead adjustment used free supply_rest_nano pods_rest_nano"
            " claims_rest_nano overhead_rest_nano adjustment_rest_nano used_rest_nano free_rest_nano"
        ),
        ("node", "book", "resource"),
        ledger.balances,
    ),
    AuditView(
        "ledger-numa",
        "The derived book of ledger-balances by NUMA bucket: a node number, or unknown. The buckets of a resource add up to its row"
        " there.",
        words(
            "node resource numa unit supply pods claims overhead adjustment used supply_rest_nano pods_rest_nano"
            " claims_rest_nano overhead_rest_nano adjustment_rest_nano used_rest_nano"
        ),
        ("node", "resource", "numa"),
        ledger.numa,
    ),
    AuditView(
        "ledger-journal",
        "Every line of the journal with its place and its event: an amount that was posted, or taken back with the other sign."
        " at_ms is the time from which it counts; balances are sums of these lines.",
        words(
            "partition_number log_offset line_number at_ms direction node book account resource numa unit amount_units"
            " amount_rest_nano entry_key pod_uid claim_uid event_id"
        ),
        ("partition_number", "log_offset", "line_number"),
        ledger.journal,
    ),
    AuditView(
        "ledger-entries",
        "The entries that stand: whose they are, their amounts, and what is covered by a pod-level request and not added, as JSON.",
        words(
            "node book entry_key account namespace pod pod_uid claim claim_uid device_id share_id mapping_version amounts"
            " covered posted_at_ms event_id partition_number log_offset"
        ),
        ("node", "book", "entry_key"),
        ledger.entries,
    ),
    AuditView(
        "ledger-verdicts",
        "Whether new claims may come to each node: open, or hold with every reason as JSON, and by which policy. since_ms is when the"
        " verdict became what it is, reasons_since_ms when its reasons did.",
        words(
            "node verdict node_class holds drivers since_ms reasons_since_ms policy event_id partition_number log_offset"
        ),
        ("node",),
        ledger.verdicts,
    ),
    AuditView(
        "ledger-holds",
        "Each reason for which new claims waited on a node, from its beginning until it was gone (NULL: it lasts). A reason that comes"
        " back is another run. drill is 1 for a gate that was opened again and for a driver that came back.",
        words(
            "node reason scope run driver node_class held_since_ms held_until_ms duration_ms drill detail partition_number"
            " log_offset"
        ),
        ("node", "reason", "scope", "run"),
        ledger.holds,
    ),
    AuditView(
        "ledger-drift",
        "Where the recorded and the derived book differed: the cause, whether it is explained or predicted, and the amounts by resource"
        " as JSON. A difference ends when it is gone or has another cause (NULL: it lasts).",
        words(
            "node about run cause explained predicted found_at_ms ended_at_ms namespace claim claim_uid pod pod_uid recorded"
            " derived exact detail partition_number log_offset"
        ),
        ("node", "about", "run"),
        ledger.drifts,
    ),
    AuditView(
        "ledger-duplicates",
        "Second contributions under one key, refused and never added, and when they were claimed no longer (NULL: they still are).",
        words(
            "node book entry_key contender run refused_at_ms withdrawn_at_ms amounts namespace pod pod_uid claim claim_uid"
            " partition_number log_offset"
        ),
        ("node", "book", "entry_key", "contender", "run"),
        ledger.duplicates,
    ),
    AuditView(
        "placement-failures",
        "Claims whose devices span NUMA nodes where one was asked for (numa_spanned), or miss the node that was (numa_missed).",
        words(
            "alert_id alert about node raised_at_ms cleared_at_ms clause reason policy causation_id cleared_reason"
        ),
        ("node", "alert_id"),
        ledger.placement_failures,
    ),
    AuditView(
        "ledger-claims",
        "Each claim over all nodes that it is charged on. It is on hold everywhere if one of them is (held_by is the first by name),"
        " and unknown if one of them has no verdict.",
        words("claim_uid namespace claim nodes nodes_on_hold held_by verdict"),
        ("claim_uid",),
        ledger.claims,
    ),
    AuditView(
        "ledger-promotion",
        "For each class of nodes and driver: nodes with its devices, those of them that are open, drills done (drivers that came"
        " back and gates that were opened again), drifts without an explanation, and how long holds lasted (nearest-rank percentiles).",
        words(
            "node_class driver nodes nodes_covered drills_done unexplained_drifts unexplained_open unexplained_ended_ms"
            " holds_ended holds_p50_ms holds_p90_ms holds_max_ms"
        ),
        ("node_class", "driver"),
        ledger_promotion.promotion,
    ),
)
