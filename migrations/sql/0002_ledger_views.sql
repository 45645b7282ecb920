-- The audit views of revision 0002: the ledger as it is known now, in SQL that SQLite and PostgreSQL read alike.
-- Frozen with its revision. A later revision that rebuilds a table drops the views on it first and makes them again.
-- Meaning and an example for each: docs/audit-views.md.

-- Amounts are summed in two halves of 32 bits, so that no amount overflows a sum; beyond 2^60 units a balance stands as 2^60.
-- There is one aggregate in each of the two views, so that a condition on the node reaches the index.
CREATE VIEW audit_ledger_balances AS
WITH parts AS (
    SELECT 'recorded' AS book, 'common' AS part
    UNION ALL SELECT 'recorded', 'recorded'
    UNION ALL SELECT 'derived', 'common'
    UNION ALL SELECT 'derived', 'derived'
    UNION ALL SELECT 'devices', 'devices'
    UNION ALL SELECT 'counters', 'counters'
), summed AS (
    SELECT line.node, parts.book, line.resource,
           CASE WHEN parts.book IN ('recorded', 'derived') AND line.resource = 'cpu' THEN 1000000 ELSE 1000000000 END
               AS unit_nano,
           CAST(sum(CASE WHEN line.account = 'supply' THEN line.amount_units / 4294967296 ELSE 0 END) AS BIGINT) AS supply_high,
           CAST(sum(CASE WHEN line.account = 'supply' THEN line.amount_units % 4294967296 ELSE 0 END) AS BIGINT) AS supply_low,
           CAST(sum(CASE WHEN line.account = 'supply' THEN line.amount_rest_nano ELSE 0 END) AS BIGINT) AS supply_rest,
           CAST(sum(CASE WHEN line.account = 'pods' THEN line.amount_units / 4294967296 ELSE 0 END) AS BIGINT) AS pods_high,
           CAST(sum(CASE WHEN line.account = 'pods' THEN line.amount_units % 4294967296 ELSE 0 END) AS BIGINT) AS pods_low,
           CAST(sum(CASE WHEN line.account = 'pods' THEN line.amount_rest_nano ELSE 0 END) AS BIGINT) AS pods_rest,
           CAST(sum(CASE WHEN line.account = 'claims' THEN line.amount_units / 4294967296 ELSE 0 END) AS BIGINT) AS claims_high,
           CAST(sum(CASE WHEN line.account = 'claims' THEN line.amount_units % 4294967296 ELSE 0 END) AS BIGINT) AS claims_low,
           CAST(sum(CASE WHEN line.account = 'claims' THEN line.amount_rest_nano ELSE 0 END) AS BIGINT) AS claims_rest,
           CAST(sum(CASE WHEN line.account = 'overhead' THEN line.amount_units / 4294967296 ELSE 0 END) AS BIGINT) AS overhead_high,
           CAST(sum(CASE WHEN line.account = 'overhead' THEN line.amount_units % 4294967296 ELSE 0 END) AS BIGINT) AS overhead_low,
           CAST(sum(CASE WHEN line.account = 'overhead' THEN line.amount_rest_nano ELSE 0 END) AS BIGINT) AS overhead_rest,
           CAST(sum(CASE WHEN line.account = 'adjustment' THEN line.amount_units / 4294967296 ELSE 0 END) AS BIGINT) AS adjustment_high,
           CAST(sum(CASE WHEN line.account = 'adjustment' THEN line.amount_units % 4294967296 ELSE 0 END) AS BIGINT) AS adjustment_low,
           CAST(sum(CASE WHEN line.account = 'adjustment' THEN line.amount_rest_nano ELSE 0 END) AS BIGINT) AS adjustment_rest
    FROM ledger_line AS line
    JOIN parts ON parts.part = line.book
    WHERE line.generation = (SELECT live_generation FROM read_model WHERE name = 'ledger')
    GROUP BY line.node, parts.book, line.resource
), carried AS (
    SELECT node, book, resource, unit_nano,
           supply_high, supply_low + supply_rest / unit_nano AS supply_low, supply_rest % unit_nano AS supply_rest,
           pods_high, pods_low + pods_rest / unit_nano AS pods_low, pods_rest % unit_nano AS pods_rest,
           claims_high, claims_low + claims_rest / unit_nano AS claims_low, claims_rest % unit_nano AS claims_rest,
           overhead_high, overhead_low + overhead_rest / unit_nano AS overhead_low, overhead_rest % unit_nano AS overhead_rest,
           adjustment_high, adjustment_low + adjustment_rest / unit_nano AS adjustment_low, adjustment_rest % unit_nano AS adjustment_rest
    FROM summed
), balance AS (
    SELECT node, book, resource, unit_nano,
           supply_rest,
           CASE WHEN supply_high + supply_low / 4294967296 >= 268435456 THEN 1152921504606846976
                WHEN supply_high + supply_low / 4294967296 <= -268435456 THEN -1152921504606846976
                ELSE supply_high * 4294967296 + supply_low END AS supply,
           pods_rest,
           CASE WHEN pods_high + pods_low / 4294967296 >= 268435456 THEN 1152921504606846976
                WHEN pods_high + pods_low / 4294967296 <= -268435456 THEN -1152921504606846976
                ELSE pods_high * 4294967296 + pods_low END AS pods,
           claims_rest,
           CASE WHEN claims_high + claims_low / 4294967296 >= 268435456 THEN 1152921504606846976
                WHEN claims_high + claims_low / 4294967296 <= -268435456 THEN -1152921504606846976
                ELSE claims_high * 4294967296 + claims_low END AS claims,
           overhead_rest,
           CASE WHEN overhead_high + overhead_low / 4294967296 >= 268435456 THEN 1152921504606846976
                WHEN overhead_high + overhead_low / 4294967296 <= -268435456 THEN -1152921504606846976
                ELSE overhead_high * 4294967296 + overhead_low END AS overhead,
           adjustment_rest,
           CASE WHEN adjustment_high + adjustment_low / 4294967296 >= 268435456 THEN 1152921504606846976
                WHEN adjustment_high + adjustment_low / 4294967296 <= -268435456 THEN -1152921504606846976
                ELSE adjustment_high * 4294967296 + adjustment_low END AS adjustment
    FROM carried
), spoken_for AS (
    SELECT node, book, resource, unit_nano, supply, pods, claims, overhead, adjustment,
           supply_rest, pods_rest, claims_rest, overhead_rest, adjustment_rest,
           pods + claims + overhead + adjustment
               + (pods_rest + claims_rest + overhead_rest + adjustment_rest) / unit_nano AS used,
           (pods_rest + claims_rest + overhead_rest + adjustment_rest) % unit_nano AS used_rest
    FROM balance
    WHERE supply <> 0 OR pods <> 0 OR claims <> 0 OR overhead <> 0 OR adjustment <> 0
       OR supply_rest <> 0 OR pods_rest <> 0 OR claims_rest <> 0 OR overhead_rest <> 0 OR adjustment_rest <> 0
)
SELECT node, book, resource,
       CASE WHEN unit_nano = 1000000 THEN 'millicores' WHEN book IN ('recorded', 'derived') THEN 'bytes' ELSE 'units' END
           AS unit,
       supply, pods, claims, overhead, adjustment, used,
       supply - used - CASE WHEN supply_rest < used_rest THEN 1 ELSE 0 END AS free,
       supply_rest AS supply_rest_nano, pods_rest AS pods_rest_nano, claims_rest AS claims_rest_nano,
       overhead_rest AS overhead_rest_nano, adjustment_rest AS adjustment_rest_nano, used_rest AS used_rest_nano,
       supply_rest - used_rest + CASE WHEN supply_rest < used_rest THEN unit_nano ELSE 0 END AS free_rest_nano
