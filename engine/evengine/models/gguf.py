"""A small reader of GGUF version 3 files: metadata, tensor table, dequantisation.

Nothing in the file is trusted. Every length is compared with the bytes that are left before
anything is allocated, tensors may neither leave the file nor overlap, so the memory used is
bounded by a small multiple of the file's size. Whatever is wrong raises EvctlError: EV-2104
for a malformed file, EV-2105 for a feature that is not supported.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from evctl.core.errors import EvctlError, IntegrityError
from evengine.models.dequant import QUANT_KINDS, QuantKind, dequantise
from evengine.models.layout import Floats

MAGIC = b"GGUF"
VERSION = 3
MAX_NAME_BYTES = 65_535
MAX_STRING_BYTES = 1 << 24
MAX_DIMS = 4
DEFAULT_ALIGNMENT_BYTES = 32
MAX_ALIGNMENT_BYTES = 1 << 20
# The least a metadata entry (empty key, type, one byte) and a tensor entry can take.
MIN_METADATA_ENTRY_BYTES = 8 + 4 + 1
MIN_TENSOR_ENTRY_BYTES = 8 + 4 + 8 + 4 + 8

SCALAR_DTYPES: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
BOOL_TYPE = 7
STRING_TYPE = 8
ARRAY_TYPE = 9


@dataclass(frozen=True)
class GgufTensor:
    """One entry of the tensor table; shape is in numpy order (a linear is [out, in])."""

    name: str
    shape: tuple[int, ...]
    quant: QuantKind
    offset_bytes: int
    n_bytes: int


class GgufFile:
    """An open GGUF file. Use as a context manager.

    metadata: key -> int, float, bool, str, list of str, or a numpy array of numbers.
    tensors: name -> place in the file. Raises EvctlError from the constructor and `read`.
    """

    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise malformed(path, f"it cannot be opened ({error.strerror})") from error
        try:
            self._parse()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def read(self, name: str) -> Floats:
        """A tensor as float32, in numpy order."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise malformed(self.path, f"tensor {name!r} is missing")
        self._file.seek(tensor.offset_bytes)
        raw = self._file.read(tensor.n_bytes)
        if len(raw) != tensor.n_bytes:
            raise malformed(self.path, f"it ends inside tensor {name!r}")
        return dequantise(tensor.quant, raw).reshape(tensor.shape)

    def _parse(self) -> None:
        size_bytes = os.fstat(self._file.fileno()).st_size
        cursor = _Cursor(self.path, self._file, size_bytes)
        if cursor.take(4) != MAGIC:
            raise malformed(self.path, "it does not begin with GGUF")
        version = cursor.integer("<I")
        if version != VERSION:
            raise unsupported(self.path, f"version {version} (or another byte order)")
        n_tensors = cursor.count(MIN_TENSOR_ENTRY_BYTES, cursor.integer("<Q"), "tensors")
        n_entries = cursor.count(
            MIN_METADATA_ENTRY_BYTES, cursor.integer("<Q"), "metadata entries"
        )
        metadata = _read_metadata(cursor, n_entries)
        alignment = _alignment(self.path, metadata)
        table = [_read_tensor_entry(cursor) for _ in range(n_tensors)]
        data_start = -(-cursor.position // alignment) * alignment
        self.metadata = MappingProxyType(metadata)
        self.tensors = MappingProxyType(
            _place_tensors(self.path, table, data_start, alignment, size_bytes)
        )


class _Cursor:
    """Reads forward through the header and never past the end of the file."""

    def __init__(self, path: Path, file: BinaryIO, size_bytes: int) -> None:
        self.path = path
        self.position = 0
        self._file = file
        self._size_bytes = size_bytes

    def take(self, n_bytes: int) -> bytes:
        if n_bytes > self._size_bytes - self.position:
            raise malformed(
                self.path, f"it ends at byte {self._size_bytes}, inside a field of {n_bytes} bytes"
            )
        data = self._file.read(n_bytes)
        if len(data) != n_bytes:
            raise malformed(self.path, "it became shorter while it was read")
        self.position += n_bytes
        return data

    def integer(self, layout: str) -> int:
        value: int = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return value

    def count(self, least_bytes: int, claimed: int, what: str) -> int:
        """A number of items, refused if they cannot fit in what is left of the file."""
        if claimed * least_bytes > self._size_bytes - self.position:
            raise malformed(self.path, f"it claims {claimed} {what}, more than it can hold")
        return claimed

    def string(self, max_bytes: int = MAX_STRING_BYTES) -> str:
        n_bytes = self.integer("<Q")
        if n_bytes > max_bytes:
            raise malformed(self.path, f"a string of {n_bytes} bytes (at most {max_bytes})")
        try:
            return self.take(n_bytes).decode("utf-8")
        except UnicodeDecodeError as error:
            raise malformed(self.path, "a string is not UTF-8") from error

    def value(self) -> Any:
        kind = self.integer("<I")
        if kind == STRING_TYPE:
            return self.string()
        if kind == ARRAY_TYPE:
            return self._array()
        return self._numbers(kind, 1)[0].item()

    def _array(self) -> Any:
        kind, claimed = self.integer("<I"), self.integer("<Q")
        if kind == ARRAY_TYPE:
            raise unsupported(self.path, "arrays of arrays")
        if kind == STRING_TYPE:
            return [self.string() for _ in range(self.count(8, claimed, "strings"))]
        return self._numbers(kind, claimed)

    def _numbers(self, kind: int, claimed: int) -> np.ndarray[Any, Any]:
        dtype = SCALAR_DTYPES.get(kind)
        if dtype is None:
            raise unsupported(self.path, f"metadata type {kind}")
        raw = self.take(self.count(dtype.itemsize, claimed, "numbers") * dtype.itemsize)
        if kind == BOOL_TYPE:  # any other byte than 0 and 1 would be an invalid bool
            return np.frombuffer(raw, np.uint8).astype(np.bool_)
        return np.frombuffer(raw, dtype)


@dataclass(frozen=True)
class _TensorEntry:
    name: str
    shape: tuple[int, ...]
    quant: QuantKind
    relative_bytes: int


def _read_metadata(cursor: _Cursor, n_entries: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(n_entries):
        key = cursor.string(MAX_NAME_BYTES)
        if key in metadata:
            raise malformed(cursor.path, f"metadata key {key!r} appears twice")
        metadata[key] = cursor.value()
    return metadata


def _alignment(path: Path, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT_BYTES)
    valid = isinstance(alignment, int) and 8 <= alignment <= MAX_ALIGNMENT_BYTES
    if not valid or alignment & (alignment - 1):
        raise malformed(path, f"general.alignment is {alignment!r}")
    return int(alignment)


def _read_tensor_entry(cursor: _Cursor) -> _TensorEntry:
    name = cursor.string(MAX_NAME_BYTES)
    n_dims = cursor.integer("<I")
    if not 1 <= n_dims <= MAX_DIMS:
        raise malformed(cursor.path, f"tensor {name!r} has {n_dims} dimensions")
    dims = [cursor.integer("<Q") for _ in range(n_dims)]
    kind = cursor.integer("<I")
    if kind not in QUANT_KINDS:
        raise unsupported(cursor.path, f"tensor {name!r} of quantisation {quant_name(kind)}")
    quant = QUANT_KINDS[kind]
    if min(dims) < 1 or dims[0] % quant.block_values:
        raise malformed(cursor.path, f"tensor {name!r} has dimensions {dims} as {quant.name}")
    # GGUF lists the fastest-changing dimension first.
    return _TensorEntry(name, tuple(reversed(dims)), quant, cursor.integer("<Q"))


def _place_tensors(
    path: Path, table: list[_TensorEntry], data_start: int, alignment: int, size_bytes: int
) -> dict[str, GgufTensor]:
    tensors: dict[str, GgufTensor] = {}
    previous_end = data_start
    for entry in sorted(table, key=lambda entry: entry.relative_bytes):
        start = data_start + entry.relative_bytes
        n_bytes = prod(entry.shape) // entry.quant.block_values * entry.quant.block_bytes
        if entry.relative_bytes % alignment or start < previous_end:
            raise malformed(path, f"tensor {entry.name!r} is misaligned or overlaps another")
        if start + n_bytes > size_bytes:
            raise malformed(path, f"tensor {entry.name!r} lies beyond the end of the file")
        if entry.name in tensors:
            raise malformed(path, f"tensor {entry.name!r} appears twice")
        tensors[entry.name] = GgufTensor(entry.name, entry.shape, entry.quant, start, n_bytes)
        previous_end = start + n_bytes
    return tensors


# Names of the kinds that exist but are refused, for the message.
_REFUSED_KINDS = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K",
    14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32",
    27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


def quant_name(kind: int) -> str:
    """Name of a ggml tensor type number."""
    if kind in QUANT_KINDS:
        return QUANT_KINDS[kind].name
    return _REFUSED_KINDS.get(kind, f"number {kind}")


def malformed(path: Path, why: str) -> EvctlError:
    """The error for a file that breaks the format."""
    return IntegrityError(
        what=f"{path.name} is not a usable GGUF file",
        why=why,
        next_step="fetch the file again and compare its sha256 with the publisher's",
        code="EV-2104",
    )


def unsupported(path: Path, feature: str) -> EvctlError:
    """The error for a valid file that needs what this reader does not have."""
    supported = ", ".join(quant.name for quant in QUANT_KINDS.values())
    return EvctlError(
        what=f"{path.name} cannot be read",
        why=f"not supported: {feature}",
        next_step=f"use a little-endian GGUF v3 Llama file with tensors of {supported}",
        code="EV-2105",
    )
