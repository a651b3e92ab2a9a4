"""Reading the values of simple parameters without pydantic, which typer would load (100 ms) to
turn even a flag into a bool: completion and small commands are asked for far too often for that.

It replaces one private attribute of typer's parameters. Where another version of typer has none,
or a parameter is of another kind, typer's own way stays.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import typer

ATTRIBUTE: Final = "_runtime_param"


class PlainValues:
    """Coercion of one parameter, in the place of typer's RuntimeParam."""

    def __init__(self, read: Callable[[Any], Any], kind: str) -> None:
        self._read = read
        self._kind = kind

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        try:
            return [self._read(item) for item in value] if many else self._read(value)
        except ValueError as error:
            said = str(error) if self._kind == "choice" else f"{value!r} is not {self._kind}"
            raise typer.BadParameter(said, ctx=ctx, param=param) from error


def read_plainly(command: Any) -> None:
    """Prepare the parameters of a command, and of the commands below it."""
    given = command.get_params

    def get_params(context: Any) -> Any:
        """As before; --help is among them only here."""
        params = given(context)
        for param in params:
            _prepare(param)
        return params

    command.get_params = get_params
    for below in getattr(command, "commands", {}).values():
        read_plainly(below)


def _prepare(param: Any) -> None:
    descriptor = getattr(param, "type_descriptor", None)
    if descriptor is None or getattr(param, ATTRIBUTE, descriptor) is not None:
        return  # not typer's, of another version, or prepared
    annotation = descriptor.annotation
    if get_origin(annotation) is list:
        (annotation,) = get_args(annotation)
    values = None if descriptor.is_ranged else _values_of(annotation, param.metavar or "")
    if values is not None:
        setattr(param, ATTRIBUTE, values)


def _values_of(annotation: Any, metavar: str) -> PlainValues | None:
    if annotation is str:
        return PlainValues(str, "a word")
    if annotation is bool:
        return PlainValues(_bool, "true or false")
    if annotation is int:
        return PlainValues(int, "a whole number")
    if annotation is float:
        return PlainValues(float, "a number")
    if annotation is Path:
        return PlainValues(Path, "a path")
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return PlainValues(_choice(annotation, metavar), "choice")
    return None


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if str(value).lower() not in words:
        raise ValueError(value)
    return words[str(value).lower()]


def _choice(kind: type[Enum], metavar: str) -> Callable[[Any], Enum]:
    """metavar: `<a|b>` where a parameter offers less than all; the command says what is wrong
    with the rest."""
    offered = metavar.strip("<>").split("|") if "|" in metavar else None

    def read(value: Any) -> Enum:
        if isinstance(value, kind):
            return value
        for member in kind:
            if member.value == value:
                return member
        choices = ", ".join(offered or [str(member.value) for member in kind])
        raise ValueError(f"{value!r} is not one of {choices}")

    return read
