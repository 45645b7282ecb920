-- The audit views of revision 0004: what was done on custody's word, and measures, in SQL that SQLite and PostgreSQL read alike.
-- Frozen with its revision. A later revision that rebuilds a table drops the views on it first and makes them again.
-- Meaning and an example for each: docs/audit-views.md.

DROP VIEW audit_moves;

CREATE VIEW audit_moves AS
SELECT move_id, node, device_id, episode_id, namespace, pod, pod_uid, state, ability, topology, planned_at_ms, token,
       lease_expires_at_ms, finished_at_ms, outcome, clause, reason, policy,
       (SELECT count(*) FROM move AS each_version
        WHERE each_version.generation = move.generation AND each_version.partition_number = move.partition_number
          AND each_version.move_id = move.move_id AND each_version.state = 'leased'
          AND each_version.log_offset <= move.log_offset) AS leases
FROM move
WHERE superseded_offset IS NULL
  AND generation = (SELECT live_generation FROM read_model WHERE name = 'custody');

CREATE VIEW audit_move_steps AS
SELECT at_ms, move_id, node, device_id, token, step, actor, detail, request_id, event_id, partition_number, log_offset
FROM move_step
WHERE generation = (SELECT live_generation FROM read_model WHERE name = 'custody');

CREATE VIEW audit_exclusions AS
SELECT node, rule, device_id, episode_id, effect, state, since_ms, at_ms AS told_at_ms, repairs, actor, detail, event_id,
       partition_number, log_offset
FROM exclusion
WHERE superseded_offset IS NULL
  AND generation = (SELECT live_generation FROM read_model WHERE name = 'custody');

CREATE VIEW audit_status_age AS
WITH inventory AS (
    SELECT partition_number, node, device_id, driver, withdrawn_at_ms
    FROM device_inventory
    WHERE superseded_offset IS NULL
      AND generation = (SELECT live_generation FROM read_model WHERE name = 'custody')
), custody AS (
    SELECT partition_number, node, device_id, driver
    FROM device_current
    WHERE generation = (SELECT live_generation FROM read_model WHERE name = 'custody')
), named AS (
    SELECT custody.partition_number, custody.node, custody.device_id, custody.driver
    FROM custody
    LEFT JOIN inventory ON inventory.node = custody.node AND inventory.device_id = custody.device_id
    WHERE inventory.withdrawn_at_ms IS NULL
    UNION ALL
    SELECT inventory.partition_number, inventory.node, inventory.device_id, inventory.driver
    FROM inventory
    LEFT JOIN custody ON custody.node = inventory.node AND custody.device_id = inventory.device_id
    WHERE inventory.withdrawn_at_ms IS NULL AND custody.device_id IS NULL
), found AS (
    SELECT partition_number, node, device_id, driver,
           (SELECT log.log_offset FROM event_log AS log
            WHERE log.device_id = named.device_id AND log.partition_number = named.partition_number
              AND log.stream_id = named.node AND log.kind IN ('device_health_observed', 'device_published')
            ORDER BY log.log_offset DESC LIMIT 1) AS word_offset
    FROM named
)
SELECT found.node, found.device_id, found.driver, word.kind AS word, word.at_ms AS word_at_ms,
       CASE WHEN word.at_ms IS NULL THEN NULL
            WHEN clock.newest_ms > word.at_ms THEN clock.newest_ms - word.at_ms ELSE 0 END AS age_ms,
       found.partition_number, found.word_offset
FROM found
JOIN checkpoint AS clock ON clock.partition_number = found.partition_number
LEFT JOIN event_log AS word ON word.partition_number = found.partition_number AND word.log_offset = found.word_offset;

