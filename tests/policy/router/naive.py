"""Equation 7 written down again, block by block and request by request. Shares no code with the
router: it reads the requests of the state, and a list of who holds what."""

from __future__ import annotations

from dataclasses import dataclass, field

from evctl.core.costs import Coefficients
from evctl.policy.state import ClusterState, NodeRecord, RequestRecord, Stage


@dataclass
class Pool:
    """l1, l2: node -> blocks, by number. promised: node -> leading blocks of the prompt."""

    l1: dict[str, set[int]] = field(default_factory=dict)
    l2: dict[str, set[int]] = field(default_factory=dict)
    promised: dict[str, int] = field(default_factory=dict)

    def stored(self, node: str) -> set[int]:
        return self.l1.get(node, set()) | self.l2.get(node, set())


@dataclass
class Expected:
    remaining_s: float
    queued_s: float
    own_s: float
    cached_tokens: int
    uncached_tokens: int
    fetch_blocks: int
    fetch_s: float
    total_s: float


def expected(
    state: ClusterState,
    node: NodeRecord,
    prompt: list[int],
    prompt_tokens: int,
    pool: Pool,
    latency_s: float,
    block_s: float,
) -> Expected:
    """Of a node with a model, for a prompt of these blocks; nobody has fetched anything yet, so
    that a fetch takes what is assumed beforehand."""
    size, model = node.block_tokens, node.coefficients
    assert model is not None
    stored = _leading(prompt, pool.stored(node.name))
    held = max(stored, pool.promised.get(node.name, 0))
    cached = min(held * size, prompt_tokens - 1)
    usable = min((prompt_tokens - 1) // size, len(prompt))
    reach, fetched = held, 0
    others = [name for name in pool.l2 if name != node.name]
    for block in range(held, usable):
        mine = prompt[block] in pool.l2.get(node.name, set())
        if not mine and not any(prompt[block] in pool.l2[name] for name in others):
            break
        fetched += not mine
        reach = block + 1
    if not fetched or not node.l2_blocks:
        reach, fetched = held, 0
    tokens = prompt_tokens - min(reach * size, prompt_tokens - 1)
    restored = min(reach * size, prompt_tokens - 1) - cached
    others_hold = [
        _leading(prompt, pool.stored(n.name)) for n in state.nodes.values() if n.role == node.role
    ]
    if stored > min(others_hold):  # what all hold alike is not told apart by tier
        in_l1 = _leading(prompt, pool.l1.get(node.name, set()))
        most = prompt_tokens - 1
        restored += min(stored * size, most) - min(in_l1 * size, most)
    remaining_s = queued_s = 0.0
    behind = 0
    for record in state.requests.values():
        if record.prefill_node != node.name:
            continue
        if record.stage is Stage.PREFILL:
            remaining_s += _service_s(model, node, record, record.remaining_tokens, 0)
        elif record.stage is Stage.WAITING:
            restores = record.to_restore_tokens
            queued_s += _service_s(model, node, record, record.uncached_tokens, restores)
            behind += record.fetch_blocks
    first = prompt_tokens - tokens
    own_s = _times(model, node, tokens, first, restored)
    fetch_s = latency_s + block_s * (behind + fetched) if fetched else 0.0
    exposed_s = max(0.0, fetch_s - remaining_s - queued_s)
    total_s = remaining_s + queued_s + own_s + exposed_s
    return Expected(
        remaining_s, queued_s, own_s, cached, tokens, fetched, fetch_s, total_s
    )  # fmt: skip


def _leading(prompt: list[int], blocks: set[int]) -> int:
    count = 0
    while count < len(prompt) and prompt[count] in blocks:
        count += 1
    return count


def _service_s(
    model: Coefficients, node: NodeRecord, record: RequestRecord, tokens: int, restored: int
) -> float:
    return _times(model, node, tokens, record.prompt_tokens - tokens, restored)


def _times(model: Coefficients, node: NodeRecord, tokens: int, first: int, restored: int) -> float:
    """t_P of section 4, with the pairs counted one by one."""
    pairs = sum(position + 1 for position in range(first, first + tokens))
    per_iteration = node.tokens_per_iteration or max(1, tokens)
    iterations = tokens / per_iteration
    return (
        model.c0_s * iterations + model.c1_s * tokens + model.c2_s * pairs + model.c3_s * restored
    )