FROM spoken_for;

CREATE VIEW audit_ledger_numa AS
WITH summed AS (
    SELECT node, resource, numa,
           CASE WHEN resource = 'cpu' THEN 1000000 ELSE 1000000000 END AS unit_nano,
           CAST(sum(CASE WHEN account = 'supply' THEN amount_units / 4294967296 ELSE 0 END) AS BIGINT) AS supply_high,
           CAST(sum(CASE WHEN account = 'supply' THEN amount_units % 4294967296 ELSE 0 END) AS BIGINT) AS supply_low,
           CAST(sum(CASE WHEN account = 'supply' THEN amount_rest_nano ELSE 0 END) AS BIGINT) AS supply_rest,
           CAST(sum(CASE WHEN account = 'pods' THEN amount_units / 4294967296 ELSE 0 END) AS BIGINT) AS pods_high,
           CAST(sum(CASE WHEN account = 'pods' THEN amount_units % 4294967296 ELSE 0 END) AS BIGINT) AS pods_low,
           CAST(sum(CASE WHEN account = 'pods' THEN amount_rest_nano ELSE 0 END) AS BIGINT) AS pods_rest,
           CAST(sum(CASE WHEN account = 'claims' THEN amount_units / 4294967296 ELSE 0 END) AS BIGINT) AS claims_high,
           CAST(sum(CASE WHEN account = 'claims' THEN amount_units % 4294967296 ELSE 0 END) AS BIGINT) AS claims_low,
           CAST(sum(CASE WHEN account = 'claims' THEN amount_rest_nano ELSE 0 END) AS BIGINT) AS claims_rest,
           CAST(sum(CASE WHEN account = 'overhead' THEN amount_units / 4294967296 ELSE 0 END) AS BIGINT) AS overhead_high,
           CAST(sum(CASE WHEN account = 'overhead' THEN amount_units % 4294967296 ELSE 0 END) AS BIGINT) AS overhead_low,
           CAST(sum(CASE WHEN account = 'overhead' THEN amount_rest_nano ELSE 0 END) AS BIGINT) AS overhead_rest,
           CAST(sum(CASE WHEN account = 'adjustment' THEN amount_units / 4294967296 ELSE 0 END) AS BIGINT) AS adjustment_high,
           CAST(sum(CASE WHEN account = 'adjustment' THEN amount_units % 4294967296 ELSE 0 END) AS BIGINT) AS adjustment_low,
           CAST(sum(CASE WHEN account = 'adjustment' THEN amount_rest_nano ELSE 0 END) AS BIGINT) AS adjustment_rest
    FROM ledger_line
    WHERE book IN ('common', 'derived')
      AND generation = (SELECT live_generation FROM read_model WHERE name = 'ledger')
    GROUP BY node, resource, numa
), carried AS (
    SELECT node, resource, numa, unit_nano,
           supply_high, supply_low + supply_rest / unit_nano AS supply_low, supply_rest % unit_nano AS supply_rest,
           pods_high, pods_low + pods_rest / unit_nano AS pods_low, pods_rest % unit_nano AS pods_rest,
           claims_high, claims_low + claims_rest / unit_nano AS claims_low, claims_rest % unit_nano AS claims_rest,
           overhead_high, overhead_low + overhead_rest / unit_nano AS overhead_low, overhead_rest % unit_nano AS overhead_rest,
           adjustment_high, adjustment_low + adjustment_rest / unit_nano AS adjustment_low, adjustment_rest % unit_nano AS adjustment_rest
    FROM summed
), balance AS (
    SELECT node, resource, numa, unit_nano,
           supply_rest,
           CASE WHEN supply_high + supply_low / 4294967296 >= 268435456 THEN 1152921504606846976
                WHEN supply_high + supply_low / 4294967296 <= -268435456 THEN -1152921504606846976
                ELSE supply_high * 4294967296 + supply_low END AS supply,
           pods_rest,
           CASE WHEN pods_high + pods_low / 4294967296 >= 268435456 THEN 1152921504606846976
                WHEN pods_high + pods_low / 4294967296 <= -268435456 THEN -1152921504606846976
                ELSE pods_high * 4294967296 + pods_low END AS pods,
           claims_rest,
           CASE WHEN claims_high + claims_low / 4294967296 >= 268435456 THEN 1152921504606846976
                WHEN claims_high + claims_low / 4294967296 <= -268435456 THEN -1152921504606846976
                ELSE claims_high * 4294967296 + claims_low END AS claims,
           overhead_rest,
           CASE WHEN overhead_high + overhead_low / 4294967296 >= 268435456 THEN 1152921504606846976
                WHEN overhead_high + overhead_low / 4294967296 <= -268435456 THEN -1152921504606846976
                ELSE overhead_high * 4294967296 + overhead_low END AS overhead,
           adjustment_rest,
           CASE WHEN adjustment_high + adjustment_low / 4294967296 >= 268435456 THEN 1152921504606846976
                WHEN adjustment_high + adjustment_low / 4294967296 <= -268435456 THEN -1152921504606846976
                ELSE adjustment_high * 4294967296 + adjustment_low END AS adjustment
    FROM carried
)
SELECT node, resource, numa, CASE WHEN unit_nano = 1000000 THEN 'millicores' ELSE 'bytes' END AS unit,
       supply, pods, claims, overhead, adjustment,
       pods + claims + overhead + adjustment
           + (pods_rest + claims_rest + overhead_rest + adjustment_rest) / unit_nano AS used,
       supply_rest AS supply_rest_nano, pods_rest AS pods_rest_nano, claims_rest AS claims_rest_nano,
       overhead_rest AS overhead_rest_nano, adjustment_rest AS adjustment_rest_nano,
       (pods_rest + claims_rest + overhead_rest + adjustment_rest) % unit_nano AS used_rest_nano
