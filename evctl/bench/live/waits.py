"""How prefill nodes shared the waiting, from a cluster's own metrics."""

from __future__ import annotations

import re

import httpx

_LINE = re.compile(
    r'evctl_node_prefill_wait_seconds_(count|sum)\{node="([^"]+)"\} (\S+)', re.ASCII
)


def node_waits(admin_socket: str) -> dict[str, tuple[int, float]]:
    """node -> prefills that it began, and the seconds that those had waited, by the metrics of
    the control plane that listens there."""
    with httpx.Client(transport=httpx.HTTPTransport(uds=admin_socket), timeout=10.0) as client:
        text = client.get("http://control/metrics").text
    found: dict[str, dict[str, float]] = {}
    for what, node, value in _LINE.findall(text):
        found.setdefault(node, {})[what] = float(value)
    return {node: (int(of["count"]), of["sum"]) for node, of in found.items()}


def most_loaded_over_average(waits: dict[str, tuple[int, float]]) -> float | None:
    """Mean wait of the node whose requests wait longest, over the mean of all requests (Table 2
    of the paper). None where nothing waited."""
    counted = {node: (count, total_s) for node, (count, total_s) in waits.items() if count}
    total_s = sum(seconds for _, seconds in counted.values())
    if total_s <= 0:
        return None
    mean_s = total_s / sum(count for count, _ in counted.values())
    return max(seconds / count for count, seconds in counted.values()) / mean_s
