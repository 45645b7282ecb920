"""A glance at one recorded line: which version of which object it carries, and a fingerprint of all that is read of it.

Most updates of a cluster change nothing that is read here. The fingerprint is a pure function of the line, so other cores can
make it; the mirror compares it with what it knows and passes the frame over without having decoded it. Whatever is not an
ordinary update of an ordinary object gets no glance and is read in full. It must be as strict as the full reading: a line that
it accepts is one that the full reading accepts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from ingest.observe import claim_fingerprint, node_fingerprint, pod_fingerprint, slice_fingerprint
from ingest.observe.fields import read_identity
from sickbay.errors import InputError
from sickbay.timestamps import parse_time_ms


class Glance(NamedTuple):
    """What a line says before it is read."""

    at_ms: int
    resource: str
    uid: str
    rv: int
    #: Fingerprint of the raw parts that are read besides the identity.
    mark: bytes


#: Resource -> (kind, whether it is namespaced, fingerprint). Leases are small and change with every frame.
_KINDS: Final[dict[str, tuple[str, bool, Callable[[dict[str, Any]], bytes]]]] = {
    "pods": ("Pod", True, pod_fingerprint),
    "resourceslices": ("ResourceSlice", False, slice_fingerprint),
    "resourceclaims": ("ResourceClaim", True, claim_fingerprint),
    "nodes": ("Node", False, node_fingerprint),
}
_decode: Final = msgspec.json.Decoder().decode


def glance(line: bytes) -> Glance | None:
    """Return the glance at a line of a recording in the own format, ``None`` for one that must be read in full."""
    try:
        document = _decode(line)
        kind, namespaced, fingerprint = _KINDS[document["resource"]]
        if document["type"] != "MODIFIED":
            return None
        obj = document["object"]
        identity = read_identity(obj, kind, namespaced=namespaced)
        at_ms = parse_time_ms(document["at"])
        return Glance(at_ms, document["resource"], identity.uid, identity.rv, fingerprint(obj))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InputError):
        # the full reading names what is wrong
        return None
