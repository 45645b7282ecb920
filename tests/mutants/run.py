"""Break the core on purpose and see the tests fail: `python tests/mutants/run.py [WORD ...]`.

The packages and tests are copied into a temporary directory, once for each of two workers. Each mutant of the catalogue is
applied there alone, and only the tests that it names are run. Words select the mutants whose names hold one of them. Exits
with 1 if a mutant survives, if one does not apply, or if the tests fail without any.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from acting import RESPONDER_MUTANTS
from catalogue import MUTANTS as CUSTODY_MUTANTS
from catalogue import Mutant
from ledger import LEDGER_MUTANTS
from live import LIVE_MUTANTS

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("sickbay", "ingest", "streams", "projections", "responders", "migrations")
WORKERS = 2
MUTANTS = (*CUSTODY_MUTANTS, *LEDGER_MUTANTS, *LIVE_MUTANTS, *RESPONDER_MUTANTS)
#: Longer than any set of named tests takes; a mutant that makes a loop endless is stopped, and counts as noticed.
TIMEOUT_SECONDS = 120
#: Exit codes of pytest: all passed, some failed.
PASSED, FAILED = 0, 1


def copy_tree(target: Path) -> None:
    """Copy what the tests need; bytecode stays behind, because a mutant may have the size and second of its original."""
    for name in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", target)


def run_tests(tree: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    """Run the tests against the packages of ``tree``; return pytest's exit code and what it said."""
    environment = os.environ | {
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(tree / ".hypothesis"),
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-x", "-q"]
    command += ["--hypothesis-profile=unshrunk", *tests]
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return FAILED, f"no end within {TIMEOUT_SECONDS} s"
    return done.returncode, done.stdout + done.stderr


def judge(tree: Path, mutant: Mutant) -> tuple[bool, str]:
    """Apply one mutant to ``tree``, run its tests, take it back; return whether it was killed, and how."""
    path = tree / mutant.file
    original = path.read_text(encoding="utf-8")
    found = original.count(mutant.old)
    if found != 1:
        return False, f"does not apply: its old text stands {found} times in {mutant.file}"
    path.write_text(original.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        code, said = run_tests(tree, mutant.tests)
    finally:
        path.write_text(original, encoding="utf-8")
    if code == FAILED:
        return True, "killed"
    if code == PASSED:
        return False, "SURVIVED"
    return False, f"cannot be judged: pytest exited with {code}\n{said[-2000:]}"


def main(words: list[str]) -> int:
    """Run the chosen mutants and print what became of each."""
    chosen = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    if not chosen:
        print(f"no mutant's name holds any of {', '.join(words)}; run without words for all")
        return 1
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sickbay-mutants-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(WORKERS):
            tree = Path(folder) / str(number)
            copy_tree(tree)
            trees.put(tree)

        tree = trees.get()
        code, said = run_tests(tree, tuple(sorted({test for mutant in chosen for test in mutant.tests})))
        trees.put(tree)
        if code != PASSED:
            print(
                f"the named tests fail without any mutant (pytest exited with {code}); mend them first\n{said}"
            )
            return 1

        def take(mutant: Mutant) -> tuple[bool, str]:
            tree = trees.get()
            try:
                return judge(tree, mutant)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(WORKERS) as workers:
            results = list(zip(chosen, workers.map(take, chosen), strict=True))

    width = max(len(mutant.name) for mutant in chosen)
    for mutant, (_, outcome) in results:
        print(f"{mutant.name:<{width}}  {mutant.file:<32}  {outcome}")
    killed = sum(killed for _, (killed, _) in results)
    print(f"\n{killed} of {len(chosen)} mutants killed in {time.monotonic() - started:.0f} s")
    return 0 if killed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
