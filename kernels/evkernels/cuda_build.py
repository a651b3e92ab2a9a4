"""`python -m evkernels.cuda_build`: the CUDA variant of the kernels, compiled with nvcc.

    python -m evkernels.cuda_build --out build/libkv_blocks.so

Takes nvcc from CUDA_HOME, else from PATH. Any warning is an error. The result is a shared library
with the functions of cuda/kv_blocks.cu for sm_100a and sm_103a; the engine does not load it: it
is for a runtime where Triton cannot be.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "cuda" / "kv_blocks.cu"
ARCHES = ("sm_100a", "sm_103a")
USAGE = re.compile(
    r"Compiling entry function '(\w+)' for '(\w+)'"
    r".*?(\d+) bytes spill stores.*?Used (\d+) registers",
    flags=re.DOTALL,
)
"""What ptxas says of each kernel."""
EXIT_FAILED = 1
EXIT_MISSING = 2
"""No nvcc."""


def find_nvcc(environment: Mapping[str, str]) -> Path | None:
    """nvcc of CUDA_HOME if that is set, else of PATH."""
    if home := environment.get("CUDA_HOME"):
        path = Path(home) / "bin" / "nvcc"
        return path if os.access(path, os.X_OK) else None
    found = shutil.which("nvcc", path=environment.get("PATH", ""))
    return Path(found) if found else None


def command(nvcc: Path, out: Path, arches: Sequence[str]) -> list[str]:
    codes = [f"-gencode=arch={arch.replace('sm_', 'compute_')},code={arch}" for arch in arches]
    strict = ["-Werror", "all-warnings", "-Xcompiler=-Wall,-Wextra,-Werror"]
    usage = ["--resource-usage"]
    library = ["-shared", "-Xcompiler=-fPIC", "-o", str(out)]
    return [str(nvcc), "-std=c++17", "-O3", *strict, *usage, *codes, *library, str(SOURCE)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m evkernels.cuda_build", description="see module"
    )
    parser.add_argument("--arch", action="append", help=f"default: {' and '.join(ARCHES)}")
    parser.add_argument("--out", type=Path, help="the library; by default it is thrown away")
    options = parser.parse_args(arguments)
    nvcc = find_nvcc(os.environ)
    if nvcc is None:
        where = f"{os.environ['CUDA_HOME']}/bin" if os.environ.get("CUDA_HOME") else "PATH"
        _say(f"no nvcc in {where}; install the CUDA toolkit (13.0 or later), or set CUDA_HOME")
        return EXIT_MISSING
    with tempfile.TemporaryDirectory() as folder:
        out = options.out or Path(folder) / "libkv_blocks.so"
        out.parent.mkdir(parents=True, exist_ok=True)
        return _compile(command(nvcc, out, options.arch or ARCHES), out)


def _compile(line: Sequence[str], out: Path) -> int:
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    shown = done.stdout + done.stderr
    if done.returncode:
        sys.stderr.write(shown)
        _say(f"nvcc failed with {done.returncode}")
        return EXIT_FAILED
    print(f"{'arch':8} {'registers':>9} {'spilled bytes':>13} kernel (mangled)")
    for kernel, arch, spilled, registers in USAGE.findall(shown):
        print(f"{arch:8} {registers:>9} {spilled:>13} {kernel}")
    print(f"{out.name}: {out.stat().st_size} bytes")
    return 0


def _say(text: str) -> None:
    print(f"evkernels.cuda_build: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
