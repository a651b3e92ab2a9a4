"""Unix sockets for the tests of the admin API: the rest of the run may not connect to any."""

from __future__ import annotations

import pytest
import pytest_socket


@pytest.fixture(autouse=True)
def unix_sockets(request: pytest.FixtureRequest) -> None:
    pytest_socket.socket_allow_hosts(["127.0.0.1", "::1"], allow_unix_socket=True)
