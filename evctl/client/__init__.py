"""The only door of CLI and TUI to a running cluster: its admin API over a unix socket."""

from evctl.client.admin import AdminClient
from evctl.client.watching import Stale

__all__ = ["AdminClient", "Stale"]
