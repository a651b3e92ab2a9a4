"""Run the test suites of tests/heavy.toml and end with pytest's own summary lines.

Called by scripts/test, which says how. A heavy suite that was green with the same inputs is not
run again: the stamp of a green run is an empty file named for a digest of the suite's inputs, in
$XDG_CACHE_HOME/evctl/green/SUITE/. A run in which a test was skipped leaves no stamp.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STAMPS_KEPT = 20
NO_TESTS = 5  # pytest's exit code
TIMED_OUT = 124


@dataclass(frozen=True)
class Suite:
    name: str
    args: list[str]
    timeout_s: float
    needs: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)

    @property
    def is_heavy(self) -> bool:
        return bool(self.inputs)


@dataclass(frozen=True)
class Result:
    name: str
    code: int
    wall_s: float
    summary: str  # pytest's last line, or why there is none


def read_suites(path: Path) -> list[Suite]:
    table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return [Suite(name=name, **entry) for name, entry in table.items()]


def digest(suite: Suite, root: Path) -> str:
    """Of everything that can change the suite's outcome: files, environment, CPU model."""
    hasher = hashlib.blake2b(digest_size=16)
    hasher.update(repr((suite, sys.version, cpu_model(), sorted(installed()))).encode())
    files = {path for pattern in suite.inputs for path in root.glob(pattern) if path.is_file()}
    # `**` as a last part matches folders only before Python 3.13.
    files |= {
        path
        for pattern in suite.inputs
        if pattern.endswith("/**")
        for path in root.glob(pattern + "/*")
        if path.is_file()
    }
    for path in sorted(files):
        if "__pycache__" not in path.parts:
            content = path.read_bytes()
            hasher.update(f"{path.relative_to(root)} {len(content)}\n".encode())
            hasher.update(content)
    return hasher.hexdigest()


def installed() -> Iterable[str]:
    return {f"{dist.name}=={dist.version}" for dist in importlib.metadata.distributions()}


def cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, flags=re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()


def stamp_folder(suite: Suite) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "evctl" / "green" / suite.name


def leave_stamp(suite: Suite, inputs_digest: str) -> None:
    folder = stamp_folder(suite)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / inputs_digest).touch()
    stamps = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in stamps[STAMPS_KEPT:]:
        old.unlink(missing_ok=True)


def run_pytest(name: str, args: list[str], timeout_s: float) -> Result:
    """pytest in a process group of its own, its output passed on line by line."""
    started_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *args],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    lines: list[str] = []
    reader = threading.Thread(target=_pass_on, args=(process, lines), daemon=True)
    reader.start()
    why = ""
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        code, why = TIMED_OUT, f"{name}: ended after {timeout_s:.0f} s"
    finally:
        # On any way out, an interrupt included, and also for what pytest left running.
        _kill_group(process)
    # Not for ever: a process in a session of its own may still hold the pipe open.
    reader.join(timeout=5)
    if code == NO_TESTS:
        why = f"{name}: no tests ran, which is an error"
    return Result(name, code, time.monotonic() - started_s, why or (lines or ["no output"])[-1])


def _pass_on(process: subprocess.Popen[str], lines: list[str]) -> None:
    assert process.stdout is not None
    with process.stdout as output:
        for line in output:
            sys.stdout.write(line)
            sys.stdout.flush()
            if line.strip():
                lines[:] = [line.strip()]


def _kill_group(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # nothing left of it
    process.wait()


def run_suite(suite: Suite, *, force: bool) -> Result:
    inputs_digest = digest(suite, ROOT)
    if suite.is_heavy and not force and (stamp_folder(suite) / inputs_digest).exists():
        return Result(suite.name, 0, 0.0, "")
    print(f"\n== {suite.name}", flush=True)
    for command in suite.needs:
        code = subprocess.run(command.split(), cwd=ROOT, check=False).returncode
        if code != 0:
            return Result(suite.name, code, 0.0, f"{suite.name}: `{command}` failed")
    result = run_pytest(suite.name, suite.args, suite.timeout_s)
    if suite.is_heavy and result.code == 0 and "skipped" not in result.summary:
        leave_stamp(suite, inputs_digest)
    return result


def run_suites(suites: list[Suite], *, force: bool) -> list[Result]:
    results = []
    for suite in suites:
        results.append(run_suite(suite, force=force))
        # The heavy suites say nothing new while the fast tests fail.
        if results[-1].code != 0 and not suite.is_heavy:
            break
    return results


def report(stages: list[str], results: list[Result]) -> None:
    """Times first: the output ends with pytest's summaries, a failed suite's last of all."""
    print("\nstage times")
    for name, _, wall_s in (stage.partition("=") for stage in stages):
        print(f"  {name:<8} {float(wall_s):6.0f} s")
    for result in results:
        note = "" if result.summary else "  green with the same inputs, not run again"
        print(f"  {result.name:<8} {result.wall_s:6.0f} s{note}")
    for result in sorted(results, key=lambda result: result.code != 0):
        if result.summary:
            print(result.summary)


def main(argv: list[str]) -> int:
    ours, separator = argv, False
    theirs: list[str] = []
    if "--" in argv:
        cut = argv.index("--")
        ours, separator, theirs = argv[:cut], True, argv[cut + 1 :]
    parser = argparse.ArgumentParser(prog="scripts/test")
    parser.add_argument("--fast", action="store_true", help="the fast tests only")
    parser.add_argument("--system", action="store_true", help="the heavy suites only")
    parser.add_argument("--all", action="store_true", help="heavy suites whatever changed")
    parser.add_argument("--stage", action="append", default=[], help=argparse.SUPPRESS)
    options = parser.parse_args(ours)
    if separator:
        results = [run_pytest("pytest", theirs, timeout_s=3600)]
    else:
        suites = [
            suite
            for suite in read_suites(ROOT / "tests" / "heavy.toml")
            if not (options.fast and suite.is_heavy)
            and not (options.system and not suite.is_heavy)
        ]
        results = run_suites(suites, force=options.all)
    report(options.stage, results)
    return next((result.code for result in results if result.code != 0), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
