"""Lines of a file that may be gzipped, foreign or broken, with bounded memory.

Whatever is wrong with the bytes becomes an EvctlError that names file and line.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from evctl.core.errors import ConfigError, EvctlError, NotFoundError

MAX_LINE_BYTES = 64 * 2**20
"""Longest line, or whole JSON document, that is read."""

Value = TypeVar("Value")


def bad_trace(path: Path, line: int, why: str) -> ConfigError:
    """The error of every malformed trace."""
    return ConfigError(
        what=f"cannot read the trace {path}:{line}",
        why=why,
        next_step="check that the file is whole and of a form that `evctl trace` reads",
        code="EV-1601",
    )


def no_trace(path: Path, why: str) -> NotFoundError:
    """The error of a file that cannot be opened at all."""
    return NotFoundError(
        what=f"cannot open the trace {path}",
        why=why,
        next_step="give the path of a trace, or `sample` for the packaged one",
        code="EV-1602",
    )


def read_lines(path: Path, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes]]:
    """(line number, line) of each line that is not blank. Raises EvctlError."""
    line = 0
    try:
        with open_bytes(path) as file:
            while data := file.readline(max_line_bytes + 1):
                line += 1
                if len(data) > max_line_bytes:
                    raise bad_trace(path, line, f"the line is over {max_line_bytes} bytes long")
                if data.strip():
                    yield line, data
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise bad_trace(path, line + 1, f"the compressed data are damaged: {error}") from error
    except OSError as error:
        raise no_trace(path, error.strerror or str(error)) from error


def read_document(path: Path, max_bytes: int = MAX_LINE_BYTES) -> bytes:
    """A file that is one JSON document. Raises EvctlError."""
    try:
        with open_bytes(path) as file:
            data = file.read(max_bytes + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise bad_trace(path, 1, f"the compressed data are damaged: {error}") from error
    except OSError as error:
        raise no_trace(path, error.strerror or str(error)) from error
    if len(data) > max_bytes:
        raise bad_trace(path, 1, f"the document is over {max_bytes} bytes long")
    return data


def open_bytes(path: Path) -> io.BufferedReader:
    """Open for reading, unpacked if the name ends in .gz."""
    if path.suffix == ".gz":
        return io.BufferedReader(gzip.GzipFile(path, "rb"))
    return path.open("rb")


def decode(
    decoder: msgspec.json.Decoder[Value], data: bytes, path: Path, first_line: int
) -> Value:
    """Decode one JSON value that begins at `first_line`. Raises EvctlError, nothing else."""
    try:
        return decoder.decode(data)
    except EvctlError:
        raise
    except RecursionError as error:
        raise bad_trace(path, first_line, "values are nested too deeply") from error
    except (msgspec.DecodeError, ValueError, OverflowError) as error:
        # DecodeError is malformed JSON, ValidationError (a DecodeError) the wrong shape;
        # ValueError comes from invalid UTF-8.
        place = re.search(r"\(byte (\d+)\)", str(error))
        line = first_line + (data.count(b"\n", 0, int(place[1])) if place else 0)
        raise bad_trace(path, line, str(error)) from error
