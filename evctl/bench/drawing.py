"""Where drawings go, and whether they can be made: asked before minutes are measured for them."""

from __future__ import annotations

import os
from pathlib import Path

from evctl.core.errors import EvctlError, UsageError


def place(wanted: Path, usual: str) -> Path:
    """The drawing's file; a folder gets the usual name. Its folder is made. Raises UsageError
    (EV-1634) where it cannot be written."""
    if wanted.suffix == ".svg" and not wanted.is_dir():
        file = wanted
    elif wanted.suffix and not wanted.is_dir():
        raise UsageError(
            what=f"cannot draw into {wanted}",
            why="drawings are SVG",
            next_step="give a folder or a file that ends in .svg",
            code="EV-1634",
        )
    else:
        file = wanted / usual
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            raise PermissionError("it is not yours to write")
    except OSError as error:
        raise UsageError(
            what=f"cannot draw into {file}",
            why=error.strerror or str(error),
            next_step="give a folder or a file that ends in .svg",
            code="EV-1634",
        ) from error
    return file


def check_drawing() -> None:
    """Raises EvctlError (EV-1633) when there is nothing to draw with."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise EvctlError(
            what="cannot draw",
            why="matplotlib is not installed",
            next_step="python -m pip install 'evctl[bench]'",
            code="EV-1633",
        ) from error
