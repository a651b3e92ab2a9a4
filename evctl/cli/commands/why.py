"""evctl why request | node | split | block"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer

from evctl.cli import why_tables
from evctl.cli.groups import group
from evctl.cli.output import DocumentOption, Form, chosen, print_document, terminal_width
from evctl.cli.target import ClusterOption, find_target
from evctl.core.errors import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from evctl.client.why import WhyCalls

app = group("Show why a request, a node, the split or a block is as it is.")

Found = TypeVar("Found", bound=msgspec.Struct)


@app.command()
def request(
    request_id: Annotated[str, typer.Argument(metavar="ID", help="As its response had it.")],
    cluster: ClusterOption = None,
    output: DocumentOption = None,
) -> None:
    """Show where a request was sent, why, and what then happened.

    Each node's predicted terms stand beside what it took. What memory no longer has is read from
    the journals, which may take some seconds.
    """
    _answer(
        cluster,
        chosen(output, Form.TABLE, Form.JSON, Form.YAML),
        "RequestWhy",
        lambda calls: calls.request(request_id),
        why_tables.request_text,
    )


@app.command()
def node(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    cluster: ClusterOption = None,
    output: DocumentOption = None,
) -> None:
    """Show a node's role, how it came to it, and what is there."""
    _answer(
        cluster,
        chosen(output, Form.TABLE, Form.JSON, Form.YAML),
        "NodeWhy",
        lambda calls: calls.node(name),
        why_tables.node_text,
    )


@app.command()
def split(
    number: Annotated[
        int | None, typer.Argument(metavar="[N]", help="Of the decision.", min=1)
    ] = None,
    cluster: ClusterOption = None,
    last: Annotated[int, typer.Option("--last", help="How many decisions.", min=1, max=64)] = 1,
    output: DocumentOption = None,
) -> None:
    """Show the planner's last decisions, and what came of them.

    Each split's forecast, gain and verdict. With N, the decision of that number.
    """
    _answer(
        cluster,
        chosen(output, Form.TABLE, Form.JSON, Form.YAML),
        "SplitWhy",
        lambda calls: calls.split(number, last=last),
        why_tables.split_text,
    )


@app.command()
def block(
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="Its 32 hexadecimal digits, or the first 8 on.")
    ],
    cluster: ClusterOption = None,
    output: DocumentOption = None,
) -> None:
    """Show where a block is, who needs it, and when it is evicted."""
    from evctl.cli.commands.kv import check_key

    check_key(key)
    _answer(
        cluster,
        chosen(output, Form.TABLE, Form.JSON, Form.YAML),
        "BlockWhy",
        lambda calls: calls.block(key),
        why_tables.block_text,
    )


def _answer(
    cluster: str | None,
    form: Form,
    kind: str,
    ask: Callable[[WhyCalls], Found],
    text: Callable[[Found, int | None], str],
) -> None:
    target = find_target(cluster)
    try:
        with target.client() as client:
            found = ask(client.why)
    except UnreachableError as error:
        raise target.explained(error) from error
    if form is Form.TABLE:
        print(text(found, terminal_width()))
        return
    print_document(form, kind, {"cluster": target.name, **msgspec.to_builtins(found)})
