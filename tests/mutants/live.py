"""Deliberate faults in the live path, each with the tests that must notice it."""

from __future__ import annotations

from typing import Final

from catalogue import Mutant

LAWS: Final = "tests/property/test_live_laws.py::"
UNIT: Final = "tests/unit/streams/test_worker.py::"

LIVE_MUTANTS: Final = (
    Mutant(
        "a record is acknowledged when it is folded",
        "streams/worker.py",
        '                reach("worker.answered")\n',
        '                reach("worker.answered")\n                record.acknowledge()\n',
        (f"{LAWS}test_every_record_is_acknowledged_by_a_snapshot_that_holds_it_and_by_none_that_does_not",),
    ),
    Mutant(
        "pieces of a worker that is further on are removed",
        "streams/worker.py",
        "0 <= position_of(number, key) < position",
        "0 <= position_of(number, key)",
        (f"{LAWS}test_a_worker_that_lost_its_partition_and_did_not_know_spoils_nothing",),
    ),
    Mutant(
        "a repeat of a fact is folded again",
        "streams/live.py",
        "        if self.partition.knows(event):\n            return\n        self.time_ms",
        "        self.time_ms",
        (f"{LAWS}test_a_fact_that_comes_again_with_a_later_time_changes_nothing",),
    ),
    Mutant(
        "a snapshot forgets which nodes changed",
        "streams/worker.py",
        "sorted(live.partition.touched), set()",
        "[], set()",
        (f"{LAWS}test_a_worker_that_is_killed_between_any_two_effects_says_the_same_and_holds_the_same",),
    ),
    Mutant(
        "a snapshot forgets what turned adverse since the last census",
        "streams/partition.py",
        "            adverse=tuple(self._adverse.items()),",
        "            adverse=(),",
        (
            f"{UNIT}test_a_storm_that_a_kill_interrupts_opens_the_breaker_once",
            f"{LAWS}test_a_worker_that_is_killed_between_any_two_effects_says_the_same_and_holds_the_same",
        ),
    ),
    Mutant(
        "an older ingester is believed",
        "streams/live.py",
        "            if epoch < self.ingest_epoch:",
        "            if epoch < 0:",
        (f"{UNIT}test_what_a_replaced_ingester_still_writes_is_discarded_and_said_to_be",),
    ),
    Mutant(
        "a fact in the wrong partition is folded there",
        "streams/live.py",
        "        if right != number:",
        "        if right < 0:",
        (f"{UNIT}test_a_fact_in_the_wrong_partition_is_parked_and_the_reason_names_the_right_one",),
    ),
    Mutant(
        "a fold that failed halfway leaves its state",
        "streams/worker.py",
        "            self._undo(held, record)\n",
        "",
        (f"{UNIT}test_a_record_that_breaks_the_fold_halfway_is_parked_and_leaves_no_trace_in_the_state",),
    ),
    Mutant(
        "a hole in the topic is folded over",
        "streams/worker.py",
        "            if record.offset > held.live.position:\n                await",
        "            if record.offset < 0:\n                await",
        (f"{UNIT}test_a_hole_in_the_topic_ends_the_worker_instead_of_folding_on",),
    ),
    Mutant(
        "a record that comes again is folded again",
        "streams/worker.py",
        "            if record.offset < held.live.position:",
        "            if record.offset < held.cut:",
        (f"{UNIT}test_c50_records_that_come_again_after_newer_ones_change_nothing",),
    ),
    Mutant(
        "an old word of the breaker counts when it comes again",
        "streams/partition.py",
        "if self._heard.get(fact.scope, (0, False)) <= word:",
        "if self._heard.get(fact.scope, (0, False)) != ():",
        (f"{UNIT}test_an_old_word_of_the_breaker_that_comes_again_does_not_open_it_anew",),
    ),
    Mutant(
        "the census of another partition resets one's own",
        "streams/partition.py",
        "                if event.partition == self.number:  # the breaker's home hears those of the others too\n",
        "                if event.partition >= 0:\n",
        (f"{UNIT}test_the_census_of_another_partition_is_the_breakers_business_alone",),
    ),
    Mutant(
        "the last record of a snapshot is a tombstone",
        "streams/worker.py",
        'end_key(number), b"%d" % position',
        "end_key(number), None",
        (f"{UNIT}test_c51_the_last_record_of_a_snapshot_is_none_that_compaction_takes_away",),
    ),
    Mutant(
        "a partition that is left halfway is kept",
        "streams/worker.py",
        "            self._held.pop(held.live.number, None)\n            raise",
        "            raise",
        (
            f"{UNIT}test_what_the_broker_did_not_take_is_neither_told_as_done_nor_kept_in_a_snapshot",
            f"{UNIT}test_a_snapshot_that_failed_between_its_pieces_is_not_finished_by_a_later_one",
        ),
    ),
    Mutant(
        "a tick that comes again lets time pass again",
        "streams/partition.py",
        "            return fact.observed_at_ms <= self._ticked_ms",
        "            return False",
        (f"{UNIT}test_a_tick_that_comes_again_after_newer_facts_says_nothing_under_an_id_that_was_used",),
    ),
    Mutant(
        "an old census counts when it comes again",
        "streams/live.py",
        "        is_news = census.at_ms > self.censused.get(census.partition, -1)",
        "        is_news = True",
        (f"{UNIT}test_a_census_that_comes_again_after_a_newer_one_is_passed_over",),
    ),
    Mutant(
        "a snapshot forgets the newest census of each partition",
        "streams/snapshot.py",
        "manifest.breaker, dict(manifest.censused)",
        "manifest.breaker, {}",
        (f"{UNIT}test_a_census_that_comes_again_after_a_newer_one_is_passed_over",),
    ),
    Mutant(
        "a snapshot forgets the newest tick",
        "streams/partition.py",
        "        partition._ticked_ms = header.ticked_ms\n",
        "",
        (f"{UNIT}test_a_tick_that_comes_again_after_newer_facts_says_nothing_under_an_id_that_was_used",),
    ),
)
