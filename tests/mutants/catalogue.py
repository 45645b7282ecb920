"""Deliberate faults in the fold, each with the tests that must notice it.

A mutant stands here for a rule that somebody relies on. ``old`` is found exactly once in ``file``; when a rule is written
differently, its mutant is too.
"""

from __future__ import annotations

from typing import Final, NamedTuple

CASES: Final = "tests/cases/test_custody_cases.py::"
TIME_CASES: Final = "tests/cases/test_custody_time_cases.py::"
ORDER_CASES: Final = "tests/cases/test_custody_order_cases.py::"
UNIT: Final = "tests/unit/streams/test_"


class Mutant(NamedTuple):
    """One change, and the pytest node ids of which at least one must fail under it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS: Final = (
    # --- versions, time, order --------------------------------------------------------------------------------------
    Mutant(
        "versions are not compared",
        "streams/custody/signals.py",
        '(("6health", f.device_id, f.pod_uid), (f.epoch, f.rv))',
        '(("6health", f.device_id, f.pod_uid), (f.observed_at_ms, f.rv))',
        (
            f"{UNIT}lateness.py::test_an_older_version_that_comes_later_became_true_no_later",
            f"{ORDER_CASES}test_c24_versions_are_numbers_and_an_older_one_does_not_overwrite",
        ),
    ),
    Mutant(
        "the epoch is no part of the version",
        "streams/custody/signals.py",
        '(("6health", f.device_id, f.pod_uid), (f.epoch, f.rv))',
        '(("6health", f.device_id, f.pod_uid), (f.rv,))',
        (f"{UNIT}lateness.py::test_a_newer_epoch_is_newer_whatever_its_version",),
    ),
    Mutant(
        "versions of two Pods are compared",
        "streams/custody/signals.py",
        '("6health", f.device_id, f.pod_uid)',
        '("6health", f.device_id)',
        (f"{ORDER_CASES}test_c24_versions_of_two_pods_are_not_compared",),
    ),
    Mutant(
        "time goes back with a late fact",
        "streams/custody/timeline.py",
        "self.now_ms = max(self.now_ms, observed_ms)",
        "self.now_ms = observed_ms",
        (f"{UNIT}lateness.py::test_a_fact_later_than_the_horizon_is_alerted_and_not_acted_on",),
    ),
    Mutant(
        "facts later than the horizon are acted on",
        "streams/custody/timeline.py",
        "        if time_ms < cut_ms:",
        "        if time_ms < 0:",
        (f"{UNIT}lateness.py::test_a_fact_later_than_the_horizon_is_alerted_and_not_acted_on",),
    ),
    Mutant(
        "a fact of just the horizon is late",
        "streams/custody/timeline.py",
        "        if time_ms < cut_ms:",
        "        if time_ms <= cut_ms:",
        (f"{UNIT}lateness.py::test_a_fact_of_just_the_horizon_is_acted_on",),
    ),
    Mutant(
        "the repeat of a late fact is told again",
        "streams/custody/timeline.py",
        "        if identity in self.seen:",
        "        if identity is self.seen:",
        (f"{UNIT}lateness.py::test_the_repeat_of_a_late_fact_is_silent",),
    ),
    Mutant(
        "facts in the base are forgotten by identity",
        "streams/custody/timeline.py",
        "            self._remember((entry.source, entry.version))\n",
        "",
        (f"{UNIT}lateness.py::test_a_repeat_changes_nothing_at_once_or_later",),
    ),
    Mutant(
        "the memory of repeats has no limit",
        "streams/custody/timeline.py",
        "        if len(self.seen) > SEEN_LIMIT:",
        "        if len(self.seen) > SEEN_LIMIT * 1000:",
        (f"{UNIT}lateness.py::test_the_memory_of_repeats_is_limited",),
    ),
    Mutant(
        "a late word passes over what concerned the node",
        "streams/custody/commuting.py",
        "        and node.touched_ms < at_ms",
        "        and True",
        (f"{UNIT}lateness.py::test_a_late_word_is_not_applied_in_place_past_what_it_would_have_changed",),
    ),
    Mutant(
        "a late word passes over a burst",
        "streams/custody/commuting.py",
        "    return turned + 1 < policy.min_devices",
        "    return True",
        (f"{UNIT}lateness.py::test_a_late_word_is_not_applied_in_place_past_what_it_would_have_changed",),
    ),
    Mutant(
        "a fact comes before what fell due at its time",
        "streams/custody/timeline.py",
        "        if context.node.due_ms <= entry.time_ms:",
        "        if context.node.due_ms < entry.time_ms:",
        (f"{UNIT}lateness.py::test_what_falls_due_at_the_moment_of_a_fact_falls_due_before_it",),
    ),
    Mutant(
        "the latest deadline is carried out first",
        "streams/custody/node.py",
        "due, _, target = min(_deadlines(context)",
        "due, _, target = max(_deadlines(context)",
        (f"{UNIT}lateness.py::test_deadlines_that_fell_due_together_are_carried_out_each_at_its_own_time",),
    ),
    Mutant(
        "a correction does not end with its step",
        "streams/custody/timeline.py",
        "            self.outbox, self.rebuilt_from_ms = [], None\n        observed_ms",
        "            pass\n        observed_ms",
        (f"{UNIT}lateness.py::test_a_restart_right_after_a_correction_does_not_show",),
    ),
    Mutant(
        "an episode that never was is not closed",
        "streams/custody/aggregate.py",
        "    if current is not None and current.episode is not None:\n        closed",
        "    if current is None and story:\n        closed",
        (f"{UNIT}lateness.py::test_an_episode_that_never_was_is_closed_as_retracted",),
    ),
    Mutant(
        "an episode that goes on is closed as retracted",
        "streams/custody/aggregate.py",
        "    if same_episode(current, target):",
        "    if current == target:",
        (f"{UNIT}lateness.py::test_an_episode_that_a_late_word_keeps_open_goes_on_under_its_id",),
    ),
    Mutant(
        "what goes on is told as cleared",
        "streams/custody/standing.py",
        "    return _KIND_OF.get(record.phase, QuarantineExtended)(",
        "    return DeviceCleared(",
        (
            f"{UNIT}lateness.py::test_what_was_over_and_by_a_late_word_goes_on_is_told_by_a_kind_that_fits",
        ),
    ),
    Mutant(
        "an alert that never was stays",
        "streams/custody/aggregate.py",
        "announced.alerts.keys() - head.alerts.keys() - cleared",
        "announced.alerts.keys() - announced.alerts.keys() - cleared",
        (f"{UNIT}lateness.py::test_an_alert_that_never_was_is_cleared",),
    ),
    Mutant(
        "a gap puts nothing off",
        "streams/custody/context.py",
        "        return due_ms if due_ms > blind else blind + self.policy.unknown.hold_down_ms",
        "        return due_ms",
        (
            f"{TIME_CASES}test_c18_a_silence_of_our_own_restricts_nobody",
            f"{UNIT}unknown.py::test_a_blind_watch_puts_off_clearing_too",
        ),
    ),
    Mutant(
        "only the end of a long gap is blind",
        "streams/custody/timeline.py",
        "if isinstance(fact, WatchGapFound) and time_ms >= self.head.time_ms:",
        "if isinstance(fact, WatchGapFound) and time_ms < 0:",
        (f"{UNIT}lateness.py::test_a_gap_longer_than_the_horizon_still_puts_off_what_it_hid",),
    ),
    # --- evidence ---------------------------------------------------------------------------------------------------
    Mutant(
        "a frozen word is evidence",
        "streams/custody/node.py",
        "    if not fact.live:\n        if word is None:",
        '    if not fact.live and fact.health != "Unhealthy":\n        if word is None:',
        (
            f"{CASES}test_c03_a_terminal_pod_opens_nothing",
            f"{CASES}test_c03_another_pods_word_counts_while_the_dead_pod_is_modified_without_end",
        ),
    ),
    Mutant(
        "the end of a Pod clears its word",
        "streams/custody/node.py",
        "        del unit.words[key]",
        "        unit.words[key] = Word(HEALTHY, at_ms, word.namespace, word.pod, word.pod_uid)",
        (f"{CASES}test_c03_a_terminal_pod_neither_renews_nor_clears",),
    ),
    Mutant(
        "silence is healthy",
        "streams/custody/evidence.py",
        "    return unit.verdict == HEALTHY and healthy_at_ms(unit) > unit.fault_at_ms",
        "    return unit.verdict <= HEALTHY",
        (f"{UNIT}quarantine.py::test_absence_of_every_signal_never_releases",),
    ),
    Mutant(
        "a Healthy that is older than the fault returns the device",
        "streams/custody/evidence.py",
        "    return unit.verdict == HEALTHY and healthy_at_ms(unit) > unit.fault_at_ms",
        "    return unit.verdict == HEALTHY",
        (f"{UNIT}quarantine.py::test_healthy_that_is_older_than_the_fault_starts_no_return",),
    ),
    Mutant(
        "Healthy of a source that does not monitor counts",
        "streams/custody/evidence.py",
        "    if worst == HEALTHY and unit.unmonitored:",
        "    if worst == NONE and unit.unmonitored:",
        (f"{CASES}test_c07_healthy_by_a_source_that_does_not_monitor_never_ends_a_quarantine",),
    ),
    Mutant(
        "a muted word counts again with the next version",
        "streams/custody/node.py",
        "        muted = word is not None and word.muted and verdict == UNHEALTHY",
        "        muted = False",
        (f"{ORDER_CASES}test_c19_a_release_by_a_person_acknowledges_what_stands_and_nothing_new",),
    ),
    Mutant(
        "an informational taint is a fault",
        "streams/custody/drivers.py",
        'elif rule.means == "unhealthy" and taint.effect in _EFFECTIVE:',
        'elif rule.means == "unhealthy":',
        (f"{UNIT}quarantine.py::test_a_taint_that_keeps_nobody_away_is_information",),
    ),
    Mutant(
        "replicas in one Pod overwrite one another",
        "streams/custody/node.py",
        '    key = f"{fact.device_id}|{fact.pod_uid}"',
        '    key = f"|{fact.pod_uid}"',
        (f"{UNIT}identity.py::test_one_pod_may_hold_several_replicas_of_a_card",),
    ),
    # --- holds, windows, leases -------------------------------------------------------------------------------------
    Mutant(
        "the minimum hold is not waited for",
        "streams/custody/device.py",
        "max(episode.hold_until_ms, unit.person_until_ms, unit.verdict_since_ms)",
        "max(unit.person_until_ms, unit.verdict_since_ms)",
        (f"{UNIT}quarantine.py::test_a_return_does_not_begin_before_the_minimum_hold",),
    ),
    Mutant(
        "a person's hold is not waited for",
        "streams/custody/device.py",
        "max(episode.hold_until_ms, unit.person_until_ms, unit.verdict_since_ms)",
        "max(episode.hold_until_ms, unit.verdict_since_ms)",
        (f"{UNIT}requests.py::test_a_hold_on_a_faulty_device_keeps_it_out_beyond_its_recovery",),
    ),
    Mutant(
        "further faults do not lengthen the hold",
        "streams/custody/episode.py",
        "    steps = min(max(faults - 1, 0) + failures, 64)",
        "    steps = min(failures, 64)",
        (f"{UNIT}quarantine.py::test_each_further_fault_doubles_the_hold_up_to_the_cap",),
    ),
    Mutant(
        "the hold has no cap",
        "streams/custody/episode.py",
        "    return min(doubled, policy.hold_max_ms)",
        "    return doubled",
        (f"{UNIT}quarantine.py::test_each_further_fault_doubles_the_hold_up_to_the_cap",),
    ),
    Mutant(
        "the window does not back off",
        "streams/custody/device.py",
        "        steps = min(len(unit.ended_runs_ms), 64)",
        "        steps = 0",
        (f"{UNIT}unknown.py::test_each_recent_run_doubles_the_window_up_to_the_cap",),
    ),
    Mutant(
        "runs are remembered for ever",
        "streams/custody/device.py",
        "if e > at_ms - unknown.backoff_memory_ms]",
        "if e > 0]",
        (f"{UNIT}unknown.py::test_a_run_that_ended_before_the_memory_does_not_count",),
    ),
    Mutant(
        "expiry releases",
        "streams/custody/device.py",
        "    elif at_ms >= episode.expires_at_ms:\n",
        '    elif at_ms >= episode.expires_at_ms and unit.phase == "quarantined":\n'
        '        context.close_episode(unit, at_ms, "returned", phase="in_service", clause="", reason="expired")\n'
        "    elif at_ms >= episode.expires_at_ms:\n",
        (f"{UNIT}quarantine.py::test_a_lease_that_runs_out_is_extended_and_reviewed_and_never_releases",),
    ),
    Mutant(
        "an episode's id does not name the machine",
        "streams/custody/episode.py",
        "            context.node.node_uid,\n",
        '            "",\n',
        (f"{UNIT}quarantine.py::test_the_episode_id_is_derived_from_device_node_uid_and_first_fault",),
    ),
    Mutant(
        "a release keeps the old counters",
        "streams/custody/requests.py",
        "        flap_count=0,\n",
        "",
        (f"{TIME_CASES}test_c22_a_release_by_a_person_starts_the_flap_window_anew",),
    ),
    Mutant(
        "a report of an older attempt counts",
        "streams/custody/requests.py",
        "(unit.phase, episode.episode_id, episode.attempt) != (step, fact.episode_id, fact.attempt)",
        "(unit.phase, episode.episode_id) != (step, fact.episode_id)",
        (f"{UNIT}staged_return.py::test_each_attempt_has_a_number_and_an_old_one_does_nothing",),
    ),
    Mutant(
        "a restart proves repair",
        "streams/custody/episode.py",
        "    after_restart = restart > episode.opened_at_ms and",
        "    after_restart = restart > at_ms and",
        (f"{CASES}test_c05_the_probation_after_a_restart_is_the_longer_one",),
    ),
    # --- node incidents ---------------------------------------------------------------------------------------------
    Mutant(
        "an incident absorbs what the driver confirmed",
        "streams/custody/incidents.py",
        "            and not own_evidence(unit)\n",
        "",
        (f"{UNIT}node_incidents.py::test_a_fault_that_the_driver_confirmed_is_not_absorbed",),
    ),
    Mutant(
        "an incident explains a driver's taint",
        "streams/custody/device.py",
        "    if unit.verdict == UNHEALTHY and (incident is None or own_evidence(unit)):",
        "    if unit.verdict == UNHEALTHY and incident is None:",
        (f"{UNIT}node_incidents.py::test_a_drivers_taint_is_evidence_that_no_incident_explains_away",),
    ),
    Mutant(
        "an incident absorbs faults of before it",
        "streams/custody/incidents.py",
        "            and episode.opened_at_ms >= start_ms - lead_ms\n",
        "",
        (f"{UNIT}node_incidents.py::test_a_fault_before_the_incident_is_the_devices_own",),
    ),
    Mutant(
        "one device that is well does not matter",
        "streams/custody/incidents.py",
        "    if len(adverse) < policy.min_devices or len(adverse) < len(units):",
        "    if len(adverse) < policy.min_devices:",
        (f"{UNIT}node_incidents.py::test_one_device_that_stays_well_shows_that_the_node_is_not_the_cause",),
    ),
    Mutant(
        "a closed episode opens again under its id",
        "streams/custody/incidents.py",
        '            unit.fault_version = f"{unit.fault_version}@{incident.incident_id}"\n',
        "",
        (f"{UNIT}node_incidents.py::test_a_device_that_is_still_bad_when_the_incident_ends_is_quarantined_alone",),
    ),
    # --- moves ------------------------------------------------------------------------------------------------------
    Mutant(
        "no token fences",
        "streams/custody/moves.py",
        "or move.token != token or",
        "or",
        (f"{UNIT}moves.py::test_a_report_with_an_older_token_does_nothing",),
    ),
    Mutant(
        "one move more than the policy allows",
        "streams/custody/moves.py",
        "        if running >= policy.per_node:",
        "        if running > policy.per_node:",
        (f"{UNIT}moves.py::test_moves_of_a_node_are_leased_one_at_a_time",),
    ),
    Mutant(
        "moves go on under an open breaker",
        "streams/custody/moves.py",
        "        if context.breaker_open(unit.scope):",
        "        if not unit.scope:",
        (f"{UNIT}moves.py::test_an_open_breaker_stops_leases_and_its_end_resumes_them",),
    ),
    # --- breaker and partition --------------------------------------------------------------------------------------
    Mutant(
        "the breaker opens at its threshold",
        "streams/breaker.py",
        "        if scope not in state.open and adverse > threshold:",
        "        if scope not in state.open and adverse >= threshold:",
        (f"{UNIT}breaker.py::test_it_takes_more_than_three_and_more_than_a_tenth",),
    ),
    Mutant(
        "a reset forgets nothing",
        "streams/breaker.py",
        "        device: seen for device, seen in state.adverse.items() if not _is_forgotten(state, seen[0], seen[1])",
        "        device: seen for device, seen in state.adverse.items()",
        (f"{UNIT}breaker.py::test_after_a_reset_it_takes_a_new_storm_to_open_it_again",),
    ),
    Mutant(
        "a census brings back what a reset forgot",
        "streams/breaker.py",
        "if known_ms <= at_ms and not _is_forgotten(state, scope, at_ms):",
        "if known_ms <= at_ms:",
        (f"{UNIT}breaker.py::test_after_a_reset_it_takes_a_new_storm_to_open_it_again",),
    ),
    Mutant(
        "a share is rounded down",
        "streams/breaker.py",
        "    share = -(-known * state.policy.ratio_percent // 100)",
        "    share = known * state.policy.ratio_percent // 100",
        (f"{UNIT}breaker.py::test_it_takes_more_than_three_and_more_than_a_tenth",),
    ),
    Mutant(
        "one node's incident is a storm",
        "streams/breaker.py",
        "(explained if len(nodes) > 1 else 0)",
        "(explained if len(nodes) > 0 else 0)",
        (f"{UNIT}breaker.py::test_one_nodes_own_incident_is_that_nodes_trouble",),
    ),
    Mutant(
        "a second wave does not count",
        "streams/breaker.py",
        "                state.calm_since.pop(scope, None)\n    return state",
        "                pass\n    return state",
        (f"{UNIT}breaker.py::test_a_second_wave_starts_the_quiet_time_anew",),
    ),
    Mutant(
        "a breaker closes on a fleet that is unknown",
        "streams/breaker.py",
        "    return max(adverse, waiting_for(state, scope)) <= threshold",
        "    return adverse <= threshold",
        (f"{UNIT}breaker.py::test_it_stays_open_while_more_than_the_threshold_wait_for_it",),
    ),
    Mutant(
        "a slot that is handed on in parts has a census for each",
        "sickbay/cli/folding.py",
        "            if not ends:\n                continue\n",
        "",
        ("tests/e2e/test_full_slots.py::test_what_the_breaker_heard_of_a_storm_is_in_the_log_device_by_device",),
    ),
    Mutant(
        "deadlines of a silence are carried out between the parts of a slot",
        "sickbay/cli/folding.py",
        "            if to_ms != self._begun_ms:",
        "            if to_ms:",
        ("tests/e2e/test_full_slots.py::test_a_slot_in_parts_that_follows_a_silence_has_one_tick_and_it_comes_last",),
    ),
    Mutant(
        "a census is not looked at before the breaker closes",
        "streams/breaker.py",
        "(is_quiet and _is_calm(state, scope))",
        "is_quiet",
        (f"{UNIT}breaker.py::test_a_census_between_two_ticks_keeps_open_what_was_quiet_until_then",),
    ),
    Mutant(
        "the calm is judged by each census",
        "streams/breaker.py",
        "    if isinstance(event, Tick):\n        for scope",
        "    if event:\n        for scope",
        (f"{UNIT}breaker.py::test_the_order_in_which_partitions_tell_of_one_moment_makes_no_difference",),
    ),
    Mutant(
        "one node keeps a breaker open",
        "streams/breaker.py",
        "    return 0 if on_one_node else sum(",
        "    return sum(",
        (f"{UNIT}breaker.py::test_what_waits_on_one_node_is_that_nodes_trouble",),
    ),
    Mutant(
        "the cluster's breaker waits for what a driver's keeps",
        "streams/breaker.py",
        """if not _keeps(state, f"driver:{name}")""",
        "if name",
        (
            f"{UNIT}breaker.py::test_what_waits_of_a_driver_whose_own_breaker_is_open_does_not_keep_the_clusters",
        ),
    ),
    Mutant(
        "breakers that close together do not see each other",
        "streams/breaker.py",
        "scope not in state.reset and not _is_calm(state, scope)",
        "scope not in state.reset",
        (f"{UNIT}breaker.py::test_breakers_that_would_close_together_count_what_waits_for_each",),
    ),
    Mutant(
        "what waited in an earlier storm is not told anew",
        "streams/partition.py",
        "                    self._waiting = None\n",
        "",
        (f"{UNIT}partition.py::test_a_node_without_waiting_devices_tells_so_once_when_a_breaker_opens",),
    ),
    Mutant(
        "a census that did not change is not looked at again when devices did",
        "streams/partition.py",
        "        self._stirred = True\n        due_ms",
        "        due_ms",
        (f"{UNIT}partition.py::test_while_a_breaker_is_open_a_census_counts_what_waits_for_it",),
    ),
    Mutant(
        "an open breaker restricts the unknown",
        "streams/custody/device.py",
        "    if may_restrict(context, unit) and not context.breaker_open(unit.scope):",
        "    if may_restrict(context, unit):",
        (f"{UNIT}unknown.py::test_an_open_breaker_holds_the_restriction_back_until_it_closes",),
    ),
    Mutant(
        "a tick reaches every node",
        "streams/partition.py",
        "                return self._due_nodes(fact.observed_at_ms)",
        "                return sorted(self.nodes)",
        (f"{UNIT}partition.py::test_a_tick_reaches_the_nodes_whose_time_has_come_and_no_other",),
    ),
    Mutant(
        "a tick reaches no node",
        "streams/partition.py",
        "                return self._due_nodes(fact.observed_at_ms)",
        "                return []",
        (f"{UNIT}partition.py::test_a_tick_reaches_the_nodes_whose_time_has_come_and_no_other",),
    ),
    Mutant(
        "a new node does not hear of the storm",
        "streams/partition.py",
        "breakers=self._breakers)",
        "breakers={})",
        (f"{UNIT}partition.py::test_a_new_node_inherits_the_open_breakers_and_the_policy",),
    ),
    Mutant(
        "a restart forgets who turned",
        "streams/partition.py",
        "        if isinstance(event, CustodyDecision):\n            self._count(event.node, state, event)\n        elif",
        "        if isinstance(event, CustodyDecision):\n            pass\n        elif",
        (f"{UNIT}partition.py::test_a_restart_does_not_forget_what_turned_since_the_last_census",),
    ),
)  # fmt: skip
