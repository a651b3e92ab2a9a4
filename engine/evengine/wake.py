"""Wakes the engine's thread out of its sleep from another one."""

from __future__ import annotations

import os


class Wake:
    """An eventfd that a poller can watch: set from any thread, cleared by the one that sleeps."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def set(self) -> None:
        """Never blocks; many sets are one."""
        try:
            os.eventfd_write(self.descriptor, 1)
        except BlockingIOError:
            pass  # the counter is full: it is set

    def clear(self) -> None:
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            pass  # it was not set

    def close(self) -> None:
        os.close(self.descriptor)
