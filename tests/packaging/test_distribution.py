"""The wheel as it is installed: what it carries, what it is called, and that it is what these tests import."""

from __future__ import annotations

import importlib
import subprocess
import sys
import sysconfig
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("sickbay", "ingest", "streams", "projections", "responders", "migrations")
REMEDY = (
    "the installed wheel is not this checkout: run the tests by `make test`, which builds and installs it"
)


@cache
def owners() -> dict[str, list[str]]:
    return {name: sorted(set(found)) for name, found in metadata.packages_distributions().items()}


@cache
def installed_files() -> dict[str, Path]:
    files = metadata.files("sickbay")
    assert files is not None, REMEDY
    return {str(entry): Path(str(entry.locate())) for entry in files}


def carried(package: str) -> dict[str, Path]:
    """Files of one package in the wheel; what the interpreter compiled later is no part of it."""
    return {
        name: path
        for name, path in installed_files().items()
        if name.startswith(f"{package}/") and "__pycache__" not in name
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_a_top_level_name_belongs_to_this_distribution_alone(package: str) -> None:
    """Two distributions that share a top-level name overwrite each other's files without a word from any installer."""
    assert owners().get(package) == ["sickbay"]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_tests_import_the_installed_wheel(package: str) -> None:
    """A package that resolves to the checkout would hide what the wheel lacks."""
    site_packages = Path(sysconfig.get_paths()["purelib"]).resolve()
    found = Path(str(importlib.import_module(package).__file__)).resolve()
    assert site_packages / package / "__init__.py" == found, REMEDY


@pytest.mark.parametrize("package", PACKAGES)
def test_the_wheel_carries_the_checkout_byte_for_byte(package: str) -> None:
    """Every file of a package is in the wheel, nothing else is, and none is stale."""
    expected = {
        path.relative_to(ROOT).as_posix(): path.read_bytes()
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected == {name: path.read_bytes() for name, path in carried(package).items()}, REMEDY


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_marked_as_typed(package: str) -> None:
    """Without py.typed a type checker of a consumer treats the package as untyped."""
    assert f"{package}/py.typed" in carried(package)


def test_the_wheel_carries_the_migrations() -> None:
    """A database is made and upgraded from the wheel alone, without the repository."""
    names = carried("migrations")
    assert "migrations/env.py" in names
    assert [name for name in names if name.startswith("migrations/versions/") and name.endswith(".py")]


def test_nothing_but_the_packages_and_the_script_is_installed() -> None:
    """Tests, benchmarks, examples and documents stay in the repository."""
    allowed = {*PACKAGES, f"sickbay-{metadata.version('sickbay')}.dist-info"}
    foreign = {name for name in installed_files() if name.split("/")[0] not in allowed}
    script = Path(sysconfig.get_path("scripts"), "sickbay").resolve()
    assert {script} == {installed_files()[name].resolve() for name in foreign}


def test_the_metadata_names_license_and_python() -> None:
    """What an installer and a license scan read."""
    described = metadata.metadata("sickbay")
    assert "sickbay" == described["Name"]
    assert "Apache-2.0" == described["License-Expression"]
    assert ">=3.11" == described["Requires-Python"]
    assert "Private :: Do Not Upload" in described.get_all("Classifier", [])


def test_the_license_text_is_carried() -> None:
    """Apache-2.0 asks that every copy comes with its text."""
    license_file = f"sickbay-{metadata.version('sickbay')}.dist-info/licenses/LICENSE"
    assert (ROOT / "LICENSE").read_bytes() == installed_files()[license_file].read_bytes()


def test_the_console_script_runs() -> None:
    """`sickbay --help` is the first thing that a user types."""
    script = Path(sysconfig.get_path("scripts"), "sickbay")
    done = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert (0, "") == (done.returncode, done.stderr)
    assert "Usage: sickbay" in done.stdout


def test_the_console_script_is_not_shadowed_by_the_current_folder(tmp_path: Path) -> None:
    """A folder of the user that happens to be called `streams` must not be imported in place of ours."""
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / "__init__.py").write_text("raise SystemExit('the wrong streams')\n")
    script = Path(sysconfig.get_path("scripts"), "sickbay")
    done = subprocess.run(
        [script, "replay", "--help"], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert (0, "") == (done.returncode, done.stderr)


def test_the_interpreter_is_one_that_the_metadata_allows() -> None:
    """The suite runs on Python 3.11 or newer."""
    assert (3, 11) <= sys.version_info[:2]
