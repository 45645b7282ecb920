"""The kustomize base of ``deploy/`` as objects, read strictly and without kustomize: only what the base uses is known, the rest refused.

Generated ConfigMaps keep their plain names here; kustomize appends a hash. ``tests/cluster/test_deploy_tools.py`` holds this reader
against kustomize itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

DEPLOY: Final = Path(__file__).resolve().parents[2] / "deploy"
_KNOWN: Final = {"apiVersion", "kind", "resources", "configMapGenerator"}


class Source(NamedTuple):
    """Objects that come out of one file, named by its path under ``deploy/``; generated ones by the kustomization's."""

    path: str
    objects: tuple[dict[str, Any], ...]


class KustomizationError(Exception):
    """A kustomization is not as this reader knows them."""


def kustomization(folder: str) -> dict[str, Any]:
    """Return the kustomization of a folder under ``deploy/``."""
    found: dict[str, Any] = yaml.safe_load((DEPLOY / folder / "kustomization.yaml").read_text("utf-8"))
    return found


def sources(folder: str) -> list[Source]:
    """Return every file that a base names, in its order. Raises KustomizationError for what it does not know."""
    document = kustomization(folder)
    if unknown := document.keys() - _KNOWN:
        raise KustomizationError(f"{folder}: {', '.join(sorted(unknown))} is not read here")
    found: list[Source] = []
    for name in document["resources"]:
        path = (DEPLOY / folder / name).resolve()
        if path.is_dir():
            found += sources(path.relative_to(DEPLOY).as_posix())
        elif path.parent != DEPLOY / folder:
            raise KustomizationError(f"{folder}: {name} is outside of it, and kustomize refuses that")
        else:
            found.append(
                Source(path.relative_to(DEPLOY).as_posix(), tuple(objects_of(path.read_text("utf-8"))))
            )
    generated = tuple(_config_map(folder, entry) for entry in document.get("configMapGenerator", ()))
    return [*found, *([Source(f"{folder}/kustomization.yaml", generated)] if generated else [])]


def objects(folder: str) -> list[dict[str, Any]]:
    """Return every object of a base."""
    return [obj for source in sources(folder) for obj in source.objects]


def objects_of(text: str) -> list[dict[str, Any]]:
    """Return the objects of a file's text."""
    return [obj for obj in yaml.safe_load_all(text) if obj]


def identity(obj: dict[str, Any]) -> tuple[str, str, str]:
    """Return kind, namespace and name: what no two objects may share."""
    return obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _config_map(folder: str, entry: dict[str, Any]) -> dict[str, Any]:
    if unknown := entry.keys() - {"name", "namespace", "literals", "files"}:
        raise KustomizationError(f"{folder}: {', '.join(sorted(unknown))} of a generator is not read here")
    data = dict(literal.split("=", 1) for literal in entry.get("literals", ()))
    for name in entry.get("files", ()):
        data[name] = (DEPLOY / folder / name).read_text("utf-8")
    metadata = {"name": entry["name"], "namespace": entry["namespace"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
