"""SmolLM2 against the transformers library: another loader, another forward, same tokens."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.engine.driver import Driver

pytestmark = [pytest.mark.system, pytest.mark.model, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-transformers" / "bin" / "python"
LARGEST_GAP = 1e-3
TEXTS = [
    "The capital of France is",
    "def quicksort(items):\n    ",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    "In the year 1969 two people walked on the Moon. They",
    "Water boils at 100 degrees Celsius at sea level because",
]


def test_the_first_32_greedy_tokens(tmp_path: Path, prepared_model) -> None:
    """Equal, or at the first difference the two candidates are a rounding apart."""
    assert PYTHON.exists(), "run scripts/setup-transformers first"
    model = prepared_model("smollm2-135m")
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    prompts = [tokenizer.encode(text).ids for text in TEXTS]
    theirs = json.loads(
        subprocess.run(
            [PYTHON, Path(__file__).with_name("transformers_greedy.py"), tmp_path],
            input=json.dumps(prompts),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    with Driver(tmp_path, model, names=("a",), l1_blocks=256) as driver:
        ours = driver.run(prompts, max_tokens=32)
    for text, got, want in zip(TEXTS, ours, theirs, strict=True):
        step = next(
            (
                i
                for i, pair in enumerate(zip(got, want["tokens"], strict=True))
                if pair[0] != pair[1]
            ),
            None,
        )
        if step is None:
            continue
        logits = dict(want["tops"][step])
        gap = logits[want["tokens"][step]] - logits.get(got[step], float("-inf"))
        print(f"{text!r} differs at token {step}, logit gap {gap:.2e}")
        assert gap < LARGEST_GAP, f"{text!r} differs at token {step} by {gap}"
    assert sum(got == want["tokens"] for got, want in zip(ours, theirs, strict=True)) >= 3
