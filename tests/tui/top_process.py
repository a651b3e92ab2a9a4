"""`evctl top` without the command line: `python -m tests.tui.top_process SOCKET [--read-only]`."""

from __future__ import annotations

import sys
from pathlib import Path

from evctl.client import AdminClient
from evctl.tui.app import run

if __name__ == "__main__":
    run(
        AdminClient(Path(sys.argv[1])),
        by="alice@desk",
        read_only="--read-only" in sys.argv,
        protected="--protected" in sys.argv,
    )
