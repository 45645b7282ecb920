"""Which device a Pod's word is about.

A device plugin's word names its device. A DRA word is joined through Pod, claim and allocation, because its ``resourceID`` is
usually the first CDI id and embeds a claim's uid instead of the device (reference kubernetes, 1.3; kubernetes/kubernetes
#130606). What cannot be attributed is kept as unattributed with its candidates and accuses none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from ingest.observe.pods import DeviceReport, health_word
from sickbay.facts import Health

_CLAIM: Final = "claim:"
UNATTRIBUTED: Final = "unattributed:"
_SEVERITY: Final = {"Healthy": 0, "Unknown": 1, "Unhealthy": 2}


class Held(msgspec.Struct, frozen=True, gc=False, order=True):
    """One device of an allocation, as far as attribution needs it."""

    device_id: str
    driver: str
    pool: str
    device: str
    request: str
    subrequest: str
    admin: bool


class Allocation(msgspec.Struct, frozen=True):
    """What a claim held when it was last allocated."""

    claim_uid: str
    namespace: str
    claim: str
    devices: tuple[Held, ...]


class Word(msgspec.Struct, frozen=True, gc=False):
    """What one Pod says of one device."""

    health: Health
    health_raw: str | None
    message: str | None = None
    containers: tuple[str, ...] = ()
    reported_as: str = ""
    candidates: tuple[str, ...] = ()
    absence: str = ""
    physical_id: str | None = None


class Subject(msgspec.Struct, frozen=True):
    """The device that a report is about."""

    device_id: str
    candidates: tuple[str, ...] = ()
    physical_id: str | None = None


def claim_of(name: str) -> tuple[str, str] | None:
    """Return the claim's name and the request of a DRA report of that ``name``, ``None`` for a device plugin's.

    Only the name of the status entry tells the two apart: a plugin's ids may look like anything.
    """
    if not name.startswith(_CLAIM):
        return None
    claim, _, request = name.removeprefix(_CLAIM).partition("/")
    return claim, request


def plugin_subject(report: DeviceReport) -> Subject:
    """Return the device of a device plugin's report; a replica ``X::N`` sits on ``X`` (NVIDIA/k8s-device-plugin)."""
    card, separator, replica = report.resource_id.rpartition("::")
    replicated = separator and card and replica.isascii() and replica.isdecimal()
    return Subject(
        f"plugin:{report.name}/{report.resource_id}",
        physical_id=f"plugin:{report.name}/{card}" if replicated else None,
    )


def dra_subject(report: DeviceReport, request: str, allocation: Allocation) -> Subject:
    """Return the device that a DRA report is about among those allocated to its request."""
    base, _, sub = request.partition("/")
    chosen = {
        held.device_id: held
        for held in allocation.devices
        if (not base or held.request == base) and (not sub or not held.subrequest or held.subrequest == sub)
    }
    if len(chosen) == 1:
        return Subject(next(iter(chosen)))
    found = _matching(report.resource_id, allocation.claim_uid, chosen)
    if found:
        return Subject(found)
    return unattributed(report, allocation.namespace, allocation.claim, tuple(sorted(chosen)))


def unattributed(
    report: DeviceReport, namespace: str, claim: str, candidates: tuple[str, ...] = ()
) -> Subject:
    """Return the stand-in for a device that a report does not tell."""
    return Subject(f"{UNATTRIBUTED}{namespace}/{claim}/{report.resource_id}", candidates)


def _matching(resource_id: str, claim_uid: str, chosen: dict[str, Held]) -> str:
    """Return the one device that ``resource_id`` names: a triple, or a CDI id that is or ends with the device's name."""
    _, is_cdi, cdi_name = resource_id.partition("=")
    if not is_cdi:
        triple = f"dra:{resource_id}"
        return triple if triple in chosen else ""
    exact = [key for key, held in chosen.items() if cdi_name in {held.device, f"{claim_uid}-{held.device}"}]
    if not exact:
        exact = [key for key, held in chosen.items() if cdi_name.endswith(f"-{held.device}")]
    return exact[0] if len(exact) == 1 else ""


def spoken_of(words: Mapping[str, Word]) -> dict[str, tuple[str, tuple[Held, ...]]]:
    """Return, by pod-local claim name, the devices that DRA words were joined to through an allocation.

    The claim's own name stands beside them where a word tells it, else "".
    """
    names: dict[str, str] = {}
    found: dict[str, set[Held]] = {}
    for device_id, word in words.items():
        parsed = claim_of(word.reported_as)
        if parsed is None:
            continue
        local, request = parsed
        devices: tuple[str, ...] = (device_id,)
        if device_id.startswith(UNATTRIBUTED):
            devices = word.candidates
            if devices:
                names[local] = device_id.split("/", 2)[1]
        found.setdefault(local, set()).update(_held(device, request) for device in devices)
    return {local: (names.get(local, ""), tuple(sorted(held))) for local, held in found.items() if held}


def _held(device_id: str, request: str) -> Held:
    # dra:<driver>/<pool>/<device>: only the pool may hold a slash.
    driver, _, rest = device_id.removeprefix("dra:").partition("/")
    pool, _, device = rest.rpartition("/")
    base, _, sub = request.partition("/")
    return Held(device_id, driver, pool, device, base, sub, admin=False)


def merge(reports: list[DeviceReport], subject: Subject) -> Word:
    """Return one word of several reports of one device: the worst one, with every container that has it."""
    worst = max(
        reports,
        key=lambda report: (
            _SEVERITY[health_word(report.health_raw)],
            report.health_raw or "",
            report.message or "",
            report.name,
        ),
    )
    return Word(
        health=health_word(worst.health_raw),
        health_raw=worst.health_raw,
        message=worst.message,
        containers=tuple(sorted({report.container for report in reports})),
        reported_as=worst.name,
        candidates=subject.candidates,
        physical_id=subject.physical_id,
    )
