"""Draws at the edges of temperature."""

from __future__ import annotations

import pytest
import torch

from evctl.core.sampling import SamplingParams
from evengine.ports import Draw
from evengine.runner.sampling import sample


@pytest.mark.parametrize("temperature", [5e-324, 1e-308, 1e-300, 1e-6])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    """Dividing logits by it overflows: that gave the last token of the vocabulary, for ever."""
    torch.manual_seed(0)
    logits = 20 * torch.randn(16, 320)
    draws = [
        Draw(SamplingParams(temperature=temperature, seed=row, max_tokens=1), 0)
        for row in range(16)
    ]
    assert sample(logits, draws).token_ids == logits.argmax(dim=-1).tolist()
