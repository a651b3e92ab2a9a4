"""Entry of `evctl top`. Cheap to import: the terminal library is loaded by run()."""

from __future__ import annotations

import os
import time

from evctl.tui.source import AdminSource
from evctl.tui.terminal import Terminal, detect

REMOTE_FPS = "15"


def run(
    source: AdminSource,
    *,
    by: str,
    read_only: bool = False,
    protected: bool = False,
    flag: str = "",
) -> None:
    """Show the cluster behind `source` until the person leaves.

    by: whom the journal names for a change. protected: a change asks for the cluster's name to
    be typed. flag: ` -c NAME` where a command has to name it. Needs a terminal on stdin and
    stdout; the caller checks that.
    """
    terminal = detect(os.environ)
    _prepare(terminal)
    # After _prepare: the library reads its environment when it is first imported.
    from evctl.tui.application import TopApp

    app = TopApp(
        source,
        clock=time.monotonic,
        terminal=terminal,
        read_only=read_only,
        protected=protected,
        flag=flag,
        by=by,
    )
    app.run()


def _prepare(terminal: Terminal) -> None:
    """Settings of the terminal library that exist only as environment variables."""
    if terminal.remote:
        os.environ.setdefault("TEXTUAL_FPS", REMOTE_FPS)
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    # The library takes an empty NO_COLOR for a set one; the convention does not.
    if not os.environ.get("NO_COLOR"):
        os.environ.pop("NO_COLOR", None)
    if terminal.mono:
        os.environ["NO_COLOR"] = "1"
