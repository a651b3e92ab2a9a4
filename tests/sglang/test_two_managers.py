"""SGLang with a transfer manager for each phase: managers alone, then servers with both phases.

What is claimed here is decided on in docs/decisions/009-two-transfer-managers.md.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-sglang" / "bin" / "python"

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not PYTHON.exists(), reason="run scripts/setup-sglang first"),
    pytest.mark.skipif(os.geteuid() != 0, reason="enters a network namespace"),
]


def run(script: str, *arguments: str, **environment: str) -> list[dict[str, Any]]:
    """The JSON lines that a script prints. It ends with 1 when its own claim does not hold."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [PYTHON, Path(__file__).with_name(script), *arguments],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=1100,
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_rooms_go_both_ways_at_once_over_one_registration() -> None:
    (result,) = run("two_managers.py", "shared", EVCTL_ROOMS="100", EVCTL_ROUNDS="1")
    assert result["a"]["same_engine"]
    assert result["outcomes"] == {"send: Success": 200, "receive: right": 200}
    assert result["free_slots_touched"] == 0


def test_a_killed_peer_fails_its_own_rooms_only() -> None:
    (result,) = run("two_managers.py", "killed")
    assert result["after"]["outcomes"] == {"send: Success": 200, "receive: right": 200}


def test_unchanged_managers_do_not_register_twice() -> None:
    """Why ours do not register: when this fails, SGLang or Mooncake has changed."""
    (result,) = run("two_managers.py", "as-is")
    first, second = result["a"]["registered"]
    assert first["result"] == 0
    assert second["result"] != 0
    assert "receive: right" not in result["outcomes"]


def test_a_request_finds_its_prefix_after_the_direction_changed() -> None:
    (result,) = run("two_directions.py", "both")
    first, *later = result["turns"]
    assert first["cached_at_prefill"] == 0
    assert all(row["cached_at_prefill"] == 299 for row in later)
    assert all(row["cached_at_decode"] == 300 for row in later)


def test_a_server_outlives_its_peer() -> None:
    (result,) = run("two_directions.py", "killed")
    assert result["while_dying"]["failed"] > 0, "nothing was under way when the peer died"
    assert result["same_tokens"] == result["after"]
