"""A cluster's state directory, made by hand, and small things that tests need."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from evctl.control.frontdoor import InferenceRequest
from evctl.control.plane import ControlPlane
from evctl.control.settings import ControlSettings
from evctl.core.blocks import KvNamespace, block_keys, root_key
from evctl.core.branches import BranchSignal
from evctl.core.sampling import SamplingParams
from evctl.wire.keys import generate_keypair, save_keypair, to_z85
from evctl.wire.messages import Tokens

BLOCK_TOKENS = 16


def make_state(
    root: Path, *, model_directory: Path, nodes: int = 3, split: str = "2P1D", **options: object
) -> ControlSettings:
    """What `evctl up` leaves before it starts anything."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = tuple(f"n{i + 1}" for i in range(nodes))
    (root / "kv.secret").write_bytes(secrets.token_bytes(32))
    save_keypair(generate_keypair(), root / "control.key")
    for folder in ("keys", "nodes", "logs"):
        (root / folder).mkdir()
    for name in names:
        pair = generate_keypair()
        save_keypair(pair, root / "keys" / f"{name}.key")
        (root / "keys" / f"{name}.pub").write_text(to_z85(pair.public) + "\n")
        config = {"model": str(model_directory)}
        (root / "nodes" / f"{name}.config.json").write_bytes(msgspec.json.encode(config))
    values: dict[str, object] = {
        "directory": root,
        "cluster": "test",
        "nodes": names,
        "split": split,
        "model": "random-4l256",
        "block_tokens": BLOCK_TOKENS,
        **options,
    }
    return ControlSettings(**values)  # type: ignore[arg-type]


def request_for(
    plane: ControlPlane,
    request_id: str,
    prompt: list[int],
    branch: BranchSignal | None = None,
    **sampling: object,
) -> InferenceRequest:
    card = plane.model()
    assert card is not None
    root = root_key(plane.kv_secret, KvNamespace("t", card.weights_hash))
    keys = block_keys(plane.kv_secret, root, prompt, card.block_tokens)
    params = SamplingParams(**{"max_tokens": 8, "ignore_eos": True, **sampling})  # type: ignore[arg-type]
    return InferenceRequest(request_id, "t", tuple(prompt), root, b"".join(keys), params, branch)


class Output:
    """A request's tokens, as they come."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.last: Tokens | None = None
        self.ended_s = 0.0

    @property
    def finish(self) -> str | None:
        return self.last.finish if self.last else None


async def collect(plane: ControlPlane, request: InferenceRequest, output: Output) -> Output:
    """Read a request to its end; tokens must come in order, without gaps or repeats."""
    async for message in plane.submit(request):
        assert message.start == len(output.tokens)
        output.tokens.extend(message.token_ids)
        output.last = message
    output.ended_s = time.monotonic()
    return output


async def until(true: Callable[[], object], timeout_s: float, what: str) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited {timeout_s} s for {what}")
        await asyncio.sleep(0.01)
