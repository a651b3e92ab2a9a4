"""Reading and writing traces: our own form, and foreign ones by way of their importer."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import msgspec

from evctl.core.errors import ConfigError
from evctl.trace.importers import weka
from evctl.trace.lines import bad_trace, decode, no_trace, read_lines
from evctl.trace.schema import FORMAT, VERSION, Conversation, Trace, TraceHeader, problems

MALFORMED = "EV-1601"
"""Code of every error about the content of a trace."""

SAMPLE = "sample"
"""Stands for the packaged sample wherever a trace is named."""

_header_decoder = msgspec.json.Decoder(TraceHeader)
_conversation_decoder = msgspec.json.Decoder(Conversation)


def sample_path() -> Path:
    """The packaged sample: shapes of real conversations (see its NOTICE.md)."""
    return Path(__file__).parent / "samples" / "claude-code.jsonl.gz"


def locate(trace: str | Path) -> Path:
    """The file that a user means by `sample` or a path. Raises NotFoundError."""
    path = Path(trace).expanduser()
    if str(trace) == SAMPLE and not path.exists():
        return sample_path()
    if not path.exists():
        raise no_trace(path, "there is no such file")
    return path


def open_trace(
    path: Path, *, share_prefix: bool = True
) -> tuple[TraceHeader, Iterator[Conversation]]:
    """Header and conversations of a trace in any known form; conversations come one at a time.

    share_prefix: for forms that do not say so themselves, tool and system text of equal length
    is one text in all conversations. Raises EvctlError, also while iterating.
    """
    if path.is_dir() or weka.is_weka(path):
        return weka.header(), weka.conversations(path, share_prefix=share_prefix)
    lines = read_lines(path)
    header = _read_header(path, lines)
    return header, _conversations(path, header, lines)


def load(path: Path, *, share_prefix: bool = True) -> Trace:
    """A whole trace. Raises EvctlError."""
    header, conversations = open_trace(path, share_prefix=share_prefix)
    return Trace(header, tuple(conversations))


def _read_header(path: Path, lines: Iterator[tuple[int, bytes]]) -> TraceHeader:
    line, data = next(lines, (1, b""))
    if not data:
        raise bad_trace(path, line, "the file is empty")
    header = decode(_header_decoder, data, path, line)
    if header.format != FORMAT:
        raise bad_trace(path, line, f"the format is {header.format!r}, not {FORMAT!r}")
    if header.version != VERSION:
        raise ConfigError(
            what=f"cannot read the trace {path}:{line}",
            why=f"it has version {header.version}; this program reads version {VERSION}",
            next_step="import the trace again from its source",
            code="EV-1603",
        )
    return header


def _conversations(
    path: Path, header: TraceHeader, lines: Iterator[tuple[int, bytes]]
) -> Iterator[Conversation]:
    seen: set[str] = set()
    for line, data in lines:
        conversation = decode(_conversation_decoder, data, path, line)
        if conversation.id in seen:
            raise bad_trace(path, line, f"conversation {conversation.id!r} comes twice")
        seen.add(conversation.id)
        if found := problems(conversation, header.block_tokens):
            raise bad_trace(path, line, found[0])
        yield conversation


def validate(path: Path) -> list[str]:
    """Everything wrong with a file of our own form, as `FILE:LINE: what`; empty when valid.

    Goes on after a bad line. Raises NotFoundError when the file cannot be opened.
    """
    found: list[str] = []
    try:
        lines = read_lines(path)
        header = _read_header(path, lines)
        seen: set[str] = set()
        for line, data in lines:
            found.extend(_line_problems(path, line, data, header, seen))
    except ConfigError as error:
        found.append(_as_line(path, error))
    return found


def _line_problems(
    path: Path, line: int, data: bytes, header: TraceHeader, seen: set[str]
) -> Iterator[str]:
    try:
        conversation = decode(_conversation_decoder, data, path, line)
    except ConfigError as error:
        yield _as_line(path, error)
        return
    if conversation.id in seen:
        yield f"{path}:{line}: conversation {conversation.id!r} comes twice"
    seen.add(conversation.id)
    for text in problems(conversation, header.block_tokens):
        yield f"{path}:{line}: conversation {conversation.id!r}: {text}"


def _as_line(path: Path, error: ConfigError) -> str:
    line = error.what.rpartition(":")[2]
    return f"{path}:{line}: {error.why}"


def write(path: Path, header: TraceHeader, conversations: Iterable[Conversation]) -> int:
    """Write our own form, byte for byte the same for the same input; returns conversations.

    The file appears whole or not at all.
    """
    encoder = msgspec.json.Encoder()
    partial = path.with_name(path.name + ".partial")
    count = 0
    try:
        with ExitStack() as stack:
            file = _open_write(stack, partial, packed=path.suffix == ".gz")
            file.write(encoder.encode(header) + b"\n")
            for conversation in conversations:
                file.write(encoder.encode(conversation) + b"\n")
                count += 1
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return count


def _open_write(stack: ExitStack, path: Path, *, packed: bool) -> IO[bytes]:
    raw = stack.enter_context(path.open("wb"))
    if not packed:
        return raw
    # No name and no time in the gzip header: equal content gives equal bytes.
    packer = gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=9, mtime=0)
    return stack.enter_context(io.BufferedWriter(stack.enter_context(packer)))
