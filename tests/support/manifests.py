"""The manifests of ``deploy/`` as objects, and how a test puts them into a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from control_plane import Api, ApiError

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
_CLUSTER = {
    "Namespace", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
}  # fmt: skip


def read(name: str) -> list[dict[str, Any]]:
    """Return the objects of a file under ``deploy/``."""
    return [each for each in yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")) if each]


def apply(api: Api, *names: str) -> None:
    """Make the objects of these files; those that are there stay."""
    for name in names:
        make(api, read(name))


def make(api: Api, objects: Iterable[dict[str, Any]]) -> None:
    """Make these objects; those that are there stay."""
    for obj in objects:
        try:
            api.create(collection(obj), obj)
        except ApiError as error:
            if error.status != 409:
                raise


def collection(obj: dict[str, Any]) -> str:
    """Return the path at which an object is made."""
    group, _, version = obj["apiVersion"].rpartition("/")
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    namespace = "" if obj["kind"] in _CLUSTER else f"/namespaces/{obj['metadata']['namespace']}"
    kind = obj["kind"].lower()
    return f"{root}{namespace}/{kind.removesuffix('y') + 'ies' if kind.endswith('y') else kind + 's'}"
