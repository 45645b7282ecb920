"""What a driver's slice says of a device's health, read by the policy's ``driver_health`` rules.

A slice has no heartbeat: that a device is published is no health report (kubernetes/kubernetes#141912). Only what a rule names
is an opinion. Taints under our own domain are our own writes and never a cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from sickbay.facts import DevicePublished, Fact, NumaAffinity
from sickbay.policy import DriverHealthRule, Policy

#: Effects that keep work away; any other effect is informational (KEP-5055).
_EFFECTIVE: Final = ("NoSchedule", "NoExecute")

#: Attribute ids that tell one piece of hardware, or one way of cutting it, from another under the same name.
_HARDWARE_IDS: Final = frozenset(
    {"uuid", "serial", "deviceID", "parentDeviceID", "parentUUID", "profile", "partitionProfile"}
)


class Opinion(NamedTuple):
    """A driver's opinion of one device."""

    faulty: bool
    #: An attribute says healthy in so many words.
    healthy: bool
    unmonitored: bool


def opinion(policy: Policy, fact: DevicePublished) -> Opinion:
    """Return what the slice says of the device's health."""
    faulty = healthy = unmonitored = False
    for rule in policy.driver_health:
        if rule.driver != fact.driver:
            continue
        if rule.attribute:
            value = fact.attributes.get(rule.attribute)
            if value is None or value == "":
                continue
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if text in rule.healthy_values:
                healthy = True
            else:
                faulty = True
            continue
        for taint in fact.taints:
            if not _selects(rule, taint.key):
                continue
            if rule.means == "unmonitored":
                unmonitored = True
            elif rule.means == "unhealthy" and taint.effect in _EFFECTIVE:
                faulty = True
    return Opinion(faulty, healthy and not faulty, unmonitored)


def _selects(rule: DriverHealthRule, key: str) -> bool:
    if rule.taint_key:
        return key == rule.taint_key
    return key.startswith(rule.taint_key_prefix)


def kept_part(fact: Fact, policies: Mapping[str, Policy]) -> Fact:
    """Return what custody reads of a fact: a published device without what only the ledger needs.

    Facts are kept for the lateness horizon, and a device's attributes and amounts are the bulk of them.
    """
    if not isinstance(fact, DevicePublished):
        return fact
    read = {rule.attribute for policy in policies.values() for rule in policy.driver_health if rule.attribute}
    return msgspec.structs.replace(
        fact,
        attributes={
            name: value
            for name, value in fact.attributes.items()
            if name in read or name.rsplit("/", 1)[-1] in _HARDWARE_IDS
        },
        capacity={},
        capacity_policy={},
        numa=NumaAffinity(),
        consumes_counters=(),
        node_allocatable={},
        unknown_fields=(),
    )


def hardware(fact: DevicePublished) -> str:
    """Return what names the hardware behind the device, empty when the driver does not say."""
    parts = [
        f"{name}={value}"
        for name, value in sorted(fact.attributes.items())
        if name.rsplit("/", 1)[-1] in _HARDWARE_IDS and value != ""
    ]
    return ";".join(parts)
