"""`python -m evkernels.aot`: every Triton kernel compiled to machine code, without a GPU.

    python -m evkernels.aot --arch sm_100 --arch sm_103 --out build/

Lists bytes and registers of each. With --out, writes NAME.sm_XXX.cubin and NAME.sm_XXX.ptx. What
it proves: that the kernels compile for these GPUs with the ptxas that Triton brings. Engines
compile at first use, for the shapes they have; the variants here are of common ones.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ARCHES = ("sm_100", "sm_103")
EXIT_MISSING = 2
"""No Triton, or one that does not know the architecture."""


class Variant(NamedTuple):
    """One specialisation of one kernel.

    types: of the arguments that are no constants, in order. multiples: names of arguments known
    to be multiples of 16: addresses in bytes, counts in units.
    """

    name: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    multiples: frozenset[str]
    warps: int = 4


class Compiled(NamedTuple):
    name: str
    arch: str
    ptx: str
    cubin: bytes
    registers: int | None  # None where Triton's cuobjdump could not tell


def variants() -> Iterator[Variant]:
    """Pools of bf16: heads of 128 elements (1, 4 of them) and a latent of 576; and odd rows."""
    from evkernels import triton_blocks, triton_xxh3

    for kernel in (triton_blocks.gather_kernel, triton_blocks.scatter_kernel):
        yield _block_copy(kernel, "head", "i64", 32, {})
        yield _block_copy(kernel, "heads4", "i64", 128, {})
        yield _block_copy(kernel, "latent", "i64", 144, {"planes": 1})
        # As each launch does, arguments of 1 are compiled in: here all that can be.
        ones = dict.fromkeys(("block_tokens", "n_layers", "planes", "tiles"), 1)
        yield _block_copy(kernel, "bytes", "u8", 250, ones)
    yield _broadcast("i64")
    yield _broadcast("u8")
    for label, aligned in (("aligned", True), ("bytes", False)):
        constants = {"KIBS": triton_xxh3.KIBS, "ALIGNED": aligned}
        multiples = {"data", "block_bytes"} if aligned else set()
        yield _checksum(triton_xxh3.kib_sums_kernel, label, constants, multiples)
    yield _checksum(triton_xxh3.digest_kernel, "warp", {}, set())._replace(warps=1)


def _block_copy(
    kernel: Any, label: str, unit: str, row_units: int, ones: dict[str, int]
) -> Variant:
    from evkernels import triton_blocks

    columns = triton_blocks.columns_for(row_units)
    constants = ones | {
        "COLUMNS": columns,
        "TILE": triton_blocks.TILE_UNITS // columns,
        "EVEN": row_units % columns == 0,
    }
    pointers = {"pool": f"*{unit}", "slots": "*i64", "staging": f"*{unit}"}
    strides = ("token_stride", "layer_stride", "plane_stride")
    types = pointers | dict.fromkeys(strides, "i64")
    wide = {"row_units", "width_units", "offset_units", *strides} if unit == "i64" else set()
    return _variant(kernel, label, types, constants, {*pointers, *wide})


def _broadcast(unit: str) -> Variant:
    from evkernels import triton_blocks

    types = {"source": f"*{unit}", "table": "*i64", "n_units": "i64"}
    constants = {"TILE": triton_blocks.BROADCAST_UNITS}
    multiples = {"source"}
    # What a launch finds out about n_units: whole are multiples of WIDE_BYTES.
    if unit == "i64" and triton_blocks.WIDE_BYTES // 8 % 16 == 0:
        multiples.add("n_units")
    return _variant(triton_blocks.broadcast_kernel, unit, types, constants, multiples)


def _checksum(kernel: Any, label: str, constants: dict[str, Any], multiples: set[str]) -> Variant:
    tables = dict.fromkeys(("lengths", "keys", "sums", "digests"), "*i64")
    types = {"data": "*u8", "block_bytes": "i64"} | tables
    return _variant(kernel, label, types, constants, {*tables, *multiples})


def _variant(
    kernel: Any, label: str, types: dict[str, str], constants: dict[str, Any], multiples: set[str]
) -> Variant:
    """types: of arguments that are no 32-bit integers."""
    names = [name for name in kernel.arg_names if name not in constants]
    return Variant(
        name=f"{kernel.fn.__name__.removesuffix('_kernel')}_{label}",
        kernel=kernel,
        types={name: types.get(name, "i32") for name in names},
        constants=constants,
        multiples=frozenset(multiples.intersection(names)),
    )


def compile_variant(variant: Variant, arch: str) -> Compiled:
    """Raises what Triton raises: PTXASError where its ptxas does not know the architecture."""
    import triton
    from triton.backends.compiler import GPUTarget

    names = variant.kernel.arg_names
    source = triton.compiler.ASTSource(
        fn=variant.kernel,
        signature={name: variant.types.get(name, "constexpr") for name in names},
        constexprs=variant.constants,
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in variant.multiples},
    )
    target = GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    built = triton.compile(source, target=target, options={"num_warps": variant.warps})
    cubin = built.asm["cubin"]
    return Compiled(variant.name, arch, built.asm["ptx"], cubin, registers_of(cubin))


def registers_of(cubin: bytes) -> int | None:
    """Registers a thread, as the cuobjdump that Triton brings reads them."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        shown = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"REG:(\d+)", shown.stdout)
    return int(found[1]) if found else None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m evkernels.aot", description="see the module")
    parser.add_argument("--arch", action="append", help=f"default: {' and '.join(ARCHES)}")
    parser.add_argument("--out", type=Path, help="folder for cubin and PTX files")
    options = parser.parse_args(arguments)
    if fault := _unready(options.arch or ARCHES):
        print(f"evkernels.aot: {fault}", file=sys.stderr)
        return EXIT_MISSING
    print(f"{'kernel':24} {'arch':8} {'cubin bytes':>11} {'registers':>9}")
    for arch in options.arch or ARCHES:
        for variant in variants():
            built = compile_variant(variant, arch)
            registers = "-" if built.registers is None else built.registers
            print(f"{built.name:24} {arch:8} {len(built.cubin):11} {registers:>9}")
            if options.out:
                _write(options.out, built)
    return 0


def _unready(arches: Sequence[str]) -> str | None:
    wrong = [arch for arch in arches if not re.fullmatch(r"sm_\d+", arch)]
    if wrong:
        return f"{wrong[0]!r} is no architecture; write sm_100"
    try:
        from triton import knobs
    except ModuleNotFoundError:
        return "Triton is not installed; it comes with the extra [dev] on Linux x86-64"
    if knobs.runtime.interpret:
        return "TRITON_INTERPRET is set, so kernels are not compiled; unset it"
    return None


def _write(folder: Path, built: Compiled) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{built.name}.{built.arch}"
    (folder / f"{stem}.cubin").write_bytes(built.cubin)
    (folder / f"{stem}.ptx").write_text(built.ptx, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
