"""The pool's panel on the screen: where it is, how it is reached, that it follows the cluster."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import pytest_socket

from evctl.client import AdminClient
from evctl.core.pool_status import PoolStatus
from evctl.core.status import ClusterStatus
from evctl.tui.application import TopApp
from evctl.tui.source import Stale
from evctl.tui.terminal import Terminal
from evctl.tui.views.footer import help_text
from tests.client.fake_admin import FakeAdmin
from tests.tui.fakes import (
    POOL,
    FakeClock,
    FakeSource,
    cluster,
    model_of,
    node,
    replace,
    scene_of,
    snapshot,
)
from tests.tui.screens import Stage, staged


@pytest.mark.slow
@pytest.mark.parametrize("size", [(120, 36), (200, 50), (80, 40)])
async def test_the_pool_is_beside_events_and_references(size: tuple[int, int]) -> None:
    async with staged(FakeSource(cluster(pool=POOL)), size=size) as stage:
        await stage.sees("▓live ▒susp", "─ pool ─", "40 fetches", "14 live", "L1 ▓")
        await stage.sees("no events yet", "─ planner ─")
        stage.source.tell_status(cluster(pool=replace(POOL, fetches=41, share_hidden=0.5)))
        seen = await stage.sees("41 fetches", "hidden 50%")
        assert all(len(row) == size[0] for row in seen.splitlines())
        await stage.press("tab", "tab")
        assert stage.app.ui.panel == "nodes", "it needs no turn of its own"


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [Terminal(), Terminal(ascii=True, mono=True)])
async def test_a_low_terminal_shows_the_pool_in_turn(terminal: Terminal) -> None:
    source = FakeSource(cluster(pool=POOL))
    async with staged(source, size=(80, 24), terminal=terminal) as stage:
        seen = await stage.sees("14 live", "tab: pool")
        assert "40 fetches" not in seen
        await stage.press("tab", "tab", "tab")
        seen = await stage.sees(
            "40 fetches  mean 200 ms  hidden 94%  recomputed 12 deadline, 3 gone",
            "own L2 300 (19.7 MB)", "ahead 120 blocks", "all L1", "quarantined",
        )  # fmt: skip
        assert "14 live" not in seen
        assert stage.app.focused is not None
        assert stage.app.focused.id == "pool"
        if terminal.ascii:
            assert seen.isascii()
        await stage.press("y")
        await stage.sees("copied the pool")
        await stage.press("tab")
        await stage.sees("14 live", "no events yet")
        assert stage.app.ui.panel == "nodes"


@pytest.mark.slow
async def test_many_nodes_leave_the_pool_a_turn_and_the_room_comes_back() -> None:
    many = cluster(*(node(f"n{n}") for n in range(1, 20)), node("n20", "D"), pool=POOL)
    async with staged(FakeSource(many)) as stage:
        await stage.sees("tab: pool", "14 live")
        await stage.press("shift+tab")
        await stage.sees("40 fetches", "all L1")
        stage.source.tell_status(cluster(pool=POOL))
        await stage.sees("40 fetches", "14 live", "no events yet", "n3 L1")
        assert "tab: pool" not in stage.text()


@pytest.mark.slow
async def test_the_pool_has_a_tab_where_one_panel_is_shown() -> None:
    async with staged(FakeSource(cluster(pool=POOL)), size=(60, 20)) as stage:
        await stage.press(*["tab"] * 3)
        seen = await stage.sees("[pool]", "40 fetches", "peers' L2     600 blocks", "n3 L1")
        assert "14 live" not in seen
        await stage.pilot.resize_terminal(120, 36)
        await stage.sees("40 fetches", "14 live", "L2 used")


@pytest.mark.slow
async def test_a_stale_pool_stays_where_it_was() -> None:
    async with staged(FakeSource(cluster(pool=POOL))) as stage:
        stage.source.tell(Stale(3, "nobody listens", 0.5))
        await stage.sees("retrying (3)", "40 fetches", "n3 L1")


def test_the_help_has_the_shapes() -> None:
    said = help_text(scene_of(model_of(cluster()))).plain
    assert "pool: ▓ live  ▒ suspect  ░ nobody  × quarantined  ─ empty" in said
    assert "Next panel" in said


# --------------------------------------------------------------------- through the admin API


@pytest.mark.slow
async def test_the_panel_follows_an_admin_server(tmp_path: Path) -> None:
    def told(pool: PoolStatus | None) -> ClusterStatus:
        return cluster(pool=pool)

    pytest_socket.socket_allow_hosts(["127.0.0.1", "::1"], allow_unix_socket=True)
    fake = FakeAdmin(tmp_path / "admin.sock")
    fake.streams = [[snapshot(told(None))]]
    fake.start()
    client = AdminClient(fake.path, pause=lambda _: time.sleep(0.01))
    app = TopApp(client, clock=FakeClock(), terminal=Terminal(), by="alice")
    try:
        async with app.run_test(size=(120, 36)) as pilot:
            stage = Stage(app, pilot, FakeSource(), FakeClock())
            await stage.sees("─ pool ─", "this control plane does not tell")
            assert "▓live" not in stage.text()
            fake.streams.append([snapshot(told(POOL))])
            await stage.sees("40 fetches  mean 200 ms", "recomputed 12 deadline, 3 gone", "n3 L1")
            more = replace(POOL, fetches=50, recomputed_blocks={"no_room": 7})
            fake.streams.append([snapshot(told(more))])
            await stage.sees("50 fetches  mean 160 ms", "recomputed 7 no room")
    finally:
        fake.stop()
        client.close()