CREATE VIEW audit_time_to_quarantine AS
WITH opened AS (
    SELECT episode_id, min(log_offset) AS log_offset,
           min(CASE WHEN cause_at_ms > at_ms THEN cause_at_ms ELSE at_ms END) AS decided_at_ms
    FROM transition
    WHERE kind = 'quarantine_opened'
      AND generation = (SELECT live_generation FROM read_model WHERE name = 'custody')
    GROUP BY episode_id
), fault AS (
    SELECT cited.episode_id, min(log.at_ms) AS fault_at_ms
    FROM episode_evidence AS cited
    JOIN opened ON opened.episode_id = cited.episode_id AND cited.log_offset <= opened.log_offset
    JOIN event_log AS log ON log.partition_number = cited.partition_number AND log.event_id = cited.event_id
    WHERE cited.generation = (SELECT live_generation FROM read_model WHERE name = 'custody')
    GROUP BY cited.episode_id
), excluded AS (
    SELECT episode_id, min(CASE WHEN state = 'applied' THEN at_ms END) AS applied_at_ms,
           min(CASE WHEN state = 'confirmed' THEN at_ms END) AS confirmed_at_ms
    FROM exclusion
    WHERE episode_id <> ''
      AND generation = (SELECT live_generation FROM read_model WHERE name = 'custody')
    GROUP BY episode_id
), timed AS (
    SELECT episode.episode_id, episode.node, episode.device_id, episode.driver, episode.cause,
           coalesce(fault.fault_at_ms, episode.opened_at_ms) AS fault_at_ms, opened.decided_at_ms,
           excluded.applied_at_ms, excluded.confirmed_at_ms
    FROM episode
    JOIN opened ON opened.episode_id = episode.episode_id
    LEFT JOIN fault ON fault.episode_id = episode.episode_id
    LEFT JOIN excluded ON excluded.episode_id = episode.episode_id
    WHERE episode.superseded_offset IS NULL AND episode.cause <> 'hold'
      AND episode.generation = (SELECT live_generation FROM read_model WHERE name = 'custody')
)
SELECT episode_id, node, device_id, driver, cause, fault_at_ms, decided_at_ms, applied_at_ms, confirmed_at_ms,
       CASE WHEN decided_at_ms > fault_at_ms THEN decided_at_ms - fault_at_ms ELSE 0 END AS to_decision_ms,
       CASE WHEN applied_at_ms IS NULL THEN NULL WHEN applied_at_ms > fault_at_ms THEN applied_at_ms - fault_at_ms ELSE 0 END
           AS to_applied_ms,
       CASE WHEN confirmed_at_ms IS NULL THEN NULL
            WHEN confirmed_at_ms > fault_at_ms THEN confirmed_at_ms - fault_at_ms ELSE 0 END AS to_confirmed_ms
FROM timed;

CREATE VIEW audit_move_success AS
WITH counted AS (
    SELECT coalesce(episode.driver, '') AS driver, count(*) AS moves,
           CAST(sum(CASE WHEN move.outcome = '' THEN 1 ELSE 0 END) AS BIGINT) AS unfinished,
           CAST(sum(CASE WHEN move.outcome = 'done' THEN 1 ELSE 0 END) AS BIGINT) AS done,
           CAST(sum(CASE WHEN move.outcome = 'failed' THEN 1 ELSE 0 END) AS BIGINT) AS failed,
           CAST(sum(CASE WHEN move.outcome = 'timed_out' THEN 1 ELSE 0 END) AS BIGINT) AS timed_out,
           CAST(sum(CASE WHEN move.outcome = 'workload_gone' THEN 1 ELSE 0 END) AS BIGINT) AS workload_gone,
           CAST(sum(CASE WHEN move.outcome = 'episode_closed' THEN 1 ELSE 0 END) AS BIGINT) AS episode_closed,
           CAST(sum(CASE WHEN move.outcome = 'retracted' THEN 1 ELSE 0 END) AS BIGINT) AS retracted
    FROM move
    LEFT JOIN episode
      ON episode.episode_id = move.episode_id AND episode.superseded_offset IS NULL
     AND episode.generation = (SELECT live_generation FROM read_model WHERE name = 'custody')
    WHERE move.superseded_offset IS NULL
      AND move.generation = (SELECT live_generation FROM read_model WHERE name = 'custody')
    GROUP BY coalesce(episode.driver, '')
)
SELECT driver, moves, unfinished, done, failed, timed_out, workload_gone, episode_closed, retracted,
       CASE WHEN done + failed + timed_out > 0 THEN done * 1000000 / (done + failed + timed_out) END AS success_per_million
