"""YAML that remembers where each value stands, and accepts no key twice."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import msgspec
import yaml

from evctl.core.errors import ConfigError


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML 1.1, where 1e-6 is a word; here it is the number that everybody means, as in 1.2."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$", re.ASCII),
    list("-+.0123456789"),
)

KeyPath = tuple[str | int, ...]
"""Keys and indices from the root of a document to a value."""

MAX_VALUES = 20_000
MAX_FILE_BYTES = 4_000_000
MAX_DEPTH = 50


class Problem(msgspec.Struct, frozen=True):
    """One mistake: where (file:line), what is wrong, and what to write instead."""

    where: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f" ({self.hint})" if self.hint else "")


class InvalidConfigError(ConfigError):
    """A file with mistakes; problems has them all."""

    def __init__(self, path: str, problems: tuple[Problem, ...], code: str) -> None:
        first = problems[0]
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        super().__init__(
            what=f"{path} is not valid{more}",
            why=f"{first.where}: {first.what}",
            next_step=first.hint or f"correct it, then: evctl config validate {path}",
            code=code,
        )
        self.problems = problems


class MarkedDocument(msgspec.Struct, frozen=True):
    """A document as plain values. lines: 1-based line of each value's key (or of a list item)."""

    path: str
    value: Any
    lines: dict[KeyPath, int]

    def where(self, key_path: KeyPath) -> str:
        """file:line of a value, or of the nearest thing around it that the file has."""
        while key_path and key_path not in self.lines:
            key_path = key_path[:-1]
        return f"{self.path}:{self.lines.get(key_path, 1)}"


def read_marked(path: Path, shown: str | None = None) -> MarkedDocument:
    """Read and parse a file. Raises ConfigError: EV-1701 unreadable, EV-1702 not YAML or with a
    key twice."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise OSError(0, f"it has more than {MAX_FILE_BYTES} bytes")
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            what=f"cannot read {path}",
            why=error.strerror or str(error),
            next_step="check the path and its permissions",
            code="EV-1701",
        ) from error
    return parse_marked(text, shown or str(path))


def parse_marked(text: bytes | str, shown: str) -> MarkedDocument:
    """Parse one document. Raises InvalidConfigError (EV-1702)."""
    loader = _Loader(text)
    walk = _Walk(shown, loader)
    try:
        root = loader.get_single_node()
        value = None if root is None else walk.value_of(root, ())
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        walk.problem(line, f"not YAML: {error.problem or error.context}")
    except (yaml.YAMLError, RecursionError, UnicodeError, ValueError) as error:
        walk.problem(1, f"not YAML: {error}".splitlines()[0])
    finally:
        loader.dispose()
    if walk.problems:
        raise InvalidConfigError(shown, tuple(walk.problems), "EV-1702")
    return MarkedDocument(shown, value, walk.lines)


class _Walk:
    """Turns composed nodes into values; collects mistakes instead of ending at the first."""

    def __init__(self, shown: str, loader: Any) -> None:
        self.shown = shown
        self.loader = loader
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[Problem] = []
        self.values = 0

    def problem(self, line: int, what: str, hint: str = "") -> None:
        self.problems.append(Problem(f"{self.shown}:{line}", what, hint))

    def value_of(self, node: yaml.Node, path: KeyPath) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        self.values += 1
        if self.values > MAX_VALUES or len(path) > MAX_DEPTH:
            raise ValueError("too many values, or nested too deep")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value_of(item, (*path, i)) for i, item in enumerate(node.value)]
        return self.loader.construct_object(node, deep=True)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[Hashable, Any]:
        mapping: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.problem(line, "a key must be a plain word")
                continue
            key = str(key_node.value)
            if key in mapping:
                first = self.lines[(*path, key)]
                self.problem(line, f"key {key!r} stands here a second time", f"see line {first}")
                continue
            self.lines[(*path, key)] = line
            mapping[key] = self.value_of(value_node, (*path, key))
        return mapping
