"""A skip fails the run under CI=true unless tests/SKIPS.md lists it."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, SKIPS, is_listed, listed_skips

pytestmark = pytest.mark.slow

SKIPPING_TEST = """
import pytest

def test_runs():
    pass

@pytest.mark.skip(reason="needs a GPU")
@pytest.mark.parametrize("size", [1, 2])
def test_waits(size):
    pass

def test_gives_up():
    pytest.skip("no data")

@pytest.mark.xfail(reason="known")
def test_known():
    assert False
"""
SKIPPING_MODULE = "import pytest\npytest.importorskip('no_such_module')\n"
TABLE = "| test id pattern | reason |\n|---|---|\n"


def run_pytest(
    tmp_path: Path, test_source: str, *, ci: str, skips: str = TABLE, workers: int = 0
) -> subprocess.CompletedProcess[str]:
    tests = tmp_path / "tests"
    tests.mkdir()
    # conftest.py, and the modules beside it that it imports.
    for path in (ROOT / "tests").glob("*.py"):
        shutil.copy(path, tests)
    (tests / "SKIPS.md").write_text(skips)
    (tests / "test_it.py").write_text(test_source)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    plugins = ["-p", "no:cacheprovider"]
    if workers:
        plugins += ["-p", "xdist.plugin", "-n", str(workers)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "tests"],
        cwd=tmp_path,
        env={**os.environ, "CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unlisted_skip_fails_in_ci(tmp_path: Path, workers: int) -> None:
    result = run_pytest(tmp_path, SKIPPING_TEST, ci="true", workers=workers)
    assert result.returncode == 1, result.stdout
    assert "1 failed, 1 passed, 1 xfailed, 2 errors" in result.stdout
    assert "not in tests/SKIPS.md: Skipped: needs a GPU" in result.stdout


@pytest.mark.parametrize("workers", [0, 1])
def test_a_module_that_skips_itself_fails_in_ci(tmp_path: Path, workers: int) -> None:
    result = run_pytest(tmp_path, SKIPPING_MODULE, ci="true", workers=workers)
    assert result.returncode != 0, result.stdout
    assert "tests/test_it.py: skipped under CI and not in tests/SKIPS.md" in result.stdout


def test_a_listed_skip_passes_in_ci(tmp_path: Path) -> None:
    skips = TABLE + "| `tests/test_it.py::test_waits[*]` | no GPU in CI |\n"
    skips += "| `tests/test_it.py::test_gives_up` | no data in CI |\n"
    result = run_pytest(tmp_path, SKIPPING_TEST, ci="true", skips=skips)
    assert result.returncode == 0, result.stdout
    assert "1 passed, 3 skipped, 1 xfailed" in result.stdout


def test_a_skip_passes_on_a_developers_machine(tmp_path: Path) -> None:
    result = run_pytest(tmp_path, SKIPPING_TEST, ci="")
    assert result.returncode == 0, result.stdout


def test_a_row_needs_a_reason() -> None:
    assert listed_skips(TABLE + "| `tests/a.py::test` | |\n") == []
    assert listed_skips(TABLE + "| `tests/a.py::test` | why |\n") == ["tests/a.py::test"]


def test_brackets_are_literal() -> None:
    assert is_listed("tests/a.py::test[gqa]", ["tests/a.py::test[gqa]"])
    assert not is_listed("tests/a.py::testg", ["tests/a.py::test[gqa]"])


def test_files_that_skip_are_listed_and_listed_files_skip() -> None:
    """The table is complete on a machine where nothing happens to be skipped, and not stale."""
    listed = {pattern.partition("::")[0] for pattern in listed_skips(SKIPS.read_text())}
    skipping = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if _skips(path)
    }
    unlisted = {path for path in skipping if not is_listed(path, list(listed))}
    assert not unlisted, "these tests can skip: give each a row in tests/SKIPS.md"
    stale = {
        pattern for pattern in listed if not any(is_listed(path, [pattern]) for path in skipping)
    }
    assert not stale, "rows of tests/SKIPS.md whose file skips nothing"


def _skips(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in {
            "pytest.skip",
            "pytest.importorskip",
            "pytest.mark.skip",
            "pytest.mark.skipif",
        }:
            return True
        if isinstance(node, ast.arg) and node.arg == "shared_dir":
            return True
    return False
