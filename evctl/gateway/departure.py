"""Work that ends when its client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive


async def while_client_stays(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work`, cancelled when the client disconnects; False if that happened.

    The body must have been read: from then on the ASGI channel says nothing but goodbye.
    Returns after `work` has ended in either case, and raises what it raised.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        return not await _cancel(task)
    finally:
        # Also when the server cancels us while it shuts down.
        await _cancel(task)
        await _cancel(watcher)


async def _cancel(task: asyncio.Future[None]) -> bool:
    """End a task and wait for it; False if it had completed after all. Raises what it raised,
    unless it had ended before."""
    if task.done():
        return False
    task.cancel()
    await asyncio.wait({task})
    if task.cancelled():
        return True
    task.result()
    return False


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
