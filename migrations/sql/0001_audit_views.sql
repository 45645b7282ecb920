-- The audit views of revision 0001: what is known now, in SQL that SQLite and PostgreSQL read alike.
-- Frozen with its revision. A later revision that rebuilds a table drops the views on it first and makes them again.
-- Meaning and an example for each: docs/audit-views.md.

CREATE VIEW audit_device_timeline AS
SELECT node, device_id, driver, phase, cause, episode_id, incident_id, valid_from_ms, valid_to_ms,
       partition_number, known_from_offset
FROM device_history
WHERE known_to_offset IS NULL
  AND generation = (SELECT live_generation FROM read_model WHERE name = 'custody');

CREATE VIEW audit_inventory AS
SELECT node, device_id, driver, pool, device, physical_id, numa_nodes, node_uid, at_ms AS published_at_ms,
       withdrawn_at_ms, withdrawn_reason, status_epoch, resource_version
FROM device_inventory
WHERE superseded_offset IS NULL
  AND generation = (SELECT live_generation FROM read_model WHERE name = 'custody');

CREATE VIEW audit_devices AS
SELECT custody.node, custody.device_id, custody.driver, custody.phase, custody.since_ms, custody.cause,
       custody.episode_id, custody.incident_id,
       CASE WHEN inventory.device_id IS NOT NULL AND inventory.withdrawn_at_ms IS NULL THEN 1 ELSE 0 END AS published
FROM device_current AS custody
LEFT JOIN audit_inventory AS inventory
  ON inventory.node = custody.node AND inventory.device_id = custody.device_id
WHERE custody.generation = (SELECT live_generation FROM read_model WHERE name = 'custody')
UNION ALL
SELECT inventory.node, inventory.device_id, inventory.driver, 'in_service', NULL, '', '', '', 1
FROM audit_inventory AS inventory
WHERE inventory.withdrawn_at_ms IS NULL
  AND NOT EXISTS (
    SELECT 1 FROM device_current AS custody
    WHERE custody.node = inventory.node AND custody.device_id = inventory.device_id
      AND custody.generation = (SELECT live_generation FROM read_model WHERE name = 'custody'));

CREATE VIEW audit_transitions AS
SELECT partition_number, log_offset, at_ms, kind, node, device_id, driver, episode_id, incident_id, phase_before,
       phase_after, cause, clause, reason, policy, event_id, causation_id, cause_at_ms, latency_ms
FROM transition
WHERE generation = (SELECT live_generation FROM read_model WHERE name = 'custody');

CREATE VIEW audit_episode_evidence AS
SELECT evidence.episode_id, evidence.event_id, log.kind, log.at_ms, log.stream_id AS node, log.device_id,
       evidence.partition_number, log.log_offset AS fact_offset, evidence.log_offset AS cited_at_offset
FROM episode_evidence AS evidence
LEFT JOIN event_log AS log
  ON log.partition_number = evidence.partition_number AND log.event_id = evidence.event_id
WHERE evidence.generation = (SELECT live_generation FROM read_model WHERE name = 'custody');

CREATE VIEW audit_episodes AS
SELECT episode.episode_id, episode.node, episode.device_id, episode.driver, episode.phase, episode.cause, episode.reason,
       episode.actor, episode.opened_at_ms, episode.closed_at_ms, episode.outcome, episode.verification,
       episode.expires_at_ms, episode.hold_until_ms, episode.lease_holder, episode.extensions, episode.flap_count,
       episode.failures, episode.attempt, episode.return_at_ms, episode.canary_at_ms, episode.observing_at_ms,
       episode.after_restart, episode.held, episode.release_actor, episode.incident_id, episode.open_causes,
       (SELECT count(*) FROM transition AS decision
        WHERE decision.generation = episode.generation AND decision.episode_id = episode.episode_id) AS decisions,
       (SELECT count(*) FROM episode_evidence AS cited
        WHERE cited.generation = episode.generation AND cited.episode_id = episode.episode_id) AS evidence_facts
FROM episode
WHERE episode.superseded_offset IS NULL
  AND episode.generation = (SELECT live_generation FROM read_model WHERE name = 'custody');

CREATE VIEW audit_open_episodes AS
SELECT episode_id, node, device_id, driver, phase, cause, reason, actor, opened_at_ms, expires_at_ms, hold_until_ms,
       lease_holder, extensions, flap_count, failures, held, open_causes
FROM audit_episodes
WHERE closed_at_ms IS NULL;

CREATE VIEW audit_false_quarantine_rate AS
SELECT driver, closed, absorbed, retracted, unconfirmed, absorbed + retracted + unconfirmed AS false_total,
       (absorbed + retracted + unconfirmed) * 1000000 / closed AS false_per_million
