"""What a trace is made of: counts, lengths, reuse, fan-out, pauses.

Reuse is counted as the design defines the ideal hit: every prompt token whose KV an earlier
request produced, by its prompt or by its output. Blocks count whole.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from evctl.trace.schema import Branch, Conversation, TraceHeader, TraceRequest


class Spread(msgspec.Struct, frozen=True):
    """A distribution, None where nothing was counted."""

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    most: float | None


class TraceStats(msgspec.Struct, frozen=True):
    """Figures of one trace; tokens are the trace's own.

    ideal_hit: share of prompt tokens whose KV an earlier request's prompt or output made;
    ideal_hit_prompts: the same by prompts alone. carried_output: share of output tokens that
    turn up in the next prompt. A fan-out is a group of sub-agents started at the same request.
    """

    source: str
    licence: str
    block_tokens: int
    conversations: int
    branches: int
    subagents: int
    background_subagents: int
    requests: int
    subagent_requests: int
    prompt_tokens: int
    output_tokens: int
    ideal_hit: float | None
    ideal_hit_prompts: float | None
    uncached_tokens_per_request: float | None
    carried_output: float | None
    compactions: int
    rewinds: int
    prompt: Spread
    output: Spread
    new_tokens: Spread
    wait_s: Spread
    subagent_wait_s: Spread
    requests_per_conversation: Spread
    requests_per_main_branch: Spread
    requests_per_subagent: Spread
    fan_outs: dict[int, int]

    def rows(self) -> list[tuple[str, str]]:
        """Name and value of each figure, ready to print."""
        rows = [
            ("source", self.source or "-"),
            ("licence", self.licence or "-"),
            ("conversations", f"{self.conversations:,}"),
            ("branches", f"{self.branches:,} ({self.subagents:,} sub-agents)"),
            ("sub-agents in background", f"{self.background_subagents:,}"),
            ("requests", f"{self.requests:,} ({self.subagent_requests:,} of sub-agents)"),
            ("prompt tokens", f"{self.prompt_tokens:,}"),
            ("output tokens", f"{self.output_tokens:,}"),
            ("ideal hit", _percent(self.ideal_hit)),
            ("ideal hit, prompts alone", _percent(self.ideal_hit_prompts)),
            ("uncached tokens a request", _number(self.uncached_tokens_per_request)),
            ("output carried into the next prompt", _percent(self.carried_output)),
            ("compactions", f"{self.compactions:,}"),
            ("rewinds", f"{self.rewinds:,}"),
            ("fan-outs (sub-agents: times)", _counts(self.fan_outs)),
        ]
        spreads = [
            ("prompt tokens", self.prompt),
            ("output tokens", self.output),
            ("new tokens", self.new_tokens),
            ("pause, main (s)", self.wait_s),
            ("pause, sub-agent (s)", self.subagent_wait_s),
            ("requests a conversation", self.requests_per_conversation),
            ("requests a main branch", self.requests_per_main_branch),
            ("requests a sub-agent", self.requests_per_subagent),
        ]
        rows.extend((name, _spread_text(spread)) for name, spread in spreads)
        return rows


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.4g}"


def _counts(counts: dict[int, int]) -> str:
    return ", ".join(f"{size}: {times}" for size, times in sorted(counts.items())) or "-"


def _spread_text(spread: Spread) -> str:
    names = ("mean", "p50", "p95", "p99", "most")
    return " · ".join(f"{name} {_number(getattr(spread, name))}" for name in names)


def spread(values: Iterable[float]) -> Spread:
    """Mean, nearest-rank percentiles and maximum."""
    ordered = sorted(values)
    if not ordered:
        return Spread(None, None, None, None, None)

    def rank(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    mean = math.fsum(ordered) / len(ordered)
    return Spread(mean, rank(0.50), rank(0.95), rank(0.99), ordered[-1])


class ReuseCounter:
    """Leading blocks of a prompt that were seen before, over all conversations.

    Local ids are known by conversation, global ones everywhere. Memory grows by the new blocks
    of the conversations that are open.
    """

    def __init__(self) -> None:
        self._globals: set[int] = set()
        self._locals: dict[object, set[int]] = {}

    def add(self, conversation: object, blocks: Sequence[int], known: int = 0) -> int:
        """Leading blocks seen before, then remember all. known: so many are sure to be."""
        seen = self._locals.setdefault(conversation, set())
        leading = known
        while leading < len(blocks):
            block = blocks[leading]
            if block not in (seen if block >= 0 else self._globals):
                break
            leading += 1
        for block in blocks[leading:]:
            (seen if block >= 0 else self._globals).add(block)
        return leading

    def close(self, conversation: object) -> None:
        """Forget the local ids of a conversation that ended."""
        self._locals.pop(conversation, None)


class _Totals:
    """Everything that one pass collects."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.counts: Counter[str] = Counter()
        self.prompt: list[float] = []
        self.output: list[float] = []
        self.new: list[float] = []
        self.waits: dict[str, list[float]] = {"main": [], "subagent": []}
        self.lengths: dict[str, list[float]] = {"conversation": [], "main": [], "subagent": []}
        self.fan_outs: Counter[int] = Counter()
        self.reuse = ReuseCounter()

    def conversation(self, conversation: Conversation) -> None:
        self.lengths["conversation"].append(conversation.requests)
        groups: Counter[tuple[str, int]] = Counter()
        for branch in conversation.branches:
            kind = "subagent" if branch.kind == "subagent" else "main"
            self.lengths[kind].append(len(branch.requests))
            self.counts["branches"] += 1
            if kind == "subagent":
                self.counts["subagents"] += 1
                self.counts["background"] += branch.join is None
                groups[branch.parent, branch.after] += 1
            self.branch(conversation, branch, kind)
        self.fan_outs.update(groups.values())
        self.reuse.close(conversation.id)

    def branch(self, conversation: Conversation, branch: Branch, kind: str) -> None:
        blocks: list[int] = []
        previous: TraceRequest | None = None
        for index, request in enumerate(branch.requests):
            added = [i for first, length in request.add for i in range(first, first + length)]
            blocks = blocks[: request.keep] + added
            prompts = self.reuse.add(conversation.id, blocks, request.keep)
            by_prompt = min(prompts * self.block_tokens, request.in_tokens)
            by_output, carried = 0, 0
            if previous is not None and request.keep == previous.blocks:
                carried = min(max(0, request.in_tokens - previous.in_tokens), previous.out_tokens)
                # The last token of an output has no KV.
                made = (previous.in_tokens + max(0, carried - 1)) // self.block_tokens
                by_output = min(made, request.blocks) * self.block_tokens
            ideal = max(by_prompt, by_output)
            self.counts["carried"] += carried
            self.counts["by_prompt"] += by_prompt
            self.counts["ideal"] += ideal
            self.counts[request.mark or "continued"] += 1
            self.counts["subagent_requests"] += kind == "subagent"
            self.prompt.append(request.in_tokens)
            self.output.append(request.out_tokens)
            self.new.append(request.in_tokens - ideal)
            if index > 0 or kind == "subagent":
                self.waits[kind].append(request.wait_s)
            previous = request


