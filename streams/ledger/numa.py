"""Whether a claim got its devices on the NUMA node that it asked for."""

from __future__ import annotations

from collections.abc import Sequence

from sickbay.decisions import NUMA_UNKNOWN
from sickbay.facts import ClaimObserved, DevicePublished
from streams.ledger.findings import Findings
from streams.ledger.mapping import bucket_of
from streams.ledger.objects import Objects
from streams.ledger.versions import used


def find(found: Findings, objects: Objects, claim: ClaimObserved, attributes: Sequence[str]) -> None:
    """Add the alerts of a claim that asked by one of the NUMA ``attributes``."""
    about = f"{claim.namespace}/{claim.claim}"
    spanned: list[str] = []
    missed: list[str] = []
    for wish in claim.together:
        if wish.attribute not in attributes:
            continue
        devices = _devices(objects, claim, wish.requests)
        known = {bucket_of(device.numa) for device in devices} - {NUMA_UNKNOWN}
        if len(known) > 1:
            spanned.append(f"its devices are on the NUMA nodes {', '.join(sorted(known))}")
        elif len(devices) > 1 and any(not device.numa.nodes for device in devices):
            missed.append("of some of its devices no NUMA node is known")
    for choice in claim.selected:
        if choice.attribute not in attributes:
            continue
        elsewhere = sorted(
            device.device_id
            for device in _devices(objects, claim, (choice.request,))
            if bucket_of(device.numa) != str(choice.value)
        )
        if elsewhere:
            missed.append(f"{', '.join(elsewhere)} not known to be on NUMA node {choice.value}")
    if spanned:
        found.alerts["numa_spanned", about] = f"{about} asked for one NUMA node; {'; '.join(spanned)}"
    if missed:
        found.alerts["numa_missed", about] = f"{about} asked for a NUMA node; {'; '.join(missed)}"


def _devices(objects: Objects, claim: ClaimObserved, requests: Sequence[str]) -> list[DevicePublished]:
    """Return the devices that a claim got for some of its requests, for all when none is named."""
    found = []
    for result in used(claim):
        name = f"{result.request}/{result.subrequest}" if result.subrequest else result.request
        device = objects.publication(result.device_id)
        if device is not None and (not requests or name in requests or result.request in requests):
            found.append(device)
    return found
