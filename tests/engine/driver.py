"""The stand-in for the control plane that benches use, under the name that tests know."""

from __future__ import annotations

from evctl.bench.engines.driver import CLUSTER, START_TIMEOUT_S, Driver
from evctl.bench.engines.node import EngineFailedError, Node
from evctl.bench.engines.results import Result

__all__ = ["CLUSTER", "START_TIMEOUT_S", "Driver", "EngineFailedError", "Node", "Result"]
