"""One iteration of the model at a time, on a thread of its own.

The engine's thread goes on meanwhile: it answers peers, takes transfers in, restores KV, hears
cancels. On a GPU this is the time between launching an iteration and waiting for it.
"""

from __future__ import annotations

import queue
import threading
from typing import NamedTuple

from evctl.core.events import IterationSample
from evctl.core.split import Phase
from evctl.core.workload import attention_pairs
from evengine.ports import Batch, Clock, Executor, Sampled
from evengine.wake import Wake


class Finished(NamedTuple):
    """An iteration that ended. run_s: wall time; busy_s: CPU time of its thread, or what the
    executor says instead. error: what the executor raised, and then `sampled` is None."""

    batch: Batch
    sampled: Sampled | None
    run_s: float
    busy_s: float
    error: BaseException | None


def sample_of(finished: Finished, restored_tokens: int) -> IterationSample:
    """The regressors of Eq. 1 and 2 for an iteration. restored_tokens: copied into L1 since the
    one before."""
    chunks, rows = finished.batch.chunks, finished.batch.rows
    return IterationSample(
        phase=Phase.PREFILL if chunks else Phase.DECODE,
        busy_s=finished.busy_s,
        prefill_tokens=sum(len(c.tokens) for c in chunks),
        attention_pairs=sum(attention_pairs(len(c.tokens), c.start) for c in chunks)
        + sum(row.position + 1 for row in rows),
        restored_tokens=restored_tokens,
        decode_requests=len(rows),
    )


class IterationThread:
    """Runs an executor. One caller, who starts an iteration only when none is under way."""

    def __init__(self, executor: Executor, clock: Clock, wake: Wake) -> None:
        self._executor = executor
        self._clock = clock
        self._wake = wake
        self._batches: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._finished: Finished | None = None
        self.under_way = False
        """From start() until take() has given the result out."""
        self._thread = threading.Thread(target=self._work, name="iteration", daemon=True)
        self._thread.start()

    def start(self, batch: Batch) -> None:
        assert not self.under_way, "one iteration at a time"
        self.under_way = True
        self._batches.put(batch)

    def take(self) -> Finished | None:
        """The iteration that ended since the last call; raises what its executor raised."""
        finished = self._finished
        if finished is None:
            return None
        self._finished = None
        self.under_way = False
        if finished.error is not None:
            raise finished.error
        return finished

    def close(self, timeout_s: float = 5.0) -> None:
        """After the iteration under way. One that never ends is left behind: the thread is a
        daemon."""
        self._batches.put(None)
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while (batch := self._batches.get()) is not None:
            started_s, started_cpu_s = self._clock.now_s(), self._clock.thread_cpu_s()
            sampled: Sampled | None = None
            error: BaseException | None = None
            try:
                sampled = self._executor.run(batch)
            except BaseException as caught:
                error = caught
            busy_s = self._clock.thread_cpu_s() - started_cpu_s
            if sampled is not None and sampled.busy_s is not None:
                busy_s = sampled.busy_s
            run_s = self._clock.now_s() - started_s
            self._finished = Finished(batch, sampled, run_s, busy_s, error)
            self._wake.set()
