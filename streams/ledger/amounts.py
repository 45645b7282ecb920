"""Exact amounts of node resources: which count, in which unit the scheduler counts them, and how they are written.

An amount in progress is a ``Fraction`` or ``int`` of nano-units, so that nothing is rounded before its sum is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Final, TypeAlias

from sickbay.decisions import NUMA_UNKNOWN, Amount
from sickbay.quantity import Quantity, parse

#: Nano-units by resource.
Nanos: TypeAlias = dict[str, int]
Exact: TypeAlias = Fraction | int

_CPU: Final = "cpu"
_HUGEPAGES: Final = "hugepages-"
_NANO: Final = 10**9
_MILLI_NANO: Final = 10**6
#: More of anything than a node can have, four pebibytes for memory; as millicores it is inside 64 bits.
LIMIT_NANO: Final = (1 << 52) * _NANO


def counts(resource: str) -> bool:
    """Whether the ledger keeps a resource: those that KEP-5517 maps and the scheduler sums."""
    return resource in (_CPU, "memory", "ephemeral-storage") or resource.startswith(_HUGEPAGES)


def replaced_by_pod_level(resource: str) -> bool:
    """Whether a Pod-level request replaces the containers' (component-helpers ``IsSupportedPodLevelResource``)."""
    return resource in (_CPU, "memory") or resource.startswith(_HUGEPAGES)


def ceiling(resource: str, nano: Exact) -> int:
    """Round up to what the scheduler counts in: millicores for cpu, else whole units (``MilliValue``, ``Value``)."""
    unit = _MILLI_NANO if resource == _CPU else _NANO
    return -int(-nano // unit) * unit


def whole_nano(nano: Exact) -> int:
    """Round up to a nano-unit, away from zero, as Kubernetes does when it writes a quantity."""
    return -int(-nano // 1) if nano > 0 else int(nano // 1)


def nano_of(text: str) -> int:
    """Read a canonical quantity of a fact."""
    return parse(text).nano


def within_limits(nano: Exact) -> bool:
    """Whether an amount may be entered: not negative, and no more than a node can have."""
    return 0 <= nano < LIMIT_NANO


@lru_cache(maxsize=65_536)
def text_of(resource: str, nano: int) -> str:
    """Write an amount as a canonical quantity, bytes with binary suffixes."""
    binary = resource in ("memory", "ephemeral-storage") or resource.startswith(_HUGEPAGES)
    return Quantity(nano, "BinarySI" if binary else "DecimalSI").canonical()


def texts(amounts: Mapping[str, Exact]) -> dict[str, str]:
    """Write amounts by resource."""
    return {resource: text_of(resource, whole_nano(amounts[resource])) for resource in sorted(amounts)}


def lines(amounts: Iterable[tuple[str, str, Exact]]) -> tuple[Amount, ...]:
    """Return the lines of an entry from ``(resource, numa bucket, nano)``, in order, without those that are nothing."""
    return tuple(
        Amount(resource, numa, text_of(resource, whole_nano(nano)))
        for resource, numa, nano in sorted(amounts)
        if nano
    )


def nowhere(amounts: Mapping[str, Exact]) -> tuple[Amount, ...]:
    """Return the lines of amounts that no NUMA node is known for."""
    return lines((resource, NUMA_UNKNOWN, nano) for resource, nano in amounts.items())
