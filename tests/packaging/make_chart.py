"""Write the Helm chart from the kustomize base: ``make chart``. What it writes is held against the base by the tests."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from helm_chart import CHART, chart


def main() -> None:
    """Make the folder anew: a file that the base no longer leads to must not stay."""
    files = chart()
    shutil.rmtree(CHART, ignore_errors=True)
    for name, text in files.items():
        path = CHART / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
