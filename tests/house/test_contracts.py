"""The import contracts hold, and each of them bites when it is broken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

# Each case is a module written into a copy of the tree, what it imports, and the words that
# import-linter must answer with. Rooms that do not exist yet are made by the copy.
BREAKS = [
    ("evctl/core/x_break.py", "evctl.wire", "no arrow from evctl.core to evctl.wire"),
    ("evctl/core/x_clock.py", "time", "denied in evctl.core"),
    ("evctl/core/x_numpy.py", "numpy", "evctl.core may import msgspec"),
    ("evctl/wire/x_break.py", "evctl.policy", "no arrow from evctl.wire to evctl.policy"),
    ("evctl/policy/x_dice.py", "random", "denied in evctl.policy"),
    ("evctl/policy/x_scipy.py", "scipy", "evctl.policy may import msgspec, numpy"),
    ("evctl/policy/x_break.py", "evctl.control", "no arrow from evctl.policy to evctl.control"),
    ("evctl/config/x_break.py", "evctl.client", "no arrow from evctl.config to evctl.client"),
    ("evctl/control/x_break.py", "evctl.gateway", "no arrow from evctl.control to evctl.gateway"),
    ("evctl/gateway/x_break.py", "evctl.serve", "no arrow from evctl.gateway to evctl.serve"),
    ("evctl/sim/x_break.py", "evctl.control", "no arrow from evctl.sim to evctl.control"),
    ("evctl/sim/x_trace.py", "evctl.trace.driver", "no arrow from evctl.sim to evctl.trace"),
    ("evctl/trace/x_break.py", "evctl.sim", "no arrow from evctl.trace to evctl.sim"),
    ("evctl/client/x_break.py", "evctl.control", "no arrow from evctl.client to evctl.control"),
    ("evctl/provision/x_break.py", "evctl.client", "no arrow from evctl.provision to"),
    ("evctl/bench/exact/x_wire.py", "evctl.wire", "no arrow from evctl.bench to evctl.wire"),
    ("evctl/bench/x_break.py", "evctl.provision", "no arrow from evctl.bench to evctl.provision"),
    ("evctl/cli/x_break.py", "evctl.policy", "no arrow from evctl.cli to evctl.policy"),
    ("evctl/cli/x_serve.py", "evctl.serve", "no arrow from evctl.cli to evctl.serve"),
    ("evctl/cli/x_ssh.py", "paramiko", "only evctl.provision may"),
    ("evctl/tui/x_break.py", "evctl.sim", "no arrow from evctl.tui to evctl.sim"),
    ("evctl/client/x_tui.py", "textual", "only evctl.tui may"),
    ("evctl/control/x_engine.py", "evengine", "no arrow from evctl.control to evengine"),
    ("evctl/control/x_torch.py", "torch", "only evengine, evkernels may"),
    ("evctl/x_room.py", "json", "evctl.x_room: lies in no room"),
    ("engine/evengine/x_policy.py", "evctl.policy.planner", "no arrow from evengine to"),
    ("engine/evengine/x_config.py", "evctl.config", "no arrow from evengine to evctl.config"),
    ("kernels/evkernels/x_break.py", "evctl.core", "no arrow from evkernels to evctl.core"),
    ("kernels/evkernels/x_numpy.py", "numpy", "evkernels may import torch, triton"),
]


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    paths = [str(tree), str(tree / "engine"), str(tree / "kernels")]
    command = "import sys; from importlinter.cli import lint_imports_command as c; c()"
    return subprocess.run(
        [sys.executable, "-c", command, "--no-cache"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def copy_tree(to: Path) -> None:
    skip = shutil.ignore_patterns("__pycache__")
    for name in ("evctl", "engine", "kernels", "scripts"):
        shutil.copytree(ROOT / name, to / name, ignore=skip)
    shutil.copy(ROOT / "pyproject.toml", to)


def write_module(path: Path, source: str) -> None:
    """The module, and an __init__ for each package above it that has none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "__init__.py").touch()
    path.write_text(source)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """lint-imports over a copy with every break at once."""
    tree = tmp_path_factory.mktemp("broken")
    copy_tree(tree)
    for target in ("evctl/policy/planner.py", "evctl/trace/driver.py", "evctl/serve.py"):
        if not (tree / target).exists():
            write_module(tree / target, "")
    for path, imported, _ in BREAKS:
        write_module(tree / path, f"import {imported}\n")
    return lint_imports(tree)


def test_contracts_hold() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(("path", "imported", "said"), BREAKS)
def test_a_break_is_found(
    broken: subprocess.CompletedProcess[str], path: str, imported: str, said: str
) -> None:
    assert broken.returncode == 1, broken.stdout + broken.stderr
    importer = ".".join(Path(path).with_suffix("").parts).removeprefix("engine.")
    importer = importer.removeprefix("kernels.")
    lines = [line for line in broken.stdout.splitlines() if line.startswith(f"- {importer}")]
    assert any(said in line for line in lines), (imported, lines, broken.stderr)


def test_an_indirect_way_to_torch_is_found(tmp_path: Path) -> None:
    copy_tree(tmp_path)
    write_module(tmp_path / "evctl/wire/x_engine.py", "import evengine\n")
    result = lint_imports(tmp_path)
    assert result.returncode == 1
    assert "evctl is not allowed to import evengine" in result.stdout
