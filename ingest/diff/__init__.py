"""Frames in, facts out: the known set, and what each frame changes in it.

Stateful and pure: the only clock is the time that frames carry. Nothing here talks to a cluster, a broker or a disk, and
nothing here judges: facts say what a source said.
"""

from __future__ import annotations

from ingest.diff.mirror import Mirror

__all__ = ["Mirror"]
