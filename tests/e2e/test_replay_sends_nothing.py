"""A replay tells nobody: it opens no connection and does not even know the responders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys

def refuse(event, arguments):
    if event == "socket.connect":
        raise AssertionError(f"a connection to {arguments[1]}")

sys.addaudithook(refuse)
from sickbay.cli import cli
cli(["replay", sys.argv[1], "--db", sys.argv[2], "--quiet", "--workers", "1"], standalone_mode=False)
assert not [name for name in sys.modules if name.split(".")[0] in ("responders", "aiohttp")]
cli(["audit", "alerts", "--db", sys.argv[2], "--output", "json"], standalone_mode=False)
"""


def test_a_replay_of_an_incident_connects_to_nobody_whatever_is_configured(tmp_path):
    recording = ROOT / "examples" / "flapping.jsonl.zst"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(recording), str(tmp_path / "x.db")],
        env={"SICKBAY_KAFKA_BOOTSTRAP": "127.0.0.1:9", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "flapping" in done.stdout
