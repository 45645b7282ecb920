"""A receiver of Sickbay's webhook: checks the signature and the age, drops what came before, and keeps what stands.

Run it with the same secret file that `sickbay respond alert` signs with:

    python examples/alert_consumer.py --secret-file webhook.secret --port 8080

and ask it what stands: `GET /`. docs/alerts.md is the contract. It needs aiohttp and nothing of Sickbay. It keeps everything in
memory; one that must survive a restart keeps ``standing`` and ``versions`` in a database, in the transaction of what it does.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

#: An event that was signed longer ago, or will be signed later, is refused: somebody may send again what he overheard.
AGE_S = 300
#: No alert is larger.
BODY_BYTES_MAX = 1 << 20
#: Ids that are remembered, and alerts that ended: more than come while an event may still be sent again.
REMEMBERED = 10_000


class Consumer:
    """What stands, by the events so far."""

    def __init__(
        self,
        keys: list[bytes],
        now_s: Callable[[], float] = time.time,  # noqa: TID251 - a program of its own
    ) -> None:
        """``keys`` are all that may have signed: the new one and, while it is changed, the old one."""
        self.keys = keys
        self._now_s = now_s
        self._seen: dict[str, None] = {}
        #: Alert id to its newest version, of alerts that ended too.
        self.versions: dict[str, int] = {}
        #: Alert id to the alert.
        self.standing: dict[str, dict[str, Any]] = {}
        #: Events that changed what stands, the newest last: here one would call or write to somebody.
        self.told: list[str] = []

    async def receive(self, request: web.Request) -> web.Response:
        """Answer 204 for an event that was taken or is known, 401 for one that cannot be trusted, 400 for one that is none."""
        body = await request.read()
        if not self.is_trusted(dict(request.headers), body):
            return web.Response(status=401)
        try:
            event = json.loads(body)
            event_id, kind, alert = event["id"], event["type"], event["data"]
            alert_id, version = alert["alert_id"], int(alert["version"])
        except (ValueError, KeyError, TypeError):
            return web.Response(status=400)
        if event_id not in self._seen:
            self.take(kind, alert_id, version, alert)
            # remembered after it was taken: one that failed comes again
            remember(self._seen, event_id, None)
        return web.Response(status=204)

    def is_trusted(self, headers: dict[str, str], body: bytes) -> bool:
        """Whether one of the keys signed these bytes, and lately."""
        found = {name.lower(): value for name, value in headers.items()}
        event_id, signed_at = found.get("webhook-id", ""), found.get("webhook-timestamp", "")
        if not (signed_at.isascii() and signed_at.isdigit() and len(signed_at) < 16):
            return False
        if abs(self._now_s() - int(signed_at)) > AGE_S:
            return False
        content = f"{event_id}.{signed_at}.".encode() + body
        wanted = [hmac.new(key, content, hashlib.sha256).digest() for key in self.keys]
        trusted = False
        for signature in found.get("webhook-signature", "").split():
            version, _, value = signature.partition(",")
            try:
                given = base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError):
                continue
            # every comparison is made, and takes as long whatever is compared
            matches = [hmac.compare_digest(given, each) for each in wanted]
            trusted |= version == "v1" and any(matches)
        return trusted

    def take(self, kind: str, alert_id: str, version: int, alert: dict[str, Any]) -> None:
        """Note a state; an older one than is known says nothing."""
        if version <= self.versions.get(alert_id, -1):
            return
        remember(self.versions, alert_id, version)
        # raised and changed are the same for whoever keeps what stands: a raise may have been replaced before it was sent
        if kind.startswith("dev.sickbay.alert.cleared."):
            if self.standing.pop(alert_id, None) is not None:
                self.told.append(f"cleared {alert_id}")
        else:
            self.standing[alert_id] = alert
            self.told.append(f"{alert['change']} {alert_id}")
        del self.told[:-REMEMBERED]

    async def show(self, _: web.Request) -> web.Response:
        """Answer with what stands."""
        return web.json_response(sorted(self.standing.values(), key=lambda alert: str(alert["alert_id"])))

    def app(self) -> web.Application:
        """Return the web application."""
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_post("/", self.receive)
        app.router.add_get("/", self.show)
        return app


def remember(known: dict[str, Any], key: str, value: Any) -> None:
    """Note a value as the newest, and forget the oldest of too many."""
    known.pop(key, None)
    known[key] = value
    while len(known) > REMEMBERED:
        del known[next(iter(known))]


def read_keys(path: Path) -> list[bytes]:
    """Read the keys of a secret file: base64, one a line, with or without ``whsec_`` before it."""
    lines = path.read_text(encoding="utf-8").split()
    return [base64.b64decode(line.removeprefix("whsec_"), validate=True) for line in lines]


def main() -> None:
    """Serve until it is interrupted."""
    parser = argparse.ArgumentParser(description="Receive Sickbay's alerts and keep what stands.")
    parser.add_argument("--secret-file", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    asked = parser.parse_args()
    web.run_app(Consumer(read_keys(asked.secret_file)).app(), host=asked.host, port=asked.port)


if __name__ == "__main__":
    main()
