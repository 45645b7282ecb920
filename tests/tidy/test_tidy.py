"""The repository's own rules that no linter knows."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Made by tools and kept out of the repository; .gitignore lists the same.
NOT_OURS = {
    ".git", ".uv", ".venv", ".cache", "dist", "build", "var", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache",
    ".import_linter_cache", ".hypothesis", "secrets",
}  # fmt: skip
LINES_MAX = 400

# Each pattern is written so that it does not match itself.
REGISTRY_HOSTS = re.compile(
    r"pypi[.]org|python[h]osted[.]|(repo|repo1|central)[.]maven[.]|maven[.]apache[.]org|proxy[.]golang[.]org"
    r"|registry[.]npmjs[.]|static[.]crates[.]io|index[.]crates[.]io|deb[.]debian[.]org"
)
MACHINE_PATHS = re.compile(r"(?<![\w.])/(wor[k]|far[m]|roo[t]|hom[e]/\w+|User[s])/|/tm[p]/\w+")
UNFINISHED = re.compile(r"\b(TOD[O]|FIXM[E]|XX[X]|NotImplementedErro[r])\b")
PINNED = re.compile(r"^[a-z0-9][a-z0-9.-]*(\[[a-z0-9,-]+\])?==[^\s;]+( ; [^\\]+)? \\$")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")
CASE_NAME = re.compile(r"^test_c(\d\d)_")


@cache
def files() -> tuple[Path, ...]:
    found: list[Path] = []
    folders = [ROOT]
    while folders:
        for entry in folders.pop().iterdir():
            if entry.name in NOT_OURS or entry.is_symlink():
                continue
            if entry.is_dir():
                folders.append(entry)
            elif entry.suffix not in {".pyc", ".db", ".db-wal", ".db-shm"}:
                found.append(entry)
    return tuple(sorted(found))


@cache
def texts() -> dict[str, str]:
    """Repository path to text, for every file that is text."""
    contents = {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in files()}
    return {name: content.decode() for name, content in contents.items() if b"\0" not in content}


def modules(*, tests: bool) -> dict[str, str]:
    return {
        name: text
        for name, text in texts().items()
        if name.endswith(".py") and name.startswith("tests/") == tests
    }


def places(pattern: re.Pattern[str]) -> list[str]:
    """`path:line: text` of every line that the pattern matches."""
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts().items()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def test_the_rules_see_the_repository() -> None:
    """A rule over no files would always hold."""
    assert {
        "sickbay/policy.py",
        "Makefile",
        "requirements/dev.txt",
        "tests/tidy/test_tidy.py",
    } <= texts().keys()


def test_a_module_is_at_most_400_lines() -> None:
    """One idea in a module; tests may list more cases."""
    too_long = {
        name: lines
        for name, text in modules(tests=False).items()
        if (lines := len(text.splitlines())) > LINES_MAX
    }
    assert {} == too_long


@pytest.mark.parametrize("tests", [False, True])
def test_a_module_says_why_it_exists(tests: bool) -> None:
    """Every module opens with a docstring."""
    silent = [name for name, text in modules(tests=tests).items() if not ast.get_docstring(ast.parse(text))]
    assert [] == silent


def test_no_test_folder_is_a_package() -> None:
    """An __init__.py under tests/ can shadow a package of the product in every import mode."""
    assert [] == [
        path for path in files() if path.name == "__init__.py" and path.is_relative_to(ROOT / "tests")
    ]


def test_no_file_names_a_package_registry() -> None:
    """Where packages come from is the environment's business."""
    assert [] == places(REGISTRY_HOSTS)


def test_no_file_names_a_path_of_one_machine() -> None:
    """Whatever is written here must hold on every machine."""
    assert [] == places(MACHINE_PATHS)


def test_nothing_is_left_unfinished() -> None:
    """What is missing is said in an issue, never in the tree."""
    assert [] == places(UNFINISHED)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (REGISTRY_HOSTS, "https://" + "py" + "pi.org/simple"),
        (MACHINE_PATHS, "see /wor" + "k/main"),
        (MACHINE_PATHS, "/tm" + "p/build"),
        (UNFINISHED, "# TO" + "DO: later"),
    ],
)
def test_a_rule_finds_what_it_forbids(pattern: re.Pattern[str], text: str) -> None:
    """Each pattern matches the thing it is there for."""
    assert pattern.search(text)


@pytest.mark.parametrize("name", ["requirements/runtime.txt", "requirements/dev.txt"])
def test_requirements_are_pinned_with_hashes_and_without_hosts(name: str) -> None:
    """Every requirement is one version with its hashes; nothing else stands in the file but comments."""
    lines = [line for line in texts()[name].splitlines() if not line.lstrip().startswith("#")]
    pins = [index for index, line in enumerate(lines) if PINNED.match(line)]
    unpinned = [line for index, line in enumerate(lines) if index not in pins and not HASH.match(line)]
    unhashed = [lines[index] for index in pins if index + 1 >= len(lines) or not HASH.match(lines[index + 1])]
    assert ([], []) == (unpinned, unhashed)
    assert pins


def pinned_in(name: str) -> dict[str, str]:
    return {
        line.split("==")[0].split("[")[0]: line.split("==")[1].split(" ")[0]
        for line in texts()[name].splitlines()
        if PINNED.match(line)
    }


def wanted(lines: list[str]) -> set[str]:
    return {
        re.split(r"[<>=!~\[; ]", line)[0].lower().replace("_", "-")
        for line in lines
        if line and not line.startswith("#")
    }


def test_every_dependency_is_pinned() -> None:
    """What pyproject.toml and dev.in ask for stands in the pinned files, and both files agree."""
    project = tomllib.loads(texts()["pyproject.toml"])["project"]
    runtime, dev = pinned_in("requirements/runtime.txt"), pinned_in("requirements/dev.txt")
    assert set() == wanted(project["dependencies"]) - runtime.keys()
    assert set() == wanted(texts()["requirements/dev.in"].splitlines()) - dev.keys()
    assert runtime.items() <= dev.items()


def test_the_changelog_tells_of_this_version() -> None:
    """A version that the changelog does not know cannot be released."""
    version = tomllib.loads(texts()["pyproject.toml"])["project"]["version"]
    assert f"## [{version}]" in texts()["CHANGELOG.md"]


def case_of_name(function: ast.FunctionDef) -> str:
    match = CASE_NAME.match(function.name)
    return f"C{match[1]}" if match else ""


def cases_of_markers(function: ast.FunctionDef) -> list[str]:
    return [
        str(ast.literal_eval(decorator.args[0]))
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.case"
    ]


def test_a_case_test_is_named_after_its_case() -> None:
    """`test_cNN_…` carries `@pytest.mark.case("CNN")`, a marker stands only on such a test, and tests/cases has no other."""
    wrong = []
    for name, text in modules(tests=True).items():
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.FunctionDef) and function.name.startswith("test_"):
                named, marked = case_of_name(function), cases_of_markers(function)
                if marked != ([named] if named else []) or (name.startswith("tests/cases/") and not named):
                    wrong.append(f"{name}:{function.lineno}: {function.name} is marked {marked}")
    assert [] == wrong
