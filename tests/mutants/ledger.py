"""Deliberate faults in the ledger, each with the tests that must notice it; see ``catalogue``."""

from __future__ import annotations

from typing import Final

from catalogue import UNIT, Mutant

CASES: Final = "tests/cases/test_ledger_cases.py::"
TABLES: Final = f"{UNIT}ledger_tables.py::"
REQUESTS: Final = f"{UNIT}ledger_requests.py"
VERDICT: Final = f"{UNIT}ledger_verdict.py::"
DRIFT: Final = f"{UNIT}ledger_drift.py::"
SAMPLES: Final = f"{UNIT}ledger_samples.py"
REREAD: Final = "tests/unit/ingest/test_diff_reread.py::"

LEDGER_MUTANTS: Final = (
    Mutant(
        "a terminal Pod counts",
        "streams/ledger/objects.py",
        "and fact.phase not in _TERMINAL and fact.node",
        "and fact.node",
        (f"{TABLES}test_a_pod_counts_until_it_is_terminal_or_gone",),
    ),
    Mutant(
        "a Pod without a node counts",
        "streams/ledger/objects.py",
        "and fact.phase not in _TERMINAL and fact.node",
        "and fact.phase not in _TERMINAL",
        (f"{TABLES}test_a_pod_without_a_node_does_not_count",),
    ),
    Mutant(
        "a second contribution is added",
        "streams/ledger/claims.py",
        "            if mapping is None:\n                mapping, bearer = nanos, pod",
        "            if True:\n                mapping, bearer = nanos, pod",
        (f"{CASES}test_c35_a_second_pod_that_records_the_claim_is_refused_and_not_added",),
    ),
    Mutant(
        "admin access uses the device",
        "streams/ledger/objects.py",
        "                if not result.admin_access:\n                    _index(self.holders",
        "                if True:\n                    _index(self.holders",
        (f"{CASES}test_c38_admin_access_uses_nothing",),
    ),
    Mutant(
        "admin access maps node resources",
        "streams/ledger/claims.py",
        "    for result in used(claim):\n        device = ",
        "    for result in claim.results:\n        device = ",
        (f"{CASES}test_c38_admin_access_uses_nothing",),
    ),
    Mutant(
        "two claims of one exclusive device both count",
        "streams/ledger/objects.py",
        "        return self.contenders(result.device_id)[0].claim_uid != claim.claim_uid",
        "        return False",
        (f"{TABLES}test_a_device_that_two_claims_hold_maps_its_resources_once",),
    ),
    Mutant(
        "overhead counts once for a claim",
        "streams/ledger/mapping.py",
        '+ nano_of(said.get("perContainer", "0")) * containers',
        '+ nano_of(said.get("perContainer", "0"))',
        (f"{TABLES}test_overhead_counts_for_each_pod_and_each_container_that_refers_to_the_claim",),
    ),
    Mutant(
        "an absent multiplier is nothing",
        "streams/ledger/mapping.py",
        "        else:\n            nano = _NANO\n",
        "        else:\n            nano = 0\n",
        (f"{TABLES}test_a_claim_adds_what_the_scheduler_builds_for_it",),
    ),
    Mutant(
        "a share without amounts is zero",
        "streams/ledger/mapping.py",
        "                raise UnknownAmountError\n",
        "                continue\n",
        (f"{VERDICT}test_a_capacity_that_counts_on_a_device_of_one_claim_has_no_known_amount_either",),
    ),
    Mutant(
        "an unread multiplier is one",
        "streams/ledger/mapping.py",
        "        return {resource: said for resource, said in device.node_allocatable.items() if said}\n",
        "        return device.node_allocatable\n",
        (f"{TABLES}test_a_multiplier_that_could_not_be_read_is_not_one",),
    ),
    Mutant(
        "nothing is rounded",
        "streams/ledger/requests.py",
        "    return ceiling(resource, sum_of_both + amounts.overhead.get(resource, 0))",
        "    return int(sum_of_both + amounts.overhead.get(resource, 0))",
        (f"{TABLES}test_rounding_is_once_for_each_pod", REQUESTS),
    ),
    Mutant(
        "a Pod-level request is added to",
        "streams/ledger/requests.py",
        "        covered = frozenset(replaced)\n",
        "        covered = frozenset()\n",
        (f"{CASES}test_c40_overhead_is_added_once_to_a_pod_level_request_that_contains_the_claim", REQUESTS),
    ),
    Mutant(
        "the init peak forgets the sidecars",
        "streams/ledger/requests.py",
        "            during = dict(sidecars)\n",
        "            during: Nanos = {}\n",
        (REQUESTS,),
    ),
    Mutant(
        "1.36 counts what was allocated before",
        "streams/ledger/claims.py",
        'counting = pods if rules != "1.36" else objects.not_skipped(claim, pods)',
        "counting = pods",
        (f"{TABLES}test_emulate_1_36_skips_a_claim_that_was_allocated_before_the_pod_was_scheduled",),
    ),
    Mutant(
        "1.36 finds every spelling",
        "streams/ledger/mapping.py",
        ' or (rules == "1.36" and SPELLING in said)',
        "",
        (f"{TABLES}test_emulate_1_36_does_not_find_a_key_that_is_spelled_otherwise",),
    ),
    Mutant(
        "1.36 has overhead",
        "streams/ledger/mapping.py",
        '    if rules == "1.36":\n        return amounts\n',
        "",
        (f"{TABLES}test_emulate_1_36_has_no_overhead",),
    ),
    Mutant(
        "1.37 maps ephemeral storage",
        "streams/ledger/mapping.py",
        ' or (rules == "1.37" and resource == "ephemeral-storage")',
        "",
        (f"{TABLES}test_emulate_1_37_maps_no_ephemeral_storage",),
    ),
    Mutant(
        "an unknown NUMA node is node 0",
        "streams/ledger/mapping.py",
        "    return NUMA_UNKNOWN\n",
        '    return "0"\n',
        (f"{CASES}test_c47_devices_without_a_numa_node_are_a_group_of_their_own",),
    ),
    Mutant(
        "a status that is not understood holds nobody",
        "streams/ledger/pod.py",
        '    return entry.shape == "unknown" or bool(entry.unknown_fields)',
        "    return False",
        (f"{CASES}test_c46_what_is_not_understood_whole_holds_the_node_and_is_never_zero_in_silence",),
    ),
    Mutant(
        "an amount out of range is entered",
        "streams/ledger/amounts.py",
        "    return 0 <= nano < LIMIT_NANO",
        "    return True",
        (f"{TABLES}test_an_amount_out_of_range_is_refused_wherever_it_stands_and_holds_the_node",),
    ),
    Mutant(
        "counters are paid for each share",
        "streams/ledger/inventory.py",
        'f"{_prefix(device)}:{group}/{counter}": nano\n',
        'f"{_prefix(device)}:{group}/{counter}": nano * len(results)\n',
        (f"{CASES}test_c36_a_shared_device_pays_its_counters_once_until_its_last_share_is_gone",),
    ),
    Mutant(
        "drift has no grace",
        "streams/ledger/drift.py",
        "    return [TimedDrift(drift, since_ms + grace_ms) for drift in found]",
        "    return [TimedDrift(drift, since_ms) for drift in found]",
        (f"{DRIFT}test_a_difference_is_told_when_nothing_it_rests_on_changed_for_a_while",),
    ),
    Mutant(
        "a drift that was told comes and goes",
        "streams/ledger/books.py",
        "(timed.drift.about in shown)",
        "False",
        (f"{DRIFT}test_a_difference_that_is_told_stays_told_while_it_lasts",),
    ),
    Mutant(
        "any earlier mapping explains",
        "streams/ledger/drift.py",
        "    if not predicted and current != said and any(",
        "    if not predicted and any(",
        (f"{DRIFT}test_a_claim_of_others_that_a_pod_records_is_no_changed_mapping",),
    ),
    Mutant(
        "every difference is explained",
        "streams/ledger/drift.py",
        '    return "not_counted" if predicted else "unexplained"',
        '    return "not_counted"',
        (f"{DRIFT}test_each_cause_is_found",),
    ),
    Mutant(
        "a rebuilding waits for the pool alone",
        "streams/ledger/rebuilding.py",
        "        return not any(self._is_wrong(claim, at_ms) for claim in self._claims)",
        "        return True",
        (
            f"{VERDICT}test_new_claims_wait_for_pool_device_mapping_and_generation_in_this_order_after_a_restart",
        ),
    ),
    Mutant(
        "a rebuilding is over with the first moment that is well",
        "streams/ledger/rebuilding.py",
        "        if not look.is_well(at_ms):\n            well_ms = None\n",
        "        if not look.is_well(at_ms):\n            pass\n",
        (f"{VERDICT}test_a_pool_that_is_incomplete_again_starts_the_wait_anew",),
    ),
    Mutant(
        "a low generation after an absence went back",
        "streams/ledger/rebuilding.py",
        "    if not (is_present(before) and is_present(after)):\n        return None\n",
        "",
        (f"{VERDICT}test_a_driver_may_begin_at_a_low_generation_after_its_slices_were_gone",),
    ),
    Mutant(
        "a device of another place is missed here",
        "streams/ledger/claims.py",
        "        and (objects.belongs_here(result.driver, result.pool) or objects.publication(result.device_id))\n",
        "",
        (f"{VERDICT}test_a_claim_that_only_lists_devices_of_another_place_misses_nothing_here",),
    ),
    Mutant(
        "an opening is believed whatever ledger it names",
        "streams/ledger/state.py",
        "        return ledger_version(self.books.standing().values()) == fact.ledger_version",
        "        return True",
        (f"{VERDICT}test_opening_may_name_the_ledger_that_was_checked",),
    ),
    Mutant(
        "a late fact is acted on",
        "streams/ledger/state.py",
        "            self._too_late(fact, source, version)\n            return\n",
        "            self._too_late(fact, source, version)\n",
        (f"{VERDICT}test_a_fact_that_is_later_than_the_horizon_is_told_of_and_not_acted_on",),
    ),
    Mutant(
        "an older version replaces a newer one",
        "streams/ledger/versions.py",
        "        if not history:\n            return False\n",
        "        if not history:\n            items[-1] = item\n            return True\n",
        ("tests/property/test_ledger_laws.py::test_any_order_gives_the_same_ledger",),
    ),
    Mutant(
        "a name that is used again is the same claim",
        "streams/ledger/claims.py",
        '            key = f"claim/{claim.claim_uid}"\n',
        '            key = f"claim/{claim.claim}"\n',
        (f"{TABLES}test_what_two_pods_record_of_two_claims_of_one_name_is_no_duplicate",),
    ),
    Mutant(
        "a Pod that asks the same keeps its age",
        "streams/ledger/objects.py",
        "                before.renew(fact)",
        "                pass",
        (f"{DRIFT}test_a_pod_that_still_asks_the_same_is_as_old_as_its_newest_version",),
    ),
    Mutant(
        "an overhead of a stranger is read as the mapping",
        "streams/ledger/drift.py",
        "    amount = _reading(view, pod)",
        "    amount = _reading(view, pod if pod in view.pods else None)",
        (f"{DRIFT}test_an_overhead_that_a_stranger_records_is_not_explained_by_the_mapping",),
    ),
    Mutant(
        "the smaller uid has the device, used or not",
        "streams/ledger/objects.py",
        "            found.sort(key=lambda claim: not self.linked(claim))",
        "            pass",
        (f"{TABLES}test_every_book_gives_a_device_to_the_claim_that_a_pod_uses",),
    ),
    Mutant(
        "a rebuilding waits for what nobody counted",
        "streams/ledger/books.py",
        'any(book == "recorded"',
        'all(book == "recorded"',
        (f"{VERDICT}test_a_device_without_any_mapping_keeps_a_rebuilding_open_only_if_it_was_counted",),
    ),
    Mutant(
        "a driver is ignored for one device of a claim only",
        "streams/ledger/drift.py",
        "chain(single, whole, islice(product(*choices), 1, _NAMESAKES_LIMIT))",
        "single",
        (f"{DRIFT}test_the_driver_may_be_ignored_for_some_devices_of_a_claim_and_for_all",),
    ),
    Mutant(
        "an entry that an upgrade left without amounts was counted",
        "streams/ledger/drift.py",
        "    return None if any(_has_amounts(pod) for pod in pods)",
        "    return None if any(pod.fact.node_allocatable for pod in pods)",
        (
            "tests/cases/test_ledger_cases.py::test_c46_amounts_that_an_upgrade_dropped_are_a_named_difference_and_never_zero_in_silence",
        ),
    ),
    Mutant(
        "a list says nothing new under a version that is known",
        "ingest/diff/known.py",
        "        if version == (known.epoch, known.own_rv) and known.rv < moment.rv:",
        "        if False:",
        (f"{REREAD}test_another_content_under_the_same_version_is_true_as_of_the_list_that_shows_it",),
    ),
    Mutant(
        "what was read otherwise looks as if it had gone back",
        "ingest/diff/known.py",
        "            if version >= known.version or version == (known.epoch, known.own_rv):",
        "            if version >= known.version:",
        (f"{REREAD}test_it_is_told_once_and_what_is_written_later_is_newer",),
    ),
)
