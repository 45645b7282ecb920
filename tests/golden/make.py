"""Write the golden logs: every event of each example, byte for byte, as this build decides them.

Run `python tests/golden/make.py` when a change of the log is wanted, look at what differs, and commit the files with the change.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from cli import EXAMPLE_NAMES, RECORDED_NAMES, example, log_of, replay

FOLDER = Path(__file__).resolve().parent / "logs"


def log_bytes(db: Path) -> bytes:
    """Return facts and decisions by partition and offset, one canonical event a line."""
    return b"".join(event + b"\n" for event in log_of(db))


def make() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate((*EXAMPLE_NAMES, *RECORDED_NAMES)):
            db = Path(folder) / f"{number}.db"
            replay(example(name), db=db)
            target = FOLDER / f"{name}.jsonl.gz"
            target.parent.mkdir(exist_ok=True)
            # no time in the header: the same log gives the same file
            target.write_bytes(gzip.compress(log_bytes(db), mtime=0))
            sys.stdout.write(f"{target}\n")


if __name__ == "__main__":
    make()
