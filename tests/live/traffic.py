"""Streaming completions through the gateway, from threads, until told to stop."""

from __future__ import annotations

import json
import threading
import time
from types import TracebackType
from typing import Any

import httpx

TIMEOUT_S = 60.0


class Answer:
    """One streamed completion. error: the object of its error event or body, {} without one."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.begun_s = time.monotonic()
        self.ended_s = 0.0
        self.pieces = 0
        self.done = False
        self.error: dict[str, Any] = {}
        self.broken = ""
        """The connection's end, where that was not a whole answer."""
        self.usage: dict[str, Any] = {}

    @property
    def ok(self) -> bool:
        return self.done and not self.error and not self.broken


def complete(url: str, prompt: str, max_tokens: int, answer: Answer | None = None) -> Answer:
    """One streaming completion, read to its end."""
    answer = answer or Answer(0)
    body = {
        "model": "random-4l256",
        "prompt": prompt,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    try:
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=TIMEOUT_S) as reply:
            if reply.status_code != 200:
                answer.error = json.loads(reply.read())["error"]
                return answer
            for line in reply.iter_lines():
                _take(answer, line)
    except (httpx.HTTPError, ValueError, KeyError) as error:
        answer.broken = f"{type(error).__name__}: {error}"
    finally:
        answer.ended_s = time.monotonic()
    return answer


def _take(answer: Answer, line: str) -> None:
    if not line.startswith("data: "):
        return
    if line == "data: [DONE]":
        answer.done = True
        return
    event = json.loads(line.removeprefix("data: "))
    answer.error = event.get("error") or answer.error
    answer.usage = event.get("usage") or answer.usage
    answer.pieces += bool(event.get("choices"))


class Traffic:
    """`width` completions at a time, for as long as the block lasts. Prompts differ at their
    beginning, so that they spread over the nodes."""

    def __init__(self, url: str, width: int = 3, max_tokens: int = 48) -> None:
        self._url = url
        self._max_tokens = max_tokens
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.answers: list[Answer] = []
        """All that began, in their order."""
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(width)]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """No new ones; those that run are read to their end."""
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * TIMEOUT_S)

    def ended_after(self, moment_s: float) -> list[Answer]:
        """Ended ones that began after a moment."""
        return [a for a in list(self.answers) if a.ended_s and a.begun_s > moment_s]

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                answer = Answer(len(self.answers))
                self.answers.append(answer)
            words = f"{answer.number:05d} " + "the quick brown fox jumps over the lazy dog. " * 6
            complete(self._url, words, self._max_tokens, answer)
            if not answer.ok:
                self._stop.wait(0.2)  # a gateway that is away is not to be stormed
