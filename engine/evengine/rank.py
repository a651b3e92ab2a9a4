"""`python -m evengine.rank`: one rank of an engine. Started by its lead, ends with it."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="evengine.rank", description="One rank of an engine.")
    parser.add_argument("--rank", type=int, required=True, help="number of this rank, from 1")
    parser.add_argument("--of", type=int, required=True, help="ranks of the node")
    parser.add_argument("--lead", type=int, required=True, help="process id of the lead")
    parser.add_argument("--link", type=int, required=True, help="descriptor of the link to it")
    parser.add_argument("--exchange", type=int, required=True, help="descriptor of shared memory")
    arguments = parser.parse_args(argv)
    _die_with(arguments.lead)
    # The lead decides: a signal to the whole group must not take its ranks before it has ended.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Not at the top: torch takes seconds, and the lead may die in them.
    from evengine.ranks.member import serve

    serve(arguments.link, arguments.exchange)
    return 0


def _die_with(lead: int) -> None:
    """Have the kernel kill this process when its lead ends, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != lead:  # it ended before
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
