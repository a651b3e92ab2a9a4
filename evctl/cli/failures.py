"""How failures are told: four lines on stderr; an object on stdout too if JSON was asked for."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from evctl.cli.style import painted
from evctl.core.errors import EvctlError, ExitCode, RefusedError, UsageError

JSON_FORMS = ("json", "jsonl")


def tell(error: EvctlError, arguments: Sequence[str]) -> int:
    """Print an error and return the exit code that it means."""
    text = error.render()
    head, _, rest = text.partition("\n")
    sys.stdout.flush()
    _write(head, "red", rest)
    if wants_json(arguments):
        print(json.dumps({"error": error_object(error)}, ensure_ascii=False))
    return int(error.exit_code)


def tell_partial(code: str, next_step: str, what: str, why: str) -> None:
    """An error beside a result that is on stdout already: stderr only."""
    tell(EvctlError(what=what, why=why, next_step=next_step, code=code), ())


def warn(code: str, next_step: str, what: str, why: str) -> None:
    """What a result lacks, of a command that did what it was asked: it exits 0."""
    error = EvctlError(what=what, why=why, next_step=next_step, code=code)
    head, _, rest = error.render().partition("\n")
    sys.stdout.flush()
    _write(head.replace("error", "warning", 1), "yellow", rest)


def _write(head: str, color: str, rest: str) -> None:
    sys.stderr.write(f"{painted(head, color, sys.stderr)}\n{rest}\n")


def error_object(error: EvctlError) -> dict[str, object]:
    """problems: all mistakes, of an error about a file with several."""
    problems = [str(problem) for problem in getattr(error, "problems", ())]
    return {
        "code": error.code,
        "what": error.what,
        "why": error.why,
        "next": error.next_step,
        "exit_code": int(error.exit_code),
        **({"problems": problems} if problems else {}),
    }


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether the result was to be JSON. Read from the words themselves: the error may be that
    they cannot be parsed."""
    if not arguments:
        return False
    chosen = os.environ.get("EVCTL_OUTPUT", "")
    for i, word in enumerate(arguments):
        if word == "--":
            break
        if word in ("-o", "--output") and i + 1 < len(arguments):
            chosen = arguments[i + 1]
        elif word.startswith("--output="):
            chosen = word.partition("=")[2]
        elif word.startswith("-o") and not word.startswith("--") and len(word) > 2:
            chosen = word[2:].removeprefix("=")
    return chosen in JSON_FORMS


def usage_error(message: str, usage: str, command: str) -> UsageError:
    """A command line that cannot be read."""
    what, _, suggestion = message.partition(" Did you mean ")
    return UsageError(
        what=what.strip().rstrip("."),
        why=usage.strip().removeprefix("Usage: ") or "the command line cannot be read",
        next_step=f"did you mean {suggestion}" if suggestion else f"{command} --help",
        code="EV-1801",
    )


def interrupted(
    next_step: str = "run the same command again: what was done stays done",
) -> EvctlError:
    return EvctlError(
        what="interrupted",
        why="Ctrl-C",
        next_step=next_step,
        code="EV-1805",
        exit_code=ExitCode.INTERRUPTED,
    )


def check_exit_code(exit_code: bool, plan: bool) -> None:
    """Without --plan the command would do what the user only wanted to ask about.

    Raises UsageError (EV-1801).
    """
    if exit_code and not plan:
        raise UsageError(
            what="--exit-code is for --plan",
            why="it turns what a plan says into an exit code, and this would carry it out",
            next_step="add --plan, or leave --exit-code out",
            code="EV-1801",
        )


def needs_confirmation(what: str, flag: str) -> RefusedError:
    return RefusedError(
        what=f"this needs a yes: {what}",
        why="stdin is not a terminal, so nobody can be asked",
        next_step=f"add {flag}",
        code="EV-1802",
    )


def declined(what: str, why: str = "the answer was not yes") -> RefusedError:
    return RefusedError(
        what=f"not confirmed: {what}",
        why=why,
        next_step="nothing was changed",
        code="EV-1803",
    )


def not_yet(what: str, instead: str) -> RefusedError:
    return RefusedError(
        what=f"{what} is not there yet",
        why="this version of evctl does not have it",
        next_step=instead,
        code="EV-1804",
    )
