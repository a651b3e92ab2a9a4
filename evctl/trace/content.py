"""Tokens for a trace that has none: made up from block ids, so that reuse is the trace's.

With a scale of 1/16 a block of 64 tokens becomes 4 tokens. Equal blocks become equal tokens and
different blocks of one conversation different ones, so the prompts of a replay share exactly the
blocks that the trace's prompts share, if the engines' block is as long as a scaled one.

The last, partial block of a prompt and the output that follows it have no ids. Where the next
prompt goes on from this one they are what the next prompt says there, so that it contains the
tokens emitted, as in the trace; else they are tokens that nothing else has.

An output is taken to be part of the next prompt as far as that grew. Some trace outputs are
longer than that (hidden thinking is dropped): their rest is lost, as it was there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from hashlib import blake2b

import msgspec
import numpy as np
import numpy.typing as npt

from evctl.core.errors import UsageError
from evctl.trace.schema import GLOBAL_RUN, Branch, Conversation, TraceRequest

TokenArray = npt.NDArray[np.int64]

DEFAULT_VOCAB = (0, 256)
"""Byte tokens: every model served here has them."""
_DISTINCT = 2**24
"""Blocks of one scope that are sure to differ; more than any conversation has."""


def parse_scale(scale: str | float | Fraction) -> Fraction:
    """Read a scale such as "1/16". Raises UsageError."""
    try:
        value = Fraction(scale)
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        raise _bad_scale(scale, "it is no number") from error
    if not 0 < value <= 1:
        raise _bad_scale(scale, "it must be above 0 and at most 1")
    return value


def _bad_scale(scale: object, why: str) -> UsageError:
    return UsageError(
        what=f"cannot use the scale {scale}",
        why=why,
        next_step="give the share of a trace token, such as 1/16",
        code="EV-1604",
    )


class ContentMap:
    """From block ids to tokens in range(vocab[0], vocab[1]); a pure function of its arguments.

    block_tokens: length of a block in the trace; scaled_tokens: in the replay. distinct: whether
    different blocks of one conversation are sure to have different tokens (else a hash decides).
    """

    def __init__(
        self,
        block_tokens: int,
        scale: Fraction,
        *,
        seed: int = 0,
        vocab: tuple[int, int] = DEFAULT_VOCAB,
    ) -> None:
        scaled = block_tokens * scale
        if scaled.denominator != 1 or scaled < 1:
            raise _bad_scale(scale, f"a block of {block_tokens} tokens would have {scaled}")
        if vocab[1] - vocab[0] < 2 or vocab[0] < 0 or vocab[1] > 2**24:
            raise UsageError(
                what=f"cannot make tokens from {vocab[0]} to {vocab[1]}",
                why="content needs at least two token ids, none of them negative",
                next_step="give the first id and the one after the last",
                code="EV-1605",
            )
        self.block_tokens = block_tokens
        self.scale = scale
        self.scaled_tokens = int(scaled)
        self._seed = seed
        self._low, self._size = vocab[0], vocab[1] - vocab[0]
        # The first `_coded` tokens of a block are a permutation of its id, the others a hash.
        needed = math.ceil(math.log(_DISTINCT, self._size))
        self._coded = min(needed, self.scaled_tokens)
        self.distinct = self._coded == needed
        self._globals: dict[int, TokenArray] = {}

    def scale_tail(self, tokens: int) -> int:
        """Scaled length of what follows the last full block; below a block if `tokens` is."""
        return tokens * self.scaled_tokens // self.block_tokens

    def scale_output(self, tokens: int) -> int:
        """Scaled length of an output: rounded, at least one token."""
        return max(1, math.floor(tokens * self.scale + Fraction(1, 2)))

    def key(self, *scope: object) -> int:
        """64 bits that stand for the seed and a scope."""
        text = "\0".join(map(str, (self._seed, *scope)))
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())

    def blocks(self, key: int, ids: Sequence[int]) -> TokenArray:
        """Tokens of blocks, one after another. key: the conversation's; global ids ignore it."""
        array = np.asarray(ids, dtype=np.int64)
        tokens = np.empty((len(array), self.scaled_tokens), dtype=np.int64)
        local = array >= 0
        tokens[local] = self._rows(key, array[local])
        for run in np.unique(array[~local] // GLOBAL_RUN):
            chosen = array // GLOBAL_RUN == run
            tokens[chosen] = self._rows(self.key("global", int(run)), array[chosen] % GLOBAL_RUN)
        return tokens.reshape(-1)

    def own(self, key: int, count: int) -> TokenArray:
        """`count` tokens that only `key` has; shorter calls are prefixes of longer ones."""
        rows = np.arange(count, dtype=np.uint64)
        return self._to_vocab(_mix(rows ^ np.uint64(key)))

    def _rows(self, key: int, ids: TokenArray) -> TokenArray:
        rows = np.empty((len(ids), self.scaled_tokens), dtype=np.int64)
        space = self._size**self._coded
        multiplier, offset = _permutation(key, space)
        code = (ids % space * multiplier + offset) % space
        for position in range(self._coded):
            place = self._size ** (self._coded - 1 - position)
            rows[:, position] = self._low + code // place % self._size
        width = np.uint64(self.scaled_tokens)
        for position in range(self._coded, self.scaled_tokens):
            places = ids.astype(np.uint64) * width + np.uint64(position)
            rows[:, position] = self._to_vocab(_mix(_mix(places) ^ np.uint64(key)))
        return rows

    def _to_vocab(self, hashed: npt.NDArray[np.uint64]) -> TokenArray:
        return self._low + (hashed % np.uint64(self._size)).astype(np.int64)


def _permutation(key: int, space: int) -> tuple[int, int]:
    """Multiplier and offset of a bijection of range(space) that fits 63-bit arithmetic."""
    limit = min(space, 2**62 // space)
    multiplier = max(1, (key >> 8) % limit)
    while math.gcd(multiplier, space) != 1:
        multiplier = multiplier + 1 if multiplier + 1 < limit else 1
    return multiplier, key % space


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64: every bit of the input changes half of the output."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class RequestTokens(msgspec.Struct, frozen=True):
    """One request of a replay, in scaled tokens.

    blocks: ids of the full blocks. output: what to emit; its first `carried` tokens are in the
    next prompt of the branch, right after this one.
    """

    index: int
    request: TraceRequest
    blocks: list[int]
    prompt: list[int]
    output: list[int]
    carried: int


def branch_tokens(
    content: ContentMap,
    conversation: Conversation,
    branch: Branch,
    instance: object = "",
    start: int = 0,
) -> Iterator[RequestTokens]:
    """Prompt and output of each request of a branch in turn, from index `start` on.

    instance: tells several replays of one conversation apart; local blocks of different
    instances differ.
    """
    key = content.key(conversation.id, instance)
    builder = _BranchBuilder(content, key, branch)
    for index in range(len(branch.requests)):
        if index < start:
            builder.skip(index)
        else:
            yield builder.request(index)


class _BranchBuilder:
    def __init__(self, content: ContentMap, key: int, branch: Branch) -> None:
        self._content = content
        self._key = key
        self._branch = branch
        self._requests = branch.requests
        self._blocks: list[int] = []
        self._full: TokenArray = np.empty(0, dtype=np.int64)  # tokens of self._blocks
        self._ready = -1  # index of the request that both belong to

    def skip(self, index: int) -> None:
        """Pass over a request; every index must be passed or asked for, in turn."""
        if self._ready < index:
            self._advance()

    def request(self, index: int) -> RequestTokens:
        self.skip(index)
        blocks = self._blocks
        prompt = np.concatenate([self._full, self._tail(index)])
        wanted = self._content.scale_output(self._requests[index].out_tokens)
        carried: TokenArray = np.empty(0, dtype=np.int64)
        if self._continues(index):
            self._advance()
            following = np.concatenate([self._full, self._tail(index + 1)])
            carried = following[len(prompt) : len(prompt) + wanted]
        lost = self._content.own(self._own_key("output", index), wanted - len(carried))
        if not len(prompt):
            prompt = self._content.own(self._own_key("prompt", index), 1)
            carried, lost = carried[:0], self._content.own(self._own_key("output", index), wanted)
        return RequestTokens(
            index=index,
            request=self._requests[index],
            blocks=blocks,
            prompt=prompt.tolist(),
            output=np.concatenate([carried, lost]).tolist(),
            carried=len(carried),
        )

    def _advance(self) -> None:
        self._ready += 1
        request = self._requests[self._ready]
        added = [id_ for first, length in request.add for id_ in range(first, first + length)]
        self._blocks = self._blocks[: request.keep] + added
        kept = self._full[: request.keep * self._content.scaled_tokens]
        self._full = np.concatenate([kept, self._content.blocks(self._key, added)])

    def _continues(self, index: int) -> bool:
        """Whether the next prompt begins with the whole of this one, its tail included."""
        if index + 1 >= len(self._requests):
            return False
        tail = self._requests[index].in_tokens % self._content.block_tokens
        this, following = self._requests[index], self._requests[index + 1]
        whole = this.blocks * self._content.block_tokens + tail == this.in_tokens
        return whole and following.keep == this.blocks

    def _tail(self, index: int) -> TokenArray:
        """Tokens after the last full block: the head of the block that it becomes."""
        request = self._requests[index]
        rest = request.in_tokens - request.blocks * self._content.block_tokens
        count = self._content.scale_tail(rest)
        last = index
        while self._continues(last):
            last += 1
            if self._requests[last].add:
                block = self._requests[last].add[0][0]
                return self._content.blocks(self._key, [block])[:count]
        return self._content.own(self._own_key("tail", last), count)

    def _own_key(self, what: str, index: int) -> int:
        return self._content.key(self._key, self._branch.id, what, index)
