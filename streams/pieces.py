"""Where the pieces of a snapshot stand: keys in the state topic, compression, and which of them make a whole.

A key is used once: it holds the position, so nothing that an older worker writes late can replace what a newer one wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import zstandard

from sickbay.errors import CodecError
from streams.live import Live
from streams.snapshot import read_manifest, restore

#: Largest piece before compression; above it something is wrong with the node.
_PIECE_BYTES_MAX: Final = 256 * 1024 * 1024
_MANIFEST: Final = "manifest"


def load_snapshot(state: Mapping[str, bytes], number: int) -> tuple[Live, dict[str, int]] | None:
    """Return the newest whole snapshot of a partition and the positions of its pieces, ``None`` when there is none.

    ``state`` is every piece by its key. Raises CodecError for one that cannot be read.
    """
    manifests = sorted(key for key in state if key.startswith(_manifest_prefix(number)))
    if not manifests:
        return None
    manifest = read_manifest(_unpack(state[manifests[-1]]))
    pieces = {
        name: _unpack(state[key])
        for name, position in manifest.nodes.items()
        if (key := piece_key(number, name, position)) in state
    }
    return restore(number, manifest, pieces), dict(manifest.nodes)


def _manifest_prefix(number: int) -> str:
    return f"{number}/{_MANIFEST}/"


def manifest_key(number: int, position: int) -> str:
    """Return the key of a manifest; of two, the one of the later position is greater."""
    return f"{_manifest_prefix(number)}{position:020d}"


def piece_key(number: int, name: str, position: int) -> str:
    """Return the key of a node's piece."""
    return f"{number}/node/{position:020d}/{name}"


def end_key(number: int) -> str:
    """Return the key of what is written last of a snapshot; it holds nothing."""
    return f"{number}/end"


def position_of(number: int, key: str) -> int:
    """Return the position in the key of a piece or a manifest of the partition, -1 for any other key."""
    parts = key.split("/", 3)
    return int(parts[2]) if parts[0] == str(number) and len(parts) > 2 and parts[2].isdigit() else -1


def pack(data: bytes) -> bytes:
    """Return a piece as it is written."""
    return zstandard.ZstdCompressor(level=1).compress(data)


def _unpack(data: bytes) -> bytes:
    try:
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=_PIECE_BYTES_MAX)
    except zstandard.ZstdError as error:
        raise CodecError(f"a piece of a snapshot cannot be decompressed: {error}") from error
