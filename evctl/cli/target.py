"""Which cluster a command means, and the ways to it."""

from __future__ import annotations

import getpass
import socket
import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evctl.config.paths import CLUSTER_FILE, cluster_dir, cluster_names, file_names
from evctl.config.settings import cluster_flag, load_settings
from evctl.core.errors import EvctlError, NotFoundError, UnreachableError

if TYPE_CHECKING:
    from evctl.client.admin import AdminClient
    from evctl.provision.driver import ClusterDriver


def complete_cluster(incomplete: str) -> list[str]:
    try:
        return [name for name in cluster_names() if name.startswith(incomplete)]
    except OSError:
        return []


def complete_file(incomplete: str) -> list[str]:
    """Clusters that could be brought up, and those that were."""
    try:
        names = sorted({*cluster_names(), *file_names()})
    except OSError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def complete_split(context: typer.Context, incomplete: str) -> list[str]:
    """Every split of a cluster's nodes; of one that was up here, so that no file is read."""
    given = context.params.get("cluster")
    try:
        name = _name_of(given) if given else load_settings().cluster.value
        nodes = len(_resolved(name).get("nodes", []))
    except (EvctlError, OSError, TypeError):
        return []
    splits = [f"{count}P{nodes - count}D" for count in range(1, nodes)]
    return [split for split in splits if split.startswith(incomplete.upper())]


def complete_unit(incomplete: str) -> list[str]:
    """Nodes of all clusters, and the control plane. Silent on failure: it runs on a tab key."""
    names = {"control"}
    for cluster in cluster_names():
        nodes = _resolved(cluster).get("nodes", [])
        names.update(str(node.get("name")) for node in nodes if isinstance(node, dict))
    return sorted(name for name in names if name.startswith(incomplete))


def _resolved(cluster: str) -> dict[str, Any]:
    """The config a cluster was brought up with, unchecked; empty when it cannot be read."""
    import msgspec

    try:
        values: Any = msgspec.json.decode((cluster_dir(cluster) / CLUSTER_FILE).read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}
    return values if isinstance(values, dict) else {}


ClusterArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="CLUSTER",
        help="Name of the cluster, or its file.",
        autocompletion=complete_cluster,
        show_default=False,
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        "-c",
        metavar="NAME",
        help="The cluster; the default one otherwise.",
        autocompletion=complete_cluster,
        show_default=False,
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
ConfirmOption = Annotated[
    str | None,
    typer.Option(
        "--confirm",
        metavar="NAME",
        help="The cluster's name, for what -y does not answer: a protected cluster, or --purge.",
        show_default=False,
    ),
]


class Target:
    """A cluster that has state on this machine."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def flag(self) -> str:
        """What a command in a hint needs to mean this cluster: ` -c NAME`, or ""."""
        return cluster_flag(self.name)

    @property
    def protected(self) -> bool:
        """Whether its config asks for one more confirmation. Unreadable counts as yes."""
        values = _resolved(self.name)
        return bool(values.get("protected", not values))

    def driver(self) -> ClusterDriver:
        from evctl.provision.opening import open_driver

        return open_driver(self.name)

    def client(self, timeout_s: float | None = None) -> AdminClient:
        """Of its control plane. Raises UnreachableError (EV-1401) when it was never started."""
        from evctl.client.admin import TIMEOUT_S, AdminClient

        path = self.driver().admin_socket()
        if path is None:
            raise UnreachableError(
                what="the control plane cannot be reached",
                why=f"that of cluster {self.name} was never started here",
                next_step=f"evctl up {self.name}",
                code="EV-1401",
            )
        return AdminClient(path, timeout_s=timeout_s or TIMEOUT_S)

    def explained(self, error: UnreachableError) -> UnreachableError:
        """The same error with what still runs, since engines outlive the control plane."""
        from evctl.provision.driver import CONTROL, UnitState

        driver = self.driver()
        units = driver.units()
        control = next(unit for unit in units if unit.name == CONTROL)
        engines = [unit for unit in units if unit.name != CONTROL]
        alive = sum(unit.state is UnitState.RUNNING for unit in engines)
        stopped_s = driver.down_since_s()
        if stopped_s is not None and not alive and control.state is not UnitState.RUNNING:
            from evctl.cli.moments import ago

            return UnreachableError(
                what=f"cluster {self.name} is down",
                why=f"`evctl down` stopped it {ago(stopped_s)}",
                next_step=f"evctl up {self.name}",
                code=error.code,
            )
        said = {
            UnitState.RUNNING: f"control runs (process {control.pid})",
            UnitState.ENDED: f"control (process {control.pid}) ended",
            UnitState.ABSENT: "control was never started",
        }[control.state]
        return UnreachableError(
            what=f"the control plane of cluster {self.name} cannot be reached",
            why=f"{said}; {alive} of {len(engines)} engines run",
            next_step=f"evctl up {self.name}"
            if control.state is not UnitState.RUNNING
            else f"evctl logs control --tail 20{self.flag}",
            code=error.code,
        )


def find_target(asked: str | None) -> Target:
    """The cluster that was named, by name or file; else the default one; else, where that was
    never up, the only one that was. Raises NotFoundError (EV-1708)."""
    if asked is not None:
        return _known(_name_of(asked), asked)
    setting = load_settings().cluster
    name = _name_of(setting.value)
    names = cluster_names()
    if setting.origin == "default" and name not in names and len(names) == 1:
        sys.stderr.write(f"cluster {names[0]} (the only one here)\n")
        return Target(names[0])
    return _known(name)


def _name_of(asked: str) -> str:
    """The name of a cluster given by name or file."""
    if "/" not in asked and not asked.endswith((".yaml", ".yml")):
        return asked
    from evctl.config.loading import find_cluster_file, load_cluster

    return load_cluster(find_cluster_file(asked)).config.name


def _known(name: str, asked: str | None = None) -> Target:
    """asked: what the user wrote, a name or a file."""
    if (cluster_dir(name) / CLUSTER_FILE).is_file():
        return Target(name)
    names = cluster_names()
    raise NotFoundError(
        what=f"cluster {name} is not here",
        why=f"it was never brought up on this machine; {_those(names)}",
        next_step=_instead_of(name, names, asked or name),
        code="EV-1708",
    )


def _instead_of(name: str, names: tuple[str, ...], asked: str) -> str:
    """A cluster that can be brought up is meant; any other name is a slip."""
    files = file_names()
    if asked != name or name in files:
        return f"evctl up {asked}"
    if near := get_close_matches(name, names, n=1):
        return f"did you mean {near[0]!r}?"
    if near := get_close_matches(name, files, n=1):
        return f"did you mean {near[0]!r}? evctl up {near[0]}"
    return "give one of them" if names else f"evctl up FILE, or one of {', '.join(files)}"


def _those(names: tuple[str, ...]) -> str:
    verb = "is" if len(names) == 1 else "are"
    return f"here {verb} {', '.join(names)}" if names else "there is no cluster"


def who() -> str:
    """Whom the journal names for a write."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
