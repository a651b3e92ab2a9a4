"""Random models must be hard to satisfy by luck, and the reference forward must be right."""

from __future__ import annotations

import random
from functools import cache
from hashlib import sha256

import msgspec
import pytest
import torch

from evengine.models.config import ModelConfig
from evengine.models.layout import tensor_shapes
from evengine.models.random_weights import random_tensor
from evengine.models.registry import RandomModel, model_names, model_spec, random_config, seed_of
from tests.models import reference

RANDOM_NAMES = [name for name in model_names() if name.startswith("random-")]
PROMPT_TOKENS = 64


@cache
def built(name: str) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    spec = model_spec(name)
    assert isinstance(spec, RandomModel)
    return spec.config, weights_of(spec.config)


def weights_of(config: ModelConfig) -> dict[str, torch.Tensor]:
    weights = {}
    for name, shape in tensor_shapes(config).items():
        parts = random_tensor(config, seed_of(config.name), name, shape)
        weights[name] = torch.cat([torch.from_numpy(part) for part in parts]).view(shape)
    return weights


def prompt(seed: int) -> list[int]:
    return random.Random(seed).choices(range(256), k=PROMPT_TOKENS)


@pytest.mark.parametrize("name", RANDOM_NAMES)
def test_logits_are_sharp_and_follow_the_whole_context(name: str) -> None:
    config, weights = built(name)
    token_ids = prompt(1)
    logits = reference.forward(config, weights, token_ids)
    best = logits.topk(2).values
    assert (best[:, 0] - best[:, 1]).median() > 0.3
    assert logits.softmax(-1).amax(-1).median() > 0.25
    best_token = logits[-1].argmax()
    moved = []
    for position in range(0, PROMPT_TOKENS - 1, 12):
        other = list(token_ids)
        other[position] = (other[position] + 101) % 256
        changed = reference.forward(config, weights, other)[-1]
        assert (changed - logits[-1]).abs().max() > 0.05  # float noise is 1e-5
        moved.append(bool(changed.argmax() != best_token))
    last_token_only = [*prompt(2)[:-1], token_ids[-1]]
    elsewhere = reference.forward(config, weights, last_token_only)[-1]
    moved.append(bool(elsewhere.argmax() != best_token))
    assert any(moved)


@pytest.mark.parametrize("name", RANDOM_NAMES)
def test_greedy_output_is_varied_and_no_echo(name: str) -> None:
    config, weights = built(name)
    endless = msgspec.structs.replace(config, eos_ids=())
    token_ids = prompt(3)
    output = reference.greedy(endless, weights, token_ids, 24)
    assert len(set(output)) >= 14
    echoed = reference.forward(config, weights, token_ids).argmax(-1).tolist()
    assert sum(a == b for a, b in zip(echoed, token_ids, strict=True)) < PROMPT_TOKENS // 10
    same_last_token = prompt(4)[:-1] + token_ids[-1:]
    assert output[:6] != reference.greedy(endless, weights, same_last_token, 6)


def test_weights_are_the_same_on_every_machine() -> None:
    digest = sha256()
    for tensor in built("random-4l256")[1].values():
        digest.update(tensor.numpy().astype("<f4").tobytes())
    assert digest.hexdigest() == "ac9c1d39cc3541fb7563b779181cf849e4bba7654fb8a286647e78d500222aa3"


def test_names_give_different_seeds_and_hashes() -> None:
    specs = [model_spec(name) for name in model_names()]
    assert len({spec.weights_hash for spec in specs}) == len(specs)
    assert len({spec.seed for spec in specs if isinstance(spec, RandomModel)}) == len(specs) - 1


def test_shapes_are_those_asked_for() -> None:
    wide, latent = built("random-6l384")[0], built("random-4l256-latent")[0]
    assert (wide.n_heads, wide.n_kv_heads, wide.ff_dim, wide.context_tokens) == (
        6,
        2,
        1024,
        32_768,
    )
    assert (wide.kv_token_bytes, wide.tied_embedding) == (6_144, False)
    assert (latent.n_heads, latent.qk_head_dim, latent.kv_row_floats) == (4, 48, 80)
    n_params = sum(tensor.numel() for tensor in built("random-4l256")[1].values())
    assert n_params == pytest.approx(3.3e6, rel=0.02)


@pytest.mark.parametrize("latent", [False, True])
def test_reference_is_causal(latent: bool) -> None:
    config = random_config("causal", 2, 128, latent=latent)
    weights = weights_of(config)
    whole = reference.forward(config, weights, prompt(5))
    start = reference.forward(config, weights, prompt(5)[:40])
    assert torch.allclose(whole[:40], start, atol=1e-4)


@pytest.mark.parametrize("latent", [False, True])
def test_both_rotary_orders_are_one_rotation(latent: bool) -> None:
    config = random_config("rotary", 1, 128, latent=latent)
    halves = msgspec.structs.replace(config, rope_interleaved=False)
    x = torch.randn(9, 2, config.rotary_dim, generator=torch.Generator().manual_seed(0))
    order = [*range(0, config.rotary_dim, 2), *range(1, config.rotary_dim, 2)]
    turned = reference.rotate(config, x)[..., order]
    assert torch.allclose(reference.rotate(halves, x[..., order]), turned)


def test_rotation_depends_on_distance_only() -> None:
    config = random_config("distance", 1, 128)
    q, k = torch.randn(2, config.head_dim, generator=torch.Generator().manual_seed(0))
    at = [reference.rotate(config, v.expand(30, 1, -1))[:, 0] for v in (q, k)]
    scores = at[0] @ at[1].T
    assert torch.allclose(scores.diagonal(-4), scores[4, 0].expand(26), atol=1e-3)
    assert not torch.allclose(scores[5, 0], scores[4, 0], atol=1e-2)


def test_latent_attention_equals_its_absorbed_form() -> None:
    """Scores and outputs computed on the cached rows alone, as a paged engine does."""
    config = random_config("absorbed", 1, 256, latent=True)
    weights = weights_of(config)
    own = {n.removeprefix("layers.0."): t for n, t in weights.items()}
    x = torch.randn(20, config.hidden_dim, generator=torch.Generator().manual_seed(0))
    rows = torch.cat(reference.latent_rows(config, own, x), dim=-1)
    q = (x @ own["wq"].T).view(20, config.n_heads, config.qk_head_dim)
    q_latent = torch.einsum("thn,hnr->thr", q[..., : config.nope_dim], own["w_k_up"])
    query = torch.cat([q_latent, reference.rotate(config, q[..., config.nope_dim :])], dim=-1)
    scores = torch.einsum("thc,sc->hts", query, rows) * config.qk_head_dim**-0.5
    latent = rows[:, : config.latent_dim].expand(config.n_heads, -1, -1)
    mixed = reference.causal_attention(scores, latent).view(20, config.n_heads, -1)
    out = torch.einsum("thr,hvr->thv", mixed, own["w_v_up"]).flatten(1) @ own["wo"].T
    assert torch.allclose(out, reference.latent_attention(config, own, x), atol=1e-4)
