"""evctl branch show | tree | end"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from evctl.cli.asking import Tier, confirm
from evctl.cli.branch_values import (
    DEFAULT_TENANT,
    HEAD,
    RIGHT,
    BranchArgument,
    TenantOption,
    branch_row,
)
from evctl.cli.groups import group
from evctl.cli.output import (
    Form,
    OutputOption,
    chosen,
    number_of,
    print_document,
    print_line,
    seconds,
    table,
)
from evctl.cli.target import ClusterOption, ConfirmOption, YesOption, find_target, who
from evctl.core.errors import NotFoundError, UnreachableError
from evctl.core.kv_status import BranchEnd

if TYPE_CHECKING:
    from evctl.client.admin import AdminClient
    from evctl.core.kv_status import BranchDetail, BranchTree

app = group("Show one branch, its family, or end it.")

MOST_CHILDREN = 20


@app.command()
def show(
    branch: BranchArgument,
    tenant: TenantOption = DEFAULT_TENANT,
    cluster: ClusterOption = None,
    output: OutputOption = None,
) -> None:
    """Show a branch: its context, and which node holds which part of it."""
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML, Form.NAME, Form.JSONL)
    target = find_target(cluster)
    try:
        with target.client() as client:
            found = client.branch(tenant, branch)
    except UnreachableError as error:
        raise target.explained(error) from error
    if form is Form.TABLE:
        print(_detail(found))
    elif form is Form.NAME:
        print(found.row.branch)
    else:
        print_document(form, "Branch", {"cluster": target.name, **msgspec.to_builtins(found)})


def _detail(found: BranchDetail) -> str:
    row = found.row
    facts = [
        ("branch", f"{row.branch} of tenant {row.tenant}"),
        ("kind", f"{row.kind}, {row.state}, version {row.version}"),
        ("parent", row.parent or "-"),
        ("context", f"{row.blocks} blocks" + (f", the last one {found.tip}" if found.tip else "")),
        ("requests", f"{row.open_requests} under way, silent for {seconds(row.silent_s)}"),
    ]
    parts = ["\n".join(f"{name:<9} {value}" for name, value in facts)]
    held = [
        [
            phase,
            f"{part.start}-{part.end}",
            str(part.end - part.start),
            part.node,
            str(part.verified),
        ]
        for phase, intervals in found.intervals.items()
        for part in intervals
    ]
    if held:
        head = ("PHASE", "BLOCKS", "NUMBER", "NODE", "STORED")
        parts.append(table(head, held, right=(2, 4)))
    if found.children:
        names = list(found.children[:MOST_CHILDREN])
        if found.children_total > len(names):
            names.append(f"and {found.children_total - len(names)} more")
        parts.append("\n".join(["CHILDREN", *names]))
    return "\n\n".join(parts)


@app.command()
def tree(
    branch: BranchArgument,
    tenant: TenantOption = DEFAULT_TENANT,
    cluster: ClusterOption = None,
    output: OutputOption = None,
) -> None:
    """Show the branches that a branch came from, and those that came of it."""
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML, Form.NAME, Form.JSONL)
    target = find_target(cluster)
    try:
        with target.client() as client:
            found = client.branch_tree(tenant, branch)
    except UnreachableError as error:
        raise target.explained(error) from error
    if form is Form.TABLE:
        print(_tree(found))
        if found.left_out:
            sys.stderr.write(f"{found.left_out} descendants are left out\n")
    elif form is Form.NAME:
        print("\n".join(each.row.branch for each in found.rows))
    elif form is Form.JSONL:
        for each in found.rows:
            print_line(msgspec.to_builtins(each))
    else:
        print_document(form, "BranchTree", {"cluster": target.name, **msgspec.to_builtins(found)})


def _tree(found: BranchTree) -> str:
    """The branch that was asked for has a star."""
    rows = [
        branch_row(
            each.row,
            indent="  " * each.depth,
            mark=" *" if each.row.branch == found.branch else "",
        )
        for each in found.rows
    ]
    return table(HEAD, rows, right=RIGHT)


@app.command()
def end(
    branch: BranchArgument,
    tenant: TenantOption = DEFAULT_TENANT,
    cluster: ClusterOption = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would end; do nothing.")] = False,
    reason: Annotated[str, typer.Option("--reason", help="Noted in the event log.")] = "",
    yes: YesOption = False,
    confirmed: ConfirmOption = None,
    output: OutputOption = None,
) -> None:
    """End a branch: its blocks lose its references, and may be evicted before others.

    What runs goes on. Ending a branch again changes nothing.
    """
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML, Form.NAME, Form.JSONL)
    target = find_target(cluster)
    try:
        with target.client() as client:
            detail = _living(client, tenant, branch)
            said = _consequence(detail) if detail else ""
            if plan:
                _print_end(form, target.name, BranchEnd(tenant, branch, False, "plan only"), said)
                return
            if detail is not None:
                confirm(
                    f"end branch {branch} of tenant {tenant} ({said})",
                    Tier.DISRUPTIVE,
                    cluster=target.name,
                    protected=target.protected,
                    yes=yes,
                    confirmed=confirmed,
                )
            done = client.end_branch(tenant, branch, by=who(), reason=reason)
    except UnreachableError as error:
        raise target.explained(error) from error
    _print_end(form, target.name, done, said)


def _print_end(form: Form, cluster: str, done: BranchEnd, said: str = "") -> None:
    if form is Form.TABLE:
        how = "ended" if done.applied else f"unchanged ({done.reason})"
        print(f"branch {done.branch} {how}: {said}" if said else f"branch {done.branch} {how}")
    elif form is Form.NAME:
        print(done.branch)
    else:
        print_document(form, "BranchEnd", {"cluster": cluster, **msgspec.to_builtins(done)})


def _living(client: AdminClient, tenant: str, branch: str) -> BranchDetail | None:
    try:
        return client.branch(tenant, branch)
    except NotFoundError:
        return None  # ended before, which is no failure; the end itself knows


def _consequence(found: BranchDetail) -> str:
    row = found.row
    said = [f"{number_of(row.blocks, 'block')} of context"]
    if row.open_requests:
        said.append(f"{number_of(row.open_requests, 'request')} under way, served to the end")
    if found.children_total:
        said.append(f"children that stay: {found.children_total}")
    return "; ".join(said)