FROM balance
WHERE supply <> 0 OR pods <> 0 OR claims <> 0 OR overhead <> 0 OR adjustment <> 0
   OR supply_rest <> 0 OR pods_rest <> 0 OR claims_rest <> 0 OR overhead_rest <> 0 OR adjustment_rest <> 0;

CREATE VIEW audit_ledger_journal AS
SELECT partition_number, log_offset, line_number, at_ms, direction, node, book, account, resource, numa,
       CASE WHEN book NOT IN ('common', 'recorded', 'derived') THEN 'units'
            WHEN resource = 'cpu' THEN 'millicores' ELSE 'bytes' END AS unit,
       amount_units, amount_rest_nano, entry_key, pod_uid, claim_uid, event_id
FROM ledger_line
WHERE generation = (SELECT live_generation FROM read_model WHERE name = 'ledger');

CREATE VIEW audit_ledger_entries AS
SELECT node, book, entry_key, account, namespace, pod, pod_uid, claim, claim_uid, device_id, share_id, mapping_version,
       amounts, covered, posted_at_ms, event_id, partition_number, log_offset
FROM ledger_entry
WHERE superseded_offset IS NULL AND state = 'posted'
  AND generation = (SELECT live_generation FROM read_model WHERE name = 'ledger');

CREATE VIEW audit_ledger_verdicts AS
SELECT node, verdict, node_class, holds, drivers, since_ms, reasons_since_ms, policy, event_id, partition_number, log_offset
FROM ledger_verdict
WHERE superseded_offset IS NULL
  AND generation = (SELECT live_generation FROM read_model WHERE name = 'ledger');

