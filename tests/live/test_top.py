"""`evctl top` on a cluster that serves: what it shows is so, and what is typed there happens."""

from __future__ import annotations

import re
import time

import pytest

from tests.live.conftest import Top
from tests.live.shell import Shell
from tests.live.traffic import Traffic

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

ENOUGH_ANSWERS = 6
WAIT_S = 60.0


def wait_for_answers(traffic: Traffic, since_s: float, count: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while len(traffic.ended_after(since_s)) < count:
        assert time.monotonic() < deadline, f"{len(traffic.ended_after(since_s))} answers"
        time.sleep(0.05)


@pytest.mark.parametrize(("width", "height"), [(120, 36), (80, 24)])
def test_the_split_of_a_serving_cluster_is_changed_from_the_screen(
    shell: Shell, top: Top, width: int, height: int
) -> None:
    url = shell.json("up sys.yaml")["gateway"]
    before = shell.json("status")
    with Traffic(url) as traffic:
        top.open(width, height)
        wait_for_answers(traffic, 0.0, ENOUGH_ANSWERS)
        screen = top.sees("sys", "AUTO", "2P1D", "live", "n1", "n2", "n3", "events")
        top.keep(f"live-{width}x{height}-overview")
        settled(top, screen, width, height)

        top.keys("s")
        top.sees("Change the split of sys")
        top.keys("1P2D")
        top.sees("1 node changes role", "evctl split set 1P2D")
        top.keys("Enter")
        top.sees("Apply (y)")
        top.keep(f"live-{width}x{height}-review")
        sent_s = time.monotonic()
        top.keys("y")
        top.sees("accepted and held")
        held = shell.status_until(lambda s: s["split"] == "1P2D", "settled split", 30.0)
        screen = top.sees("1P2D", "HOLD by", "settled as D")
        top.keep(f"live-{width}x{height}-after")
        check_screen(screen, width, height)
        wait_for_answers(traffic, sent_s, ENOUGH_ANSWERS)
    top.keep(f"live-{width}x{height}-end")

    assert (held["target_split"], held["mode"]) == ("1P2D", "hold")
    assert held["generation"] == before["generation"] + 1
    assert held["held_by"]
    assert sorted(node["role"] for node in held["nodes"]) == ["D", "D", "P"]
    (change,) = shell.json("split history")["changes"]
    told = {key: change[key] for key in ("before", "after", "mode", "reason", "generation")}
    assert told == {
        "before": "2P1D",
        "after": "1P2D",
        "mode": "hold",
        "reason": "evctl top",
        "generation": held["generation"],
    }
    assert change["by"] == held["held_by"]
    assert f"split 2P1D -> 1P2D by {change['by']}" in screen
    assert [a.error or a.broken for a in traffic.answers if not a.ok] == []
    end = shell.json("status")
    assert end["requests_failed"] == 0
    assert end["requests_done"] >= len(traffic.answers)

    top.keys("q")
    deadline = time.monotonic() + WAIT_S
    while not top.has_ended():
        assert time.monotonic() < deadline, top.screen()
        time.sleep(0.05)


def settled(top: Top, screen: str, width: int, height: int) -> None:
    """check_screen, on a picture that is not caught half painted."""
    for _ in range(20):
        try:
            return check_screen(screen, width, height)
        except AssertionError:
            time.sleep(0.1)
            screen = top.screen()
    check_screen(screen, width, height)


def check_screen(screen: str, width: int, height: int) -> None:
    """Nothing runs over, and each figure stands under its title."""
    rows = screen.splitlines()
    assert len(rows) <= height
    assert all(len(row) <= width for row in rows)
    borders = [row for row in rows if row.startswith(("╭", "╰", "┏", "┗"))]
    assert all(len(row) == width for row in borders), borders
    head = next(row for row in rows if "node" in row and "queue" in row)
    nodes = [row for row in rows if re.match(r"^[│┃]\s+n\d\s", row)]
    assert len(nodes) == 3, screen
    for title in ("queue", "run", "age"):
        end = re.search(rf"\b{title}\b", head)
        assert end is not None, head
        for row in nodes:
            assert re.search(r"\S$", row[: end.end()]), f"{title} of {row!r}"
            assert not re.match(r"\S", row[end.end() :]), f"{title} of {row!r}"
