"""What every test needs: the rule about skips, and the folder of shared data.

Skips: a skipped test is a test that nobody runs. Under CI=true a skip fails the run unless
tests/SKIPS.md lists the test with its reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.netns import pytest_collection_modifyitems

__all__ = ["pytest_collection_modifyitems"]

# Before any test imports torch, and for the processes that tests start: threads of several test
# workers on the same cores cost several times what they gain.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent
SKIPS = Path(__file__).resolve().parent / "SKIPS.md"


def listed_skips(text: str) -> list[str]:
    """Test id patterns of the table: first cells of its rows, in backticks; `*` is a wildcard."""
    return re.findall(r"^\|\s*`([^`]+)`\s*\|\s*[^\s|]", text, flags=re.MULTILINE)


def is_listed(node_id: str, patterns: list[str]) -> bool:
    # Not fnmatch: ids hold [brackets].
    return any(
        re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), node_id) for pattern in patterns
    )


def _unlisted_in_ci(node_id: str) -> bool:
    if os.environ.get("CI") != "true":
        return False
    patterns = listed_skips(SKIPS.read_text(encoding="utf-8")) if SKIPS.exists() else []
    return not is_listed(node_id, patterns)


def _fail_instead(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid}: skipped under CI and not in tests/SKIPS.md: {reason}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    is_xfail = hasattr(report, "wasxfail")
    if report.skipped and not is_xfail and _unlisted_in_ci(item.nodeid):
        _fail_instead(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    # A module that skips itself as a whole (importorskip) never reaches makereport.
    report = yield
    if report.skipped and _unlisted_in_ci(collector.nodeid):
        _fail_instead(report)
    return report


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Data that developers and CI have beside the checkout and product code never reads.

    EVCTL_SHARED names it; the default is ../shared. Small slices belong in tests/data instead.
    """
    path = Path(os.environ.get("EVCTL_SHARED") or ROOT.parent / "shared")
    if not path.is_dir():
        pytest.skip(f"no shared data at {path}; set EVCTL_SHARED")
    return path
