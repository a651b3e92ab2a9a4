"""The network namespace that tests marked `netns` run in.

Mooncake listens on all interfaces and asks nobody who they are, so such a test runs in a pytest
of its own inside a fresh namespace that has nothing but a loopback (needs root).
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

INSIDE = "EVCTL_TEST_NETNS"
NAMESPACE_TEST_LIMIT_S = 400
# No TIME_WAIT, so that a restarted peer can be given its old port at once.
ENTER = 'ip link set lo up && sysctl -qw net.ipv4.tcp_max_tw_buckets=0 && exec "$@"'


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("netns") and INSIDE not in os.environ:
            move_into_namespace(item)


def move_into_namespace(item: pytest.Item) -> None:
    """Replace an item's body, fixtures included, by a run of the same item in a namespace."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", item.nodeid]

    def run() -> None:
        ended = subprocess.run(
            ["unshare", "-n", "sh", "-c", ENTER, "sh", *command],
            env={**os.environ, INSIDE: "1", "PYTHONPATH": os.pathsep.join(sys.path)},
            cwd=item.config.rootpath,
            capture_output=True,
            text=True,
            timeout=NAMESPACE_TEST_LIMIT_S,
        )
        passed = ended.returncode == 0 and "1 passed" in ended.stdout
        assert passed, f"in its namespace:\n{ended.stdout}\n{ended.stderr}"

    item.setup = lambda: None  # type: ignore[method-assign]
    item.runtest = run  # type: ignore[method-assign]
