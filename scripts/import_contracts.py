"""Three import-linter contract types that read like the drawing in docs/design.md.

The built-in types name what is forbidden and fail on a module that does not exist. Ours name
what is allowed, so a new arrow has to be drawn before it can be used, and a room may be drawn
before it is built.

rooms    every import between our packages follows an arrow, every module lies in a room
owners   an outside library is imported by the rooms that own it and nobody else
outside  a room imports the outside libraries named for it and, of the standard library, nothing
         that is denied
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


def parse_arrow(line: str) -> tuple[str, tuple[str, ...]]:
    """`a -> b, c` as (a, (b, c)); nothing after the arrow means nothing is allowed."""
    left, arrow, right = line.partition("->")
    if not arrow or not left.strip():
        raise ValueError(f"expected 'a -> b, c', got {line!r}")
    return left.strip(), tuple(name.strip() for name in right.split(",") if name.strip())


def inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def owner(module: str, rooms: Iterable[str]) -> str | None:
    """The innermost room that a module lies in."""
    return max((room for room in rooms if inside(module, room)), key=len, default=None)


class _ArrowContract(Contract):
    """What the three share: walk all imports, collect (import, reason), print them."""

    def violations(self, graph: ImportGraph) -> Iterator[str]:
        raise NotImplementedError

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        del verbose
        found = sorted(set(self.violations(graph)))
        return ContractCheck(kept=not found, metadata={"found": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["found"]:
            output.print_error(f"- {line}", bold=False)
        output.new_line()

    def is_ours(self, module: str) -> bool:
        options: dict[str, Any] = self.session_options
        return any(inside(module, root) for root in options["root_packages"])

    def imports(self, graph: ImportGraph) -> Iterator[tuple[str, str, str]]:
        """(importer, imported, how to say it) for each import in our packages."""
        for importer in sorted(graph.modules):
            if not self.is_ours(importer):
                continue
            for imported in sorted(graph.find_modules_directly_imported_by(importer)):
                details = graph.get_import_details(importer=importer, imported=imported)
                lines = ", ".join(str(detail["line_number"]) for detail in details)
                yield importer, imported, f"{importer} -> {imported} (line {lines})"


class RoomsContract(_ArrowContract):
    type_name = "rooms"
    arrows = fields.ListField(subfield=fields.StringField())
    roots = fields.ListField(subfield=fields.StringField(), default=[])

    def violations(self, graph: ImportGraph) -> Iterator[str]:
        drawn = dict(parse_arrow(line) for line in self.arrows)  # type: ignore[attr-defined]
        roots = set(self.roots)  # type: ignore[call-overload]
        for module in graph.modules:
            if self.is_ours(module) and module not in roots and not owner(module, drawn):
                yield f"{module}: lies in no room; draw it in pyproject.toml and docs/design.md"
        for importer, imported, said in self.imports(graph):
            if not self.is_ours(imported) or imported in roots:
                continue
            source, target = owner(importer, drawn), owner(imported, drawn)
            if importer in roots:
                yield f"{said}: the package file imports nothing"
            elif source and target and not self._allowed(source, target, drawn[source]):
                yield f"{said}: no arrow from {source} to {target}"

    @staticmethod
    def _allowed(source: str, target: str, arrows: Iterable[str]) -> bool:
        return inside(target, source) or any(inside(target, arrow) for arrow in arrows)


class OwnersContract(_ArrowContract):
    type_name = "owners"
    owners = fields.ListField(subfield=fields.StringField())

    def violations(self, graph: ImportGraph) -> Iterator[str]:
        owners = dict(parse_arrow(line) for line in self.owners)  # type: ignore[attr-defined]
        for importer, imported, said in self.imports(graph):
            rooms = owners.get(imported.partition(".")[0])
            if rooms is not None and owner(importer, rooms) is None:
                yield f"{said}: only {', '.join(rooms)} may"


class OutsideContract(_ArrowContract):
    type_name = "outside"
    third_party = fields.ListField(subfield=fields.StringField())
    denied_stdlib = fields.ListField(subfield=fields.StringField(), default=[])

    def violations(self, graph: ImportGraph) -> Iterator[str]:
        allowed = dict(parse_arrow(line) for line in self.third_party)  # type: ignore[attr-defined]
        denied = set(self.denied_stdlib)  # type: ignore[call-overload]
        for importer, imported, said in self.imports(graph):
            room = owner(importer, allowed)
            if room is None or self.is_ours(imported):
                continue
            top = imported.partition(".")[0]
            if top in denied:
                yield f"{said}: denied in {room}"
            elif top not in sys.stdlib_module_names and top not in allowed[room]:
                yield f"{said}: {room} may import {', '.join(allowed[room]) or 'nothing'}"
