"""A world without nodes, closed at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fetch.world import World


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()
