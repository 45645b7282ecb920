"""One row in a process of its own: ``python -m live.row fold|plain|worker LOG FACTS [--profile FILE]``, Kafka as the environment says.

Prints what came of it as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

import msgspec

from sickbay.settings import kafka_settings

from .logs import load
from .measured import on_one_core
from .plain import fold, loop
from .worker_path import worker


def main() -> None:
    """Measure the row that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("row", choices=("fold", "plain", "worker"))
    parser.add_argument("log", type=Path)
    parser.add_argument("facts", type=int)
    parser.add_argument("--profile", type=Path)
    options = parser.parse_args()
    on_one_core()
    if options.row == "fold":
        measured = fold(load(options.log), int(os.environ["SICKBAY_KAFKA_PARTITIONS"]))
    elif options.row == "plain":
        measured = asyncio.run(loop(kafka_settings(os.environ), options.facts))
    else:
        measured = asyncio.run(worker(kafka_settings(os.environ), options.facts, options.profile))
    sys.stdout.buffer.write(msgspec.json.encode(measured))


if __name__ == "__main__":
    main()
