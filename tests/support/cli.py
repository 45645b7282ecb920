"""The command line as a user runs it: a process of its own, judged by its exit code and by what it prints.

The console script of the environment is run when there is one, so that what is tested is what is installed; else the checkout.
"""

from __future__ import annotations

import atexit
import csv
import io
import json
import os
import sqlite3
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
EXAMPLE_NAMES = ("one-card", "node-level", "flapping", "double-count")
#: Those that `sickbay record` wrote of real control planes.
RECORDED_NAMES = ("recorded/1.36", "recorded/1.37", "recorded/upgrade")
VIEWS = (
    "devices", "device-timeline", "open-episodes", "episodes", "episode-evidence", "transitions", "false-quarantine-rate",
    "unknown-duration", "decision-latency", "node-incidents", "breaker-history", "moves", "alerts", "requests", "inventory",
    "late-facts", "watch-gaps", "ledger-balances", "ledger-numa", "ledger-journal", "ledger-entries", "ledger-verdicts",
    "ledger-holds", "ledger-drift", "ledger-duplicates", "placement-failures", "ledger-claims", "ledger-promotion", "parked",
    "exclusions", "move-steps", "move-success", "status-age", "time-to-quarantine", "idle-time", "ledger-difference", "mapping-age",
)  # fmt: skip
TIMEOUT_S = 100

_SCRIPT = Path(sys.executable).with_name("sickbay")


def example(name: str) -> str:
    return str(EXAMPLES / f"{name}.jsonl.zst")


def command() -> list[str]:
    if _SCRIPT.exists():
        return [str(_SCRIPT)]
    return [sys.executable, "-P", "-c", "from sickbay.cli import main; main()"]


def environment(**extra: str) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "SICKBAY_DB"}}
    checkout = {} if _SCRIPT.exists() else {"PYTHONPATH": str(ROOT)}
    return inherited | checkout | {"PYTHONDONTWRITEBYTECODE": "1"} | extra


class Done(NamedTuple):
    """A run that ended."""

    code: int
    out: str
    err: str

    def json_lines(self) -> list[dict]:
        return [json.loads(line) for line in self.out.splitlines()]

    def csv_rows(self) -> list[dict]:
        header, *rows = csv.reader(io.StringIO(self.out))
        assert all(len(row) == len(header) for row in rows), "a CSV line has other fields than the header"
        return [dict(zip(header, row, strict=True)) for row in rows]


def start(*arguments, env=None, stderr_to=None, **options) -> subprocess.Popen:
    """Start a run that the caller ends; it leads a process group of its own, so that its workers can be found.

    ``stderr_to`` is a file for what it says, all of it with standard output, of a run that nobody reads from meanwhile.
    """
    return subprocess.Popen(
        [*command(), *map(str, arguments)],
        env=environment(**(env or {})),
        stdin=subprocess.DEVNULL,
        stdout=stderr_to or subprocess.PIPE,
        stderr=stderr_to or subprocess.PIPE,
        start_new_session=True,
        **options,
    )


def run(*arguments, **options) -> Done:
    """Run to the end: in a process of its own when there are ``options`` (those of ``run_alone``), else in the one that waits.

    No user ever sees a traceback, so none is let through here.
    """
    done = run_alone(*arguments, **options) if options else _waiting().run(*arguments)
    assert "Traceback" not in done.out + done.err, done.err
    return done


def run_alone(
    *arguments, env=None, stdin: bytes = b"", cwd=None, preexec_fn=None, stdout=subprocess.PIPE
) -> Done:
    """Run in a process of its own."""
    done = subprocess.run(
        [*command(), *map(str, arguments)],
        env=environment(**(env or {})),
        input=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=TIMEOUT_S,
        check=False,
        cwd=cwd,
        preexec_fn=preexec_fn,
    )
    return Done(done.returncode, (done.stdout or b"").decode(), done.stderr.decode())


#: Runs one command line after another: most of a short run is the start of the interpreter, and suites make hundreds.
_WAITING = """
import contextlib, io, json, sys
from sickbay.cli import main
class Kept(io.StringIO):
    def close(self): pass
for line in sys.stdin:
    sys.argv = ["sickbay", *json.loads(line)]
    out, err, code = Kept(), Kept(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""


class _Waiting:
    """A process that runs command lines as they come."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _WAITING],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        atexit.register(self._end)

    def run(self, *arguments) -> Done:
        try:
            self._process.stdin.write(json.dumps([str(argument) for argument in arguments]) + "\n")
            return Done(*json.loads(self._process.stdout.readline()))
        except BaseException:
            # its answer may come yet, and would be taken for that to the next question
            self._process.kill()
            _waiting.cache_clear()
            raise

    def _end(self) -> None:
        self._process.communicate(timeout=TIMEOUT_S)


_waiting = cache(_Waiting)


def ok(*arguments, code: int = 0, **options) -> Done:
    """Run, and require an exit code."""
    done = run(*arguments, **options)
    assert code == done.code, f"{arguments}: {done.out}{done.err}"
    return done


def refused(*arguments, code: int, **options) -> str:
    """Run what must fail: nothing on standard output, one line on standard error. Return that line without the program's name."""
    done = ok(*arguments, code=code, **options)
    lines = done.err.splitlines()
    assert ("", 1) == (done.out, len(lines)), done
    assert lines[0].startswith("sickbay: "), done
    return lines[0].removeprefix("sickbay: ")


def misused(*arguments, **options) -> str:
    """Run what is no proper command line; return the error, which follows the usage."""
    done = ok(*arguments, code=2, **options)
    assert "" == done.out
    assert done.err.startswith("Usage: sickbay"), done.err
    return done.err.split("Error: ", 1)[-1].strip()


def replay(*arguments, db, code: int = 0, **options) -> dict:
    """Replay into a store; return the summary."""
    done = ok("replay", *arguments, "--db", db, "--quiet", "-o", "json", code=code, **options)
    (summary,) = done.json_lines()
    return summary


def rows(*arguments, db) -> list[dict]:
    """Answer a question as a program would read it."""
    return ok(*arguments, "--db", db, "-o", "json").json_lines()


def verified(db) -> dict[str, str]:
    """Prove a store and return the digest of each of its tables."""
    (result,) = ok("verify", "--db", db, "-o", "json").json_lines()
    return result["digests"]


def phases(db, *arguments) -> dict[str, str]:
    """Return where each device stands."""
    return {row["device_id"]: row["phase"] for row in rows("audit", "devices", *arguments, db=db)}


def log_of(db) -> list[bytes]:
    """Return the bytes of every event of a store, by partition and offset."""
    with sqlite3.connect(f"file:{db}?mode=ro", uri=True) as connection:
        found = connection.execute(
            "SELECT data FROM event_log ORDER BY partition_number, log_offset"
        ).fetchall()
    connection.close()
    return [data for (data,) in found]
