"""Deliberate faults in what responders decide, each with the tests that must notice it."""

from __future__ import annotations

from typing import Final

from catalogue import Mutant

EXCLUSION: Final = "tests/unit/responders/test_exclusion.py::"
MOVES: Final = "tests/unit/responders/test_moves.py::"
RESUMED: Final = "tests/unit/responders/test_move_resume.py::"
ALERTS: Final = "tests/unit/responders/test_alert_plan.py"
VIEW: Final = "tests/unit/responders/test_view.py::"

RESPONDER_MUTANTS: Final = (
    Mutant(
        "the device of a canary takes new work",
        "responders/work.py",
        'CLOSED: Final = frozenset({"restricted", "quarantined", "probing", "canary"})',
        'CLOSED: Final = frozenset({"restricted", "quarantined", "probing"})',
        (f"{VIEW}test_new_work_comes_after_the_ramp_of_an_observation_and_never_before_it",),
    ),
    Mutant(
        "a selector may lack a part",
        "responders/exclusion/rules.py",
        "return Selector(driver, pool, device) if driver and pool and device else None",
        "return Selector(driver, pool, device)",
        (f"{EXCLUSION}test_a_rule_names_one_device_or_is_none",),
    ),
    Mutant(
        "Pods are evicted under an open breaker",
        "responders/exclusion/plan.py",
        "        and not view.breaker_open(device.driver)\n",
        "",
        (f"{EXCLUSION}test_eviction_needs_a_fault_an_explicit_policy_and_closed_breakers",),
    ),
    Mutant(
        "Pods are evicted for a person's hold",
        "responders/exclusion/plan.py",
        "        and episode.cause in _FAULTS\n",
        "",
        (f"{EXCLUSION}test_eviction_needs_a_fault_an_explicit_policy_and_closed_breakers",),
    ),
    Mutant(
        "an override is repaired",
        "responders/exclusion/plan.py",
        '    if found.override:\n        return Action("respect"',
        '    if found.override and not now_ms:\n        return Action("respect"',
        (f"{EXCLUSION}test_a_person_who_takes_charge_is_respected_and_recorded",),
    ),
    Mutant(
        "there is no cap",
        "responders/exclusion/plan.py",
        "room = min(policy.rules_max - len(found), policy.per_minute - lately)",
        "room = policy.per_minute - lately",
        (f"{EXCLUSION}test_there_are_never_more_rules_than_the_cap_and_faults_come_before_doubts",),
    ),
    Mutant(
        "repairs have no budget",
        "responders/exclusion/plan.py",
        'return "repair" if len(lately) < policy.repairs_per_hour else "give_up"',
        'return "repair" if len(lately) >= 0 else "give_up"',
        (f"{EXCLUSION}test_what_somebody_changed_is_repaired_three_times_an_hour_and_then_left",),
    ),
    Mutant(
        "rules of another installation are taken for ours",
        "responders/exclusion/rules.py",
        "if not NAME.fullmatch(name) or labels.get(INSTALLATION) != installation:",
        "if not NAME.fullmatch(name):",
        (f"{EXCLUSION}test_rules_of_others_are_left_alone",),
    ),
    Mutant(
        "an acknowledgement is believed unread",
        "responders/exclusion/excluder.py",
        "if found is None or not is_right(found, wanted):",
        "if found is None:",
        (f"{EXCLUSION}test_an_acknowledgement_that_says_something_else_is_none",),
    ),
    Mutant(
        "the old rule goes before the new one is there",
        "responders/exclusion/excluder.py",
        """            await self._all([action for action in actions if action.do != "delete"], now_ms)
            await self._all([action for action in actions if action.do == "delete"], now_ms)
""",
        """            await self._all([action for action in actions if action.do == "delete"], now_ms)
            await self._all([action for action in actions if action.do != "delete"], now_ms)
""",
        (f"{EXCLUSION}test_a_restricted_device_that_turns_faulty_is_never_without_a_rule",),
    ),
    Mutant(
        "a workload is evicted whatever its version",
        "responders/moves/cluster.py",
        '"deleteOptions": {"preconditions": {"uid": pod.uid, "resourceVersion": pod.version}},',
        '"deleteOptions": {"preconditions": {"uid": pod.uid, "resourceVersion": ""}},',
        (
            f"{MOVES}test_a_restartable_pod_is_evicted_once_and_the_move_is_done_when_another_is_ready_on_a_fit_device",
        ),
    ),
    Mutant(
        "a workload is evicted before its device is excluded",
        "responders/moves/mover.py",
        "if isinstance(step, Begin | Evict) and not await",
        "if isinstance(step, Begin | Evict) and not lease and not await",
        (f"{MOVES}test_nobody_is_evicted_before_the_device_is_excluded",),
    ),
    Mutant(
        "a Pod that nobody would replace is evicted",
        "responders/moves/plan.py",
        "    if pod.owner is None:",
        "    if pod.owner is None and pod.deleting:",
        (f"{MOVES}test_what_must_not_be_evicted_stays_and_its_owner_is_told",),
    ),
    Mutant(
        "a write that another one overtakes counts as a repair",
        "responders/exclusion/excluder.py",
        '            self._look_soon()\n            return\n        await self._written(action, code, answer, "update"',
        "            self._note_repair(wanted.name, now_ms)\n            return\n"
        '        await self._written(action, code, answer, "update"',
        (
            f"{EXCLUSION}test_a_write_that_another_one_overtakes_is_tried_again_after_a_second_and_is_no_repair",
        ),
    ),
    Mutant(
        "a hook may outlast the lease of its move",
        "responders/moves/plan.py",
        "min(policy.hook_timeout_ms, left_ms)",
        "policy.hook_timeout_ms",
        (f"{MOVES}test_a_move_ends_with_its_outcome_before_its_lease_does_whatever_the_policy_allows",),
    ),
    Mutant(
        "a replacement is waited for when the lease is over",
        "responders/moves/plan.py",
        "waited_ms >= policy.replacement_timeout_ms or left_ms <= 0",
        "waited_ms >= policy.replacement_timeout_ms",
        (f"{MOVES}test_a_move_ends_with_its_outcome_before_its_lease_does_whatever_the_policy_allows",),
    ),
    Mutant(
        "a lease that passed on is acted on",
        "responders/moves/plan.py",
        "    if stands.token != lease.token or seen.now_ms",
        "    if seen.now_ms",
        (f"{MOVES}test_a_lease_with_an_older_token_or_that_ran_out_is_fenced",),
    ),
    Mutant(
        "what was stopped and stays is not resumed",
        "responders/moves/plan.py",
        "    return _resuming(seen, done, policy) or tell",
        "    return tell",
        (f"{RESUMED}test_what_was_stopped_and_is_not_evicted_goes_on",),
    ),
    Mutant(
        "a move goes on after it let its Pod resume",
        "responders/moves/mover.py",
        "                done.failure = detail\n",
        "",
        (f"{RESUMED}test_a_move_that_resumed_its_pod_goes_no_further_when_its_obstacle_is_gone",),
    ),
    Mutant(
        "what a process before this one stopped is not resumed",
        "responders/moves/plan.py",
        "(pod.uid in done.asked or pod.uid in inherited)",
        "pod.uid in done.asked",
        (f"{RESUMED}test_what_a_process_that_was_killed_had_stopped_goes_on",),
    ),
    Mutant(
        "what nobody asked anything of is resumed",
        "responders/moves/plan.py",
        "(pod.uid in done.asked or pod.uid in inherited)",
        "bool(pod.uid)",
        (f"{RESUMED}test_what_was_never_asked_to_stop_is_not_asked_to_go_on",),
    ),
    Mutant(
        "of a move that was taken back what was stopped is not resumed",
        "responders/moves/mover.py",
        "        if stands is None and done.recalled and done.begun is None:",
        "        if stands is None:",
        (f"{RESUMED}test_what_was_stopped_goes_on_when_custody_takes_the_move_back",),
    ),
    Mutant(
        "the next process does not know that the move has failed",
        "responders/moves/mover.py",
        "            if failed_before is not None:",
        "            if failed_before is not None and done.ended:",
        (f"{RESUMED}test_a_move_is_not_made_after_a_process_that_was_killed_let_its_pod_resume",),
    ),
    Mutant(
        "a mate that left its group keeps a move from ending",
        "responders/moves/mover.py",
        "            here = [pods[m.uid] for m in still_moving(done.begun, move, pods) if m.uid in pods]",
        "            here = [pods[m.uid] for m in done.begun.members if m.uid in pods]",
        (f"{RESUMED}test_a_mate_that_left_the_group_before_anything_was_asked_of_it_is_no_part_of_the_move",),
    ),
    Mutant(
        "a failure that cannot be told keeps somebody stopped",
        "responders/moves/plan.py",
        "    if tell is not None and not is_last:",
        "    if tell is not None:",
        (
            f"{RESUMED}test_where_no_event_is_taken_any_more_what_was_stopped_goes_on_in_the_last_part_of_the_lease",
        ),
    ),
    Mutant(
        "an Event has more bytes than it may",
        "responders/moves/owners.py",
        'note.encode()[:_NOTE_BYTES_MAX].decode(errors="ignore")',
        "note[:_NOTE_BYTES_MAX]",
        (f"{RESUMED}test_a_failure_with_many_words_is_recorded_and_resumed_all_the_same",),
    ),
    Mutant(
        "a move goes on under an open breaker once a mate has left its group",
        "responders/moves/plan.py",
        "len(here) == len(still_moving(done.begun, seen.lease, seen.pods))",
        "len(here) == len(done.begun.members)",
        (f"{RESUMED}test_a_breaker_stops_a_move_of_which_a_mate_left_the_group",),
    ),
    Mutant(
        "a hook hears one key in all attempts",
        "responders/moves/mover.py",
        'key=f"{lease.move.move_id}-{lease.move.token}",',
        "key=lease.move.move_id,",
        (f"{RESUMED}test_a_hook_hears_another_key_in_the_next_attempt",),
    ),
    Mutant(
        "a resume hook may outlast the lease of its move",
        "responders/moves/plan.py",
        "min(policy.hook_timeout_ms, max(1, until_ms // turns))",
        "policy.hook_timeout_ms",
        (f"{RESUMED}test_resuming_ends_before_the_lease_does_whatever_the_policy_allows",),
    ),
    Mutant(
        "moves begin under an open breaker",
        "responders/moves/mover.py",
        "        if self._view.breaker_open(device.driver):",
        "        if self._view.breaker_open(device.device_id) and lease:",
        (f"{MOVES}test_under_an_open_breaker_a_held_episode_or_on_the_way_back_nothing_is_begun",),
    ),
    Mutant(
        "moves that begin at one time do not see each other's evictions",
        "responders/moves/mover.py",
        "        if pod is None or len(uids) > left or",
        "        if pod is None or",
        (
            f"{MOVES}test_the_limits_of_the_cluster_give_leases_back_and_a_restart_does_not_begin_the_hour_anew",
        ),
    ),
    Mutant(
        "two moves of one group are made at once",
        "responders/moves/mover.py",
        "len(uids) > left or self._are_moved_by_another(lease, uids):",
        "len(uids) > left:",
        (f"{MOVES}test_two_moves_of_one_group_are_not_made_at_once",),
    ),
    Mutant(
        "what was not evicted keeps its place in the hour",
        "responders/moves/mover.py",
        "            for uid in self._progress[lease.key].reserved:\n                self._evictions.forget(uid)",
        "            pass",
        (f"{MOVES}test_a_move_that_failed_before_its_eviction_gives_its_place_in_the_hour_back",),
    ),
    Mutant(
        "a Pod that its owner deletes is moved",
        "responders/moves/plan.py",
        "    if pod is None or pod.ended or pod.deleting:",
        "    if pod is None or pod.ended:",
        (f"{MOVES}test_a_pod_that_its_owner_deletes_is_left_to_him",),
    ),
    Mutant(
        "a replacement on a bad device will do",
        "responders/moves/replacing.py",
        "    bad = unfit_devices(view, candidate, policy, now_ms)",
        "    bad = unfit_devices(View(), candidate, policy, now_ms)",
        (f"{MOVES}test_a_replacement_that_is_not_ready_on_a_fit_device_is_a_failure_with_evidence",),
    ),
    Mutant(
        "what a breaker explains is told by itself",
        "responders/alerts/plan.py",
        "        if explained_by:\n",
        "        if explained_by and not alert.alert_id:\n",
        (ALERTS,),
    ),
    Mutant(
        "a step passes on another device",
        "responders/verification/jobs.py",
        "    return found == [step.place]",
        "    return bool(found)",
        ("tests/unit/responders/test_verification.py",),
    ),
)
