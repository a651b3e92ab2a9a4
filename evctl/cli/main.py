"""Entry of `evctl`: runs one command, tells its failure, returns its exit code."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evctl import __version__

if TYPE_CHECKING:
    from evctl.core.errors import EvctlError

PROGRAM = "evctl"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Never raises but SystemExit of completion."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:  # before any import: asked often, by scripts
        print(__version__)
        return 0
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read us has enough. Leave nothing for the interpreter to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(arguments: list[str]) -> int:
    from evctl.cli.failures import interrupted, tell, usage_error
    from evctl.core.errors import EvctlError, ExitCode

    try:
        from evctl.cli.root import ReaderGoneError, command_tree, usage_failure

        try:
            code = command_tree().main(arguments, prog_name=PROGRAM, standalone_mode=False)
        except ReaderGoneError as error:
            raise BrokenPipeError from error
        except Exception as error:
            failure = usage_failure(error)
            if failure is None:
                raise
            raise usage_error(*failure) from error
        if code == ExitCode.INTERRUPTED and not isinstance(code, ExitCode):
            raise interrupted()  # the library's; a command that was asked to stop said so itself
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        return tell(interrupted(), arguments)
    except EvctlError as error:
        return tell(error, arguments)
    except Exception as error:
        return tell(_bug(error), arguments)


def _bug(error: Exception) -> EvctlError:
    """An error of ours: the traceback goes into a file, its place onto the screen."""
    from evctl.config.paths import state_root
    from evctl.core.errors import EvctlError

    text = "".join(traceback.format_exception(error))
    place: Path | None = state_root() / "crashes" / f"{time.time_ns()}.txt"
    try:
        assert place is not None
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        place.write_text(f"evctl {__version__}, Python {sys.version}\n{text}", encoding="utf-8")
    except OSError:
        place = None
        sys.stderr.write(text)
    return EvctlError(
        what="evctl has a bug, and this is one",
        why=f"{type(error).__name__}: {error}".splitlines()[0],
        next_step=f"report it with {place}" if place else "report it with the text above",
        code="EV-9001",
    )
