"""Reading single fields of decoded JSON: identity, texts, lists and quantities, each refused alone.

This module knows nothing of pods or slices. It must never turn what it cannot read into a value: what is refused is named
with its path and left out.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

import msgspec

from sickbay.errors import InputError, ObjectError, QuantityError
from sickbay.quantity import parse_json_value
from sickbay.timestamps import parse_time_ms

#: Keys and managers under which this project writes; what it wrote itself is never a cause (NVIDIA/NVSentinel#1704).
OWN_DOMAIN: Final = "sickbay.dev/"
OWN_MANAGER: Final = "sickbay"

#: resourceVersions are compared as whole numbers and stored in 64-bit columns.
MAX_RESOURCE_VERSION: Final = 2**63 - 1
_INT64_MIN: Final = -(2**63)
#: The longest name, uid or namespace: Kubernetes allows no longer one, and an index of a database must hold several.
MAX_NAME_BYTES: Final = 253
#: The longest name of a resource: a domain, a slash and 63 characters.
_MAX_RESOURCE_BYTES: Final = 317
#: How many refused values one object may name; the rest are counted in a last line.
_MAX_NOTES: Final = 64

_encode: Final = msgspec.json.Encoder().encode


class Identity(msgspec.Struct, frozen=True, gc=False):
    """Which object this is, and which version of it. ``namespace`` is empty for what has none."""

    uid: str
    namespace: str
    name: str
    rv: int


def fingerprint(parts: tuple[Any, ...]) -> bytes:
    """Return 16 bytes that are equal for equal raw parts.

    Lists count in their order here, so an equal fingerprint means equal content, and a different one may not mean a change.
    Raises UnicodeEncodeError for a text with a lone surrogate.
    """
    return blake2b(_encode(parts), digest_size=16).digest()


def read_resource_version(value: object, where: str) -> int:
    """Return a resourceVersion as a number (KEP-5504: decimal digits, no leading zero, "0" is none).

    Raises ObjectError, naming ``where``, for anything else and for numbers beyond 2^63-1.
    """
    if (
        isinstance(value, str)
        and value.isascii()
        and value.isdecimal()
        and value[0] != "0"
        and len(value) < 20
    ):
        number = int(value)
        if number <= MAX_RESOURCE_VERSION:
            return number
    if value is None or value == "":
        raise ObjectError(
            f"{where}: metadata.resourceVersion is missing, so the object is unversioned and cannot be ordered;"
            " export it from the API server"
        )
    raise ObjectError(
        f"{where}: metadata.resourceVersion {str(value)[:40]!a} is not a decimal number from 1 to 2^63-1"
        " without leading zeros"
    )


def read_identity(obj: object, kind: str, *, namespaced: bool) -> Identity:
    """Read who an object is.

    Raises ObjectError, with the path, when the object or its metadata is no JSON object, or when uid, name, namespace (for
    ``namespaced`` kinds) or resourceVersion is missing, of a wrong type or longer than Kubernetes allows; UnicodeEncodeError
    when one of them holds a lone surrogate.
    """
    if not isinstance(obj, dict):
        raise ObjectError(f"{kind}: expected a JSON object, found {_type_name(obj)}")
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        raise ObjectError(f"{kind}: metadata: expected a JSON object, found {_type_name(metadata)}")
    name = metadata.get("name")
    if not isinstance(name, str) or not name:
        raise ObjectError(f"{kind}: metadata.name is missing or no text")
    namespace = metadata.get("namespace") if namespaced else ""
    if not isinstance(namespace, str) or (namespaced and not namespace):
        raise ObjectError(f"{kind} {name!a}: metadata.namespace is missing or no text")
    where = f"{kind} {namespace}/{name}" if namespaced else f"{kind} {name}"
    uid = metadata.get("uid")
    if not isinstance(uid, str) or not uid:
        raise ObjectError(
            f"{where}: metadata.uid is missing or no text; a name alone may be reused and is no identity"
        )
    for what, text in (("uid", uid), ("namespace", namespace), ("name", name)):
        size = len(text) if text.isascii() else len(text.encode())
        if size > MAX_NAME_BYTES:
            raise ObjectError(
                f"{kind}: metadata.{what} has {size} bytes; Kubernetes allows {MAX_NAME_BYTES}: no API server serves this object"
            )
    return Identity(uid, namespace, name, read_resource_version(metadata.get("resourceVersion"), where))


def section(obj: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    """Return ``obj[key]``, ``{}`` when it is null or absent. Raises ObjectError when it is something else."""
    value = obj.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ObjectError(f"{where}: {key}: expected a JSON object, found {_type_name(value)}")
    return value


class Notes:
    """What one object says that could not be read: ``path: reason``, and the paths of fields nobody reads here."""

    __slots__ = ("refused", "unknown")

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.unknown: list[str] = []

    def refuse(self, path: str, reason: str) -> None:
        """Note a value that is left out."""
        if len(self.refused) < _MAX_NOTES:
            self.refused.append(f"{path}: {reason}")
        elif len(self.refused) == _MAX_NOTES:
            self.refused.append("…: more values were refused; only the first 64 are named")

    def unread(self, parent: dict[str, Any], known: frozenset[str], path: str) -> bool:
        """Note the keys of ``parent`` that are not ``known``; return whether there was one."""
        if known.issuperset(parent):
            return False
        self.unknown.extend(f"{path}.{key}" for key in sorted(set(parent) - known)[:_MAX_NOTES])
        return True

    def mapping(self, value: object, path: str) -> dict[str, Any]:
        """Return a JSON object; ``{}`` for null and, refused, for anything else."""
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        self.refuse(path, f"expected a JSON object, found {_type_name(value)}")
        return {}

    def objects(self, value: object, path: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the objects of a JSON list with the path of each; null is an empty list, others are refused alone."""
        if value is None:
            return []
        if not isinstance(value, list):
            self.refuse(path, f"expected a JSON list, found {_type_name(value)}")
            return []
        found = []
        for index, item in enumerate(value):
            if isinstance(item, dict):
                found.append((f"{path}[{index}]", item))
            else:
                self.refuse(f"{path}[{index}]", f"expected a JSON object, found {_type_name(item)}")
        return found

    def text(self, parent: dict[str, Any], key: str, path: str) -> str:
        """Return a text; "" when it is null or absent and, refused, when it is something else."""
        value = parent.get(key)
        if isinstance(value, str):
            return value
        if value is not None:
            self.refuse(f"{path}.{key}", f"expected a text, found {_type_name(value)}")
        return ""

    def name(self, parent: dict[str, Any], key: str, path: str) -> str:
        """Return a text as ``text`` does; one that is longer than a name may be is refused as well."""
        value = self.text(parent, key, path)
        if len(value) * 4 > MAX_NAME_BYTES and len(value.encode()) > MAX_NAME_BYTES:
            self.refuse(f"{path}.{key}", f"longer than the {MAX_NAME_BYTES} bytes of a name")
            return ""
        return value

    def flag(self, parent: dict[str, Any], key: str, path: str) -> bool:
        """Return a boolean; False when it is null or absent and, refused, when it is something else."""
        value = parent.get(key)
        if isinstance(value, bool):
            return value
        if value is not None:
            self.refuse(f"{path}.{key}", f"expected true or false, found {_type_name(value)}")
        return False

    def whole(self, parent: dict[str, Any], key: str, path: str, absent: int = 0) -> int:
        """Return a 64-bit whole number; ``absent`` when it is null or absent and, refused, when it is something else."""
        value = parent.get(key)
        if value is None:
            return absent
        if is_int64(value):
            return int(value)
        self.refuse(f"{path}.{key}", f"expected a 64-bit whole number, found {_type_name(value)}")
        return absent

    def texts(self, value: object, path: str) -> tuple[str, ...]:
        """Return the texts of a JSON list in its order; null is empty, others are refused alone."""
        if value is None:
            return ()
        if not isinstance(value, list):
            self.refuse(path, f"expected a JSON list, found {_type_name(value)}")
            return ()
        kept = []
        for index, item in enumerate(value):
            if isinstance(item, str):
                kept.append(item)
            else:
                self.refuse(f"{path}[{index}]", f"expected a text, found {_type_name(item)}")
        return tuple(kept)

    def quantity(self, value: object, path: str) -> str | None:
        """Return a quantity as canonical text; ``None``, refused, when it is not one."""
        try:
            return parse_json_value(value, path=path).canonical()
        except QuantityError as error:
            self.refuse(path, str(error).removeprefix(f"{path}: "))
            return None

    def quantities(self, value: object, path: str) -> dict[str, str]:
        """Return name to canonical text of a map of quantities; each illegal one is refused and left out."""
        amounts = {}
        for key, amount in self.mapping(value, path).items():
            if len(key) * 4 > _MAX_RESOURCE_BYTES and len(key.encode()) > _MAX_RESOURCE_BYTES:
                self.refuse(path, f"a resource name longer than {_MAX_RESOURCE_BYTES} bytes")
                continue
            text = self.quantity(amount, f"{path}[{key}]")
            if text is not None:
                amounts[key] = text
        return amounts

    def time_ms(self, parent: dict[str, Any], key: str, path: str) -> int | None:
        """Return an RFC 3339 time as milliseconds since the epoch; ``None`` when it is absent or, refused, not one."""
        value = self.text(parent, key, path)
        if not value:
            return None
        try:
            return parse_time_ms(value)
        except InputError as error:
            self.refuse(f"{path}.{key}", str(error))
            return None


