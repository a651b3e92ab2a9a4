"""The GGUF reader: values, limits, and files that lie."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evctl.core.errors import EvctlError
from evengine.models.dequant import F16, F32, Q4_0, Q4_1, Q8_0, QuantKind, dequantise
from evengine.models.gguf import GgufFile
from evengine.models.llama_gguf import canonical_tensors, config_from_gguf
from evengine.models.tokenizer import tokenizer_from_gguf
from tests.models.gguf_files import gguf_bytes, payload, string, tiny_llama

many = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
TINY = tiny_llama()


def opened(tmp_path: Path, content: bytes) -> GgufFile:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    return GgufFile(path)


def refused(tmp_path: Path, content: bytes, code: str) -> str:
    with pytest.raises(EvctlError) as caught:
        opened(tmp_path, content)
    assert caught.value.code == code
    return caught.value.why


def use_everything(tmp_path: Path, content: bytes) -> None:
    """Read a file the way `prepare` does."""
    with opened(tmp_path, content) as gguf:
        config = config_from_gguf(gguf, "tiny", "0" * 64)
        tokenizer_from_gguf(gguf.metadata)
        for _name, _parts in canonical_tensors(gguf, config):
            pass


def scalar_block(quant: QuantKind, block: bytes) -> list[np.float32]:
    """One block by the definition, a number at a time."""
    if quant is F32 or quant is F16:
        return [np.float32(np.frombuffer(block, "<f4" if quant is F32 else "<f2")[0])]
    scale = np.float32(struct.unpack("<e", block[:2])[0])
    if quant is Q8_0:
        return [np.float32(q) * scale for q in struct.unpack("32b", block[2:])]
    packed = block[-16:]
    nibbles = [byte & 15 for byte in packed] + [byte >> 4 for byte in packed]
    if quant is Q4_0:
        return [np.float32(q - 8) * scale for q in nibbles]
    least = np.float32(struct.unpack("<e", block[2:4])[0])
    return [np.float32(q) * scale + least for q in nibbles]


@pytest.mark.parametrize("quant", [F32, F16, Q4_0, Q4_1, Q8_0], ids=lambda quant: quant.name)
def test_dequantisation_is_bit_equal_to_the_scalar_definition(quant: QuantKind) -> None:
    raw = payload(quant, (6, 64), seed=1)
    blocks = [raw[i : i + quant.block_bytes] for i in range(0, len(raw), quant.block_bytes)]
    naive = np.array([number for block in blocks for number in scalar_block(quant, block)])
    assert dequantise(quant, raw).tobytes() == naive.astype(np.float32).tobytes()


def test_metadata_and_tensors_come_back(tmp_path: Path) -> None:
    metadata: dict[str, Any] = {"a": 7, "b": 0.5, "c": True, "d": "é", "e": ["x", ""]}
    metadata["f"] = np.array([1, -2, 3])
    tensors = {
        "one": ((3,), F32, np.array([1, 2, 3], "<f4").tobytes()),
        "two": ((2, 3), F16, np.arange(6, dtype="<f2").tobytes()),
    }
    with opened(tmp_path, gguf_bytes(metadata, tensors)) as gguf:
        assert [gguf.metadata[key] for key in "abcde"] == [7, 0.5, True, "é", ["x", ""]]
        assert gguf.metadata["f"].tolist() == [1, -2, 3]
        assert gguf.read("one").tolist() == [1, 2, 3]
        assert gguf.read("two").tolist() == [[0, 1, 2], [3, 4, 5]]
        with pytest.raises(EvctlError, match="missing"):
            gguf.read("three")


def test_tiny_llama_is_read_whole(tmp_path: Path) -> None:
    with opened(tmp_path, TINY) as gguf:
        config = config_from_gguf(gguf, "tiny", "0" * 64, ("<|endoftext|>",))
        shapes = {n: [p.shape for p in parts] for n, parts in canonical_tensors(gguf, config)}
    assert (config.head_dim, config.n_kv_heads, config.tied_embedding) == (16, 1, True)
    assert (config.bos_id, config.eos_ids) == (None, (2, 0))
    assert shapes["layers.0.wqkv"] == [(32, 32), (16, 32), (16, 32)]
    assert shapes["layers.0.w_down"] == [(32, 64)]


@many
@given(st.integers(0, len(TINY) - 1))
def test_truncated_file_is_refused(tmp_path: Path, n_bytes: int) -> None:
    with pytest.raises(EvctlError):
        use_everything(tmp_path, TINY[:n_bytes])


@many
@given(
    st.lists(st.tuples(st.integers(0, len(TINY) - 1), st.integers(0, 255)), min_size=1, max_size=6)
)
def test_altered_file_is_used_or_refused_but_never_crashes(
    tmp_path: Path, changes: list[tuple[int, int]]
) -> None:
    content = bytearray(TINY)
    for position, byte in changes:
        content[position] = byte
    with suppress(EvctlError):
        use_everything(tmp_path, bytes(content))


@many
@given(st.integers(0, 600), st.sampled_from([2**31, 2**40, 2**62, 2**64 - 1]))
def test_absurd_length_anywhere_is_refused_before_it_is_allocated(
    tmp_path: Path, position: int, claimed: int
) -> None:
    content = bytearray(TINY)
    content[position : position + 8] = struct.pack("<Q", claimed)
    with suppress(EvctlError):
        use_everything(tmp_path, bytes(content))


def test_lies_are_named(tmp_path: Path) -> None:
    head = b"GGUF" + struct.pack("<I", 3)
    assert "begin with GGUF" in refused(tmp_path, b"GGML" + head, "EV-2104")
    assert "version 2" in refused(tmp_path, b"GGUF" + struct.pack("<IQQ", 2, 0, 0), "EV-2105")
    assert "tensors" in refused(tmp_path, head + struct.pack("<QQ", 2**60, 0), "EV-2104")
    assert "entries" in refused(tmp_path, head + struct.pack("<QQ", 0, 2**60), "EV-2104")
    one = head + struct.pack("<QQ", 0, 1) + string("k")
    nested = one + struct.pack("<IIQ", 9, 9, 1)
    assert "arrays of arrays" in refused(tmp_path, nested, "EV-2105")
    many_strings = one + struct.pack("<IIQ", 9, 8, 2**61)
    assert "strings" in refused(tmp_path, many_strings, "EV-2104")
    not_utf8 = one + struct.pack("<IQ", 8, 1) + b"\xff"
    assert "UTF-8" in refused(tmp_path, not_utf8, "EV-2104")
    entry = string("k") + struct.pack("<IB", 0, 1)
    twice = head + struct.pack("<QQ", 0, 2) + entry + entry
    assert "appears twice" in refused(tmp_path, twice, "EV-2104")
    odd_alignment = gguf_bytes({"general.alignment": 24}, {})
    assert "alignment" in refused(tmp_path, odd_alignment, "EV-2104")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("llama", "mamba", "architecture 'mamba'"),
        ("llama.rope.freq_base", "llama.rope.freq_bass", None),
        ("llama.block_count", "llama.block_cousin", "block_count is None"),
        ("blk.0.ffn_up.weight", "blk.0.ffn_xx.weight", "'blk.0.ffn_up.weight' is missing"),
    ],
)
def test_what_the_runner_cannot_do_is_refused(
    tmp_path: Path, old: str, new: str, why: str | None
) -> None:
    content = TINY.replace(string(old), string(new))
    assert content != TINY
    if why is None:  # an absent optional key takes its default
        use_everything(tmp_path, content)
        return
    with pytest.raises(EvctlError, match=why):
        use_everything(tmp_path, content)


def test_bad_tensor_tables_are_refused(tmp_path: Path) -> None:
    def table(*entries: bytes) -> bytes:
        body = b"GGUF" + struct.pack("<IQQ", 3, len(entries), 0) + b"".join(entries)
        return body + bytes(-len(body) % 32) + bytes(256)

    def entry(name: str, dims: list[int], kind: int, offset_bytes: int) -> bytes:
        packed = struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset_bytes)
        return string(name) + packed

    assert "Q4_K" in refused(tmp_path, table(entry("t", [256], 12, 0)), "EV-2105")
    assert "number 99" in refused(tmp_path, table(entry("t", [256], 99, 0)), "EV-2105")
    assert "beyond" in refused(tmp_path, table(entry("t", [2**62, 2**62], 0, 0)), "EV-2104")
    assert "beyond" in refused(tmp_path, table(entry("t", [4], 0, 2**40)), "EV-2104")
    assert "dimensions" in refused(tmp_path, table(entry("t", [4, 0], 0, 0)), "EV-2104")
    assert "dimensions" in refused(tmp_path, table(entry("t", [1] * 5, 0, 0)), "EV-2104")
    assert "Q8_0" in refused(tmp_path, table(entry("t", [33], 8, 0)), "EV-2104")
    overlap = table(entry("a", [16], 0, 0), entry("b", [16], 0, 32))
    assert "overlaps" in refused(tmp_path, overlap, "EV-2104")
    twins = table(entry("a", [8], 0, 0), entry("a", [8], 0, 32))
    assert "twice" in refused(tmp_path, twins, "EV-2104")


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path, TINY) as gguf:
        place = gguf.tensors["output_norm.weight"].offset_bytes
    content = TINY[:place] + struct.pack("<f", float("nan")) + TINY[place + 4 :]
    with pytest.raises(EvctlError, match="not finite"):
        use_everything(tmp_path, content)
