"""What of a live object is kept at all: an allow-list for Pods, and for the others all but what may hold secrets.

A Pod's environment, arguments, images, volumes and foreign annotations never get past the watch: not into memory, a recording
or a dead letter. ``ingest.observe`` reads the pruned object as it would read the whole one, word for word, refusals included:
so what is malformed stays malformed in its type, without its content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from ingest.observe.fields import OWN_DOMAIN, OWN_MANAGER

_METADATA: Final = (
    "name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "ownerReferences",
)  # fmt: skip
#: Read as they are: none of their fields is free text of a user.
_POD_SPEC: Final = ("nodeName", "resourceClaims", "overhead", "resources", "priority")
_POD_STATUS: Final = (
    "phase", "resources", "allocatedResources", "resourceClaimStatuses", "extendedResourceClaimStatus",
    "nodeAllocatableResourceClaimStatuses", "additionalNodeAllocatableResources", "resize",
)  # fmt: skip
_CONTAINER: Final = ("name", "resources", "restartPolicy")
_CONTAINER_STATUS: Final = ("name", "allocatedResourcesStatus", "allocatedResources", "resources")
_CONDITION: Final = ("type", "status", "reason")
#: Under these the scheduler and the claim controller write on claims.
_CLAIM_DOMAIN: Final = "resource.kubernetes.io/"


def prune(resource: str, obj: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of an object of one of ``ingest.frames.RESOURCES``. The object itself is not changed."""
    kept = _picked(obj, ("kind", "apiVersion")) if resource == "pods" else dict(obj)
    if "metadata" in obj:
        kept["metadata"] = _each(obj["metadata"], _METADATA_OF.get(resource, _metadata))
    if resource == "pods":
        if "spec" in obj:
            kept["spec"] = _each(obj["spec"], _pod_spec)
        if "status" in obj:
            kept["status"] = _each(obj["status"], _pod_status)
    elif resource == "resourceclaims":
        if "spec" in obj:
            kept["spec"] = _each(obj["spec"], _claim_spec)
        if "status" in obj:
            kept["status"] = _each(obj["status"], _claim_status)
    return kept


def _each(value: Any, prune_object: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Prune an object, or every object of a list; of anything else only the type stays."""
    if isinstance(value, dict):
        return prune_object(value)
    if isinstance(value, list):
        return [prune_object(item) if isinstance(item, dict) else _hollow(item) for item in value]
    return _hollow(value)


def _hollow(value: Any) -> Any:
    """Return the empty value of the same JSON type."""
    return value if value is None or isinstance(value, bool) else type(value)()


def _listed(value: Any, prune_object: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Prune what should be a list of objects."""
    return _hollow(value) if isinstance(value, dict) else _each(value, prune_object)


def _picked(obj: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: obj[name] for name in names if name in obj}


def _without(obj: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in obj.items() if name not in names}


# --- metadata ------------------------------------------------------------------------------------------------------------


def _metadata(metadata: dict[str, Any], *domains: str, labels: bool = True) -> dict[str, Any]:
    kept = _picked(metadata, _METADATA)
    if labels and "labels" in metadata:
        kept["labels"] = metadata["labels"]
    elif "labels" in metadata:
        kept["labels"] = _own(metadata["labels"], (OWN_DOMAIN,))
    if "annotations" in metadata:
        kept["annotations"] = _own(metadata["annotations"], (OWN_DOMAIN, *domains))
    return kept


def _own(values: Any, domains: tuple[str, ...]) -> Any:
    if not isinstance(values, dict):
        return _hollow(values)
    return {key: value for key, value in values.items() if key.startswith(domains)}


def _pod_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    return _metadata(metadata, labels=False)


def _claim_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    return _metadata(metadata, _CLAIM_DOMAIN)


def _node_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Keep which labels this project wrote itself, for those are not read."""
    kept = _metadata(metadata)
    managed = metadata.get("managedFields")
    if isinstance(managed, list):
        kept["managedFields"] = [
            entry for entry in managed if isinstance(entry, dict) and entry.get("manager") == OWN_MANAGER
        ]
    return kept


_METADATA_OF: Final[dict[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "pods": _pod_metadata,
    "resourceclaims": _claim_metadata,
    "nodes": _node_metadata,
}


# --- Pods ----------------------------------------------------------------------------------------------------------------


def _pod_spec(spec: dict[str, Any]) -> dict[str, Any]:
    kept = _picked(spec, _POD_SPEC)
    for name in ("containers", "initContainers"):
        if name in spec:
            kept[name] = _listed(spec[name], lambda container: _picked(container, _CONTAINER))
    return kept


def _pod_status(status: dict[str, Any]) -> dict[str, Any]:
    kept = _picked(status, _POD_STATUS)
    for name in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        if name in status:
            kept[name] = _listed(status[name], lambda told: _picked(told, _CONTAINER_STATUS))
    conditions = status.get("conditions")
    if isinstance(conditions, list):
        kept["conditions"] = [
            _picked(condition, _CONDITION)
            for condition in conditions
            if isinstance(condition, dict) and condition.get("type") == "PodResizePending"
        ]
    return kept


# --- claims --------------------------------------------------------------------------------------------------------------


def _claim_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """Leave out the opaque parameters of drivers, which nobody reads here and which may be anything."""
    return _with(spec, "devices", lambda devices: _without(devices, "config"))


def _claim_status(status: dict[str, Any]) -> dict[str, Any]:
    kept = _with(
        status,
        "allocation",
        lambda allocation: _with(allocation, "devices", lambda devices: _without(devices, "config")),
    )
    if isinstance(kept.get("devices"), list):
        kept["devices"] = _each(kept["devices"], lambda device: _without(device, "data", "networkData"))
    return kept


def _with(
    obj: dict[str, Any], name: str, prune_object: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Return the object with one part of it pruned, where that part is an object."""
    part = obj.get(name)
    return {**obj, name: prune_object(part)} if isinstance(part, dict) else obj
