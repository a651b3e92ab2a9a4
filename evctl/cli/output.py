"""Results on stdout: aligned tables for people, versioned JSON and YAML for programs."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from evctl.core.errors import UsageError
from evctl.core.status import API_VERSION

LEAST_COLUMN: Final = 12
"""Characters that a column gets even where the terminal has no room for it."""


class Form(StrEnum):
    """Of a result. jsonl: one object a line, for streams."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    JSONL = "jsonl"


def output_option(*possible: Form) -> Any:
    """`-o` of a command that has these forms: help, completion and errors name no other."""

    def complete(incomplete: str) -> list[str]:
        return [form.value for form in possible if form.value.startswith(incomplete)]

    return typer.Option(
        "--output",
        "-o",
        help="Form of the result.",
        metavar=f"<{'|'.join(possible)}>",
        autocompletion=complete,
        show_default=False,
    )


OutputOption = Annotated[Form | None, output_option(*Form)]
NamesOption = Annotated[Form | None, output_option(Form.TABLE, Form.JSON, Form.YAML, Form.NAME)]
DocumentOption = Annotated[Form | None, output_option(Form.TABLE, Form.JSON, Form.YAML)]


def chosen(form: Form | None, *possible: Form) -> Form:
    """The form to print: the flag, else the user's setting where this command has it, else the
    first of `possible`. Raises UsageError (EV-1806) for a flag that does not fit."""
    if form is None:
        from evctl.config.settings import load_settings

        wanted = Form(load_settings().output.value)
        if wanted is Form.JSONL and Form.JSON in possible:
            wanted = Form.JSON
        return wanted if wanted in possible else possible[0]
    if form in possible:
        return form
    raise UsageError(
        what=f"this command has no output form {form.value!r}",
        why=f"it has {', '.join(possible)}",
        next_step=f"give one of them, such as -o {possible[0]}",
        code="EV-1806",
    )


def document(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A result as programs read it."""
    return {"apiVersion": API_VERSION, "kind": kind, **values}


def print_document(form: Form, kind: str, values: Mapping[str, Any]) -> None:
    if form is Form.YAML:
        import yaml

        text = yaml.safe_dump(document(kind, values), sort_keys=False, allow_unicode=True)
        sys.stdout.write(text)
    elif form is Form.JSONL:
        print_line(document(kind, values))
    else:
        print(json.dumps(document(kind, values), indent=2, ensure_ascii=False))


def print_line(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, separators=(",", ":")), flush=True)


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[int] = (),
    paint: Mapping[int, Callable[[str], str]] | None = None,
    width: int | None = None,
) -> str:
    """Aligned columns, two blanks apart. right: columns of numbers. paint: column -> colouring of
    a padded cell. width: of the terminal; the last column goes on below itself to fit in."""
    if width is not None:
        rows = _folded(head, rows, width)
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(cells: Sequence[str], colored: bool) -> str:
        padded = [
            cell.rjust(widths[i]) if i in right else cell.ljust(widths[i])
            for i, cell in enumerate(cells)
        ]
        if colored:
            padded = [(paint or {}).get(i, str)(cell) for i, cell in enumerate(padded)]
        return "  ".join(padded).rstrip()

    return "\n".join([line(head, False), *(line(row, True) for row in rows)])


def terminal_width() -> int | None:
    """Of the terminal that stdout is, None where it is none: a pipe has no edge."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _folded(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[Sequence[str]]:
    """The rows with their last cell in as many lines as it takes, broken between words."""
    last = len(head) - 1
    before = sum(max(len(row[i]) for row in [head, *rows]) + 2 for i in range(last))
    room = max(LEAST_COLUMN, width - before)
    folded: list[Sequence[str]] = []
    for row in rows:
        first, *rest = textwrap.wrap(row[last], room, break_long_words=False) or [""]
        folded.append([*row[:last], first])
        folded += [["" for _ in range(last)] + [line] for line in rest]
    return folded


def folded(text: str, width: int | None) -> str:
    """Each line of it broken between words to fit into the terminal, and goes on indented."""
    if width is None:
        return text
    lines = [
        textwrap.wrap(
            line, max(width, LEAST_COLUMN), subsequent_indent="  ", break_long_words=False
        )
        for line in text.splitlines()
    ]
    return "\n".join("\n".join(each) for each in lines)


def seconds(value: float | None) -> str:
    """`-` for what is not known; never 0 for it."""
    if value is None:
        return "-"
    if value < 10:
        return f"{value:.2f} s"
    return f"{value:.0f} s" if value < 120 else f"{value / 60:.0f} min"


def percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def number_of(count: int, noun: str) -> str:
    """`1 block`, `3 blocks`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