CREATE VIEW audit_ledger_holds AS
SELECT node, reason, scope, run, driver, node_class, held_since_ms, held_until_ms,
       held_until_ms - held_since_ms AS duration_ms,
       CASE WHEN held_until_ms IS NULL THEN 0
            WHEN reason = 'claims_gate_closed' THEN 1
            WHEN reason = 'driver_rebuilding' AND EXISTS (
                SELECT 1 FROM ledger_driver AS publisher
                WHERE publisher.generation = ranked.generation AND publisher.partition_number = ranked.partition_number
                  AND publisher.node = ranked.node AND publisher.driver = ranked.driver AND publisher.published = 1
                  AND publisher.log_offset <= ranked.log_offset
                  AND (publisher.superseded_offset IS NULL OR publisher.superseded_offset > ranked.log_offset)
            ) THEN 1 ELSE 0 END AS drill,
       detail, partition_number, log_offset
FROM (
    SELECT ledger_hold.*,
           row_number() OVER (PARTITION BY partition_number, node, reason, scope, run ORDER BY log_offset DESC) AS place
    FROM ledger_hold
    WHERE generation = (SELECT live_generation FROM read_model WHERE name = 'ledger')
) AS ranked
WHERE place = 1;

CREATE VIEW audit_ledger_drift AS
SELECT node, about, run, cause, explained, predicted, found_at_ms,
       coalesce(cleared_at_ms, lead(found_at_ms) OVER (PARTITION BY partition_number, about, node ORDER BY run))
           AS ended_at_ms,
       namespace, claim, claim_uid, pod, pod_uid, recorded, derived, exact, detail, partition_number, log_offset
