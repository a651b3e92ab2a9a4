"""Writes a Llama of two layers with random weights, for SGLang on a CPU: `tiny_model.py FOLDER`.

Runs in .venv-sglang. No tokenizer: requests carry token ids.
"""

from __future__ import annotations

import sys
from pathlib import Path

VOCAB_SIZE = 512


def write(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        dtype="bfloat16",
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
