"""What is told and when, by what was told before: raised once, changed seldom, cleared always, whatever is killed in between."""

from __future__ import annotations

import itertools

import alerting as a
import facts_of as f
import pytest

from responders.alerts.book import Book
from responders.alerts.event import data_of, event_id
from responders.alerts.plan import plan
from responders.alerts.topic import entry_of, headers_of
from sickbay.cloudevents import header
from sickbay.errors import CodecError
from sickbay.policy import AlertPolicy

POLICY = AlertPolicy()
WAIT, EVERY = POLICY.group_wait_ms, POLICY.resend_ms
SINKS = ("hook",)


class Walk:
    """A view and a book; time goes on when it is told."""

    def __init__(self, *decisions):
        self.view, self.book, self.now_ms = a.view_of(*decisions), Book(POLICY, SINKS), a.NOW

    def look(self, *decisions, after_ms=0):
        self.now_ms += after_ms
        for decision in decisions:
            self.view.fold(decision)
        notices = self.book.look(plan(self.view, POLICY, self.now_ms), self.now_ms)
        self.book.take(notices)
        return [(notice.change, notice.alert_id) for notice in notices]

    def deliver(self):
        notices = self.book.owed("hook")
        for notice in notices:
            self.book.told("hook", notice)
        self.book.kept(self.book.unkept())
        return notices


def test_a_quarantine_is_raised_at_once_and_once():
    walk = Walk()
    assert [("raised", "quarantine/episode-1")] == walk.look(a.quarantined())
    assert [] == walk.look(after_ms=10 * EVERY)


def test_a_quarantine_that_ended_is_cleared_once():
    walk = Walk()
    walk.look(a.quarantined())
    assert [("cleared", "quarantine/episode-1")] == walk.look(a.released(), after_ms=5)
    (notice,) = walk.deliver()
    assert (a.NOW, a.NOW + 5, "") == (notice.starts_at_ms, notice.ends_at_ms, notice.part_of)
    assert [] == walk.look(after_ms=5)
    assert [] == walk.book.owed("hook")


def test_what_may_have_a_bigger_cause_is_told_only_once_it_is_old_enough():
    walk = Walk()
    assert [] == walk.look(a.adverse())
    assert walk.now_ms + WAIT == walk.book.due_ms
    assert [] == walk.look(after_ms=WAIT - 1)
    assert [("raised", f"restricted/n1/{f.DRIVER}")] == walk.look(after_ms=1)
    assert walk.book.due_ms is None


def test_what_is_over_before_it_is_old_enough_is_never_told():
    walk = Walk()
    walk.look(a.adverse())
    assert [] == walk.look(a.well(), after_ms=WAIT - 1)
    assert [] == walk.look(a.adverse(), after_ms=1)
    assert [] == walk.look(after_ms=WAIT - 1)


def test_what_is_swallowed_before_it_was_told_is_never_told():
    walk = Walk()
    walk.look(*(a.incident(node=f"n{n}") for n in range(1_000)))
    assert [("raised", f"breaker/driver:{f.DRIVER}")] == walk.look(a.opened(), after_ms=WAIT - 1)
    assert [] == walk.look(after_ms=WAIT)


def test_what_was_told_and_is_swallowed_is_cleared_and_names_what_explains_it():
    walk = Walk()
    walk.look(a.adverse())
    walk.look(after_ms=WAIT)
    walk.deliver()
    breaker = f"breaker/driver:{f.DRIVER}"
    assert {("raised", breaker), ("cleared", f"restricted/n1/{f.DRIVER}")} == set(
        walk.look(a.opened(), after_ms=1)
    )
    assert breaker == next(notice.part_of for notice in walk.deliver() if not notice.stands)
    # and told again once the breaker is closed and it still stands
    assert [("cleared", breaker)] == walk.look(a.closed(), after_ms=1)
    assert [("raised", f"restricted/n1/{f.DRIVER}")] == walk.look(after_ms=WAIT)


def test_a_severity_that_changed_is_told_at_once():
    walk = Walk(a.quarantined())
    walk.look()
    assert [("changed", "quarantine/episode-1")] == walk.look(a.review_due(), after_ms=1)
    (notice,) = walk.deliver()
    assert ("critical", "warning") == (notice.severity, notice.previous_severity)


def test_members_that_come_and_go_are_told_once_in_the_time_of_a_repeat():
    walk = Walk(a.opened(), a.adverse(1))
    walk.look()
    told = 0
    for second in range(120):
        told += len(
            walk.look(a.adverse(2 + second % 5) if second % 2 else a.well(2 + second % 5), after_ms=1_000)
        )
    assert 2 >= told >= 1
    assert walk.book.due_ms is None or walk.book.due_ms > walk.now_ms


def test_a_later_state_has_a_higher_version_even_if_the_clock_stands_still():
    walk = Walk()
    notices = []
    for decision in (a.quarantined(), a.review_due(), a.released(), a.quarantined()):
        walk.look(decision)
        notices += walk.deliver()
    versions = [notice.version for notice in notices]
    assert sorted(set(versions)) == versions
    assert 4 == len({event_id(notice) for notice in notices})


