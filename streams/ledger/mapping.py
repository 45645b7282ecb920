"""What one allocated device adds to its node: the mapping and the overhead of KEP-5517 under one scheduler's rules.

=======  =========================================  ==================================================
rules    reads                                      differs from ``exact`` in
=======  =========================================  ==================================================
1.36     ``nodeAllocatableResourceMappings``        exact spelling of ``capacityKey``; no overhead
1.37     ``nodeAllocatableResources``               ``ephemeral-storage`` is not mapped
exact    both
=======  =========================================  ==================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from hashlib import sha256
from typing import Final, Literal, TypeAlias

import msgspec

from sickbay.decisions import NUMA_UNKNOWN
from sickbay.facts import AllocationResult, DevicePublished, NumaAffinity
from streams.ledger.amounts import Exact, Nanos, counts, nano_of

Rules: TypeAlias = Literal["1.36", "1.37", "exact"]
#: Node resource to the members of its mapping and overhead, as ``DevicePublished.node_allocatable`` has them.
Members: TypeAlias = Mapping[str, Mapping[str, str]]

_NANO: Final = 10**9
#: Set by ``ingest.observe.allocatable`` where the slice spells the key of its own capacity otherwise.
SPELLING: Final = "capacityKeySpelling"
_OVERHEAD: Final = ("perPod", "perContainer")


class UnknownAmountError(Exception):
    """A result whose consumed amounts are not known: what it adds is not known either."""


def bucket_of(numa: NumaAffinity) -> str:
    """Return the NUMA bucket of a device: its node, of a list the one it hangs on."""
    if len(numa.nodes) == 1:
        return str(numa.nodes[0])
    if numa.nodes and numa.physical is not None:
        return str(numa.physical)
    return NUMA_UNKNOWN


def members_of(device: DevicePublished, rules: Rules) -> Members:
    """Return what the rules read of a device; nothing of a shape that such a scheduler does not know."""
    shape = device.node_allocatable_shape
    if shape is None or (rules != "exact" and shape not in (rules, "unknown")):
        return {}
    if shape == "unknown":  # what could not be read is not the default of what was left out
        return {resource: said for resource, said in device.node_allocatable.items() if said}
    return device.node_allocatable


def version_of(members: Members) -> str:
    """Return what tells one content of a mapping from another."""
    content = sorted((r, sorted(m.items())) for r, m in members.items())
    return sha256(msgspec.json.encode(content)).hexdigest()[:12]


def mapped(members: Members, result: AllocationResult, rules: Rules) -> dict[str, Exact]:
    """Return what a result adds under a mapping, nano-units by resource.

    Raises UnknownAmountError when the mapping counts a capacity and the result does not say what it consumed: the 1.36
    scheduler fails such a Pod, and reading it as nothing would hide what is used (kubernetes/kubernetes#140433).
    """
    amounts: dict[str, Exact] = {}
    for resource, said in members.items():
        if not counts(resource) or (rules == "1.37" and resource == "ephemeral-storage"):
            continue
        key = said.get("capacityKey")
        multiplier = said.get("allocationMultiplier") or said.get("capacityMultiplier")
        if key is not None:
            if result.consumed is None:
                raise UnknownAmountError
            consumed = result.consumed.get(key)
            if consumed is None or (rules == "1.36" and SPELLING in said):
                continue
            nano: Exact = nano_of(consumed)
            if multiplier is not None:
                nano = Fraction(nano * nano_of(multiplier), _NANO)
        elif "deviceMultiplier" in said:
            nano = nano_of(said["deviceMultiplier"])
        elif multiplier is not None:
            nano = nano_of(multiplier)
        elif any(name in said for name in _OVERHEAD):
            continue
        else:
            nano = _NANO
        amounts[resource] = amounts.get(resource, 0) + nano
    return {resource: nano for resource, nano in amounts.items() if nano}


def overhead(members: Members, containers: int, rules: Rules) -> Nanos:
    """Return what a device adds for one Pod of which so many containers refer to its claim, nano-units by resource."""
    amounts: Nanos = {}
    if rules == "1.36":
        return amounts
    for resource, said in members.items():
        if not counts(resource):
            continue
        nano = nano_of(said.get("perPod", "0")) + nano_of(said.get("perContainer", "0")) * containers
        if nano:
            amounts[resource] = nano
    return amounts
