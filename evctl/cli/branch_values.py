"""Options and tables that the commands about branches share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from evctl.cli.output import seconds
from evctl.core.errors import EvctlError

if TYPE_CHECKING:
    from evctl.core.kv_status import BranchRow

DEFAULT_TENANT: Final = "default"
"""Whom the gateway takes everybody for where no API keys are set."""
COMPLETION_S: Final = 0.2
MOST_OFFERED: Final = 50
MOST_HOLDERS: Final = 2

TenantOption = Annotated[
    str, typer.Option("--tenant", "-t", metavar="NAME", help="Whose branches.")
]
HEAD: Final = (
    "BRANCH", "KIND", "STATE", "VERSION", "BLOCKS", "P", "D", "OPEN", "SILENT", "PARENT",
)  # fmt: skip
RIGHT: Final = (3, 4, 7, 8)


def complete_branch(context: typer.Context, incomplete: str) -> list[str]:
    """Of the default cluster, or the one named before. Silent on failure: it runs on a tab key."""
    from evctl.cli.target import find_target

    try:
        target = find_target(context.params.get("cluster"))
        with target.client(timeout_s=COMPLETION_S) as client:
            tenant = context.params.get("tenant") or DEFAULT_TENANT
            page = client.branches(tenant=tenant, prefix=incomplete, limit=MOST_OFFERED)
    except (EvctlError, OSError):
        return []
    return [row.branch for row in page.branches]


BranchArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Of the branch.", autocompletion=complete_branch)
]


def branch_row(row: BranchRow, *, indent: str = "", mark: str = "") -> list[str]:
    """The cells under HEAD. `-` for what is not known of it."""
    name = f"{indent}{row.branch}{mark}"
    if not row.kind:  # ended, or never heard of
        return [name, "-", row.state, *("-" for _ in HEAD[3:])]
    return [
        name,
        row.kind,
        row.state,
        str(row.version),
        str(row.blocks),
        held(row.holders.get("P", {})),
        held(row.holders.get("D", {})),
        str(row.open_requests),
        seconds(row.silent_s),
        row.parent or "-",
    ]


def held(blocks: dict[str, int]) -> str:
    """`n1 120, n2 8`: nodes with most first, and how many there are besides."""
    if not blocks:
        return "-"
    most = sorted(blocks.items(), key=lambda item: (-item[1], item[0]))
    said = ", ".join(f"{node} {count}" for node, count in most[:MOST_HOLDERS])
    return f"{said} +{len(most) - MOST_HOLDERS}" if len(most) > MOST_HOLDERS else said
