"""Where drawings go, and whether they can be made: asked before minutes are measured for them."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from evctl.core.errors import EvctlError, UsageError


def place(wanted: Path, usual: str) -> Path:
    """The drawing's file; a folder gets the usual name. Its folder is made. Raises UsageError
    (EV-1634) where it cannot be written."""
    if wanted.is_dir() or not wanted.suffix:
        file = wanted / usual
    elif wanted.suffix == ".svg":
        file = wanted
    else:
        raise _no_place(wanted, "drawings are SVG")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_place(file, error.strerror or str(error)) from error
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise _no_place(file, "it is not yours to write")
    return file


def _no_place(file: Path, why: str) -> UsageError:
    return UsageError(
        what=f"cannot draw into {file}",
        why=why,
        next_step="give a folder or a file that ends in .svg",
        code="EV-1634",
    )


def write_data(drawing: Path, data: msgspec.Struct) -> Path:
    """What is drawn, beside the drawing as JSON; the path of that."""
    file = drawing.with_suffix(".json")
    file.write_bytes(msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n")
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