FROM (
    SELECT driver, count(*) AS closed,
           sum(CASE WHEN outcome = 'absorbed' THEN 1 ELSE 0 END) AS absorbed,
           sum(CASE WHEN outcome = 'retracted' THEN 1 ELSE 0 END) AS retracted,
           sum(CASE WHEN outcome = 'returned' AND verification = 'prober' AND flap_count = 1 AND failures = 0
               THEN 1 ELSE 0 END) AS unconfirmed
    FROM audit_episodes
    WHERE closed_at_ms IS NOT NULL AND cause <> 'hold'
    GROUP BY driver
) AS counted;

CREATE VIEW audit_watch_gaps AS
SELECT watched, from_ms, to_ms, from_rv, to_rv, partition_number, log_offset
FROM watch_gap
WHERE generation = (SELECT live_generation FROM read_model WHERE name = 'custody');

CREATE VIEW audit_unknown_duration AS
SELECT run.node, run.device_id, run.driver, run.unknown_since_ms,
       CASE WHEN run.still_open = 1 THEN NULL ELSE run.ended_ms END AS ended_ms,
       CASE WHEN run.still_open = 1 THEN clock.newest_ms ELSE run.ended_ms END - run.unknown_since_ms AS duration_ms,
       run.restricted,
       CASE WHEN EXISTS (
           SELECT 1 FROM audit_watch_gaps AS gap
           WHERE gap.partition_number = run.partition_number
             AND gap.watched IN ('pods', 'resourceslices', 'nodes')
             AND gap.to_ms >= run.unknown_since_ms
             AND (run.still_open = 1 OR gap.from_ms < run.ended_ms)
       ) THEN 1 ELSE 0 END AS lower_bound
FROM (
    SELECT node, device_id, max(driver) AS driver, unknown_since_ms, partition_number, max(valid_to_ms) AS ended_ms,
           max(CASE WHEN valid_to_ms IS NULL THEN 1 ELSE 0 END) AS still_open,
           max(CASE WHEN phase = 'restricted' THEN 1 ELSE 0 END) AS restricted
    FROM device_history
    WHERE known_to_offset IS NULL AND unknown_since_ms IS NOT NULL
      AND generation = (SELECT live_generation FROM read_model WHERE name = 'custody')
    GROUP BY node, device_id, unknown_since_ms, partition_number
) AS run
JOIN checkpoint AS clock ON clock.partition_number = run.partition_number;

CREATE VIEW audit_decision_latency AS
SELECT kind, max(total) AS decisions,
       max(CASE WHEN place = (total * 50 + 99) / 100 THEN latency_ms END) AS p50_ms,
       max(CASE WHEN place = (total * 90 + 99) / 100 THEN latency_ms END) AS p90_ms,
       max(CASE WHEN place = (total * 99 + 99) / 100 THEN latency_ms END) AS p99_ms,
       max(latency_ms) AS max_ms
FROM (
    SELECT kind, latency_ms, count(*) OVER (PARTITION BY kind) AS total,
           row_number() OVER (PARTITION BY kind ORDER BY latency_ms) AS place
    FROM transition
    WHERE latency_ms IS NOT NULL
      AND generation = (SELECT live_generation FROM read_model WHERE name = 'custody')
) AS ranked
GROUP BY kind;

CREATE VIEW audit_node_incidents AS
SELECT incident_id, node, cause, scope, devices, opened_at_ms, closed_at_ms, outcome, clause, reason, policy
FROM node_incident
WHERE superseded_offset IS NULL
  AND generation = (SELECT live_generation FROM read_model WHERE name = 'custody');

CREATE VIEW audit_breaker_history AS
SELECT at_ms, scope, state, opened_at_ms, adverse, known, threshold, clause, reason, policy, partition_number, log_offset
FROM breaker_history
WHERE generation = (SELECT live_generation FROM read_model WHERE name = 'custody');

CREATE VIEW audit_moves AS
SELECT move_id, node, device_id, episode_id, namespace, pod, pod_uid, state, ability, topology, planned_at_ms, token,
       lease_expires_at_ms, finished_at_ms, outcome, clause, reason, policy
FROM move
WHERE superseded_offset IS NULL
  AND generation = (SELECT live_generation FROM read_model WHERE name = 'custody');

CREATE VIEW audit_alerts AS
SELECT alert_id, alert, about, node, raised_at_ms, cleared_at_ms, clause, reason, policy, causation_id
FROM alert
WHERE superseded_offset IS NULL
  AND generation = (SELECT live_generation FROM read_model WHERE name = 'custody');

CREATE VIEW audit_requests AS
SELECT at_ms, actor, kind, node, device_id, episode_id, move_id, scope, reason, detail, until_ms, attempt, passed, token,
       outcome, closed, request_id, event_id, partition_number, log_offset
FROM request
WHERE generation = (SELECT live_generation FROM read_model WHERE name = 'custody');

CREATE VIEW audit_late_facts AS
SELECT fact_id, node, about, fact_at_ms, at_ms AS found_at_ms, late_by_ms, reason, alert_id, partition_number, log_offset
FROM late_fact
WHERE generation = (SELECT live_generation FROM read_model WHERE name = 'custody');

CREATE VIEW audit_parked AS
SELECT seq, place, reason, at_ms, raw_bytes
FROM parked;
