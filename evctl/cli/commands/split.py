"""evctl split get | set | hold | advise | auto | history"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from evctl.cli.asking import Tier, confirm
from evctl.cli.failures import check_exit_code
from evctl.cli.groups import group
from evctl.cli.moments import span
from evctl.cli.output import (
    DocumentOption,
    Form,
    NamesOption,
    chosen,
    number_of,
    print_document,
    terminal_width,
)
from evctl.cli.plan_table import forecasts
from evctl.cli.split_tables import (
    Outlook,
    difference,
    entries,
    history_table,
    history_values,
    outlook_text,
    status_line,
    status_values,
    until,
)
from evctl.cli.target import (
    ClusterOption,
    ConfirmOption,
    Target,
    YesOption,
    complete_split,
    find_target,
    who,
)
from evctl.core.errors import (
    ConflictError,
    EvctlError,
    ExitCode,
    RefusedError,
    UnreachableError,
    UsageError,
)
from evctl.core.split import Split, example, parse_split
from evctl.core.status import ClusterStatus, EventRecord, SplitChange

if TYPE_CHECKING:
    from evctl.client.admin import AdminClient

app = group("Show or change how many nodes prefill and decode.")

RELATIVE: Final = re.compile(r"([+-])(\d{1,6})([pPdD])", re.ASCII)
HISTORY_PAGE: Final = 1000
"""Events a call, as many as the control plane gives."""
LOOK: Final = "evctl split get"
"""What the control plane advises; it does not know how its cluster is named here."""
ForOption = Annotated[
    str | None,
    typer.Option("--for", metavar="SPAN", help="How long to hold it, such as 30m."),
]
ReasonOption = Annotated[str, typer.Option("--reason", help="Noted with the change.")]


def _status(target: Target) -> ClusterStatus:
    try:
        with target.client() as client:
            return client.status()
    except UnreachableError as error:
        raise target.explained(error) from error


@app.command()
def get(cluster: ClusterOption = None, output: NamesOption = None) -> None:
    """Show the split, and who holds it."""
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML, Form.NAME)
    now = _status(find_target(cluster))
    if form is Form.NAME:
        print(now.target_split)
    elif form is Form.TABLE:
        print(status_line(now))
    else:
        print_document(form, "SplitStatus", status_values(now))


@app.command("set", context_settings={"ignore_unknown_options": True})
def set_split(
    split: Annotated[
        str,
        typer.Argument(
            metavar="SPLIT", help="Such as 4P5D, or +1P, -1D.", autocompletion=complete_split
        ),
    ],
    cluster: ClusterOption = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show what would move; do nothing.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Also within the cooldown.")] = False,
    lasts: ForOption = None,
    reason: ReasonOption = "",
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="With --plan: exit 10 when a node would move.")
    ] = False,
    yes: YesOption = False,
    confirmed: ConfirmOption = None,
    output: DocumentOption = None,
) -> ExitCode:
    """Change the split and hold it there. Running requests finish where they are.

    It is held until `evctl split auto`, or as long as --for says.
    """
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML)
    check_exit_code(exit_code, plan)
    for_s = None if lasts is None else span(lasts)
    target = find_target(cluster)
    try:
        with target.client() as client:
            now = client.status()
            wanted = str(resolved(split, now))
            by = who()
            planned = client.set_split(
                wanted, by=by, reason=reason, plan=True, generation=now.generation, for_s=for_s
            )
            outlook = _outlook(client, planned)
            if plan:
                _print_plan(form, planned, outlook, now, force=force)
                return ExitCode.CHANGES_PENDING if exit_code and planned.moves else ExitCode.DONE
            if planned.refused_until_s is not None and not force:
                raise _too_soon(planned)
            asked = _ask(target, planned, outlook, now, yes, confirmed)
            change = client.set_split(
                wanted,
                by=by,
                reason=reason,
                generation=now.generation,
                force=force,
                for_s=for_s,
            )
    except UnreachableError as error:
        raise target.explained(error) from error
    except ConflictError as error:
        error.next_step = error.next_step.replace(LOOK, f"{LOOK}{target.flag}")
        raise
    _print_change(form, change, now, target, shown=asked, lasts=lasts)
    return ExitCode.DONE


def resolved(text: str, now: ClusterStatus) -> Split:
    """A split, absolute or relative to the one that is aimed at.

    Raises UsageError, or RefusedError (EV-1101) for one that would leave a phase empty.
    """
    match = RELATIVE.fullmatch(text.strip())
    if match is None:
        try:
            return parse_split(text)
        except (UsageError, RefusedError) as error:
            error.next_step = f"write it as {example(len(now.nodes))}, for {len(now.nodes)} nodes"
            raise
    at = parse_split(now.target_split)
    step = int(match[2]) * (1 if match[1] == "+" else -1) * (1 if match[3] in "pP" else -1)
    prefill, decode = at.prefill_nodes + step, at.decode_nodes - step
    if prefill < 1 or decode < 1:
        raise RefusedError(
            what=f"{text} from {at} would leave {prefill} to prefill and {decode} to decode",
            why="each phase needs at least one node",
            next_step="give a smaller step",
            code="EV-1101",
        )
    return Split(prefill, decode)


def _outlook(client: AdminClient, planned: SplitChange) -> Outlook:
    """What the planner expects of the split beside the one in force."""
    if not planned.moves:
        return Outlook()
    try:
        decision = client.why.plan()
    except UnreachableError:
        raise
    except EvctlError as error:
        return Outlook(unknown=error.why)
    found = forecasts(decision, planned.after)
    if found is None:
        return Outlook(unknown=decision.why or "the planner has not weighed that split")
    return Outlook(*found)


def _ask(
    target: Target,
    change: SplitChange,
    outlook: Outlook,
    now: ClusterStatus,
    yes: bool,
    confirmed: str | None,
) -> bool:
    """Whether the difference was shown to a person, who then agreed."""
    what = f"change the split of {now.cluster} from {change.before} to {change.after} and hold it"
    if not change.moves:
        what = f"hold the split of {now.cluster} at {change.after}"
    asks = bool(change.moves) and not yes and confirmed is None
    if asks:
        sys.stderr.write(f"{difference(change)}\n{outlook_text(outlook)}\n")
    confirm(
        what,
        Tier.DISRUPTIVE if change.moves else Tier.NONE,
        cluster=now.cluster,
        protected=target.protected and not change.unchanged,
        yes=yes,
        confirmed=confirmed,
    )
    return asks


def _too_soon(planned: SplitChange) -> RefusedError:
    """As the control plane would refuse it, before anybody is asked for a yes."""
    return RefusedError(
        what=f"the split was not changed to {planned.after}",
        why=f"refused until {until(planned)}",
        next_step="wait, or repeat with --force",
        code="EV-1352",
    )


def _print_change(
    form: Form,
    change: SplitChange,
    now: ClusterStatus,
    target: Target,
    *,
    shown: bool = False,
    lasts: str | None = None,
) -> None:
    """Of a change that was made, or was not needed. shown: the difference was."""
    if form is not Form.TABLE:
        values: dict[str, Any] = msgspec.to_builtins(change)
        print_document(form, "SplitChange", {"cluster": now.cluster, **values})
        return
    if _told_unchanged(change, now):
        return
    if not shown:
        print(difference(change))
    release = f"until `evctl split auto{target.flag}`"
    if lasts is not None:
        release = f"for {lasts}, or {release}"
    print(f"held at {change.after} {release}; generation {change.generation}")


def _print_plan(
    form: Form, planned: SplitChange, outlook: Outlook, now: ClusterStatus, *, force: bool
) -> None:
    if form is not Form.TABLE:
        values: dict[str, Any] = msgspec.to_builtins(planned)
        expected = msgspec.to_builtins(outlook)
        print_document(
            form, "SplitChange", {"cluster": now.cluster, **values, "forecast": expected}
        )
        return
    if _told_unchanged(planned, now):
        return
    print(difference(planned))
    if planned.moves:
        print(outlook_text(outlook))
    if planned.refused_until_s is not None:
        passes = "--force passes that" if force else "unless --force"
        print(f"refused until {until(planned)}, {passes}")
    moves = number_of(len(planned.moves), "node")
    seen = f"generation {planned.generation}"
    print(f"plan only: {moves} would move, nothing was changed; {seen}")


def _told_unchanged(change: SplitChange, now: ClusterStatus) -> bool:
    if change.unchanged:
        held = f"held by {now.held_by}" if now.held_by else "held"
        print(f"{change.after} is {held} already: nothing to change")
    return change.unchanged


@app.command()
def hold(
    cluster: ClusterOption = None,
    lasts: ForOption = None,
    reason: ReasonOption = "",
    yes: YesOption = False,
    confirmed: ConfirmOption = None,
    output: DocumentOption = None,
) -> None:
    """Keep the present split.

    Until `evctl split auto`, or as long as --for says.
    """
    _set_mode(cluster, "hold", reason, yes, confirmed, output, lasts)


@app.command()
def advise(
    cluster: ClusterOption = None,
    reason: ReasonOption = "",
    yes: YesOption = False,
    confirmed: ConfirmOption = None,
    output: DocumentOption = None,
) -> None:
    """Release the split; the planner only says what it would do."""
    _set_mode(cluster, "advise", reason, yes, confirmed, output)


def _set_mode(
    cluster: str | None,
    mode: str,
    reason: str,
    yes: bool,
    confirmed: str | None,
    output: Form | None,
    lasts: str | None = None,
) -> None:
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML)
    for_s = None if lasts is None else span(lasts)
    target = find_target(cluster)
    confirm(
        f"set the mode of {target.name} to {mode}",
        Tier.NONE,
        cluster=target.name,
        protected=target.protected,
        yes=yes,
        confirmed=confirmed,
    )
    try:
        with target.client() as client:
            seen = client.status().generation
            now = client.set_mode(mode, by=who(), reason=reason, generation=seen, for_s=for_s)
    except UnreachableError as error:
        raise target.explained(error) from error
    except ConflictError as error:
        error.next_step = error.next_step.replace(LOOK, f"{LOOK}{target.flag}")
        raise
    if form is Form.TABLE:
        print(status_line(now))
    else:
        print_document(form, "SplitStatus", status_values(now))


@app.command()
def auto(
    cluster: ClusterOption = None,
    reason: ReasonOption = "",
    yes: YesOption = False,
    confirmed: ConfirmOption = None,
    output: DocumentOption = None,
) -> None:
    """Release the split; the planner moves nodes.

    When it is sure of a gain: `evctl plan` says what it would do now.
    """
    _set_mode(cluster, "auto", reason, yes, confirmed, output)


@app.command()
def history(cluster: ClusterOption = None, output: DocumentOption = None) -> None:
    """List who changed split and mode, when and why, newest last.

    FLIP: until no unbegun request of its old role was left on a node; WHOLE: until what ran there
    had finished as well. Of several nodes, the longest.
    """
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML)
    target = find_target(cluster)
    try:
        with target.client() as client:
            events = _all_events(client)
    except UnreachableError as error:
        raise target.explained(error) from error
    found = entries(events)
    if form is Form.TABLE:
        print(history_table(found, terminal_width()) if found else "no change so far")
        return
    values = {"cluster": target.name, "changes": history_values(found)}
    print_document(form, "SplitHistory", values)


def _all_events(client: AdminClient) -> list[EventRecord]:
    events: list[EventRecord] = []
    while page := client.events(since=events[-1].sequence if events else 0, limit=HISTORY_PAGE):
        events += page
    return events
