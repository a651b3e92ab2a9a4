"""House rules that no linter checks: file length, names that say nothing, links that lead on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT

MAX_LINES = 450
SOURCE_DIRS = ("evctl", "engine", "kernels", "scripts", "tests")
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "manager", "managers", "common", "misc"}


def python_files() -> Iterator[Path]:
    for name in SOURCE_DIRS:
        yield from (ROOT / name).rglob("*.py")


def test_no_file_is_longer_than_the_cap() -> None:
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in python_files()
    }
    assert len(lengths) > 10, "looked in the wrong place"
    too_long = {path: lines for path, lines in lengths.items() if lines > MAX_LINES}
    assert not too_long, f"over {MAX_LINES} lines: split by noun"


def test_no_module_has_a_name_that_says_nothing() -> None:
    named = [
        path.relative_to(ROOT).as_posix()
        for path in python_files()
        if EMPTY_NAMES & {path.stem, *path.relative_to(ROOT).parent.parts}
    ]
    assert not named, "name a module for what it holds"


def test_links_between_documents_lead_somewhere() -> None:
    documents = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "tests").glob("*.md"),
        *(ROOT / "playbooks").glob("*.md"),
        *(ROOT / "clusters").glob("*.md"),
    ]
    dead = [
        f"{document.relative_to(ROOT)} -> {target}"
        for document in documents
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text("utf-8"))
        if not (document.parent / target).exists()
    ]
    assert not dead
