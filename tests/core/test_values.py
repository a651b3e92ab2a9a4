"""Splits, layouts, sampling, workloads, ids and errors."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evctl.core import errors
from evctl.core.errors import EvctlError, ExitCode, RefusedError, UsageError
from evctl.core.ids import MAX_ID_CHARS, check_id
from evctl.core.kv import FLOAT_BYTES, KvLayout
from evctl.core.sampling import SamplingParams
from evctl.core.split import Phase, Role, Split, parse_split
from evctl.core.status import length_of
from evctl.core.workload import Workload, attention_pairs

counts = st.integers(1, 999_999)


@given(counts, counts)
def test_a_split_reads_as_it_is_written(prefill: int, decode: int) -> None:
    split = Split(prefill, decode)
    assert parse_split(str(split)) == split
    assert parse_split(f" {decode}d{prefill}p\n") == split
    assert split.nodes == prefill + decode


@pytest.mark.parametrize(
    "text",
    ["", "4P", "P4D5", "4P5P", "4P5D6P", "4 P 5 D", "-1P5D", "4.0P5D", "٤P5D", "1" * 5000 + "P1D"],
)
def test_anything_else_is_no_split(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_split(text)
    assert caught.value.code == "EV-1102"


@given(st.text(max_size=12))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        assert parse_split(text).nodes >= 2
    except UsageError as error:
        assert error.exit_code == ExitCode.USAGE
    except RefusedError as error:
        assert error.code == "EV-1101"


@pytest.mark.parametrize("text", ["0P5D", "5P0D"])
def test_each_phase_keeps_a_node(text: str) -> None:
    with pytest.raises(RefusedError, match="at least one node") as caught:
        parse_split(text)
    assert (caught.value.code, caught.value.exit_code) == ("EV-1101", ExitCode.REFUSED)
    assert text in caught.value.what


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(2.999, "3 s"), (90.0, "90 s"), (1799.99, "30 min"), (5400.0, "90 min"), (28_800.0, "8 h")],
)
def test_a_span_is_told_in_the_unit_that_it_was_given_in(seconds: float, said: str) -> None:
    assert length_of(seconds) == said


def test_a_role_routes_its_phase() -> None:
    assert [role.phase for role in Role] == [Phase.PREFILL, Phase.DECODE]


@given(counts, st.integers(1, 2), counts, st.sampled_from(list(FLOAT_BYTES)), counts)
def test_layout_arithmetic(
    layers: int, planes: int, row: int, dtype: str, block_tokens: int
) -> None:
    layout = KvLayout(layers, planes, row, dtype, block_tokens)
    assert layout.token_elements == layers * planes * row
    assert layout.token_bytes == layout.token_elements * FLOAT_BYTES[dtype]
    assert layout.block_bytes == layout.token_bytes * block_tokens


@given(st.integers(0, 10_000), st.integers(1, 100))
def test_blocks_hold_the_tail_too(tokens: int, block_tokens: int) -> None:
    blocks = KvLayout(1, 1, 1, "float32", block_tokens).blocks_for(tokens)
    assert (blocks - 1) * block_tokens < tokens <= blocks * block_tokens


def test_a_known_layout() -> None:
    llama = KvLayout(n_layers=30, planes=2, row_elements=192, dtype="float32", block_tokens=16)
    assert (llama.token_bytes, llama.block_bytes) == (46_080, 737_280)
    assert [llama.blocks_for(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [((0, 2, 8, 16), "float32"), ((1, 2, 8, 0), "float32"), ((1, 2, 8, 16), "int7")],
)
def test_layouts_that_cannot_be(sizes: tuple[int, int, int, int], dtype: str) -> None:
    with pytest.raises(ValueError, match=r"KV (layout|dtype) must"):
        KvLayout(*sizes[:3], dtype, sizes[3])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 100.1}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
        ({"seed": 2**63}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"stop": ("",)}, "stop"),
        ({"stop": ("a",) * 17}, "stop"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_sampling_out_of_range_names_the_field(changes: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SamplingParams(**({"max_tokens": 1} | changes))  # type: ignore[arg-type]


def test_sampling_takes_the_edges() -> None:
    SamplingParams(max_tokens=1, temperature=100.0, seed=-(2**63), logprobs=0)
    SamplingParams(max_tokens=1, top_p=1e-9, seed=2**63 - 1, stop=("a",) * 16, logprobs=20)


@given(st.integers(0, 60), st.integers(0, 60))
def test_attention_pairs_are_counted_one_by_one(uncached: int, cached: int) -> None:
    counted = sum(cached + i + 1 for i in range(uncached))
    assert attention_pairs(uncached, cached) == counted
    assert Workload(uncached, cached, 1).attention_pairs == counted


def test_ids_are_short_and_printable() -> None:
    assert check_id("n-1 ü", "node") == "n-1 ü"
    for bad in ("", "a\n", "a\0", "\ud800", "x" * (MAX_ID_CHARS + 1)):
        with pytest.raises(ValueError, match="node must be 1-256 printable") as caught:
            check_id(bad, "node")
        assert len(str(caught.value)) < 120


def test_an_error_renders_in_four_lines() -> None:
    error = EvctlError(what="it failed", why="no disk", next_step="buy one", code="EV-9001")
    assert error.render().splitlines() == [
        "error[EV-9001]: it failed",
        "  why:  no disk",
        "  next: buy one",
        "  more: evctl explain EV-9001",
    ]
    assert str(error) == "it failed: no disk"
    assert error.exit_code == 1


@pytest.mark.parametrize(
    ("kind", "exit_code"),
    [
        (errors.UsageError, 2),
        (errors.ConfigError, 3),
        (errors.UnreachableError, 4),
        (errors.ConflictError, 7),
        (errors.RefusedError, 8),
        (errors.NotFoundError, 9),
        (errors.IntegrityError, 1),
    ],
)
def test_each_kind_of_error_has_its_exit_code(kind: type[EvctlError], exit_code: int) -> None:
    make = partial(kind, what="a", why="b", next_step="c", code="EV-9001")
    assert make().exit_code == exit_code
    assert make(exit_code=6).exit_code == 6