FROM (
    SELECT ledger_drift.*,
           row_number() OVER (PARTITION BY partition_number, about, node, run ORDER BY log_offset DESC) AS place
    FROM ledger_drift
    WHERE generation = (SELECT live_generation FROM read_model WHERE name = 'ledger')
) AS ranked
WHERE place = 1;

CREATE VIEW audit_ledger_duplicates AS
SELECT node, book, entry_key, contender, run, refused_at_ms, withdrawn_at_ms, amounts, namespace, pod, pod_uid, claim,
       claim_uid, partition_number, log_offset
FROM (
    SELECT ledger_refusal.*,
           row_number() OVER (PARTITION BY partition_number, entry_key, book, node, contender, run
                              ORDER BY log_offset DESC) AS place
    FROM ledger_refusal
    WHERE generation = (SELECT live_generation FROM read_model WHERE name = 'ledger')
) AS ranked
WHERE place = 1;

CREATE VIEW audit_requests AS
SELECT at_ms, actor, kind, node, device_id, episode_id, move_id, scope, reason, detail, until_ms, attempt, passed, token,
       outcome, closed, ledger_version, request_id, event_id, partition_number, log_offset
FROM request
WHERE generation = (SELECT live_generation FROM read_model WHERE name = 'custody');

-- What an alert was raised for stays when it is cleared, and the reason of that stands apart.
DROP VIEW audit_alerts;

CREATE VIEW audit_alerts AS
SELECT newest.alert_id, newest.alert, newest.about, newest.node, newest.raised_at_ms, newest.cleared_at_ms,
       CASE WHEN newest.cleared_at_ms IS NULL THEN newest.clause ELSE coalesce(raised.clause, '') END AS clause,
       CASE WHEN newest.cleared_at_ms IS NULL THEN newest.reason ELSE coalesce(raised.reason, '') END AS reason,
       CASE WHEN newest.cleared_at_ms IS NULL THEN newest.policy ELSE coalesce(raised.policy, '') END AS policy,
       CASE WHEN newest.cleared_at_ms IS NULL THEN newest.causation_id ELSE coalesce(raised.causation_id, '') END AS causation_id,
       CASE WHEN newest.cleared_at_ms IS NULL THEN '' ELSE newest.reason END AS cleared_reason
FROM alert AS newest
LEFT JOIN alert AS raised
    ON newest.cleared_at_ms IS NOT NULL AND raised.cleared_at_ms IS NULL AND raised.superseded_offset = newest.log_offset
   AND raised.generation = newest.generation AND raised.partition_number = newest.partition_number
   AND raised.alert_id = newest.alert_id
WHERE newest.superseded_offset IS NULL
  AND newest.generation = (SELECT live_generation FROM read_model WHERE name = 'custody');

CREATE VIEW audit_placement_failures AS
SELECT alert_id, alert, about, node, raised_at_ms, cleared_at_ms, clause, reason, policy, causation_id, cleared_reason
FROM audit_alerts
WHERE alert IN ('numa_spanned', 'numa_missed');

CREATE VIEW audit_ledger_claims AS
SELECT claim_uid, namespace, claim, nodes, nodes_on_hold, held_by,
       CASE WHEN nodes_on_hold > 0 THEN 'hold' WHEN nodes_unknown > 0 THEN 'unknown' ELSE 'open' END AS verdict
