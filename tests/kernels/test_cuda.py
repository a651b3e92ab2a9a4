"""The CUDA variant: compiled by nvcc where there is one, and run on this host by any C++."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from evkernels.cuda_build import ARCHES, SOURCE, find_nvcc, main
from tests.conftest import ROOT

HERE = Path(__file__).resolve().parent


@pytest.mark.skipif(find_nvcc(os.environ) is None, reason="no nvcc")
@pytest.mark.slow
def test_nvcc_compiles_every_kernel_without_a_warning_or_a_spill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--out", str(tmp_path / "lib.so")]) == 0
    assert (tmp_path / "lib.so").read_bytes()[:4] == b"\x7fELF"
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:-1]]
    assert {row[0] for row in rows} == set(ARCHES)
    for kernel in ("copy_blocks", "broadcast", "kib_sums", "digests"):
        assert {row[0] for row in rows if kernel in row[3]} == set(ARCHES)
    assert {row[2] for row in rows} == {"0"}


@pytest.mark.parametrize("variable", ["CUDA_HOME", "PATH"])
def test_without_nvcc_it_says_so(
    variable: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    assert main([]) == 2
    shown = capsys.readouterr()
    where = f"{tmp_path}/bin" if variable == "CUDA_HOME" else "PATH"
    assert f"no nvcc in {where}; install the CUDA toolkit" in shown.err
    assert shown.out == ""


def test_a_failed_compilation_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.write_text("#!/bin/sh\necho the reason >&2\nexit 3\n", encoding="utf-8")
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert main([]) == 1
    shown = capsys.readouterr()
    assert ("the reason" in shown.err, shown.out) == (True, "")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_on_a_host_the_kernels_equal_torch(tmp_path: Path) -> None:
    library = tmp_path / "kernels.so"
    strict = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
    # A GPU refuses what is not aligned; x86 does not, so the compiler adds the check.
    checked = ["-fsanitize=alignment,shift", "-fsanitize-undefined-trap-on-error"]
    shape = ["-shared", "-fPIC", f"-I{HERE / 'cuda_host'}", f"-I{SOURCE.parent}", "-x", "c++"]
    subprocess.run(
        ["g++", *strict, *checked, *shape, str(SOURCE), "-o", str(library)], check=True, timeout=60
    )
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.cuda_on_host", str(library)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    assert done.stdout.split() == ["gather_and_scatter", "broadcast", "checksum"]
