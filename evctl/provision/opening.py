"""Which driver a cluster has. The one place that knows all of them."""

from __future__ import annotations

from evctl.provision.driver import ClusterDriver


def open_driver(cluster: str) -> ClusterDriver:
    """The driver of the named cluster. Touches nothing yet."""
    from evctl.provision.local import LocalDriver

    return LocalDriver(cluster)
