"""Where a device sits: the NUMA node under every name that drivers use for it.

The standard attribute speaks first (KEP-6072), then the aliases of the reading policy in their order. -1, "", an empty list
and a missing value are *unknown*, and unknown is never node 0 (kubernetes-sigs/dra-driver-nvidia-gpu#1165,
google/dranet#30). Nothing is guessed from PCI addresses.
"""

from __future__ import annotations

from typing import Final

from sickbay.facts import NumaAffinity, Scalar
from sickbay.policy import ReadingPolicy

STANDARD_ATTRIBUTE: Final = "resource.kubernetes.io/numaNode"
#: Linux numbers NUMA nodes below 1024 (CONFIG_NODES_SHIFT is at most 10).
_MAX_NODE: Final = 1023
_UNKNOWN: Final = NumaAffinity()


def read_numa(attributes: dict[str, Scalar | tuple[Scalar, ...]], reading: ReadingPolicy) -> NumaAffinity:
    """Return the affinity that qualified ``attributes`` state; ``sources`` names every attribute that had a value."""
    sources = []
    best: tuple[int, ...] = ()
    conflict = False
    for name in (STANDARD_ATTRIBUTE, *reading.numa_attributes):
        if name not in attributes or name in sources:
            continue
        sources.append(name)
        nodes = _nodes(attributes[name], from_text=reading.numa_from_text)
        if not nodes:
            continue
        if not best:
            best = nodes
        elif not set(nodes) <= set(best) and not set(nodes) >= set(best):
            conflict = True
    if not sources:
        return _UNKNOWN
    return NumaAffinity(
        nodes=tuple(sorted(set(best))),
        physical=best[0] if best else None,
        sources=tuple(sources),
        conflict=conflict,
    )


def _nodes(value: Scalar | tuple[Scalar, ...], *, from_text: bool) -> tuple[int, ...]:
    """Return the NUMA nodes of one attribute value in its own order; () when any part of it is unknown."""
    nodes = []
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, str) and from_text and item.isascii() and item.isdecimal() and len(item) < 5:
            number = int(item)
        elif isinstance(item, int) and not isinstance(item, bool):
            number = item
        else:
            return ()
        if not 0 <= number <= _MAX_NODE:
            return ()
        nodes.append(number)
    return tuple(nodes)
