"""Block keys: equal keys mean equal prefixes of one tenant, and nothing else does."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evctl.core.blocks import KEY_BYTES, KvNamespace, block_keys, child_key, extend_keys, root_key

SECRET = bytes(range(32))
SPACE = KvNamespace(tenant="t1", weights_hash="w1")
ROOT = root_key(SECRET, SPACE)

prompts = st.lists(st.integers(0, 2**32 - 1), max_size=40)
few_tokens = st.lists(st.integers(0, 1), max_size=24)
block_sizes = st.integers(1, 7)


@given(few_tokens, few_tokens, few_tokens, block_sizes)
def test_keys_are_equal_exactly_where_prefixes_are(
    shared: list[int], left: list[int], right: list[int], block_tokens: int
) -> None:
    one, two = shared + left, shared + right
    pairs = zip(
        block_keys(SECRET, ROOT, one, block_tokens),
        block_keys(SECRET, ROOT, two, block_tokens),
        strict=False,
    )
    for number, (a, b) in enumerate(pairs, start=1):
        end = number * block_tokens
        assert (a == b) == (one[:end] == two[:end])


@given(prompts, block_sizes)
def test_there_is_one_key_for_each_full_block(tokens: list[int], block_tokens: int) -> None:
    keys = block_keys(SECRET, ROOT, tokens, block_tokens)
    assert len(keys) == len(tokens) // block_tokens
    assert len(set(keys)) == len(keys)
    assert all(len(k) == KEY_BYTES for k in keys)


@given(prompts, block_sizes, st.data())
def test_extending_any_part_gives_the_whole(
    tokens: list[int], block_tokens: int, data: st.DataObject
) -> None:
    whole = block_keys(SECRET, ROOT, tokens, block_tokens)
    known = whole[: data.draw(st.integers(0, len(whole)))]
    for sequence in (tokens, tuple(tokens)):
        assert extend_keys(SECRET, known, ROOT, sequence, block_tokens) == whole
    assert known == whole[: len(known)]


@given(prompts, block_sizes)
def test_the_chain_is_that_of_child_keys(tokens: list[int], block_tokens: int) -> None:
    parent, chain = ROOT, []
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        parent = child_key(SECRET, parent, tokens[start : start + block_tokens])
        chain.append(parent)
    assert block_keys(SECRET, ROOT, tokens, block_tokens) == chain


@pytest.mark.parametrize("field", KvNamespace.__struct_fields__)
def test_every_part_of_the_namespace_separates(field: str) -> None:
    other = root_key(SECRET, msgspec.structs.replace(SPACE, **{field: "other"}))
    ours, theirs = block_keys(SECRET, ROOT, [1] * 8, 4), block_keys(SECRET, other, [1] * 8, 4)
    assert not set(ours) & set(theirs)


def test_parts_of_the_namespace_do_not_run_together() -> None:
    one = KvNamespace(tenant="ab", weights_hash="c")
    two = KvNamespace(tenant="a", weights_hash="bc")
    assert root_key(SECRET, one) != root_key(SECRET, two)


def test_the_secret_separates_clusters() -> None:
    other = bytes(32)
    assert root_key(other, SPACE) != ROOT
    assert child_key(other, ROOT, [1]) != child_key(SECRET, ROOT, [1])


def test_images_are_part_of_the_key() -> None:
    keys = [
        child_key(SECRET, ROOT, [1, 2], content)
        for content in ((), (b"",), (b"a",), (b"ab",), (b"a", b"b"), (b"b", b"a"))
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("length", [0, 15, 65])
def test_a_secret_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="16 to 64 bytes"):
        root_key(bytes(length), SPACE)


@pytest.mark.parametrize("token", [-1, 2**32])
def test_tokens_that_do_not_fit_are_refused(token: int) -> None:
    with pytest.raises(OverflowError):
        block_keys(SECRET, ROOT, [token], 1)


def test_keys_are_the_same_in_every_process() -> None:
    """Inventories and journals outlive processes: a change here is a new layout version."""
    assert ROOT.hex() == "ac6a0d24890f5ce509484b5bd7faa0fc"
    assert block_keys(SECRET, ROOT, range(8), 4)[1].hex() == "338aa7659f703589a7180745a37d26a2"
