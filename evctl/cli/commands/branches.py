"""evctl branches"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from evctl.cli.branch_values import DEFAULT_TENANT, HEAD, RIGHT, TenantOption, branch_row
from evctl.cli.output import Form, OutputOption, chosen, print_document, print_line, table
from evctl.cli.target import ClusterArgument, ClusterOption, complete_unit, find_target
from evctl.core.errors import UnreachableError

if TYPE_CHECKING:
    from evctl.client.admin import AdminClient
    from evctl.core.kv_status import BranchPage

app = typer.Typer(add_completion=False, rich_markup_mode=None)

PAGE = 1_000
"""Branches a call, as many as the control plane gives."""


class State(StrEnum):
    LIVE = "live"
    SUSPECT = "suspect"


class Kind(StrEnum):
    ROOT = "root"
    FORK = "fork"
    SUBAGENT = "sub-agent"


class Sort(StrEnum):
    NAME = "name"
    BLOCKS = "blocks"
    SILENT = "silent"


@app.command()
def branches(
    cluster: ClusterArgument = None,
    cluster_option: ClusterOption = None,
    tenant: TenantOption = DEFAULT_TENANT,
    everybody: Annotated[
        bool, typer.Option("--all-tenants", "-A", help="Those of every tenant.")
    ] = False,
    state: Annotated[State | None, typer.Option(help="Only those.", show_default=False)] = None,
    kind: Annotated[Kind | None, typer.Option(help="Only those.", show_default=False)] = None,
    node: Annotated[
        str | None,
        typer.Option(
            metavar="NODE",
            help="Those that refer to blocks there.",
            autocompletion=complete_unit,
            show_default=False,
        ),
    ] = None,
    sort: Annotated[
        Sort, typer.Option(help="By name, most blocks first, or longest silent first.")
    ] = Sort.NAME,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    output: OutputOption = None,
) -> None:
    """List branches: the contexts that agents work in, and where their KV is."""
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML, Form.NAME, Form.JSONL)
    target = find_target(cluster or cluster_option)
    whose = None if everybody else tenant
    try:
        with target.client() as client:
            found = _pages(
                client,
                limit,
                tenant=whose,
                state=state.value if state else None,
                kind=kind.value if kind else None,
                node=node,
                sort=sort.value,
            )
    except UnreachableError as error:
        raise target.explained(error) from error
    if form is Form.NAME:
        for row in found.branches:
            print(row.branch)
    elif form is Form.JSONL:
        for row in found.branches:
            print_line(msgspec.to_builtins(row))
    elif form is Form.TABLE:
        _print_table(found, whose)
    else:
        values = msgspec.to_builtins(found)
        print_document(form, "BranchList", {"cluster": target.name, **values})


def _pages(client: AdminClient, limit: int, **wanted: str | None) -> BranchPage:
    """As many pages as it takes, as one."""
    page = client.branches(limit=min(limit, PAGE), **wanted)  # type: ignore[arg-type]
    rows = page.branches
    while page.next is not None and len(rows) < limit:
        left = min(limit - len(rows), PAGE)
        page = client.branches(limit=left, after=page.next, **wanted)  # type: ignore[arg-type]
        rows += page.branches
    return msgspec.structs.replace(page, branches=rows)


def _print_table(found: BranchPage, tenant: str | None) -> None:
    rows = [branch_row(row) for row in found.branches]
    if tenant is None:
        rows = [[row.tenant, *cells] for row, cells in zip(found.branches, rows, strict=True)]
        print(table(("TENANT", *HEAD), rows, right=[column + 1 for column in RIGHT]))
    elif rows:
        print(table(HEAD, rows, right=RIGHT))
    else:
        print(f"no branch of tenant {tenant} is like that")
        if found.total:
            sys.stderr.write(f"{found.total} of all tenants; -A shows them\n")
    left = found.matching - len(rows)
    if left > 0:
        sys.stderr.write(f"{left} more; --limit {found.matching} shows all\n")
