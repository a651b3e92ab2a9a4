"""evctl doctor"""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from evctl.cli.failures import tell_partial
from evctl.cli.output import (
    DocumentOption,
    Form,
    chosen,
    number_of,
    print_document,
    table,
    terminal_width,
)
from evctl.cli.style import painted
from evctl.cli.target import complete_file, complete_unit
from evctl.core.errors import ExitCode, NotFoundError

if TYPE_CHECKING:
    from evctl.provision.doctor.facts import Subject
    from evctl.provision.doctor.report import Check

app = typer.Typer(add_completion=False, rich_markup_mode=None)

COLORS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}
WIDTH: Final = 98
"""Of prose where there is no terminal."""


@app.command()
def doctor(
    cluster: Annotated[
        str | None,
        typer.Argument(
            metavar="CLUSTER|FILE",
            help="A cluster file, or a name that is looked up; local otherwise.",
            autocompletion=complete_file,
            show_default=False,
        ),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(
            "--node",
            metavar="NODE",
            help="Look at this node's processes, keys and memory only.",
            autocompletion=complete_unit,
            show_default=False,
        ),
    ] = None,
    output: DocumentOption = None,
) -> ExitCode:
    """Check that this machine has what a cluster needs, and that strangers are kept out.

    Before evctl up and while the cluster runs. It looks at this machine only, where all nodes of
    a local cluster run, and changes nothing. Exit 1 when a check fails; warnings are exit 0.
    """
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML)
    subject = _examined(cluster, node)
    from evctl.provision.doctor.judgement import judge
    from evctl.provision.doctor.report import passed

    checks = judge(subject)
    if form is Form.TABLE:
        print(_screen(subject, checks))
    else:
        print_document(form, "DoctorReport", _values(subject, checks))
    if passed(checks):
        return ExitCode.DONE
    failed = [check.name for check in checks if check.level == "fail"]
    tell_partial(
        "EV-1830",
        "do what stands with each, then evctl doctor again",
        f"{number_of(len(failed), 'check')} of cluster {subject.config.name} failed",
        ", ".join(failed),
    )
    return ExitCode.FAILED


def _examined(cluster: str | None, node: str | None) -> Subject:
    from evctl.config.loading import find_cluster_file, load_cluster
    from evctl.config.settings import load_settings
    from evctl.provision.doctor import gathering
    from evctl.provision.doctor.facts import Subject

    loaded = load_cluster(find_cluster_file(cluster or load_settings().cluster.value))
    names = loaded.config.node_names
    if node is not None and node not in names:
        raise NotFoundError(
            what=f"cluster {loaded.config.name} has no node {node!r}",
            why=f"its nodes are {', '.join(names)}",
            next_step="give one of them",
            code="EV-1812",
        )
    nodes = names if node is None else (node,)
    return Subject(loaded.config, loaded.source, nodes, gathering.gather(loaded.config, nodes))


def _values(subject: Subject, checks: tuple[Check, ...]) -> dict[str, Any]:
    from evctl.provision.doctor.report import counts, passed

    return {
        "cluster": subject.config.name,
        "file": subject.source,
        "scope": "this machine",
        "nodes": list(subject.nodes),
        "ok": passed(checks),
        "counts": counts(checks),
        "checks": [
            {
                "check": check.name,
                "level": check.level.value,
                "found": check.found,
                "why": check.why,
                "next": check.next_step,
                "lines": list(check.lines),
            }
            for check in checks
        ],
    }


def _screen(subject: Subject, checks: tuple[Check, ...]) -> str:
    from evctl.provision.doctor.report import counts

    names = ", ".join(subject.nodes)
    parts = [f"cluster {subject.config.name} on this machine: {names}"]
    rows = [[check.level.value, check.name, check.found] for check in checks]
    head = ("LEVEL", "CHECK", "FOUND")
    edge = terminal_width()
    parts.append(table(head, rows, paint={0: _painted}, width=edge))
    parts += [_advice(check, edge or WIDTH) for check in checks if check.level in ("warn", "fail")]
    told = counts(checks)
    parts.append(", ".join(f"{count} {level}" for level, count in told.items() if count))
    return "\n\n".join(parts)


def _painted(padded: str) -> str:
    color = COLORS.get(padded.strip())
    return painted(padded, color, sys.stdout) if color else padded


def _advice(check: Check, width: int) -> str:
    """Why, and what to do next; lines to paste as they are."""
    head = f"{_painted(check.level.value)} {check.name}"
    prose = [("  why:  ", check.why), ("  next: ", check.next_step)]
    told = [
        textwrap.fill(
            text,
            width,
            initial_indent=label,
            subsequent_indent=" " * len(label),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for label, text in prose
        if text
    ]
    return "\n".join([head, *told, *(f"    {line}".rstrip() for line in check.lines)])
