"""The real clock."""

from __future__ import annotations

import time


class SystemClock:
    def now_s(self) -> float:
        return time.monotonic()

    def thread_cpu_s(self) -> float:
        return time.thread_time()
