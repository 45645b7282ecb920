"""The CEL selector that only one device fits: CEL knows a device by its attributes, and not by its name.

Pure. Out of what the driver publishes for the node it takes the fewest attributes that no other device of the driver has; where
there are none, the device cannot be singled out, and nothing may be run on a guess. An attribute that is a version or a list is
not used: the one compares with others than itself, the other is alpha (KEP-5491).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from itertools import combinations
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from responders.verification.steps import Place

#: ``CELSelectorExpressionMaxLength`` of k8s.io/api/resource/v1.
EXPRESSION_MAX: Final = 10 * 1024
#: What identifies hardware under the names that drivers use, best first, in lower case and without the domain.
_IDENTIFYING: Final = (
    "uuid", "serial", "serialnumber", "pcibusid", "pciaddress", "bdf", "mac", "macaddress",
)  # fmt: skip
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}

#: ``(domain, id)``: a name without a domain is the driver's own.
Key: TypeAlias = tuple[str, str]
Scalar: TypeAlias = str | int | bool


class Term(NamedTuple):
    """One attribute and the value that it must have."""

    domain: str
    name: str
    value: Scalar


class Published(NamedTuple):
    """What a driver publishes for a node."""

    #: ``(pool, device)`` to its scalar attributes, each value with its type's name: CEL tells 1 from true.
    devices: Mapping[tuple[str, str], Mapping[Key, tuple[str, Scalar]]]
    #: Another one after every change of a pool or of an attribute.
    digest: str

    def has(self, place: Place) -> bool:
        """Whether the device is there."""
        return (place.pool, place.device) in self.devices


def read_published(slices: Iterable[Mapping[str, Any]], node: str, driver: str) -> Published:
    """Return what ResourceSlices say of a driver's devices that a Pod on the node may get; of each pool the newest generation.

    A slice that is not bound to one node counts for every node: a device too many makes the selector stricter, never wrong.
    """
    taken: list[tuple[str, int, str, Mapping[str, Any]]] = []
    for each in slices:
        spec = each.get("spec") or {}
        if spec.get("driver") == driver and spec.get("nodeName", "") in ("", node):
            pool = spec.get("pool") or {}
            name, generation = str(pool.get("name", "")), int(pool.get("generation", 0))
            taken.append((name, generation, str((each.get("metadata") or {}).get("uid", "")), spec))
    newest: dict[str, int] = {}
    for pool_name, generation, _, _ in taken:
        newest[pool_name] = max(generation, newest.get(pool_name, generation))
    devices: dict[tuple[str, str], Mapping[Key, tuple[str, Scalar]]] = {}
    told = []
    for pool_name, generation, uid, spec in sorted(taken, key=lambda each: each[:3]):
        if generation == newest[pool_name]:
            listed = spec.get("devices") or ()
            for device in listed:
                devices[pool_name, str(device.get("name"))] = _scalars(device.get("attributes") or {}, driver)
            named = [(device.get("name"), device.get("attributes") or {}) for device in listed]
            told.append((pool_name, generation, uid, sorted(named, key=lambda each: str(each[0]))))
    digest = sha256(msgspec.json.encode(told, order="sorted")).hexdigest()
    return Published(devices, digest[:32])


def _scalars(attributes: Mapping[str, Any], driver: str) -> dict[Key, tuple[str, Scalar]]:
    found: dict[Key, tuple[str, Scalar]] = {}
    for qualified, value in attributes.items():
        domain, _, name = qualified.rpartition("/")
        key = (domain or driver, name)
        if isinstance(value.get("string"), str):
            found[key] = ("string", value["string"])
        elif isinstance(value.get("bool"), bool):
            found[key] = ("bool", value["bool"])
        elif isinstance(value.get("int"), int):
            found[key] = ("int", value["int"])
    return found


def single_out(published: Published, place: Place) -> tuple[Term, ...] | None:
    """Return the fewest attributes that no other device has, ``None`` when all of them together do not single it out.

    One attribute, else two; else one after the other is added that leaves the fewest others. The driver's only device needs none
    to be singled out, and is given one if it has any. ``place`` must be published.
    """
    own = published.devices[place.pool, place.device]
    others = [each for at, each in published.devices.items() if at != (place.pool, place.device)]
    ranked = sorted((key for key, (_, value) in own.items() if _can_be_written(value)), key=_rank)
    #: By attribute, the others that have it too, as bits.
    alike = {
        key: sum(1 << number for number, other in enumerate(others) if other.get(key) == own[key])
        for key in ranked
    }
    for size in (1, 2):
        for keys in combinations(ranked, size):
            left = -1
            for key in keys:
                left &= alike[key]
            if not left:
                return _terms(keys, own)
    chosen: list[Key] = []
    left = (1 << len(others)) - 1
    while left:
        best = min(ranked, key=lambda key: (left & alike[key]).bit_count(), default=None)
        if best is None or left & alike[best] == left:
            return None
        chosen.append(best)
        left &= alike[best]
    return _terms(chosen, own)


def expression_of(driver: str, terms: Iterable[Term]) -> str:
    """Return the CEL expression: the driver, and of every attribute that it is there and has the value.

    An attribute that is not there would be an error of the whole allocation and not a device that does not fit. The text may be
    longer than ``EXPRESSION_MAX``.
    """
    parts = [f"device.driver == {literal(driver)}"]
    for domain, name, value in terms:
        attributes = f"device.attributes[{literal(domain)}]"
        parts.append(f"{literal(name)} in {attributes}")
        parts.append(f"{attributes}[{literal(name)}] == {literal(value)}")
    return " && ".join(parts)


def literal(value: Scalar) -> str:
    """Return a CEL literal; all that is not printable ASCII is escaped."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return '"' + "".join(map(_escaped, value)) + '"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if " " <= character <= "~":
        return character
    number = ord(character)
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def _can_be_written(value: Scalar) -> bool:
    # a lone surrogate is no character, and CEL refuses its escape
    return not (isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value))


def _rank(key: Key) -> tuple[int, Key]:
    name = key[1].lower()
    return (_IDENTIFYING.index(name) if name in _IDENTIFYING else len(_IDENTIFYING), key)


def _terms(keys: Iterable[Key], own: Mapping[Key, tuple[str, Scalar]]) -> tuple[Term, ...]:
    return tuple(Term(*key, own[key][1]) for key in keys)
