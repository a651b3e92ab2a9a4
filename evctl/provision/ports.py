"""Whether a port of this machine can be had."""

from __future__ import annotations

import socket


def problem_with(host: str, port: int) -> str:
    """Why nobody could listen there now; "" when somebody could. Nothing is left behind."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As a server binds: what is only waiting for its last packets is no obstacle.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)
    except OSError as error:
        return f"port {port} of {host}: {(error.strerror or str(error)).lower()}"
    return ""
