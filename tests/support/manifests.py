"""The manifests of ``deploy/`` as objects, and how a test puts them into a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from control_plane import Api, ApiError

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
_CLUSTER = {"Namespace", "ClusterRole", "ClusterRoleBinding"}


def read(name: str) -> list[dict[str, Any]]:
    """Return the objects of a file under ``deploy/``."""
    return [each for each in yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")) if each]


def apply(api: Api, *names: str) -> None:
    """Make the objects of these files; those that are there stay."""
    for name in names:
        for obj in read(name):
            try:
                api.create(_collection(obj), obj)
            except ApiError as error:
                if error.status != 409:
                    raise


def _collection(obj: dict[str, Any]) -> str:
    group, _, version = obj["apiVersion"].rpartition("/")
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    namespace = "" if obj["kind"] in _CLUSTER else f"/namespaces/{obj['metadata']['namespace']}"
    return f"{root}{namespace}/{obj['kind'].lower()}s"
