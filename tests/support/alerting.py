"""Decisions for views, and receivers of alerts that remember what came, for tests of the alerts."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack, asynccontextmanager

import facts_of as f
import msgspec
from aiohttp import web

from responders.alerts.book import Book, Entry
from responders.view import View
from sickbay.decisions import (
    AlertCleared,
    AlertRaised,
    BreakerClosed,
    BreakerOpened,
    DeviceCleared,
    DeviceRecord,
    DeviceReleased,
    DeviceRestricted,
    DeviceSuspected,
    Episode,
    Hold,
    NodeIncidentClosed,
    NodeIncidentOpened,
    QuarantineOpened,
    QuarantineReviewDue,
    VerdictChanged,
)

NOW = f.T0 + f.HOUR


def view_of(*decisions):
    view = View()
    for decision in decisions:
        view.fold(decision)
    return view


def episode(number=1, **more):
    return Episode(
        episode_id=f"episode-{number}",
        opened_at_ms=more.pop("opened_at_ms", NOW),
        cause=more.pop("cause", "unhealthy"),
        reason=more.pop("reason", "Pod ml/chat-0 says Unhealthy"),
        actor="sickbay",
        expires_at_ms=NOW + f.HOUR,
        hold_until_ms=NOW + f.MINUTE,
        **more,
    )


def quarantined(number=1, node="n1", kind=QuarantineOpened, at_ms=NOW, **more):
    return kind(
        node=node,
        at_ms=at_ms,
        clause="quarantine.min_hold_ms",
        reason="Pod ml/chat-0 says Unhealthy",
        device_id=f.dra(number),
        driver=f.DRIVER,
        phase_before="in_service",
        record=DeviceRecord(
            phase="quarantined", since_ms=at_ms, cause="unhealthy", episode=episode(number, **more)
        ),
    )


def review_due(number=1, **more):
    return quarantined(number, kind=QuarantineReviewDue, **more)


def released(number=1, node="n1", at_ms=NOW):
    closed = episode(number, closed_at_ms=at_ms, outcome="returned")
    return DeviceReleased(
        node=node,
        at_ms=at_ms,
        device_id=f.dra(number),
        driver=f.DRIVER,
        phase_before="observing",
        record=DeviceRecord(phase="in_service", since_ms=at_ms),
        closed=closed,
    )


def adverse(number=1, node="n1", phase="restricted", driver=f.DRIVER, incident_id="", at_ms=NOW):
    kind = DeviceRestricted if phase == "restricted" else DeviceSuspected
    return kind(
        node=node,
        at_ms=at_ms,
        clause="unknown.window_ms",
        reason="not known for longer than the window",
        device_id=f"dra:{driver}/{node}/gpu-{number}",
        driver=driver,
        phase_before="in_service",
        record=DeviceRecord(phase=phase, since_ms=at_ms, cause="unknown", incident_id=incident_id),
    )


def well(number=1, node="n1", driver=f.DRIVER, at_ms=NOW):
    return DeviceCleared(
        node=node,
        at_ms=at_ms,
        device_id=f"dra:{driver}/{node}/gpu-{number}",
        driver=driver,
        phase_before="suspect",
        record=DeviceRecord(phase="in_service", since_ms=at_ms),
    )


def incident(number=1, node="n1", scope=f.DRIVER, cause="mass_turn", devices=(), at_ms=NOW):
    return NodeIncidentOpened(
        node=node,
        at_ms=at_ms,
        clause="node_incident.burst_ms",
        reason="all devices turned within 60000 ms",
        incident_id=f"incident-{node}-{number}",
        cause=cause,
        scope=scope,
        devices=devices,
    )


def incident_over(number=1, node="n1", scope=f.DRIVER, cause="mass_turn", at_ms=NOW):
    return NodeIncidentClosed(
        node=node,
        at_ms=at_ms,
        incident_id=f"incident-{node}-{number}",
        cause=cause,
        scope=scope,
        opened_at_ms=NOW,
    )


def opened(scope=f"driver:{f.DRIVER}", at_ms=NOW):
    return BreakerOpened(
        node="",
        at_ms=at_ms,
        clause="breaker.ratio_percent",
        reason="900 of 8000 known devices turned adverse within 300000 ms",
        scope=scope,
        adverse=900,
        known=8_000,
        threshold=800,
    )


def closed(scope=f"driver:{f.DRIVER}", at_ms=NOW):
    return BreakerClosed(node="", at_ms=at_ms, scope=scope, opened_at_ms=NOW)


def raised(kind, about, node="n1", at_ms=NOW, number=1):
    return AlertRaised(
        node=node,
        at_ms=at_ms,
        reason="so it is",
        clause="",
        alert_id=f"{kind}-{number}",
        alert=kind,
        about=about,
    )


def cleared(kind, about, node="n1", at_ms=NOW, number=1):
    return AlertCleared(node=node, at_ms=at_ms, alert_id=f"{kind}-{number}", alert=kind, about=about)


def held(node, *holds):
    return VerdictChanged(
        node=node,
        at_ms=NOW,
        verdict="hold",
        holds=tuple(Hold(reason=reason, scope=scope, since_ms=NOW) for reason, scope in holds),
    )


class Kept:
    """A memory that outlives the process that keeps it; ``refuse`` makes it fail, after it took what it was given or before."""

    def __init__(self):
        self.entries: dict[str, Entry] = {}
        self.writes = []
        self.refuse = None

    async def keep(self, entries):
        for alert_id, entry in entries.items():
            self.writes.append((alert_id, entry))
            if entry is None:
                self.entries.pop(alert_id, None)
            else:
                self.entries[alert_id] = entry
        if self.refuse is not None:
            error, self.refuse = self.refuse, None
            raise error

    def book(self, policy, sinks=()):
        return Book(policy, sinks, self.entries)


class Receiver:
    """An HTTP address that keeps what is posted to it; ``answers`` are its next statuses, 200 after them."""

    def __init__(self):
        self.got = []
        self.answers = []
        self.url = ""
        #: As a receiver that is down.
        self.status = 200

    async def take(self, request):
        body = await request.read()
        status = self.answers.pop(0) if self.answers else self.status
        if status < 300:
            self.got.append((request.path, dict(request.headers), body))
        headers = {"location": self.url} if 300 <= status < 400 else {}
        return web.Response(status=status, headers=headers)

    @property
    def documents(self):
        return [msgspec.json.decode(body) for _, _, body in self.got]

    @property
    def alerts(self):
        """Of an Alertmanager: every alert that was posted, in order."""
        return [alert for document in self.documents for alert in document]


@asynccontextmanager
async def listening(handler_of=None):
    """Give out a receiver that listens on this machine."""
    receiver = handler_of or Receiver()
    app = web.Application()
    app.router.add_route("POST", "/{tail:.*}", receiver.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield receiver
    finally:
        await runner.cleanup()


class Receivers:
    """Receivers that listen in a thread of their own, for tests of processes; a context manager."""

    def __init__(self, *handlers):
        self.handlers = handlers
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._stack = AsyncExitStack()

    def __enter__(self):
        self._thread.start()
        for handler in self.handlers:
            self._run(self._stack.enter_async_context(listening(handler)))
        return self.handlers

    def __exit__(self, *_):
        self._run(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)