def measure(header: TraceHeader, conversations: Iterable[Conversation]) -> TraceStats:
    """One pass over a trace; a few numbers a request stay in memory."""
    totals = _Totals(header.block_tokens)
    for conversation in conversations:
        totals.conversation(conversation)
    counts, requests = totals.counts, len(totals.prompt)
    prompt_tokens, output_tokens = int(sum(totals.prompt)), int(sum(totals.output))
    return TraceStats(
        source=header.source,
        licence=header.licence,
        block_tokens=header.block_tokens,
        conversations=len(totals.lengths["conversation"]),
        branches=counts["branches"],
        subagents=counts["subagents"],
        background_subagents=counts["background"],
        requests=requests,
        subagent_requests=counts["subagent_requests"],
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        ideal_hit=_share(counts["ideal"], prompt_tokens),
        ideal_hit_prompts=_share(counts["by_prompt"], prompt_tokens),
        uncached_tokens_per_request=_share(prompt_tokens - counts["ideal"], requests),
        carried_output=_share(counts["carried"], output_tokens),
        compactions=counts["compact"],
        rewinds=counts["rewind"],
        prompt=spread(totals.prompt),
        output=spread(totals.output),
        new_tokens=spread(totals.new),
        wait_s=spread(totals.waits["main"]),
        subagent_wait_s=spread(totals.waits["subagent"]),
        requests_per_conversation=spread(totals.lengths["conversation"]),
        requests_per_main_branch=spread(totals.lengths["main"]),
        requests_per_subagent=spread(totals.lengths["subagent"]),
        fan_outs=dict(totals.fan_outs),
    )


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