FROM (
    SELECT charged.claim_uid, max(charged.namespace) AS namespace, max(charged.claim) AS claim,
           count(DISTINCT charged.node) AS nodes,
           count(DISTINCT CASE WHEN verdicts.verdict = 'hold' THEN charged.node END) AS nodes_on_hold,
           min(CASE WHEN verdicts.verdict = 'hold' THEN charged.node END) AS held_by,
           sum(CASE WHEN verdicts.verdict IS NULL THEN 1 ELSE 0 END) AS nodes_unknown
    FROM (SELECT DISTINCT claim_uid, namespace, claim, node FROM audit_ledger_entries WHERE claim_uid <> '') AS charged
    LEFT JOIN audit_ledger_verdicts AS verdicts ON verdicts.node = charged.node
    GROUP BY charged.claim_uid
) AS by_claim;

CREATE VIEW audit_ledger_promotion AS
WITH publishes AS (
    SELECT drivers.node, drivers.driver, drivers.published, verdicts.node_class, verdicts.verdict
    FROM ledger_driver AS drivers
    JOIN audit_ledger_verdicts AS verdicts ON verdicts.node = drivers.node
    WHERE drivers.superseded_offset IS NULL
      AND drivers.generation = (SELECT live_generation FROM read_model WHERE name = 'ledger')
), fleet AS (
    SELECT node_class, driver, CAST(sum(published) AS BIGINT) AS nodes,
           sum(CASE WHEN published = 1 AND verdict = 'open' THEN 1 ELSE 0 END) AS nodes_covered
    FROM publishes
    GROUP BY node_class, driver
), concerned AS (
    SELECT publishes.node_class, publishes.driver, holds.node, holds.reason, holds.scope, holds.held_since_ms,
           holds.duration_ms, holds.drill
    FROM audit_ledger_holds AS holds
    JOIN publishes ON publishes.node = holds.node AND (holds.driver = '' OR holds.driver = publishes.driver)
    WHERE holds.held_until_ms IS NOT NULL
), ranked AS (
    SELECT node_class, driver, duration_ms,
           count(*) OVER (PARTITION BY node_class, driver) AS total,
           row_number() OVER (PARTITION BY node_class, driver ORDER BY duration_ms) AS place
    FROM concerned
), held AS (
    SELECT node_class, driver, max(total) AS holds_ended,
           max(CASE WHEN place = (total * 50 + 99) / 100 THEN duration_ms END) AS holds_p50_ms,
           max(CASE WHEN place = (total * 90 + 99) / 100 THEN duration_ms END) AS holds_p90_ms,
           max(duration_ms) AS holds_max_ms
    FROM ranked
    GROUP BY node_class, driver
), drilled AS (
    SELECT node_class, driver, count(*) AS drills_done
    FROM (
        SELECT DISTINCT node_class, driver, reason, scope, held_since_ms,
               CASE WHEN reason = 'claims_gate_closed' AND scope <> 'node' THEN '' ELSE node END AS node
        FROM concerned
        WHERE drill = 1
    ) AS drills
    GROUP BY node_class, driver
), drifted AS (
    SELECT publishes.node_class, publishes.driver, count(*) AS unexplained_drifts,
           sum(CASE WHEN drift.ended_at_ms IS NULL THEN 1 ELSE 0 END) AS unexplained_open,
           max(drift.ended_at_ms) AS unexplained_ended_ms
    FROM audit_ledger_drift AS drift
    JOIN publishes ON publishes.node = drift.node
    WHERE drift.explained = 0
    GROUP BY publishes.node_class, publishes.driver
)
SELECT fleet.node_class, fleet.driver, fleet.nodes, fleet.nodes_covered, coalesce(drilled.drills_done, 0) AS drills_done,
       coalesce(drifted.unexplained_drifts, 0) AS unexplained_drifts,
       coalesce(drifted.unexplained_open, 0) AS unexplained_open, drifted.unexplained_ended_ms,
       coalesce(held.holds_ended, 0) AS holds_ended, held.holds_p50_ms, held.holds_p90_ms, held.holds_max_ms
FROM fleet
LEFT JOIN held ON held.node_class = fleet.node_class AND held.driver = fleet.driver
LEFT JOIN drilled ON drilled.node_class = fleet.node_class AND drilled.driver = fleet.driver
LEFT JOIN drifted ON drifted.node_class = fleet.node_class AND drifted.driver = fleet.driver;