def is_int64(value: object) -> bool:
    """Whether a JSON value is a whole number of 64 bits; true and false are none."""
    return (
        isinstance(value, int) and not isinstance(value, bool) and _INT64_MIN <= value <= MAX_RESOURCE_VERSION
    )


def controller_of(metadata: dict[str, Any], notes: Notes) -> dict[str, Any]:
    """Return the owner reference that controls the object; ``{}`` when none does."""
    for _, owner in notes.objects(metadata.get("ownerReferences"), "metadata.ownerReferences"):
        if owner.get("controller") is True:
            return owner
    return {}


def single_node(selector: object) -> str:
    """Return the node that a NodeSelector names, "" unless it names exactly one.

    Only ``matchFields metadata.name In [n]`` names a node: it is what the scheduler writes, and a label is no identity.
    """
    if not isinstance(selector, dict):
        return ""
    terms = selector.get("nodeSelectorTerms")
    if not isinstance(terms, list) or len(terms) != 1 or not isinstance(terms[0], dict):
        return ""
    named: set[str] = set()
    fields = terms[0].get("matchFields")
    for requirement in fields if isinstance(fields, list) else ():
        if not isinstance(requirement, dict):
            continue
        values = requirement.get("values")
        if (
            requirement.get("key") == "metadata.name"
            and requirement.get("operator") == "In"
            and isinstance(values, list)
        ):
            named.update(value for value in values if isinstance(value, str))
    return named.pop() if len(named) == 1 else ""


def qualified(name: str, driver: str) -> str:
    """Return a QualifiedName with its domain: a bare id belongs to the driver."""
    return name if "/" in name else f"{driver}/{name}"


def _type_name(value: object) -> str:
    """Name a JSON value's type as JSON does."""
    if value is None:
        return "null"
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), type(value).__name__)
