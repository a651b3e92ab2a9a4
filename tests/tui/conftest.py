"""The pilot waits in steps of 20 ms for the process to be idle; a fake cluster needs no such."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def impatient_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("textual._wait.SLEEP_GRANULARITY", 0.003)
    monkeypatch.setattr("textual._wait.SLEEP_IDLE", 0.0004)
