"""Getting a model onto this machine, by the engine's own command: evctl never imports engines."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence

from evctl.core.errors import EvctlError
from evctl.provision.driver import Say


def fetch_model(program: Sequence[str], name: str, say: Say) -> str:
    """Run `PROGRAM fetch NAME`; returns the model's directory. say gets its lines of progress.

    Raises EvctlError (EV-1713). In a session of its own: an interrupt meant for us lets it
    finish, and what it has fetched stays.
    """
    try:
        process = subprocess.Popen(
            [*program, "fetch", name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise _failed(name, f"{program[0]}: {error.strerror}") from error
    lines: list[str] = []
    reader = threading.Thread(target=_listen, args=(process, lines, say), daemon=True)
    reader.start()
    try:
        assert process.stdout is not None
        directory = process.stdout.read().strip()
        code = process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        reader.join(timeout=5)
        process.stdout.close()  # type: ignore[union-attr]
        process.stderr.close()  # type: ignore[union-attr]
    if code != 0 or not directory:
        raise _failed(name, _reason(lines, code))
    return directory.splitlines()[-1]


def _listen(process: subprocess.Popen[str], lines: list[str], say: Say) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        stripped = line.strip()
        if stripped:
            lines.append(stripped)
            del lines[:-50]
            say(stripped)


def _reason(lines: list[str], code: int) -> str:
    """What the command said about its end: the `why` of its error, or its last line."""
    for line in lines:
        if line.startswith("why:"):
            return line.removeprefix("why:").strip()
    return lines[-1] if lines else f"the command ended with {code}"


def _failed(name: str, why: str) -> EvctlError:
    missing = "No module named" in why
    return EvctlError(
        what=f"model {name} could not be fetched",
        why=why,
        next_step="install the engine: pip install 'evctl[local]'"
        if missing
        else f"python -m evengine.models fetch {name} shows every step",
        code="EV-1713",
    )
