"""The walk through docs/branch-life.md prints what it says."""

from __future__ import annotations

import doctest

from tests.conftest import ROOT


def test_the_life_of_a_branch() -> None:
    path = ROOT / "docs" / "branch-life.md"
    result = doctest.testfile(str(path), module_relative=False, encoding="utf-8")
    assert result.attempted > 40
    assert result.failed == 0
