"""What comes before the directory: tokens of a prompt, and the keys of its blocks."""

from __future__ import annotations

import random
import time
from typing import Any

from evctl.bench.directory.inputs import Input
from evctl.bench.directory.ours import Figures, spread, timed
from evctl.core.blocks import block_keys

SECRET = bytes(range(32))


def hashing(made: Input, keys: bytes, options: dict[str, Any]) -> Figures:
    """Keys of all blocks of a prompt of random tokens, by keyed BLAKE2b."""
    del made, keys
    blocks, block_tokens = options["blocks"], options["block_tokens"]
    dice = random.Random(1)
    tokens = [dice.randrange(150_000) for _ in range(blocks * block_tokens)]
    root = bytes(16)
    times = [
        timed(block_keys, SECRET, root, tokens, block_tokens) for _ in range(options["rounds"])
    ]
    figures = spread(times)
    return figures | {"us_per_block": figures["p50"] / blocks}


def tokenising(made: Input, keys: bytes, options: dict[str, Any]) -> Figures:
    """A byte-level BPE made from Python's own help texts, and how fast it takes them in."""
    del made, keys
    from pydoc_data.topics import topics

    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    text = "\n\n".join(topics.values())[: options["characters"]]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=8192,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([text], trainer)
    times: list[float] = []
    for _ in range(options["rounds"]):
        started = time.perf_counter()
        tokens = len(tokenizer.encode(text).ids)
        times.append(time.perf_counter() - started)
    taken_s = sorted(times)[len(times) // 2]
    return {"tokens_per_s": tokens / taken_s, "tokens": tokens}
