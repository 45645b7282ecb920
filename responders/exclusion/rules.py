"""DeviceTaintRules: built for exactly one device, and read back as somebody else may have left them. Pure.

An empty selector matches every device of the cluster (kubernetes/kubernetes#141422), so a rule is built of a driver, a pool and a
device that all have a name, or not at all. ``deploy/`` ships an admission policy that holds this process to the same bounds.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from responders.labels import EPISODE, INSTALLATION, MANAGED_BY, NODE, TAINT_KEY
from sickbay.errors import InputError
from sickbay.timestamps import parse_time_ms

#: The effect that we wrote last: another one in the rule is somebody else's.
APPLIED: Final = "sickbay.dev/applied-effect"
#: A person's: whoever sets it, with words, is left in charge of the rule.
OVERRIDE: Final = "sickbay.dev/override"
#: Versions of the resource, the best first: v1 on 1.37, v1beta2 on 1.36 where it is switched on.
VERSIONS: Final = ("v1", "v1beta2")
NAME: Final = re.compile(r"sickbay-[0-9a-f]{20}")

RuleEffect: TypeAlias = Literal["None", "NoSchedule", "NoExecute"]
_EFFECTS: Final[dict[str, RuleEffect]] = {
    "None": "None",
    "NoSchedule": "NoSchedule",
    "NoExecute": "NoExecute",
}


class Selector(NamedTuple):
    """The one device that a rule is about."""

    driver: str
    pool: str
    device: str


class Wanted(NamedTuple):
    """A rule as it should be."""

    name: str
    selector: Selector
    effect: RuleEffect
    #: ``quarantined`` or ``restricted``: value of the taint.
    value: str
    node: str
    device_id: str
    #: Empty for a restricted device.
    episode_id: str
    #: Event time of the decision that wants it.
    at_ms: int


class Found(NamedTuple):
    """A rule of this installation as the API server has it."""

    name: str
    uid: str
    resource_version: str
    generation: int
    created_at_ms: int
    #: ``None`` when it is not one device that is selected.
    selector: Selector | None
    key: str
    effect: str
    value: str
    applied: str
    override: str
    node: str
    episode_id: str
    #: Who wrote to it last, as ``managedFields`` says.
    writer: str
    raw: dict[str, Any]


def selector_of(device_id: str) -> Selector | None:
    """Return what selects a device, ``None`` for one that no rule can name: a device plugin's, or an id that lacks a part."""
    if not device_id.startswith("dra:"):
        return None
    driver, _, rest = device_id.removeprefix("dra:").partition("/")
    pool, _, device = rest.rpartition("/")
    return Selector(driver, pool, device) if driver and pool and device else None


def rule_name(node: str, device_id: str, cause_id: str) -> str:
    """Return the name of the rule of an episode, or of an Unknown run: the same everywhere and always."""
    return f"sickbay-{sha256(chr(0).join((node, device_id, cause_id)).encode()).hexdigest()[:20]}"


def build(wanted: Wanted, api_version: str, installation: str, policy_hash: str) -> dict[str, Any]:
    """Return the object to create."""
    assert all(wanted.selector), "a rule names one device or is none"
    return {
        "apiVersion": api_version,
        "kind": "DeviceTaintRule",
        "metadata": {
            "name": wanted.name,
            "labels": {
                MANAGED_BY: "sickbay",
                INSTALLATION: installation,
                EPISODE: wanted.episode_id or "none",
            },
            "annotations": {
                NODE: wanted.node,
                APPLIED: wanted.effect,
                "sickbay.dev/policy": policy_hash,
                "sickbay.dev/explain": f"sickbay explain {wanted.episode_id}"
                if wanted.episode_id
                else "restricted",
            },
        },
        "spec": _spec(wanted),
    }


def rebuilt(wanted: Wanted, found: Found, api_version: str) -> dict[str, Any]:
    """Return the object that brings a rule to what it should be, over the version that was read; what others added stays."""
    metadata = dict(found.raw.get("metadata") or {})
    metadata.pop("managedFields", None)
    annotations = {**(metadata.get("annotations") or {}), NODE: wanted.node, APPLIED: wanted.effect}
    # an object of a list does not say what it is
    outside = {"apiVersion": api_version, "kind": "DeviceTaintRule"}
    return {
        **found.raw,
        **outside,
        "metadata": {**metadata, "annotations": annotations},
        "spec": _spec(wanted),
    }


def _spec(wanted: Wanted) -> dict[str, Any]:
    selector = wanted.selector
    return {
        "deviceSelector": {"driver": selector.driver, "pool": selector.pool, "device": selector.device},
        "taint": {"key": TAINT_KEY, "value": wanted.value, "effect": wanted.effect},
    }


def read(item: dict[str, Any], installation: str) -> Found | None:
    """Return a rule of this installation, ``None`` for one that is not ours."""
    metadata = _mapping(item.get("metadata"))
    labels, annotations = _mapping(metadata.get("labels")), _mapping(metadata.get("annotations"))
    name = str(metadata.get("name", ""))
    if not NAME.fullmatch(name) or labels.get(INSTALLATION) != installation:
        return None
    spec = _mapping(item.get("spec"))
    selects, taint = _mapping(spec.get("deviceSelector")), _mapping(spec.get("taint"))
    selector = Selector(*(str(selects.get(part, "")) for part in Selector._fields))
    return Found(
        name=name,
        uid=str(metadata.get("uid", "")),
        resource_version=str(metadata.get("resourceVersion", "")),
        generation=_whole(metadata.get("generation")),
        created_at_ms=_time_ms(metadata.get("creationTimestamp")),
        selector=selector if all(selector) else None,
        key=str(taint.get("key", "")),
        effect=str(taint.get("effect", "")),
        value=str(taint.get("value", "")),
        applied=str(annotations.get(APPLIED, "")),
        override=str(annotations.get(OVERRIDE, "")),
        node=str(annotations.get(NODE, "")),
        episode_id="" if labels.get(EPISODE) in (None, "none") else str(labels[EPISODE]),
        writer=_writer(metadata.get("managedFields")),
        raw=item,
    )


def is_right(found: Found, wanted: Wanted) -> bool:
    """Whether a rule says what it should."""
    return (found.selector, found.key, found.effect, found.value) == (
        wanted.selector,
        TAINT_KEY,
        wanted.effect,
        wanted.value,
    )


def is_ours(found: Found) -> bool:
    """Whether a rule still says what we wrote, whatever it should say by now."""
    return found.selector is not None and found.key == TAINT_KEY and found.effect == found.applied


def effect_of(found: Found) -> RuleEffect | Literal[""]:
    """Return the effect of a rule as a report takes it, "" for one that Kubernetes does not know."""
    return _EFFECTS.get(found.effect, "")


def read_effect(item: dict[str, Any]) -> str:
    """Return the effect of a rule's taint, "" for one that has none of our key."""
    taint = _mapping(_mapping(item.get("spec")).get("taint"))
    return str(taint.get("effect", "")) if taint.get("key") == TAINT_KEY else ""


def device_of(found: Found) -> str:
    """Return the device id that a rule selects, "" when it selects no one device."""
    return "" if found.selector is None else f"dra:{'/'.join(found.selector)}"


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _time_ms(value: Any) -> int:
    try:
        return parse_time_ms(value)
    except InputError:
        return 0


def _writer(fields: Any) -> str:
    entries = [entry for entry in fields if isinstance(entry, dict)] if isinstance(fields, list) else []
    newest = max(entries, key=lambda entry: str(entry.get("time", "")), default={})
    return str(newest.get("manager", ""))
