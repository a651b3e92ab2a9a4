"""Map a prepared model's weights into memory."""

from __future__ import annotations

from math import prod
from pathlib import Path

import torch

from evengine.models.layout import WEIGHTS_FILE, read_index
from evengine.models.store import load_model_config


def load_weights(directory: Path) -> dict[str, torch.Tensor]:
    """Canonical name -> float32 tensor; `layout` lists names, shapes and the fused splits.

    The tensors are views of one private mapping: clean pages are those of the page cache, shared
    by every process on the machine, and a stray write stays in the process that made it. Raises
    IntegrityError (EV-2107) when the files do not fit each other.
    """
    index = read_index(directory, load_model_config(directory))
    path = directory / WEIGHTS_FILE
    flat = torch.from_file(
        str(path), shared=False, size=index.total_bytes // 4, dtype=torch.float32
    )
    return {
        name: flat.narrow(0, place.offset_bytes // 4, prod(place.shape)).view(place.shape)
        for name, place in index.tensors.items()
    }