FROM counted;

CREATE VIEW audit_idle_time AS
SELECT driver, phase, count(DISTINCT node || '/' || device_id) AS devices, CAST(sum(is_so) AS BIGINT) AS devices_now,
       CAST(sum(CASE WHEN until_ms > valid_from_ms THEN until_ms - valid_from_ms ELSE 0 END) AS BIGINT) AS idle_ms
FROM (
    SELECT history.driver, history.phase, history.node, history.device_id, history.valid_from_ms,
           CASE WHEN history.valid_to_ms IS NULL THEN 1 ELSE 0 END AS is_so,
           coalesce(history.valid_to_ms, clock.newest_ms) AS until_ms
    FROM device_history AS history
    JOIN checkpoint AS clock ON clock.partition_number = history.partition_number
    WHERE history.known_to_offset IS NULL AND history.phase <> 'in_service'
      AND history.generation = (SELECT live_generation FROM read_model WHERE name = 'custody')
) AS lasted
GROUP BY driver, phase;

CREATE VIEW audit_ledger_difference AS
WITH both_books AS (
    SELECT node, resource, unit,
           coalesce(max(CASE WHEN book = 'recorded' THEN used END), 0) AS recorded,
           coalesce(max(CASE WHEN book = 'recorded' THEN used_rest_nano END), 0) AS recorded_rest_nano,
           coalesce(max(CASE WHEN book = 'derived' THEN used END), 0) AS derived,
           coalesce(max(CASE WHEN book = 'derived' THEN used_rest_nano END), 0) AS derived_rest_nano
    FROM audit_ledger_balances
    WHERE book IN ('recorded', 'derived')
    GROUP BY node, resource, unit
), differed AS (
    SELECT node, resource, unit, recorded, derived,
           recorded - derived - CASE WHEN recorded_rest_nano < derived_rest_nano THEN 1 ELSE 0 END AS difference,
           recorded_rest_nano, derived_rest_nano,
           recorded_rest_nano - derived_rest_nano
               + CASE WHEN recorded_rest_nano >= derived_rest_nano THEN 0 WHEN unit = 'millicores' THEN 1000000
                      ELSE 1000000000 END AS difference_rest_nano
    FROM both_books
)
SELECT node, resource, unit, recorded, derived, difference, recorded_rest_nano, derived_rest_nano, difference_rest_nano
FROM differed
WHERE difference <> 0 OR difference_rest_nano <> 0;

CREATE VIEW audit_mapping_age AS
WITH in_use AS (
    SELECT partition_number, node, device_id, mapping_version, count(*) AS entries
    FROM ledger_entry
    WHERE superseded_offset IS NULL AND state = 'posted' AND mapping_version <> ''
      AND generation = (SELECT live_generation FROM read_model WHERE name = 'ledger')
    GROUP BY partition_number, node, device_id, mapping_version
), first_use AS (
    SELECT partition_number, node, device_id, mapping_version, min(posted_at_ms) AS first_used_at_ms
    FROM ledger_entry
    WHERE mapping_version <> ''
      AND generation = (SELECT live_generation FROM read_model WHERE name = 'ledger')
    GROUP BY partition_number, node, device_id, mapping_version
)
SELECT in_use.node, in_use.device_id, coalesce(inventory.driver, '') AS driver, in_use.mapping_version, in_use.entries,
       first_use.first_used_at_ms,
       CASE WHEN clock.newest_ms > first_use.first_used_at_ms THEN clock.newest_ms - first_use.first_used_at_ms ELSE 0 END
           AS age_ms
FROM in_use
JOIN first_use
  ON first_use.partition_number = in_use.partition_number AND first_use.node = in_use.node
 AND first_use.device_id = in_use.device_id AND first_use.mapping_version = in_use.mapping_version
JOIN checkpoint AS clock ON clock.partition_number = in_use.partition_number
LEFT JOIN audit_inventory AS inventory ON inventory.node = in_use.node AND inventory.device_id = in_use.device_id;
