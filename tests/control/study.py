"""A control plane with its admin API served, that has seen agents' branches."""

from __future__ import annotations

from evctl.core.kv_status import BranchPage
from tests.control.agents import Agents
from tests.control.test_admin import Office


class Study(Office):
    """An office whose control plane has seen a small family of branches."""

    agents: Agents

    async def open(self) -> None:
        await super().open()
        self.agents = Agents(self.plane)

    def family(self) -> None:
        serve = self.agents.serve
        serve("main", "abcdef")
        serve("fork", "abcdxy", parent="main", op="fork")
        serve("sub", "pq", parent="main", op="spawn", kind="subagent")
        serve("sub2", "pqr", parent="sub", op="spawn", kind="subagent")
        serve("main", "abcdefgh")
        serve("main", "abcdefgh", tenant="zeta")
        serve("other", "k")

    async def page(self, **wanted: object) -> BranchPage:
        return await self.ask(lambda: self.client.branches(**wanted))  # type: ignore[arg-type]

    async def names(self, **wanted: object) -> list[str]:
        return [row.branch for row in (await self.page(**wanted)).branches]
