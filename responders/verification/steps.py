"""The steps of a return that stand now, and what follows from their identity alone: names, deadlines, the place of the device.

Pure. A step is known by episode, kind and attempt; whoever finds it again after a crash finds the same name, and the same report.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from responders.view import View
from sickbay.envelope import derived_id
from sickbay.policy import ReturnPolicy

Kind: TypeAlias = Literal["probe", "canary"]

#: A report must be there before custody takes silence for a failure: a tenth of the time, and half a minute at most.
MARGIN_MAX_MS: Final = 30_000
#: A name of an object that is a label's value too (RFC 1123, 63 characters).
NAME_MAX: Final = 63

_EPISODE: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")


class Place(NamedTuple):
    """A DRA device, as claims name it."""

    driver: str
    pool: str
    device: str


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A probe or a canary that custody waits for."""

    kind: Kind
    node: str
    device_id: str
    #: Driver or resource name.
    driver: str
    episode_id: str
    attempt: int
    started_at_ms: int
    #: From then on it is too late to report: custody takes the silence for a failure soon after.
    deadline_ms: int

    @property
    def name(self) -> str:
        """The name of its Job and its claim (RFC 1123 label)."""
        return name_of(self.episode_id, self.kind, self.attempt)

    @property
    def request_id(self) -> str:
        """The id of its report: one step, one fact, however often it is told."""
        return derived_id("verification", self.episode_id, self.kind, str(self.attempt))

    @property
    def place(self) -> Place | None:
        """Where DRA has the device, ``None`` for a device plugin's."""
        return place_of(self.device_id, self.driver)


def name_of(episode_id: str, kind: Kind, attempt: int) -> str:
    """Return the name of the objects of a step: readable where the episode's id may stand in a name, else its digest."""
    readable = f"sickbay-{kind}-{episode_id}-{attempt}"
    if _EPISODE.fullmatch(episode_id) and len(readable) <= NAME_MAX:
        return readable
    digest = sha256(f"{kind}\0{attempt}\0{episode_id}".encode("utf-8", "surrogatepass")).hexdigest()
    # no readable name has this form: it ends in a hyphen and the attempt
    return f"sickbay-{kind}-{digest[:40]}"


def place_of(device_id: str, driver: str) -> Place | None:
    """Return driver, pool and device of ``dra:<driver>/<pool>/<device>``; pools have slashes, drivers and devices none."""
    if not device_id.startswith("dra:"):
        return None
    found_driver, _, rest = device_id.removeprefix("dra:").partition("/")
    pool, _, device = rest.rpartition("/")
    if not (found_driver and pool and device) or (driver and driver != found_driver):
        return None
    return Place(found_driver, pool, device)


def standing(view: View, policy: ReturnPolicy) -> Iterator[Step]:
    """Yield the steps that stand, in the order of nodes and devices; none without a prober."""
    if policy.prober != "job":
        return
    for node, device in view.devices():
        record = device.record
        episode = record.episode
        if episode is None or record.phase not in ("probing", "canary"):
            continue
        kind: Kind = "probe" if record.phase == "probing" else "canary"
        started = episode.return_at_ms if kind == "probe" else episode.canary_at_ms
        timeout_ms = policy.probe_timeout_ms if kind == "probe" else policy.canary_timeout_ms
        started_at_ms = record.since_ms if started is None else started
        yield Step(
            kind=kind,
            node=node,
            device_id=device.device_id,
            driver=device.driver,
            episode_id=episode.episode_id,
            attempt=episode.attempt,
            started_at_ms=started_at_ms,
            deadline_ms=started_at_ms + timeout_ms - min(MARGIN_MAX_MS, timeout_ms // 10),
        )
