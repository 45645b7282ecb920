"""Let the real scheduler judge the ledger, and write what came of it: ``make judge ARGS="--decisions 2000 --seed 1"``.

The exit code is 1 where a difference has no name.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from control_plane import VERSIONS, ControlPlane
from judged_clusters import Report, judge


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", action="append", choices=VERSIONS, help="of Kubernetes; both without it")
    parser.add_argument("--decisions", type=int, default=2_000, help="for each version")
    parser.add_argument(
        "--seed", type=int, default=1, help="of the first cluster; each next has the next one"
    )
    parser.add_argument("--report", type=Path, help="write the report as JSON to this file too")
    asked = parser.parse_args()
    told = []
    for version in asked.version or VERSIONS:
        with ControlPlane(version) as plane:
            report = Report(version)
            for verdict in judge(plane, asked.seed, asked.decisions):
                report.verdicts.append(verdict)
                if not verdict.agreed and not verdict.named:
                    print(
                        f"{version}: seed {verdict.seed}, step {verdict.step}: {verdict.detail}", flush=True
                    )
        told.append(report.counts())
        print(json.dumps(told[-1]), flush=True)
    if asked.report:
        asked.report.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return 1 if any(each["unexplained"] for each in told) else 0


if __name__ == "__main__":
    raise SystemExit(main())
