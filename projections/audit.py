"""The register of audit views: what can be asked of the store, in which words, with which columns.

Each view answers for any moment: ``as_of_ms`` is an instant of event time, ``known_at`` a position of each partition. The SQL views
``audit_…`` of the schema have the same columns and answer for now. Times are milliseconds; spelling them out is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sqlalchemy import Connection, Select, select

from projections import audit_queries as queries
from projections import ledger_promotion
from projections import ledger_queries as ledger
from projections.temporal import Moment
from sickbay.errors import NotFoundError

Cell: TypeAlias = str | int | None

#: Rows fetched at a time, so that an answer of any length needs little memory.
_ROWS_PER_FETCH: Final = 500


@dataclass(frozen=True, slots=True)
class AuditView:
    """One question that the store answers."""

    name: str
    doc: str
    columns: tuple[str, ...]
    #: Columns that order the answer; none of them is ever NULL.
    order: tuple[str, ...]
    query: Callable[[Moment, tuple[str, ...]], Select[Any]]

    @property
    def sql_name(self) -> str:
        """Name of the SQL view that answers for now."""
        return "audit_" + self.name.replace("-", "_")

    def rows(
        self,
        connection: Connection,
        *,
        as_of_ms: int | None = None,
        known_at: Mapping[int, int] | None = None,
        where: Mapping[str, str | int] | None = None,
        limit: int | None = None,
    ) -> Iterator[tuple[Cell, ...]]:
        """Yield the rows, in the order of ``columns``, narrowed to those whose columns equal ``where``.

        Consume them inside the connection's transaction. Raises NotFoundError for a column that the view does not have.
        """
        found = self.query(Moment(as_of_ms, known_at), self.columns).subquery(self.sql_name)
        query = select(*(found.c[name] for name in self.columns)).order_by(
            *(found.c[name] for name in self.order)
        )
        for name, value in (where or {}).items():
            if name not in self.columns:
                raise NotFoundError(
                    f"the audit view {self.name} has no column {name!r}; it has {', '.join(self.columns)}"
                )
            query = query.where(found.c[name] == value)
        if limit is not None:
            query = query.limit(limit)
        result = connection.execution_options(yield_per=_ROWS_PER_FETCH).execute(query)
        for row in result:
            yield tuple(row)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_VIEWS: Final = (
    AuditView(
        "devices",
        "Where every device stands: custody's phase, and in_service for a published device that never faulted. published is 0 for"
        " a device that no slice names any more, or that a device plugin reports.",
        _words("node device_id driver phase since_ms cause episode_id incident_id published"),
        ("node", "device_id"),
        queries.devices,
    ),
    AuditView(
        "device-timeline",
        "The history of each device as intervals: phase, cause, episode and incident from valid_from_ms until valid_to_ms (NULL:"
        " not ended). A late fact corrects earlier intervals; known_at shows them as they were believed at a position.",
        _words(
            "node device_id driver phase cause episode_id incident_id valid_from_ms valid_to_ms partition_number"
            " known_from_offset"
        ),
        ("node", "device_id", "valid_from_ms"),
        queries.device_timeline,
    ),
    AuditView(
        "open-episodes",
        "Quarantine episodes that have not ended, with the causes that keep them open and the end of their lease.",
        _words(
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
        _words(
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
        _words("episode_id event_id kind at_ms node device_id partition_number fact_offset cited_at_offset"),
        ("episode_id", "cited_at_offset", "event_id"),
        queries.evidence,
    ),
    AuditView(
        "transitions",
        "Every custody decision: the phase before and after, the policy clause and hash that decided, the event that caused it,"
        " and latency_ms, the distance between the event times of cause and decision.",
        _words(
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
        _words("driver closed absorbed retracted unconfirmed false_total false_per_million"),
        ("driver",),
        queries.false_quarantine_rate,
    ),
    AuditView(
        "unknown-duration",
        "Each run in which a device's health was not known, and whether it led to a restriction. A run that goes on has no ended_ms"
        " and is counted up to the instant asked for, else to the newest event of its partition. lower_bound is 1 when a watch gap of"
        " pods, resourceslices or nodes lies in the run or ends where it begins: what is unseen may be longer.",
        _words("node device_id driver unknown_since_ms ended_ms duration_ms restricted lower_bound"),
        ("node", "device_id", "unknown_since_ms"),
        queries.unknown_duration,
    ),
    AuditView(
        "decision-latency",
        "Per kind of custody decision, how far its event time lies from that of its cause: nearest-rank percentiles and the"
        " maximum. A timer that a tick finds late and a fact that comes late both count; decisions whose cause is in another"
        " partition do not.",
        _words("kind decisions p50_ms p90_ms p99_ms max_ms"),
        ("kind",),
        queries.decision_latency,
    ),
    AuditView(
        "node-incidents",
        "One cause on a node that explains many devices: node lost, plugin down, mass turn.",
        _words("incident_id node cause scope devices opened_at_ms closed_at_ms outcome clause reason policy"),
        ("opened_at_ms", "incident_id"),
        queries.node_incidents,
    ),
    AuditView(
        "breaker-history",
        "Every opening and closing of the breaker, for the cluster and for each driver, with the counts that decided.",
        _words(
            "at_ms scope state opened_at_ms adverse known threshold clause reason policy partition_number log_offset"
        ),
        ("partition_number", "log_offset"),
        queries.breaker,
    ),
    AuditView(
        "moves",
        "Every move of a workload off a device: planned, leased (with its fencing token), finished and how.",
        _words(
            "move_id node device_id episode_id namespace pod pod_uid state ability topology planned_at_ms token"
            " lease_expires_at_ms finished_at_ms outcome clause reason policy"
        ),
        ("node", "move_id"),
        queries.moves,
    ),
    AuditView(
        "alerts",
        "Every alert, when and why it was raised (clause, reason, policy, causation_id), and when and why its cause went away.",
        _words(
            "alert_id alert about node raised_at_ms cleared_at_ms clause reason policy causation_id cleared_reason"
        ),
        ("node", "alert_id"),
        queries.alerts,
    ),
    AuditView(
        "requests",
        "Who asked for what: holds, releases, gate changes, and the reports of probes, canaries and movers. That it was asked does"
        " not mean it was done: a request for a closed or other episode is recorded and does nothing. What is asked of the gate of the"
        " cluster or of a driver has a row in each partition, all with one request_id.",
        _words(
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
        _words(
            "node device_id driver pool device physical_id numa_nodes node_uid published_at_ms withdrawn_at_ms withdrawn_reason"
            " status_epoch resource_version"
        ),
        ("node", "device_id"),
        queries.inventory,
    ),
    AuditView(
        "late-facts",
        "Facts that came later than the lateness horizon: recorded, counted, alerted, and not acted on.",
        _words(
            "fact_id node about fact_at_ms found_at_ms late_by_ms reason alert_id partition_number log_offset"
        ),
        ("partition_number", "log_offset", "fact_id"),
        queries.late_facts,
    ),
    AuditView(
        "watch-gaps",
        "When nothing was seen of a resource type: from the last that was heard until the list that followed, with their versions."
        " Every partition hears of a gap, so each gap has a row in each. A gap that goes on has no to_ms and no to_rv.",
        _words("watched from_ms to_ms from_rv to_rv partition_number log_offset"),
        ("partition_number", "log_offset"),
        queries.watch_gaps,
    ),
    AuditView(
        "ledger-balances",
        "What each node has, what is spoken for and what is free. Books recorded and derived contain what both share. Amounts are whole"
        " units rounded down, and *_rest_nano is what is above them, in nano-units. free is supply less used and may be negative.",
        _words(
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
        _words(
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
        _words(
            "partition_number log_offset line_number at_ms direction node book account resource numa unit amount_units"
            " amount_rest_nano entry_key pod_uid claim_uid event_id"
        ),
        ("partition_number", "log_offset", "line_number"),
        ledger.journal,
    ),
    AuditView(
        "ledger-entries",
        "The entries that stand: whose they are, their amounts, and what is covered by a pod-level request and not added, as JSON.",
        _words(
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
        _words(
            "node verdict node_class holds drivers since_ms reasons_since_ms policy event_id partition_number log_offset"
        ),
        ("node",),
        ledger.verdicts,
    ),
    AuditView(
        "ledger-holds",
        "Each reason for which new claims waited on a node, from its beginning until it was gone (NULL: it lasts). A reason that comes"
        " back is another run. drill is 1 for a gate that was opened again and for a driver that came back.",
        _words(
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
        _words(
            "node about run cause explained predicted found_at_ms ended_at_ms namespace claim claim_uid pod pod_uid recorded"
            " derived exact detail partition_number log_offset"
        ),
        ("node", "about", "run"),
        ledger.drifts,
    ),
    AuditView(
        "ledger-duplicates",
        "Second contributions under one key, refused and never added, and when they were claimed no longer (NULL: they still are).",
        _words(
            "node book entry_key contender run refused_at_ms withdrawn_at_ms amounts namespace pod pod_uid claim claim_uid"
            " partition_number log_offset"
        ),
        ("node", "book", "entry_key", "contender", "run"),
        ledger.duplicates,
    ),
    AuditView(
        "placement-failures",
        "Claims whose devices span NUMA nodes where one was asked for (numa_spanned), or miss the node that was (numa_missed).",
        _words(
            "alert_id alert about node raised_at_ms cleared_at_ms clause reason policy causation_id cleared_reason"
        ),
        ("node", "alert_id"),
        ledger.placement_failures,
    ),
    AuditView(
        "ledger-claims",
        "Each claim over all nodes that it is charged on. It is on hold everywhere if one of them is (held_by is the first by name),"
        " and unknown if one of them has no verdict.",
        _words("claim_uid namespace claim nodes nodes_on_hold held_by verdict"),
        ("claim_uid",),
        ledger.claims,
    ),
    AuditView(
        "ledger-promotion",
        "For each class of nodes and driver: nodes with its devices, those of them that are open, drills done (drivers that came"
        " back and gates that were opened again), drifts without an explanation, and how long holds lasted (nearest-rank percentiles).",
        _words(
            "node_class driver nodes nodes_covered drills_done unexplained_drifts unexplained_open unexplained_ended_ms"
            " holds_ended holds_p50_ms holds_p90_ms holds_max_ms"
        ),
        ("node_class", "driver"),
        ledger_promotion.promotion,
    ),
    AuditView(
        "parked",
        "What could not be used: the place it came from, the reason, and its size. The first 64 KiB are in the table parked."
        " Parked things have no place in the log, so known_at does not narrow them.",
        _words("seq place reason at_ms raw_bytes"),
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
