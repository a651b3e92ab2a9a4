"""A FrontDoor without a cluster: it says what a script tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec

from evctl.control.frontdoor import InferenceRequest, ModelCard
from evctl.core.branches import BranchSignal
from evctl.core.kv_status import BranchPage, BranchPlace, BranchRow
from evctl.core.sampling import FinishReason, TokenLogprob
from evctl.wire.messages import Tokens
from evengine.models.tokenizer import CHATML_TEMPLATE, byte_tokenizer

EOS_IDS = (256, 258)
CONTEXT_TOKENS = 2_000

Script = Callable[[InferenceRequest], AsyncIterator[Tokens]]


def byte_model(directory: Path) -> ModelCard:
    """A card of a model whose tokens are bytes; writes its text files."""
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(CHATML_TEMPLATE, encoding="utf-8")
    return ModelCard(
        name="bytes",
        directory=str(directory),
        weights_hash="w",
        numerics="exact/1",
        block_tokens=16,
        context_tokens=CONTEXT_TOKENS,
        vocab_size=320,
        eos_ids=EOS_IDS,
        created_s=1_700_000_000,
    )


class FakeFrontDoor:
    """Keeps what it was given; `closed` holds the ids of requests that were given up."""

    def __init__(self, card: ModelCard | None, script: Script) -> None:
        self.kv_secret = bytes(32)
        self.allow_replay = False
        self.card = card
        self.script = script
        self.not_ready = ""
        self.requests: list[InferenceRequest] = []
        self.signals: list[tuple[str, BranchSignal, str]] = []
        self.objection = ""
        """Why signals change nothing."""
        self.rows: list[BranchRow] = []
        self.running: set[str] = set()
        self.closed: list[str] = []

    def model(self) -> ModelCard | None:
        return self.card

    def ready(self) -> str:
        return self.not_ready

    def submit(self, request: InferenceRequest) -> AsyncIterator[Tokens]:
        return self._run(request)

    async def _run(self, request: InferenceRequest) -> AsyncIterator[Tokens]:
        self.requests.append(request)
        self.running.add(request.request_id)
        ended = False
        try:
            async for message in self.script(request):
                ended = message.finish is not None
                yield message
        finally:
            self.running.discard(request.request_id)
            if not ended:
                self.closed.append(request.request_id)

    def branch_signal(self, tenant: str, signal: BranchSignal, what: str) -> str:
        self.signals.append((tenant, signal, what))
        return self.objection

    async def branches(self, tenant: str, *, after: str, limit: int) -> BranchPage:
        own = sorted((row for row in self.rows if row.tenant == tenant), key=lambda r: r.branch)
        left = [row for row in own if row.branch > after]
        shown = tuple(left[:limit])
        last = BranchPlace(0.0, tenant, shown[-1].branch) if len(left) > limit else None
        return BranchPage(shown, last, len(own), len(self.rows))

    def branch(self, tenant: str, branch: str) -> BranchRow | None:
        return next((r for r in self.rows if (r.tenant, r.branch) == (tenant, branch)), None)


def says(
    text: str | bytes,
    *,
    finish: str = FinishReason.STOP,
    eos: bool = True,
    step: int = 1,
    cached_tokens: int = 0,
    pause_s: float = 0.0,
) -> Script:
    """Reply with the bytes of a text, `step` tokens a message, cut at max_tokens."""
    raw = list(text.encode() if isinstance(text, str) else text)

    async def script(request: InferenceRequest) -> AsyncIterator[Tokens]:
        ids = list(request.sampling.forced) or [*raw, *([EOS_IDS[1]] if eos else [])]
        end = finish if len(ids) <= request.sampling.max_tokens else FinishReason.LENGTH
        ids = ids[: request.sampling.max_tokens]
        for start in range(0, len(ids), step):
            await asyncio.sleep(pause_s)
            message = tokens(request, start, ids[start : start + step], cached_tokens)
            is_last = start + step >= len(ids)
            yield msgspec.structs.replace(message, finish=end) if is_last else message

    return script


def tokens(
    request: InferenceRequest, start: int, ids: Sequence[int], cached_tokens: int = 0
) -> Tokens:
    """A message with made-up log-probabilities where the request wants them."""
    wanted = request.sampling.logprobs
    scores = tuple(
        TokenLogprob(i, -0.5, tuple(((i + k) % 256, -0.5 - k) for k in range(wanted)))
        for i in ids
        if wanted is not None
    )
    return Tokens(
        request.request_id, start, tuple(ids), logprobs=scores, cached_tokens=cached_tokens
    )


async def silent(request: InferenceRequest) -> AsyncIterator[Tokens]:
    """Never a token."""
    await asyncio.Event().wait()
    yield Tokens(request.request_id, 0, ())


async def endless(request: InferenceRequest) -> AsyncIterator[Tokens]:
    """A token every few milliseconds, without end."""
    start = 0
    while True:
        yield tokens(request, start, [97])
        start += 1
        await asyncio.sleep(0.005)
