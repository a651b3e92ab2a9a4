"""evctl up"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from evctl.cli.asking import Tier, confirm
from evctl.cli.failures import check_exit_code, tell_partial
from evctl.cli.interrupt import GentleInterrupt
from evctl.cli.output import Form, NamesOption, chosen, number_of, print_document, table
from evctl.cli.progress import Progress, ProgressForm
from evctl.cli.target import (
    ConfirmOption,
    YesOption,
    complete_file,
    complete_split,
    complete_unit,
    who,
)
from evctl.client.admin import AdminClient
from evctl.config.loading import LoadedCluster, find_cluster_file, load_cluster
from evctl.config.marked_yaml import InvalidConfigError
from evctl.config.settings import cluster_flag, load_settings
from evctl.core.errors import EvctlError, ExitCode, NotFoundError, UsageError
from evctl.core.split import parse_split
from evctl.core.status import ClusterStatus
from evctl.provision.converge import JOIN_TIMEOUT_S, Convergence, UpResult
from evctl.provision.driver import CONTROL, UnitState
from evctl.provision.opening import open_driver
from evctl.provision.plan import Change, Step, lost_nodes, plan_up, port_obstacle

if TYPE_CHECKING:
    from evctl.config.cluster import ClusterConfig
    from evctl.provision.driver import ClusterDriver

app = typer.Typer(add_completion=False, rich_markup_mode=None)

MOST_NAMES = 4
"""Parts of a cluster that a question names."""


@app.command()
def up(
    cluster: Annotated[
        str | None,
        typer.Argument(
            metavar="CLUSTER|FILE",
            help="A cluster file, or a name that is looked up; local otherwise.",
            autocompletion=complete_file,
            show_default=False,
        ),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be done.")] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="With --plan: exit 10 when there is something.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="NODE",
            help="This node only; may be repeated.",
            autocompletion=complete_unit,
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="SPLIT",
            help="Such as 2P1D; the file's otherwise.",
            autocompletion=complete_split,
        ),
    ] = None,
    join_timeout_s: Annotated[
        float, typer.Option("--join-timeout", metavar="SECONDS", help="For nodes to join.")
    ] = JOIN_TIMEOUT_S,
    progress: Annotated[
        ProgressForm, typer.Option(help="Form of the progress on stderr.")
    ] = ProgressForm.AUTO,
    yes: YesOption = False,
    confirmed: ConfirmOption = None,
    output: NamesOption = None,
) -> ExitCode:
    """Bring a cluster up, or to what its file says. Run it again: what is so stays so."""
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML, Form.NAME)
    check_exit_code(exit_code, plan)
    loaded = _load(cluster, split)
    nodes = _only(loaded, only or [])
    driver = open_driver(loaded.config.name)
    work = _Up(loaded, driver, nodes, wanted_split=loaded.config.split if split else None)
    if plan:
        with closing(work):
            changes = work.planned()
            _print_plan(form, loaded, changes, work.joining())
        return ExitCode.CHANGES_PENDING if exit_code and changes else ExitCode.DONE
    with driver.locked("up"), closing(work):
        work.ask(yes, confirmed)
        with GentleInterrupt() as interrupt, Progress(progress) as shown:
            result = Convergence(
                driver,
                loaded.config,
                connect=work.client,
                tell=shown.show,
                interrupted=interrupt,
                join_timeout_s=join_timeout_s,
            ).run(nodes)
            result = work.with_split(result)
    _print_result(form, loaded, result, driver)
    _note_held_split(loaded, result.status, work.wanted_split)
    return result.exit_code


def _load(cluster: str | None, split: str | None) -> LoadedCluster:
    path = find_cluster_file(cluster or load_settings().cluster.value)
    if split is None:
        return load_cluster(path)
    wanted = str(parse_split(split))
    try:
        return load_cluster(path, {"split": (wanted, "--split")})
    except InvalidConfigError as error:
        if any(problem.where != "--split" for problem in error.problems):
            raise
        raise UsageError(
            what=f"split {wanted} does not fit this cluster",
            why=error.problems[0].what,
            next_step=error.problems[0].hint,
            code="EV-1103",
        ) from error


def _only(loaded: LoadedCluster, only: list[str]) -> tuple[str, ...]:
    known = loaded.config.node_names
    for name in only:
        if name not in known:
            raise NotFoundError(
                what=f"cluster {loaded.config.name} has no node {name!r}",
                why=f"its nodes are {', '.join(known)}",
                next_step="give one of them",
                code="EV-1812",
            )
    return tuple(only)


class _Up:
    """What `up` adds to convergence: questions, and a split asked for by flag."""

    def __init__(
        self,
        loaded: LoadedCluster,
        driver: ClusterDriver,
        only: tuple[str, ...],
        wanted_split: str | None,
    ) -> None:
        self._config = loaded.config
        self._driver = driver
        self._only = only
        self.wanted_split = wanted_split
        self._clients: dict[Path, AdminClient] = {}

    def client(self, socket_path: Path) -> AdminClient:
        return self._clients.setdefault(socket_path, AdminClient(socket_path))

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def planned(self) -> tuple[Change, ...]:
        """Raises UnreachableError (EV-1371) for what could not be carried out."""
        observed = self._driver.observe(self._config)
        runs = observed.control.state is UnitState.RUNNING
        status = self._status() if runs else None
        changes = plan_up(self._config, observed, self._only, lost_nodes(status))
        obstacle = port_obstacle(self._config, observed, changes)
        if obstacle is not None:
            raise obstacle
        return (*changes, *self._split_change(status))

    def joining(self) -> tuple[str, ...]:
        """Wanted nodes whose process runs, and that have not joined yet."""
        runs = self._driver.is_running(CONTROL)
        status = self._status() if runs else None
        wanted = self._only or self._config.node_names
        nodes = status.nodes if status is not None else ()
        return tuple(n.name for n in nodes if n.state == "starting" and n.name in wanted)

    def ask(self, yes: bool, confirmed: str | None) -> None:
        """Before anything that serves is restarted or moved."""
        disruptive = [change for change in self.planned() if change.disruptive]
        if disruptive and not yes:
            sys.stderr.write("".join(f"  {change}\n" for change in disruptive))
        confirm(
            f"{_orders(disruptive)} of cluster {self._config.name}",
            Tier.DISRUPTIVE if disruptive else Tier.NONE,
            cluster=self._config.name,
            protected=self._config.protected and bool(disruptive),
            yes=yes,
            confirmed=confirmed,
        )

    def with_split(self, result: UpResult) -> UpResult:
        """Set the split of the flag, where the control plane has kept another."""
        changes = self._split_change(result.status)
        path = self._driver.admin_socket()
        if not changes or path is None or result.interrupted or self.wanted_split is None:
            return result
        client = self.client(path)
        client.set_split(self.wanted_split, by=who(), reason="evctl up --split")
        return msgspec.structs.replace(
            result, changed=(*result.changed, *changes), status=client.status()
        )

    def _split_change(self, status: ClusterStatus | None) -> tuple[Change, ...]:
        wanted = self.wanted_split
        if wanted is None or status is None or status.target_split == wanted:
            return ()
        why = f"{status.target_split} -> {wanted}"
        return (Change("split", Step.JOINED, "set", why, disruptive=True),)

    def _status(self) -> ClusterStatus | None:
        path = self._driver.admin_socket()
        try:
            return self.client(path).status() if path else None
        except EvctlError:
            return None


def _orders(changes: list[Change]) -> str:
    """`restart control and n1, stop n3`."""
    by_action: dict[str, list[str]] = {}
    for change in changes:
        by_action.setdefault(change.action, []).append(change.unit)
    orders = [f"{action} {_listed(units)}" for action, units in by_action.items()]
    return ", ".join(orders) or "leave all as it is"


def _listed(names: list[str]) -> str:
    if len(names) > MOST_NAMES:
        names = [*names[:MOST_NAMES], f"{len(names) - MOST_NAMES} more"]
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _change_values(change: Change) -> dict[str, Any]:
    return {
        "unit": change.unit,
        "step": change.step.name.lower(),
        "action": change.action,
        "why": change.why,
        "disruptive": change.disruptive,
    }


def _print_plan(
    form: Form, loaded: LoadedCluster, changes: tuple[Change, ...], joining: tuple[str, ...]
) -> None:
    if form is Form.NAME:
        print("\n".join(change.unit for change in changes))
    elif form is not Form.TABLE:
        values = [_change_values(change) for change in changes]
        content = {
            "cluster": loaded.config.name,
            "changes": values,
            "count": len(changes),
            "joining": list(joining),
        }
        print_document(form, "UpPlan", content)
    else:
        if changes:
            rows = [(c.action, c.unit, c.why + (" (!)" * c.disruptive)) for c in changes]
            print(table(("DO", "TO", "BECAUSE"), rows))
        awaited = f"; still starting: {', '.join(joining)}" if joining else ""
        print(f"{len(changes)} to change" + ("; nothing was done" if changes else "") + awaited)


def _print_result(
    form: Form, loaded: LoadedCluster, result: UpResult, driver: ClusterDriver
) -> None:
    config, status = loaded.config, result.status
    if form is Form.NAME:
        print("\n".join(change.unit for change in result.changed))
    elif form is not Form.TABLE:
        print_document(form, "UpResult", _result_values(loaded, result))
    else:
        if status is not None:
            ok = sum(node.state == "ok" for node in status.nodes)
            print(
                f"cluster {config.name}: {ok} of {len(config.nodes)} nodes ok, "
                f"split {status.target_split} ({status.mode}), gateway {status.gateway or '-'}"
            )
        elif result.interrupted:
            running = [u.name for u in driver.units() if u.state is UnitState.RUNNING]
            print(f"cluster {config.name}: runs so far: {', '.join(running) or 'nothing'}")
        print(f"{len(result.changed)} changed")
        _note_other_port(config, status)
        for node, why in result.failed.items():
            print(f"failed: {node}: {why.splitlines()[0]}")
    _tell_shortfall(result, config.name)


def _note_other_port(config: ClusterConfig, status: ClusterStatus | None) -> None:
    wanted, url = config.gateway.port, status.gateway if status is not None else ""
    if wanted and url and not url.rstrip("/").endswith(f":{wanted}"):
        sys.stderr.write(
            f"port {wanted} is taken: the gateway is {url}; once the port is free, "
            f"evctl up {config.name} goes back to it\n"
        )


def _note_held_split(
    loaded: LoadedCluster, status: ClusterStatus | None, asked: str | None
) -> None:
    """A split set by hand outlives the cluster, and is not the file's any more."""
    config = loaded.config
    if asked or status is None or status.mode != "hold" or status.target_split == config.split:
        return
    by = f" by {status.held_by}" if status.held_by else ""
    sys.stderr.write(
        f"split {status.target_split} is held{by}, the file says {config.split}: "
        f"evctl split set {config.split}{cluster_flag(config.name)} goes back\n"
    )


