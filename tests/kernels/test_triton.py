"""The Triton kernels without a GPU: interpreted, equal to torch's; compiled, for GPUs we want."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from evkernels import aot, blocks
from tests.conftest import ROOT

pytest.importorskip("triton", reason="no Triton; scripts/setup installs it on Linux x86-64")

WIDE_LOAD, WIDE_STORE = "ld.global.v2.b64", "st.global.v2.b64"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=110,
    )


@pytest.mark.slow
def test_interpreted_kernels_equal_torch() -> None:
    names = ["gather", "scatter", "broadcast", "checksum", "far", "units"]
    done = run("-m", "tests.kernels.interpreted", *names, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == names


class Built:
    """What one run of evkernels.aot said and wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done = run(
            "-m", "evkernels.aot", "--out", str(folder), TRITON_CACHE_DIR=f"{folder}/c"
        )
        self.rows = [line.split() for line in self.done.stdout.splitlines()[1:]]

    def ptx(self, name: str, arch: str) -> str:
        return (self.folder / f"{name}.{arch}.ptx").read_text("utf-8")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(tmp_path_factory.mktemp("aot"))


@pytest.mark.slow
def test_every_kernel_compiles_for_both_architectures(built: Built) -> None:
    assert built.done.returncode == 0, built.done.stderr
    by_arch = {arch: {row[0] for row in built.rows if row[1] == arch} for arch in _arches()}
    assert by_arch["sm_100"] == by_arch["sm_103"]
    kernels = {name.rpartition("_")[0] for name in by_arch["sm_100"]}
    assert kernels == {"gather", "scatter", "broadcast", "kib_sums", "digest"}
    for name, arch, size, registers in built.rows:
        cubin = (built.folder / f"{name}.{arch}.cubin").read_bytes()
        assert cubin[:4] == b"\x7fELF"
        assert len(cubin) == int(size)
        assert 0 < int(registers) <= 128
        assert re.search(rf"^\.target {arch}a\b", built.ptx(name, arch), flags=re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "accesses"),
    [
        ("gather_head", (WIDE_LOAD, WIDE_STORE)),
        ("gather_latent", (WIDE_LOAD, WIDE_STORE)),
        ("scatter_head", (WIDE_LOAD, WIDE_STORE)),
        ("scatter_latent", (WIDE_LOAD, WIDE_STORE)),
        ("broadcast_i64", (WIDE_LOAD, WIDE_STORE)),
        ("kib_sums_aligned", (WIDE_LOAD,)),
    ],
)
def test_kv_moves_sixteen_bytes_at_a_time(
    built: Built, name: str, accesses: tuple[str, ...]
) -> None:
    for arch in _arches():
        assert all(access in built.ptx(name, arch) for access in accesses)


def test_aot_says_what_it_cannot_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert aot.main(["--arch", "hopper"]) == 2
    assert "'hopper' is no architecture" in capsys.readouterr().err
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert aot.main([]) == 2
    assert "unset it" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "triton", None)
    assert aot.main([]) == 2
    shown = capsys.readouterr()
    assert (shown.out, "Triton is not installed" in shown.err) == ("", True)


def test_triton_is_loaded_by_cuda_tensors_alone() -> None:
    done = run(
        "-c",
        "import sys, torch, evkernels as e\n"
        "pool, staging, copy = (torch.zeros(shape) for shape in"
        " ((4, 1, 1, 99), (1, 4, 1, 1, 99), (1, 4, 1, 1, 99)))\n"
        "e.gather_blocks(pool, torch.tensor([0]), staging)\n"
        "e.scatter_blocks(pool, torch.tensor([0]), staging)\n"
        "e.broadcast_bytes(staging, e.pointer_table([copy]))\n"
        "e.checksum_blocks(staging)\n"
        "print('triton' in sys.modules)",
    )
    assert done.stdout.split() == ["False"], done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("is_layer_major", [False, True])
def test_a_gpu_computes_what_the_cpu_does(is_layer_major: bool) -> None:
    pool = torch.randn(8 * 16, 3, 2, 128).to(torch.bfloat16)
    staging, slots = torch.zeros(2, 16, 3, 2, 256, dtype=torch.bfloat16), torch.tensor([5, 0])
    on_gpu = pool.cuda()
    if is_layer_major:
        on_gpu = blocks.layer_major(on_gpu.permute(1, 2, 0, 3).contiguous())
    found = blocks.gather_blocks(on_gpu, slots.cuda(), staging.cuda(), row_offset=128)
    blocks.gather_blocks(pool, slots, staging, row_offset=128)
    assert torch.equal(found.cpu(), staging)
    sums = blocks.checksum_blocks(staging)
    assert torch.equal(blocks.checksum_blocks(found).cpu(), sums)
    copies = [torch.zeros_like(found) for _ in range(2)]
    blocks.broadcast_bytes(found, blocks.pointer_table(copies))
    assert all(torch.equal(copy, found) for copy in copies)
    on_gpu.zero_()
    blocks.scatter_blocks(on_gpu, slots.cuda(), found, row_offset=128)
    assert torch.equal(on_gpu.cpu()[5 * 16 : 6 * 16], pool[5 * 16 : 6 * 16])


def _arches() -> tuple[str, str]:
    return "sm_100", "sm_103"
