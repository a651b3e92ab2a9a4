"""evctl kv summary | check | block"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from evctl.cli.failures import tell_partial
from evctl.cli.groups import group
from evctl.cli.output import (
    Form,
    OutputOption,
    chosen,
    number_of,
    output_option,
    percent,
    print_document,
    table,
)
from evctl.cli.target import ClusterArgument, ClusterOption, Target, find_target
from evctl.core.errors import ExitCode, UnreachableError, UsageError
from evctl.core.kv_status import CLASSES, REFERENCE_BUCKETS

if TYPE_CHECKING:
    from evctl.core.kv_status import KvBlock, KvCheck, KvSummary

app = group("Show cached KV: blocks, what refers to them, and whether the counts are right.")

KEY: Final = re.compile("[0-9a-fA-F]{8,32}")
MOST_NAMES: Final = 20
"""Branches of a block that a table names."""


@app.command()
def summary(
    cluster: ClusterArgument = None,
    cluster_option: ClusterOption = None,
    output: OutputOption = None,
) -> None:
    """Show how much is cached where, and how many branches need it."""
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML, Form.JSONL, Form.NAME)
    target = find_target(cluster or cluster_option)
    try:
        with target.client() as client:
            found = client.kv_summary()
    except UnreachableError as error:
        raise target.explained(error) from error
    if form is Form.TABLE:
        print(_summary_table(found))
    elif form is Form.NAME:
        print("\n".join(node.node for node in found.nodes))
    else:
        print_document(form, "KvSummary", {"cluster": target.name, **msgspec.to_builtins(found)})


def _summary_table(found: KvSummary) -> str:
    status = found.status
    nodes = []
    for node in found.nodes:
        copies = sum(node.classes)
        share = percent(1 - node.classes[0] / copies) if copies else "-"
        nodes.append([node.node, *map(str, (node.l1, node.l2, *node.classes)), share])
    head = ("NODE", "L1", "L2", *(name.upper() for name in CLASSES), "REF")
    parts = [
        f"branches   {status.live} live, {status.suspect} suspect, {status.ended} ended\n"
        f"blocks     {status.tree_blocks} in {found.runs} runs, {status.copies} copies",
        table(head, nodes, right=range(1, len(head))),
    ]
    if status.references:
        counted = list(zip(REFERENCE_BUCKETS, status.references, strict=True))
        rows = [[name, str(copies), _share(copies, status.copies)] for name, copies in counted]
        parts.append(table(("REFERENCES", "COPIES", "SHARE"), rows, right=(1, 2)))
    told = [[name, str(count)] for name, count in found.tallies.items() if count]
    if told:
        parts.append(table(("IGNORED OR GUESSED", "TIMES"), told, right=(1,)))
    return "\n\n".join(parts)


def _share(part: int, whole: int) -> str:
    return percent(part / whole) if whole else "-"


@app.command()
def check(
    cluster: ClusterArgument = None,
    cluster_option: ClusterOption = None,
    output: Annotated[
        Form | None, output_option(Form.TABLE, Form.JSON, Form.YAML, Form.JSONL)
    ] = None,
) -> ExitCode:
    """Recount every reference and compare; exit 1 when a count is wrong.

    The cluster serves on meanwhile.
    """
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML, Form.JSONL)
    target = find_target(cluster or cluster_option)
    try:
        with target.client() as client:
            found = client.kv_check()
    except UnreachableError as error:
        raise target.explained(error) from error
    if form is Form.TABLE:
        print("\n".join((*found.problems, _checked(found))))
    else:
        values = {"cluster": target.name, "clean": found.clean, **msgspec.to_builtins(found)}
        print_document(form, "KvCheck", values)
    if found.clean:
        return ExitCode.DONE
    tell_partial(
        "EV-1358",
        "report it with what is above; evctl logs control --level warning may tell since when",
        f"the counts of cluster {target.name} are wrong",
        f"{found.found} of them differ from a recount, or contradict each other",
    )
    return ExitCode.FAILED


def _checked(found: KvCheck) -> str:
    result = "all counts agree" if found.clean else number_of(found.found, "problem")
    sizes = (
        (found.branches, "branch", "branches"),
        (found.requests, "request", "requests"),
        (found.runs, "run", "runs"),
        (found.blocks, "block", "blocks"),
        (found.copies, "copy", "copies"),
    )
    told = ", ".join(f"{count} {one if count == 1 else many}" for count, one, many in sizes)
    return f"{result}: {told}; {found.seconds:.2f} s"


@app.command()
def block(
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="Its 32 hexadecimal digits, or the first 8 on.")
    ],
    cluster: ClusterOption = None,
    output: OutputOption = None,
) -> None:
    """Show which nodes hold a block, and which branches need it."""
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML, Form.JSONL, Form.NAME)
    check_key(key)
    target = find_target(cluster)
    found = _block(target, key)
    if form is Form.TABLE:
        print(_block_table(found))
    elif form is Form.NAME:
        print(found.key)
    else:
        print_document(form, "KvBlock", {"cluster": target.name, **msgspec.to_builtins(found)})


def check_key(key: str) -> None:
    """Raises UsageError (EV-1814) for what cannot be the key of a block."""
    if not KEY.fullmatch(key):
        raise UsageError(
            what=f"cannot read {key!r} as the key of a block",
            why="a key has 32 hexadecimal digits; its first 8 or more do where they are enough",
            next_step="evctl branch show ID names the last block of a branch",
            code="EV-1814",
        )


def _block(target: Target, key: str) -> KvBlock:
    try:
        with target.client() as client:
            return client.kv_block(key)
    except UnreachableError as error:
        raise target.explained(error) from error


def _block_table(found: KvBlock) -> str:
    names = [f"{name.tenant} {name.branch}" for name in found.branches[:MOST_NAMES]]
    rest = found.branches_total - len(names)
    if rest:
        names.append(f"and {rest} more")
    parts = [f"block {found.key}, number {found.position} of its path"]
    if found.copies:
        rows = [
            [
                copy.node,
                "+".join(f"L{tier}" for tier in copy.tiers),
                CLASSES[copy.block_class],
                str(copy.live),
                str(copy.suspect),
                str(copy.by_phase.get("P", 0)),
                str(copy.by_phase.get("D", 0)),
                str(copy.leases),
            ]
            for copy in found.copies
        ]
        head = ("NODE", "IN", "CLASS", "LIVE", "SUSPECT", "P", "D", "LEASES")
        parts.append(table(head, rows, right=(3, 4, 5, 6, 7)))
    else:
        parts.append("no node holds it")
    parts.append("\n".join(["TENANT AND BRANCH", *names]) if names else "no branch needs it")
    if found.promised_by:
        parts.append("\n".join(["PROMISED BY REQUEST", *found.promised_by]))
    return "\n\n".join(parts)