def _result_values(loaded: LoadedCluster, result: UpResult) -> dict[str, Any]:
    status = result.status
    told = ("gateway", "admin", "split", "target_split", "mode", "generation", "epoch")
    values: dict[str, Any] = {name: getattr(status, name, None) for name in told}
    nodes = status.nodes if status else ()
    return {
        "cluster": loaded.config.name,
        "changed": len(result.changed),
        "changes": [_change_values(change) for change in result.changed],
        "failed": result.failed,
        "interrupted": result.interrupted,
        "timed_out": result.timed_out,
        **values,
        "nodes": [
            {"name": n.name, "role": n.role, "state": n.state, "boot_id": n.boot_id} for n in nodes
        ],
    }


def _tell_shortfall(result: UpResult, cluster: str) -> None:
    """What is not as wanted, on stderr; the result itself is on stdout already."""
    code = result.exit_code
    if code is ExitCode.INTERRUPTED:
        tell_partial("EV-1805", f"evctl up {cluster} goes on from here", "interrupted", "Ctrl-C")
    elif code in (ExitCode.PARTIAL, ExitCode.FAILED):
        names = ", ".join(result.failed)
        tell_partial(
            "EV-1820",
            f"evctl logs {next(iter(result.failed))} --tail 50{cluster_flag(cluster)}, "
            f"then evctl up {cluster}",
            f"{number_of(len(result.failed), 'node')} of cluster {cluster} did not come up",
            f"failed: {names}; {'the others serve' if result.serves else 'none serves'}",
        )
    elif code is ExitCode.TIMED_OUT:
        tell_partial(
            "EV-1821",
            f"evctl up {cluster} waits again; "
            f"evctl logs {CONTROL} --tail 50{cluster_flag(cluster)} says more",
            f"not all nodes of cluster {cluster} have joined",
            "the time to wait is over; what runs goes on",
        )
