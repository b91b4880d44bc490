"""What the package holds, what its modules have to have, and what importing it must not do."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from distdiag.analyzers import ANALYZERS

ROOT = Path(__file__).parents[2]
MAPPED = {"distdiag.hooks": "hooks", "distdiag.analyzers": "analyzers"}
"""Packages that lie at the top of the repository, behind links."""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=150)


def setuptools_settings() -> dict[str, object]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        settings: dict[str, object] = tomllib.load(file)["tool"]["setuptools"]
    return settings


def test_declared_packages_are_those_on_disk() -> None:
    folders = {package: ROOT / package.replace(".", "/") for package in ("distdiag", *MAPPED)}
    on_disk = {
        ".".join((package, *each.parent.relative_to(folder.resolve()).parts))
        for package, folder in folders.items()
        for each in folder.resolve().rglob("__init__.py")
    }

    assert sorted(on_disk) == setuptools_settings()["packages"]


@pytest.mark.parametrize(("package", "folder"), MAPPED.items())
def test_top_level_folder_is_the_package_and_the_link_leads_there(package: str, folder: str) -> None:
    link = ROOT / package.replace(".", "/")

    mapping = setuptools_settings()["package-dir"]

    assert isinstance(mapping, dict)
    assert mapping[package] == folder
    assert link.is_symlink()
    assert link.resolve() == ROOT / folder


@pytest.mark.parametrize("folder", MAPPED.values())
def test_top_level_folder_refuses_to_be_imported_by_its_own_name(folder: str) -> None:
    done = python(f"import {folder}")

    assert done.returncode == 1
    assert "ImportError" in done.stderr
    assert f"distdiag.{folder}" in done.stderr


def test_every_analyzer_on_disk_is_registered() -> None:
    on_disk = {each.stem for each in (ROOT / "analyzers").glob("*.py") if not each.stem.startswith("_")}

    assert sorted(each.__name__.rpartition(".")[2] for each in ANALYZERS) == sorted(on_disk)


def test_every_analyzer_is_named_after_its_finding_and_has_a_manual() -> None:
    for analyzer in ANALYZERS:
        assert analyzer.__name__.rpartition(".")[2].replace("_", "-") == analyzer.NAME
        assert analyzer.CODE.startswith("DD")
        for section in ("What it means", "How it is found", "What to do"):
            assert f"\n{section}\n" in (analyzer.__doc__ or ""), analyzer.NAME


def test_codes_and_names_are_unique() -> None:
    assert len({each.CODE for each in ANALYZERS}) == len({each.NAME for each in ANALYZERS}) == len(ANALYZERS)


def test_import_loads_nothing_heavy_and_starts_nothing() -> None:
    done = python(
        "import sys, threading\n"
        "hook = sys.excepthook\n"
        "import distdiag\n"
        "heavy = {'torch', 'pandas', 'numpy', 'rich', 'click', 'duckdb', 'ibis'} & set(sys.modules)\n"
        "print(sorted(heavy), threading.active_count(), sys.excepthook is hook)"
    )

    assert done.stdout == "[] 1 True\n", done.stderr


def test_reading_side_does_without_torch() -> None:
    done = python("import sys, distdiag.analyzers, distdiag.run, distdiag.cli; print('torch' in sys.modules)")

    assert done.stdout == "False\n", done.stderr