def test_an_alert_that_comes_again_is_another_event():
    walk = Walk(a.adverse())
    walk.look()
    walk.look(after_ms=WAIT)
    (first,) = walk.deliver()
    walk.look(a.opened())
    walk.deliver()
    walk.look(a.closed())
    walk.look(after_ms=WAIT)
    again = next(notice for notice in walk.deliver() if notice.stands)
    assert first.alert_id == again.alert_id
    assert event_id(first) != event_id(again)
    assert again.version > first.version


def test_a_state_that_was_replaced_is_not_owed_any_more():
    walk = Walk(a.quarantined())
    walk.look()
    (old,) = walk.book.owed("hook")
    walk.look(a.review_due(), after_ms=1)
    walk.book.told("hook", old)
    (new,) = walk.book.owed("hook")
    assert "changed" == new.change


def test_an_alert_that_ended_is_forgotten_when_all_know_it():
    walk = Walk(a.quarantined())
    walk.look()
    walk.deliver()
    walk.look(a.released())
    assert {} == walk.book.unkept()
    (notice,) = walk.book.owed("hook")
    walk.book.told("hook", notice)
    assert {"quarantine/episode-1": None} == walk.book.unkept()
    walk.book.kept(walk.book.unkept())
    assert {} == walk.book.unkept()


def test_a_sink_that_is_new_is_told_what_stands():
    walk = Walk(a.quarantined())
    walk.look()
    walk.deliver()
    kept = dict(walk.book._entries)
    assert [] == Book(POLICY, SINKS, kept).owed("hook")
    assert ["quarantine/episode-1"] == [n.alert_id for n in Book(POLICY, ("hook", "new"), kept).owed("new")]


def test_an_entry_that_is_kept_is_read_back():
    walk = Walk(a.quarantined(), a.opened(), a.adverse())
    walk.look()
    walk.book.told("hook", walk.book.owed("hook")[0])
    for alert_id, entry in walk.book._entries.items():
        headers = headers_of(entry)
        assert entry == entry_of(alert_id, data_of(entry.notice), header(headers, "sickbay-told"))
        assert event_id(entry.notice) == header(headers, "ce_id")


@pytest.mark.parametrize("value", [b"{}", b"\xff", b"[" * 100_000])
def test_a_record_that_is_none_of_ours_is_refused(value):
    with pytest.raises(CodecError):
        entry_of("x", value, "")


STORIES = [
    (a.quarantined(),),
    (a.review_due(),),
    (a.opened(), a.adverse(2)),
    (a.released(),),
    (a.closed(),),
]


def story(killed_at):
    """Walk through a history with a process that dies after so many effects and begins again from what was kept."""
    kept, got, effects = {}, {}, itertools.count()

    class KilledError(Exception):
        pass

    def effect():
        if next(effects) == killed_at:
            raise KilledError

    view, now_ms, stories = a.view_of(), a.NOW, list(STORIES)
    book = Book(POLICY, SINKS)

    def turn():
        notices = book.look(plan(view, POLICY, now_ms), now_ms)
        if notices:
            effect()
            kept.update({notice.alert_id: entry_of_notice(notice) for notice in notices})
            effect()
            book.take(notices)
        for notice in book.owed("hook"):
            effect()
            got.setdefault(event_id(notice), []).append(notice)
            effect()
            book.told("hook", notice)
        entries = book.unkept()
        if entries:
            effect()
            for alert_id, entry in entries.items():
                kept.pop(alert_id, None) if entry is None else kept.update({alert_id: entry})
            effect()
            book.kept(entries)

    def entry_of_notice(notice):
        other = Book(POLICY, SINKS)
        other.take([notice])
        return other._entries[notice.alert_id]

    while stories:
        for decision in stories.pop(0):
            view.fold(decision)
        for _ in range(6):
            now_ms += WAIT
            try:
                turn()
            except KilledError:
                # the world goes on while nobody looks
                for decision in stories.pop(0) if stories else ():
                    view.fold(decision)
                book = Book(POLICY, SINKS, dict(kept))
    return kept, got, next(effects)


def standing_by(got):
    """What a consumer holds who keeps the newest version of each alert."""
    newest = {}
    for notices in got.values():
        for notice in notices:
            if notice.version > newest.get(notice.alert_id, (-1, False))[0]:
                newest[notice.alert_id] = (notice.version, notice.stands)
    return {alert_id for alert_id, (_, stands) in newest.items() if stands}


def test_a_kill_between_any_two_effects_repeats_under_the_same_id_and_loses_no_end():
    kept, got, effects = story(-1)
    assert {f"restricted/n1/{f.DRIVER}"} == standing_by(got) == set(kept)
    assert effects > 20
    for killed_at in range(effects):
        kept, got, _ = story(killed_at)
        assert {f"restricted/n1/{f.DRIVER}"} == standing_by(got) == set(kept), killed_at
        for notices in got.values():
            assert all(notice == notices[0] for notice in notices), killed_at
        raises = [n[0].alert_id for n in got.values() if n[0].change == "raised"]
        assert sorted(set(raises)) == sorted(raises), killed_at
