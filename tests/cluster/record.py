"""Play the stories on real control planes and keep what `sickbay record` wrote as examples: ``make recordings``.

The recordings are new each time: times and uids are those of the run. ``tests/golden/make.py`` then writes their golden logs.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from cli import ROOT
from cluster_stories import Story, incident, recording, upgrade
from control_plane import VERSIONS, ControlPlane


def main() -> None:
    stories = [(version, version, incident) for version in VERSIONS]
    for name, version, play in [*stories, ("upgrade", VERSIONS[0], upgrade)]:
        path = ROOT / "examples" / "recorded" / f"{name}.jsonl.zst"
        with ControlPlane(version) as plane, Story(plane) as story, recording(plane, path):
            play(story)
        print(path.relative_to(ROOT), flush=True)


if __name__ == "__main__":
    main()
