"""Made-up tokens share exactly what the trace's block ids share, and hold the forced outputs."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evctl.core.errors import UsageError
from evctl.trace import files
from evctl.trace.content import ContentMap, RequestTokens, branch_tokens, parse_scale
from evctl.trace.schema import Branch, Conversation, common_prefix
from tests.trace.test_weka import RAW
from tests.trace.traces import BLOCK, branch, branches, growing

SCALES = [Fraction(1, 16), Fraction(1, 8), Fraction(1)]


def made(content: ContentMap, branch: Branch, instance: object = "") -> list[RequestTokens]:
    conversation = Conversation("c", (branch,))
    return list(branch_tokens(content, conversation, branch, instance))


def shared_blocks(left: list[int], right: list[int], block_tokens: int) -> int:
    """Full blocks that both token prompts begin with."""
    return common_prefix(left, right) // block_tokens


@settings(deadline=None)
@given(branches(), st.sampled_from(SCALES), st.integers(0, 3), st.sampled_from([200, 256, 49_152]))
def test_reuse_is_exactly_the_traces(
    branch: Branch, scale: Fraction, seed: int, vocab: int
) -> None:
    content = ContentMap(BLOCK, scale, seed=seed, vocab=(5, vocab))
    assert content.distinct
    size = content.scaled_tokens
    steps = made(content, branch)
    for step in steps:
        assert len(step.prompt) // size == len(step.blocks) or not step.blocks
        assert all(5 <= token < vocab for token in step.prompt + step.output)
    for left, right in itertools.combinations(steps, 2):
        wanted = common_prefix(left.blocks, right.blocks)
        assert shared_blocks(left.prompt, right.prompt, size) == wanted


@settings(deadline=None)
@given(branches(), st.sampled_from(SCALES))
def test_the_next_prompt_holds_what_was_emitted(branch: Branch, scale: Fraction) -> None:
    content = ContentMap(BLOCK, scale)
    steps = made(content, branch)
    for this, following in itertools.pairwise(steps):
        growth = len(following.prompt) - len(this.prompt)
        made_up = not this.blocks and not content.scale_tail(this.request.in_tokens)
        if following.request.keep == this.request.blocks and not made_up:
            assert this.carried == max(0, min(len(this.output), growth))
        else:
            assert this.carried == 0
        end = len(this.prompt) + this.carried
        if this.carried:
            assert following.prompt[:end] == this.prompt + this.output[: this.carried]
        # Nothing that the trace has no ids for makes a whole block of the next prompt.
        with_lost = shared_blocks(this.prompt + this.output, following.prompt, BLOCK * scale)
        assert with_lost <= max(end // (BLOCK * scale), following.request.keep)
    assert all(len(step.output) == max(1, round_half_up(step, scale)) for step in steps)
    assert steps[-1].carried == 0


def round_half_up(step: RequestTokens, scale: Fraction) -> int:
    return int(step.request.out_tokens * scale + Fraction(1, 2))


def test_a_public_conversation_at_a_sixteenth() -> None:
    (conversation,) = files.load(RAW).conversations
    content = ContentMap(64, Fraction(1, 16))
    steps = [s for b in conversation.branches for s in branch_tokens(content, conversation, b)]
    assert len(steps) == 32
    for left, right in itertools.combinations(steps, 2):
        assert shared_blocks(left.prompt, right.prompt, 4) == common_prefix(
            left.blocks, right.blocks
        )
    carried = sum(step.carried for step in steps)
    assert carried / sum(len(step.output) for step in steps) > 0.5


def test_instances_seeds_and_conversations_differ_and_repeat() -> None:
    branch = growing("main", 3)

    def first(seed: int = 0, instance: int = 0, name: str = "c") -> list[int]:
        content = ContentMap(BLOCK, Fraction(1, 16), seed=seed)
        conversation = Conversation(name, (branch,))
        return next(branch_tokens(content, conversation, branch, instance)).prompt

    assert first() == first()
    others = [first(), first(seed=1), first(instance=1), first(name="d")]
    for left, right in itertools.combinations(others, 2):
        assert shared_blocks(left, right, 4) == 0


def test_global_blocks_are_equal_everywhere() -> None:
    shared = [-(2**20) * 7 + i for i in range(3)]
    prompts = []
    for name, own in (("a", [0, 1]), ("b", [0, 1])):
        one = branch("main", [(shared + own, 3, 1)])
        content = ContentMap(BLOCK, Fraction(1, 16))
        prompts.append(next(branch_tokens(content, Conversation(name, (one,)), one)).prompt)
    assert shared_blocks(*prompts, 4) == 3


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**24 - 1), unique=True, min_size=2, max_size=200), st.integers())
def test_different_blocks_have_different_tokens(ids: list[int], seed: int) -> None:
    content = ContentMap(BLOCK, Fraction(1, 16), seed=seed)
    tokens = content.blocks(content.key("c"), ids).reshape(-1, 4)
    assert len({tuple(row) for row in tokens.tolist()}) == len(ids)


def test_starting_late_gives_the_same_prompts() -> None:
    branch = growing("main", 6)
    content = ContentMap(BLOCK, Fraction(1, 16))
    conversation = Conversation("c", (branch,))
    whole = list(branch_tokens(content, conversation, branch))
    assert list(branch_tokens(content, conversation, branch, start=4)) == whole[4:]


def test_an_empty_prompt_has_one_token() -> None:
    steps = made(ContentMap(BLOCK, Fraction(1, 16)), branch("main", [([], 0, 5), ([1], 0, 5)]))
    assert [len(step.prompt) for step in steps] == [1, 4]


@pytest.mark.parametrize("scale", ["0", "2", "1/3", "1/128", "x", "1/0", "-1", "nan"])
def test_scales_that_cut_blocks_are_refused(scale: str) -> None:
    with pytest.raises(UsageError):
        ContentMap(BLOCK, parse_scale(scale))


@pytest.mark.parametrize("vocab", [(0, 1), (-1, 50), (9, 3), (0, 2**30)])
def test_odd_vocabularies_are_refused(vocab: tuple[int, int]) -> None:
    with pytest.raises(UsageError):
        ContentMap(BLOCK, Fraction(1, 16), vocab=vocab)


def test_small_blocks_say_that_they_may_collide(tmp_path: Path) -> None:
    assert not ContentMap(BLOCK, Fraction(1, 64)).distinct
    assert ContentMap(BLOCK, Fraction(1, 16)).distinct
