"""The reflector of one resource: what to ask the API server next, and what its answers mean.

A state machine without input or output: the shell (``ingest.watching``) carries out its steps, tells it what came back and
how late it is, and delivers what it yields. Its rules are those of client-go's reflector where that is safe for event
sourcing, and those of reference faults B1 where it is not. It must not read a clock, draw a number, or judge an object.

What a method yields is delivered before the next is asked for: so the version moves only behind what was delivered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from ingest.frames import FrameType
from ingest.framing import Framer, Unusable, WatchEvent, unusable
from ingest.listing import InitialEvents, Keep, Pages, ends_initial_events, version_of
from ingest.steps import Draw, FetchPage, Heard, OpenWatch, Output, Query, State, Step, Timing, Wait
from sickbay.cluster.apistatus import (
    is_gone,
    is_store_read_error,
    is_too_large,
    read_status,
    retry_after_ms,
    told,
)
from sickbay.cluster.wire import decode_json

_OBJECT_TYPES: Final[dict[str, FrameType]] = {
    "ADDED": "ADDED",
    "MODIFIED": "MODIFIED",
    "DELETED": "DELETED",
}
#: A new stream is probed at once, but not more often than this part of the ordinary interval.
_PROBE_SPACING: Final = 12
#: Not authenticated, not allowed, not there.
_DENIED: Final = (401, 403, 404)


class Reflector:
    """One resource. ``version`` is the newest that was delivered before, 0 when nothing was; times are monotonic milliseconds."""

    def __init__(
        self, timing: Timing, draw: Draw, keep: Keep, *, version: int = 0, watch_list: bool = False
    ) -> None:
        self._timing = timing
        self._draw = draw
        self._keep = keep
        self._watch_list = watch_list
        self.version = version
        self.state = State("listing")
        #: When the server last said anything of this resource; ``None`` before that.
        self.heard_ms: int | None = None
        #: LISTs delivered and watches accepted so far.
        self.lists = 0
        self.watches = 0
        self.bytes_read = 0
        #: Whether the stream that is open is still wanted.
        self.streaming = False
        self._wait: Wait | None = None
        self._attempts = 0
        # of the LIST that is needed or under way
        self._listing = True
        self._consistent = version == 0
        self._paginated = True
        self._limit = timing.page_limit
        self._pages = Pages(keep)
        self._parked_page = False
        self._listed_ms: int | None = None
        # of the stream that is open
        self._framer = Framer(timing.line_bytes_max)
        self._initial: InitialEvents | None = None
        self._opened_ms = 0
        self._quiet_ms = 0
        self._moved = False
        self._probe_at_ms = 0
        self._probed_ms = 0
        self._probed_from = 0
        self._resync_at_ms: int | None = None

    # --- what to do next ---------------------------------------------------------------------------------------------

    def next_step(self) -> Step:
        """Return what to do now that no stream is open."""
        assert not self.streaming
        if self._wait is not None:
            wait, self._wait = self._wait, None
            return wait
        if not self._listing:
            return OpenWatch((("resourceVersion", str(self.version)), *self._watch_query()))
        self._set_state("listing")
        newer = () if self._consistent else (("resourceVersion", str(self.version)),)
        match = (("resourceVersionMatch", "NotOlderThan"),)
        if self._watch_list:
            return OpenWatch((*newer, *match, ("sendInitialEvents", "true"), *self._watch_query()))
        limit = (("limit", str(self._limit)),) if self._paginated else ()
        if self._pages.token:
            return FetchPage((*limit, ("continue", self._pages.token)))
        return FetchPage((*limit, *newer, *match) if newer else limit)

    def probe_query(self) -> Query:
        """Return the query of a probe: consistent, because it names no version."""
        return (("limit", "1"),)

    def _watch_query(self) -> Query:
        seconds = self._draw(*self._timing.watch_seconds)
        return (("watch", "true"), ("allowWatchBookmarks", "true"), ("timeoutSeconds", str(seconds)))

    # --- lists -------------------------------------------------------------------------------------------------------

    def page(self, code: int, headers: Mapping[str, str], body: bytes, now_ms: int) -> Iterator[Output]:
        """Take the answer to FetchPage."""
        self.bytes_read += len(body)
        if code != 200:
            yield from self._refuse(code, headers, read_status(body), now_ms)
            return
        self.heard_ms = now_ms
        problem = self._pages.add(body)
        if problem:
            self._pages = Pages(self._keep)
            if not self._parked_page:
                self._parked_page = True
                yield unusable(problem, body)
            self.state = State("stale", problem)
            self._back_off(problem)
        elif not self._pages.token:
            pages, self._pages = self._pages, Pages(self._keep)
            yield from self._whole(pages.version, pages.joined(), pages.size, now_ms)

    def page_too_large(self, limit_bytes: int) -> None:
        """Hear that the body was longer than is read: ask for less at once."""
        if not self._consistent:
            # from its cache a server may answer whole, whatever the limit says
            self._begin_list()
        elif not self._paginated or self._limit > 1:
            if not self._paginated:
                self._begin_list()
            self._paginated, self._limit = True, max(1, self._limit // 8)
        else:
            self._refused(f"one page of one object has more than {limit_bytes} bytes")

    def _whole(self, version: int, joined: dict[str, Any], size: int, now_ms: int) -> Iterator[Output]:
        """Deliver a LIST; the watch follows from its version."""
        if not self._consistent and version < self.version:
            self.streaming = False
            # the server went behind what we asked for: only a consistent list can tell whether the cluster did too (W4)
            self._relist(f"a list at {version}, older than {self.version}, which was asked for", now_ms)
            return
        self.lists += 1
        yield Heard("LIST", joined, version, size)
        self.version = version
        self._listing = self._parked_page = False
        self._listed_ms = now_ms
        self._probed_ms = now_ms
        self._probe_at_ms = now_ms + self._timing.probe_ms
        if self._consistent or self._resync_at_ms is None:
            every = self._timing.resync_ms
            self._resync_at_ms = now_ms + every + self._draw(0, every // 10)
        self._consistent, self._paginated = False, True
        self.state = State("watching" if self.streaming else "listing")

    def _begin_list(self) -> None:
        """Make the next step a consistent LIST from its first page."""
        self._listing = self._consistent = True
        self._pages = Pages(self._keep)

    # --- watches -----------------------------------------------------------------------------------------------------

    def opened(self, now_ms: int) -> None:
        """Hear that the server accepted the watch."""
        self.watches += 1
        self.streaming = True
        self._framer = Framer(self._timing.line_bytes_max)
        self._initial = InitialEvents(self._keep) if self._listing else None
        self._opened_ms = self._quiet_ms = now_ms
        self._moved = False
        if not self._listing:
            self.state = State("watching")
            # a restore ends every stream: ask before the new history has outgrown the version that was seen of the old one
            soon_ms = self._probed_ms + self._timing.probe_ms // _PROBE_SPACING
            self._probe_at_ms = min(self._probe_at_ms, max(now_ms, soon_ms))

    def refused(self, code: int, headers: Mapping[str, str], body: bytes, now_ms: int) -> Iterator[Output]:
        """Take the answer to OpenWatch, or to finding the API, that is not 200."""
        yield from self._refuse(code, headers, read_status(body), now_ms)

    def piece(self, data: bytes, now_ms: int) -> Iterator[Output]:
        """Take the next bytes of the stream. It is to be closed when ``streaming`` is false afterwards."""
        self.bytes_read += len(data)
        self.heard_ms = self._quiet_ms = now_ms
        for line in self._framer.feed(data):
            if isinstance(line, Unusable):
                yield line
            else:
                yield from self._event(line, now_ms)
            if not self.streaming:
                return

    def reading_again(self, now_ms: int) -> None:
        """Hear that nobody read for a while, because nobody took what was read: that silence was ours."""
        self._quiet_ms = now_ms

    def ended(self, now_ms: int, broken: str = "") -> None:
        """Hear that the stream is over; ``broken`` says how, "" for an orderly end."""
        if not self.streaming:
            return
        self.streaming = False
        if not broken and self._framer.pending:
            broken = f"the stream broke off inside a line, {self._framer.pending} bytes into it"
        if self._initial is not None:
            broken = broken or "the stream ended before the initial events did"
        if self._settled(now_ms):
            self._attempts = 0
        elif not broken:
            broken = "the watch ended as soon as it had begun"
        if broken:
            self._back_off(broken)

    def _settled(self, now_ms: int) -> bool:
        return self._moved or now_ms - self._opened_ms >= self._timing.settled_ms

    def _event(self, event: WatchEvent, now_ms: int) -> Iterator[Output]:
        obj = event.object
        if event.type == "ERROR":
            code = obj.get("code")
            self._attempts = 0 if self._settled(now_ms) else self._attempts
            yield from self._refuse(code if isinstance(code, int) else 0, {}, obj, now_ms)
        elif event.type == "BOOKMARK":
            version = version_of(obj)
            if self._initial is None:
                yield Heard("BOOKMARK", self._keep(obj), version, event.size)
                self._move(version)
            elif ends_initial_events(obj) and version:
                initial, self._initial = self._initial, None
                yield from self._whole(version, initial.joined(version), initial.size, now_ms)
                self._moved = True
        elif event.type not in _OBJECT_TYPES:
            yield unusable("a watch event of an unknown type", event.type.encode())
        elif self._initial is not None:
            problem = self._initial.take(event.type, obj, event.size)
            if problem:
                self.streaming = False
                self._refused(problem)
        else:
            version = version_of(obj)
            yield Heard(_OBJECT_TYPES[event.type], self._keep(obj), version, event.size)
            self._move(version)

    def _move(self, version: int) -> None:
        """Let the version follow what was delivered; a repetition, or a server that lags, never moves it back (W21)."""
        if version > self.version:
            self.version = version
            self._moved = True
            self._attempts = 0

    # --- time --------------------------------------------------------------------------------------------------------

    def due_ms(self, now_ms: int) -> int:
        """Return how long the open stream may be waited for until ``let_time_pass`` has something to do; 0 when it has now."""
        times = [self._quiet_ms + self._timing.idle_ms]
        if self._initial is not None:
            times.append(self._opened_ms + self._timing.initial_ms)
        else:
            times.append(self._probe_at_ms)
            if self._resync_at_ms is not None:
                times.append(self._resync_at_ms)
        return max(0, min(times) - now_ms)

    def let_time_pass(self, now_ms: int) -> bool:
        """Give up a stream that is overdue; return whether a probe is to be sent beside it."""
        if not self.streaming:
            return False
        if now_ms >= self._quiet_ms + self._timing.idle_ms:
            self.ended(now_ms, f"nothing was heard for {(now_ms - self._quiet_ms) // 1000} s")
        elif self._initial is not None:
            if now_ms >= self._opened_ms + self._timing.initial_ms:
                self._watch_list = self.streaming = False
        elif self._resync_at_ms is not None and now_ms >= self._resync_at_ms:
            self.streaming = False
            self._begin_list()
        elif now_ms >= self._probe_at_ms:
            self._probed_ms = now_ms
            self._probe_at_ms = now_ms + self._timing.probe_ms
            # what is delivered while the probe is under way may be newer than its answer
            self._probed_from = self.version
            return True
        return False

    def probed(self, code: int, headers: Mapping[str, str], body: bytes) -> None:
        """Take the answer to a probe; the stream is to be closed when ``streaming`` is false afterwards."""
        if not self.streaming:
            return
        if code in _DENIED:
            # a watch outlives the right to it
            self.streaming = False
            self._deny(code, headers, told(code, read_status(body)))
            return
        try:
            document = decode_json(body) if code == 200 else None
        except ValueError:
            document = None
        version = version_of(document) if isinstance(document, dict) else 0
        if not version:
            self.probe_failed(told(code, read_status(body)))
        elif version < self._probed_from:
            # the cluster went back, and a watch from its future stays silent (kubernetes/kubernetes#107457)
            self.streaming = False
            self._begin_list()
        else:
            self.state = State("watching")

    def probe_failed(self, reason: str) -> None:
        """Hear that a probe had no answer: the watch goes on, and the next probe comes in its time."""
        if self.streaming:
            self.state = State("watching", f"probe: {reason}")

    # --- what went wrong ---------------------------------------------------------------------------------------------

    def request_failed(self, reason: str) -> None:
        """Hear that a request had no answer: it is asked again, later."""
        self._back_off(reason)

    def _refuse(
        self, code: int, headers: Mapping[str, str], status: Mapping[str, Any], now_ms: int
    ) -> Iterator[Output]:
        """Take an error, whether it came as an answer or as an event of the stream."""
        in_stream, self.streaming = self.streaming, False
        reason = told(code, status)
        if code == 410 or is_gone(status):
            if self._listing:
                # a token ran out, and what was listed before it is of no use (W9)
                self._paginated = False
            else:
                yield Heard("ERROR", {**status, "code": 410}, self.version, 0)
                self.version = 0
            self._relist(reason, now_ms)
        elif is_too_large(status) or (is_store_read_error(status) and not self._listing):
            self._relist(reason, now_ms)
        elif code in _DENIED:
            self._deny(code, headers, reason)
        elif code in (400, 422) and self._listing and self._watch_list:
            self._watch_list = False
        elif in_stream or code == 429 or code >= 500 or code < 400:
            self._back_off(reason, retry_after_ms(headers))
        elif self._listing:
            self._refused(reason)
        else:
            # the server has no use for our version
            self._begin_list()
            self._back_off(reason)

    def _deny(self, code: int, headers: Mapping[str, str], reason: str) -> None:
        """Take a refusal that says nothing of versions: who we are, what we may, or the API itself."""
        if code == 401:
            self.state = State("stale", reason)
            self._back_off(reason, retry_after_ms(headers), reload=True)
        elif code == 403:
            self._refused(reason)
        else:
            # what was there a moment ago is served under another version now, or soon: an upgrade must not blind us for long
            lost = self.lists > 0 and self.state.name != "unavailable"
            self.state = State("unavailable", reason)
            self._listing = True
            self._pages = Pages(self._keep)
            self._wait = Wait(self._timing.backoff_ms if lost else self._timing.unavailable_ms, discover=True)

    def _refused(self, reason: str) -> None:
        """Stay stale, and ask again seldom: what is known stays as it is, and is never taken for an empty list (W18)."""
        self.state = State("stale", reason)
        self._pages = Pages(self._keep)
        self._wait = Wait(self._timing.refused_ms)

    def _relist(self, reason: str, now_ms: int) -> None:
        """Make the next step a consistent LIST, at once unless the last one was just now."""
        self._begin_list()
        just_now = self._listed_ms is not None and now_ms - self._listed_ms < self._timing.settled_ms
        if self._attempts or just_now:
            self._back_off(reason)
        else:
            self._attempts = 1

    def _back_off(self, reason: str, at_least_ms: int = 0, *, reload: bool = False) -> None:
        """Wait before the next request, longer each time until something moves."""
        longest = min(self._timing.backoff_max_ms, self._timing.backoff_ms << min(self._attempts, 20))
        self._attempts += 1
        self._set_state("waiting", reason)
        self._wait = Wait(max(self._draw(longest // 2, longest), at_least_ms), reload=reload)

    def _set_state(self, name: Literal["listing", "waiting"], reason: str = "") -> None:
        if name == "listing" and self.state.name == "waiting":
            return  # until an answer comes
        if self.state.name not in ("stale", "unavailable"):
            self.state = State(name, reason)
        elif reason:
            self.state = State(self.state.name, reason)
