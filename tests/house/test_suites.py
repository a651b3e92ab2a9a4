"""scripts/run_suites.py: what it runs, what it leaves out, and how its output ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import run_suites
from scripts.run_suites import Suite, digest, main, read_suites, run_suite
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

Write = Callable[[str], None]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    monkeypatch.setattr(run_suites, "ROOT", tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # starts in half the time
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def write_test(tree: Path) -> Write:
    return lambda source: (tree / "tests" / "test_it.py").write_text(source) and None


HEAVY = Suite(name="slow", args=["-q"], timeout_s=60, inputs=["tests/**"])
PASSES = "def test_it():\n    pass\n"


def was_run(suite: Suite, *, force: bool = False) -> bool:
    return run_suite(suite, force=force).summary != ""


def test_a_green_heavy_suite_runs_again_only_when_an_input_changes(write_test: Write) -> None:
    write_test(PASSES)
    assert was_run(HEAVY)
    assert not was_run(HEAVY)
    assert was_run(HEAVY, force=True)
    write_test(PASSES + "\n")
    assert was_run(HEAVY)
    write_test(PASSES)
    assert not was_run(HEAVY), "green before with this content"


def test_a_failed_or_partly_skipped_run_leaves_no_stamp(write_test: Write) -> None:
    for source in (
        "def test_it():\n    assert False\n",
        PASSES + "import pytest\ndef test_more():\n    pytest.skip('no')\n",
    ):
        write_test(source)
        assert was_run(HEAVY)
        assert was_run(HEAVY)


def test_no_tests_is_an_error(write_test: Write) -> None:
    write_test("")
    result = run_suite(HEAVY, force=False)
    assert result.code == 5
    assert "no tests ran, which is an error" in result.summary


def test_a_suite_that_hangs_is_ended(write_test: Write) -> None:
    write_test("import time\ndef test_it():\n    time.sleep(60)\n")
    result = run_suite(Suite(name="stuck", args=["-q"], timeout_s=2), force=False)
    assert result.code != 0
    assert result.wall_s < 30
    assert result.summary == "stuck: ended after 2 s"


def test_a_failing_need_fails_the_suite(write_test: Write) -> None:
    write_test(PASSES)
    result = run_suite(Suite(name="s", args=[], timeout_s=60, needs=["false"]), force=False)
    assert result.code == 1
    assert "`false` failed" in result.summary


def test_output_ends_with_pytests_summaries(
    tree: Path, write_test: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write_test(PASSES + "import pytest\n@pytest.mark.big\ndef test_big():\n    assert False\n")
    (tree / "pytest.ini").write_text("[pytest]\nmarkers =\n    big: b\n    none: n\n")
    (tree / "tests" / "heavy.toml").write_text(
        '[fast]\nargs = ["-m", "not big"]\ntimeout_s = 60\n'
        '[big]\nargs = ["-m", "big"]\ntimeout_s = 60\ninputs = ["tests/**"]\n'
    )
    assert main(["--stage", "setup=3"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "1 passed, 1 deselected" in lines[-2]
    assert "1 failed, 1 deselected" in lines[-1]
    assert any(line.split() == ["setup", "3", "s"] for line in lines)
    assert main(["--fast"]) == 0
    assert main(["--system"]) == 1
    assert main(["--", "tests", "-m", "not big"]) == 0


def test_the_digest_covers_files_at_every_depth(tree: Path) -> None:
    seen = {digest(HEAVY, tree)}
    for name in ("tests/a.py", "tests/deep/er/b.toml"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("1")
        seen.add(digest(HEAVY, tree))
    (tree / "elsewhere.py").write_text("1")
    seen.add(digest(HEAVY, tree))
    assert len(seen) == 3


def test_our_suites_are_well_formed() -> None:
    suites = read_suites(ROOT / "tests" / "heavy.toml")
    assert [suite.name for suite in suites if not suite.is_heavy] == ["fast"]
    for suite in suites:
        for pattern in suite.inputs:
            folder = pattern.removesuffix("/**")
            assert "policy" in folder or (ROOT / folder).exists(), f"stale input {pattern}"
