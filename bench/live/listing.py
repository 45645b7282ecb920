"""What a cluster answers when everything is listed: pages as an API server sends them, in files, made by examples/generate.py.

They lie in files so that the memory of whoever reads them is its own. It must not measure.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from ingest.frames import Frame, Parked
from ingest.recording import read_recordings

from .services import ROOT

DEVICES: Final = 8
#: In the order in which they are listed.
RESOURCES: Final = ("nodes", "leases", "resourceslices", "resourceclaims", "pods")
_PAGE: Final = 500


def write_pages(folder: Path, nodes: int) -> dict[str, int]:
    """Write the pages of a cluster of so many nodes with eight devices each; return resource to its objects."""
    recording = folder / "cold.jsonl.zst"
    subprocess.run(  # noqa: S603 - this interpreter and a script of this tree
        [
            sys.executable,
            str(ROOT / "examples" / "generate.py"),
            str(recording),
            f"--nodes={nodes}",
            f"--devices={DEVICES}",
            f"--events-per-second={max(1, nodes)}",
            "--duration-s=1",
        ],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    newest: dict[str, dict[tuple[str, str], bytes]] = {resource: {} for resource in RESOURCES}
    versions = dict.fromkeys(RESOURCES, 0)
    for frame in read_recordings([recording], on_parked=_refuse):
        assert isinstance(frame, Frame)
        if frame.object is None or frame.type in ("BOOKMARK", "ERROR"):
            continue
        for item in frame.object.get("items", [frame.object]):
            metadata = item["metadata"]
            key = metadata.get("namespace", ""), metadata["name"]
            newest[frame.resource][key] = msgspec.json.encode(item)
            versions[frame.resource] = max(versions[frame.resource], int(metadata["resourceVersion"]))
    for resource, items in newest.items():
        place = folder / resource
        place.mkdir()
        several = list(items.values())
        for number, at in enumerate(range(0, len(several), _PAGE)):
            more = at + _PAGE < len(several)
            metadata = {"resourceVersion": str(versions[resource])} | (
                {"continue": f"page {number + 1}"} if more else {}
            )
            page = {
                "kind": "List",
                "apiVersion": "v1",
                "metadata": metadata,
                "items": [msgspec.Raw(item) for item in several[at : at + _PAGE]],
            }
            (place / f"{number:06d}.json").write_bytes(msgspec.json.encode(page))
    recording.unlink()
    return {resource: len(items) for resource, items in newest.items()}


def pages(folder: Path, resource: str) -> Iterator[bytes]:
    """Yield the pages of a resource."""
    for path in sorted((folder / resource).iterdir()):
        yield path.read_bytes()


def _refuse(parked: Parked) -> Any:
    raise ValueError(f"{parked.place}: {parked.reason}")
