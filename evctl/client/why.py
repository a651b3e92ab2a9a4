"""Calls of the admin API about the planner, and why something is as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from evctl.client.answers import decoded
from evctl.core.planning import PlanDecision
from evctl.core.why import BlockWhy, NodeWhy, RequestWhy, SplitWhy

SEARCH_TIMEOUT_S: Final = 30.0
"""Of what looks through all blocks, or journals; the control plane gives up before."""

Answer = TypeVar("Answer")


class WhyCalls:
    """call: of AdminClient, whose errors these raise too. segment: a name as part of a path."""

    def __init__(self, call: Callable[..., bytes], segment: Callable[[str], str]) -> None:
        self._call = call
        self._segment = segment

    def plan(self) -> PlanDecision:
        """What the planner would decide now. Moments are seconds since the epoch."""
        return self._ask("plan", PlanDecision)

    def split(self, number: int | None = None, *, last: int = 3) -> SplitWhy:
        """The planner's last decisions, or the one of that number. Raises NotFoundError
        (EV-1367)."""
        return self._ask("why/split", SplitWhy, {"last": last} | _given("number", number))

    def node(self, name: str) -> NodeWhy:
        """Its role, how it came to it, what is there. Raises NotFoundError (EV-1366)."""
        return self._ask(f"why/nodes/{self._segment(name)}", NodeWhy)

    def request(self, request_id: str) -> RequestWhy:
        """Where it was sent and why, and what then happened. Raises NotFoundError (EV-1363),
        EvctlError (EV-1365) when looking through the journals took too long."""
        name = f"why/requests/{self._segment(request_id)}"
        return self._ask(name, RequestWhy, timeout_s=SEARCH_TIMEOUT_S)

    def block(self, key: str) -> BlockWhy:
        """A block by its key or the first digits of it, 8 at least. Raises NotFoundError
        (EV-1355), UsageError (EV-1356: several)."""
        name = f"why/blocks/{self._segment(key)}"
        return self._ask(name, BlockWhy, timeout_s=SEARCH_TIMEOUT_S)

    def _ask(
        self,
        name: str,
        kind: type[Answer],
        query: Mapping[str, int] | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        content = self._call("GET", name, query=query, timeout_s=timeout_s)
        return decoded(content, kind, name)


def _given(name: str, value: int | None) -> dict[str, int]:
    return {} if value is None else {name: value}
