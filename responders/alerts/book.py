"""What was told and what must be: the state of every alert, and the events that bring it there.

Pure but for its own state: no I/O, no clock, no random number. It must not know how an event is sent; it knows who was told.

The state is kept in the topic before anything is sent (``take`` after that), with who was told noted after it, so that a process
that is killed in between sends the same event again, with the same id, and forgets no end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

import msgspec

from responders.alerts.plan import Plan
from responders.alerts.words import Alert, Members, Severity
from sickbay.policy import AlertPolicy

Change: TypeAlias = Literal["raised", "changed", "cleared"]


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one alert, whole: what an event carries as its data."""

    alert_id: str
    kind: str
    #: What happened to it; of a cleared alert the rest is as it was told last.
    change: Change
    severity: Severity
    #: Before this change, where the severity is another; else empty.
    previous_severity: Literal["critical", "warning", "info", ""] = ""
    labels: dict[str, str]
    annotations: dict[str, str]
    members: tuple[Members, ...] = ()
    #: Event time; stays while the alert stands.
    starts_at_ms: int
    #: When it was cleared, ``None`` while it stands.
    ends_at_ms: int | None = None
    #: Of a cleared alert: the id of the alert that explains it now, empty when its cause is gone.
    part_of: str = ""
    #: Milliseconds since the epoch, and at least one more than the state before: the higher one is newer, always.
    version: int

    @property
    def stands(self) -> bool:
        """Whether the alert is raised."""
        return self.change != "cleared"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The newest state of an alert, and which sinks were told."""

    notice: Notice
    told: frozenset[str] = frozenset()


class Book:
    """The newest state of each alert. ``sinks`` are the names of those that must be told."""

    def __init__(
        self, policy: AlertPolicy, sinks: Iterable[str], kept: dict[str, Entry] | None = None
    ) -> None:
        self._wait_ms: Final = policy.group_wait_ms
        self._every_ms: Final = policy.resend_ms
        self._sinks: Final = frozenset(sinks)
        self._entries: dict[str, Entry] = dict(kept or {})
        #: When an alert that waits was first seen to stand.
        self._seen_ms: dict[str, int] = {}
        #: Whose entry is newer than what is kept.
        self._unkept: set[str] = {alert_id for alert_id in self._entries if self._is_settled(alert_id)}
        self._newest = max((entry.notice.version for entry in self._entries.values()), default=0)
        #: When something falls due although nothing changes, ``None`` for nothing; of the newest look.
        self.due_ms: int | None = None

    def look(self, plan: Plan, now_ms: int) -> list[Notice]:
        """Return what must be told anew, and note nothing but how long what waits was seen."""
        self.due_ms = None
        notices: list[Notice] = []
        planned = {each.alert.alert_id: each for each in plan.planned}
        seen = {}
        for alert_id, (alert, waits) in planned.items():
            entry = self._entries.get(alert_id)
            if entry is not None and entry.notice.stands:
                notices += self._changed(entry.notice, alert, now_ms)
            elif waits and now_ms < (due_ms := self._seen_ms.get(alert_id, now_ms) + self._wait_ms):
                seen[alert_id] = due_ms - self._wait_ms
                self._falls_due(due_ms)
            else:
                seen[alert_id] = self._seen_ms.get(alert_id, now_ms)  # until it is taken
                notices.append(_notice(alert, "raised", self._next(entry, now_ms)))
        self._seen_ms = seen
        for alert_id, entry in self._entries.items():
            if entry.notice.stands and alert_id not in planned:
                notices.append(
                    msgspec.structs.replace(
                        entry.notice,
                        change="cleared",
                        previous_severity="",
                        ends_at_ms=max(now_ms, entry.notice.starts_at_ms),
                        part_of=plan.part_of.get(alert_id, ""),
                        version=self._next(entry, now_ms),
                    )
                )
        return notices

    def _changed(self, told: Notice, alert: Alert, now_ms: int) -> list[Notice]:
        """A severity that changed is told at once; what only grows or moves on, once in the time of a repeat."""
        if (told.severity, told.annotations, told.members) == (
            alert.severity,
            alert.annotations,
            alert.members,
        ):
            return []
        if told.severity == alert.severity and now_ms < (due_ms := told.version + self._every_ms):
            self._falls_due(due_ms)
            return []
        notice = _notice(alert, "changed", max(now_ms, told.version + 1))
        previous: Severity | Literal[""] = told.severity if told.severity != alert.severity else ""
        return [msgspec.structs.replace(notice, starts_at_ms=told.starts_at_ms, previous_severity=previous)]

    def _falls_due(self, due_ms: int) -> None:
        self.due_ms = due_ms if self.due_ms is None else min(self.due_ms, due_ms)

    def _next(self, entry: Entry | None, now_ms: int) -> int:
        # what was forgotten was told with a version too
        return max(now_ms, self._newest + 1 if entry is None else entry.notice.version + 1)

    def take(self, notices: Iterable[Notice]) -> None:
        """Note states that are kept: from here on they are told."""
        for notice in notices:
            self._entries[notice.alert_id] = Entry(notice=notice)
            self._newest = max(self._newest, notice.version)
            self._seen_ms.pop(notice.alert_id, None)
            if self._is_settled(notice.alert_id):
                self._unkept.add(notice.alert_id)

    def owed(self, sink: str) -> list[Notice]:
        """Return what a sink was not told yet, the oldest first."""
        owed = [entry.notice for entry in self._entries.values() if sink not in entry.told]
        return sorted(owed, key=lambda notice: notice.version)

    def standing(self) -> list[Notice]:
        """Return every alert that stands."""
        return [entry.notice for entry in self._entries.values() if entry.notice.stands]

    def told(self, sink: str, notice: Notice) -> None:
        """Note that a sink has taken a state; one that was replaced meanwhile leaves the new one owed."""
        entry = self._entries.get(notice.alert_id)
        if entry is not None and entry.notice.version == notice.version:
            self._entries[notice.alert_id] = Entry(notice=entry.notice, told=entry.told | {sink})
            self._unkept.add(notice.alert_id)

    def unkept(self) -> dict[str, Entry | None]:
        """Return the entries whose sinks were told since they were kept; ``None`` for one that ended and all know it."""
        return {
            alert_id: None if self._is_settled(alert_id) else self._entries[alert_id]
            for alert_id in sorted(self._unkept)
        }

    def kept(self, entries: dict[str, Entry | None]) -> None:
        """Note that this is kept now; what is over is forgotten."""
        for alert_id, entry in entries.items():
            if entry is None:
                self._entries.pop(alert_id, None)
                self._unkept.discard(alert_id)
            elif self._entries.get(alert_id) == entry:
                self._unkept.discard(alert_id)

    def _is_settled(self, alert_id: str) -> bool:
        entry = self._entries[alert_id]
        return not entry.notice.stands and entry.told >= self._sinks


def _notice(alert: Alert, change: Change, version: int) -> Notice:
    return Notice(
        alert_id=alert.alert_id,
        kind=alert.kind,
        change=change,
        severity=alert.severity,
        labels=alert.labels,
        annotations=alert.annotations,
        members=alert.members,
        starts_at_ms=alert.starts_at_ms,
        version=version,
    )
