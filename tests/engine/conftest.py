"""Prepared models for engine tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def prepared_model() -> Callable[[str], Path]:
    """Name -> directory of a model, made or fetched on first use and cached across runs."""
    from evengine.models.store import ensure_model

    return ensure_model
