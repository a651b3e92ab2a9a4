"""Progress on stderr: a block that is redrawn in a terminal, a line a change on a pipe."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from enum import StrEnum
from types import TracebackType
from typing import Final, TextIO

from evctl.cli.style import painted
from evctl.provision.converge import Report
from evctl.provision.plan import Step

HEARTBEAT_S: Final = 30.0
REDRAW_S: Final = 0.5


class ProgressForm(StrEnum):
    AUTO = "auto"
    TTY = "tty"
    PLAIN = "plain"
    JSON = "json"
    NONE = "none"


class Progress:
    """Shows reports until it is left. As a context; `show` may come from any thread."""

    def __init__(self, form: ProgressForm, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._form = self._resolved(form)
        self._lock = threading.Lock()
        self._latest: dict[str, tuple[Report, float]] = {}
        self._since: dict[str, float] = {}
        self._drawn = 0
        self._began = time.monotonic()
        self._last_line = self._began
        self._left = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def _resolved(self, form: ProgressForm) -> ProgressForm:
        if form is not ProgressForm.AUTO:
            return form
        moving = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        return ProgressForm.TTY if moving else ProgressForm.PLAIN

    def __enter__(self) -> Progress:
        self._ticker.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._left.set()
        self._ticker.join()

    def show(self, report: Report) -> None:
        with self._lock:
            now = time.monotonic()
            self._since.setdefault(report.unit, now)
            self._latest[report.unit] = report, now
            if self._form is ProgressForm.TTY:
                self._draw()
            elif self._form is ProgressForm.PLAIN:
                self._line(_told(report, time.monotonic() - self._began))
            elif self._form is ProgressForm.JSON:
                self._line(json.dumps(_values(report)))

    def _line(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()
        self._last_line = time.monotonic()

    def _draw(self) -> None:
        """Redraw the block in place; what scrolled away stays as it was."""
        now = time.monotonic()
        lines = []
        for report, at in self._latest.values():
            until = at if _is_over(report) else now
            lines.append(self._fit(_told(report, until - self._since[report.unit])))
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        self._stream.write(up + "".join(f"\r\x1b[2K{line}\n" for line in lines))
        self._stream.flush()
        self._drawn = len(lines)

    def _fit(self, line: str) -> str:
        line = line.splitlines()[0]
        width = shutil.get_terminal_size().columns
        shown = line if len(line) < width else line[: width - 2] + "…"
        return painted(shown, "red", self._stream) if " FAILED " in line else shown

    def _tick(self) -> None:
        while not self._left.wait(REDRAW_S):
            with self._lock:
                if self._form is ProgressForm.TTY and self._latest:
                    self._draw()
                waited_s = time.monotonic() - self._last_line
                if self._form is ProgressForm.PLAIN and waited_s > HEARTBEAT_S:
                    self._line(self._heartbeat())

    def _heartbeat(self) -> str:
        pending = [
            f"{unit} {report.step.label}"
            for unit, (report, _) in self._latest.items()
            if not _is_over(report)
        ]
        elapsed_s = time.monotonic() - self._began
        return f"... after {elapsed_s:.0f} s still waiting for {', '.join(pending) or 'an answer'}"


def _is_over(report: Report) -> bool:
    """Whether nothing more is to come of this unit: an engine that started has yet to join."""
    return report.state in ("done", "failed") and report.step is not Step.ENGINE


def _told(report: Report, elapsed_s: float) -> str:
    text = f"FAILED {report.text}" if report.state == "failed" else report.text
    first, _, rest = text.partition("\n")
    line = f"{report.unit:<8} {report.step.label:<13} {first}  ({elapsed_s:.1f} s)"
    return f"{line}\n{rest}" if rest else line


def _values(report: Report) -> dict[str, object]:
    return {
        "unit": report.unit,
        "step": report.step.name.lower(),
        "state": report.state,
        "text": report.text,
    }
