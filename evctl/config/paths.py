"""Where evctl keeps things, by the XDG rules. Read from the environment at each call, so that
tests and users can redirect it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from evctl.core.errors import UsageError

CLUSTER_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", re.ASCII)

CLUSTER_FILE = "cluster.json"
"""In a cluster's state directory: the config it was brought up with."""


def _base(variable: str, fallback: str) -> Path:
    """The XDG rules ask to ignore a relative path."""
    configured = Path(os.environ.get(variable, ""))
    return configured if configured.is_absolute() else Path.home() / fallback


def state_root() -> Path:
    return _base("XDG_STATE_HOME", ".local/state") / "evctl"


def cache_root() -> Path:
    return _base("XDG_CACHE_HOME", ".cache") / "evctl"


def config_root() -> Path:
    return _base("XDG_CONFIG_HOME", ".config") / "evctl"


def system_config_root() -> Path:
    return Path("/etc/evctl")


def runtime_root() -> Path:
    """A short place for unix sockets, whose paths end at 107 bytes; of this user alone."""
    configured = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    if configured.is_absolute():
        return configured / "evctl"
    return Path("/tmp") / f"evctl-{os.getuid()}"


def clusters_root() -> Path:
    return state_root() / "clusters"


def cluster_dir(name: str) -> Path:
    """State of one cluster. Raises UsageError (EV-1706) for what cannot be a cluster's name."""
    if not CLUSTER_NAME.fullmatch(name):
        raise UsageError(
            what=f"{name!r} cannot be the name of a cluster",
            why="a name has 1 to 40 lower-case letters, digits and dashes",
            next_step="give a name such as local, or a file such as clusters/local.yaml",
            code="EV-1706",
        )
    return clusters_root() / name


def cluster_names() -> tuple[str, ...]:
    """Clusters that have state on this machine, running or not."""
    root = clusters_root()
    if not root.is_dir():
        return ()
    return tuple(sorted(p.name for p in root.iterdir() if (p / CLUSTER_FILE).is_file()))


def packaged_clusters() -> Path:
    """The cluster files that serve where there is no checkout."""
    return Path(__file__).with_name("clusters")


def cluster_places(start: Path | None = None) -> Iterator[Path]:
    """Where a cluster is looked up by name, strongest first."""
    for directory in walk_up(start or Path.cwd()):
        yield directory / "clusters"
    yield config_root() / "clusters"
    yield packaged_clusters()


def file_names(start: Path | None = None) -> tuple[str, ...]:
    """Clusters that have a file where names are looked up, whether ever up or not."""
    found = {path.stem for place in cluster_places(start) for path in place.glob("*.yaml")}
    return tuple(sorted(found))


def walk_up(start: Path) -> Iterator[Path]:
    """This directory and those above it, up to the root of the repository it lies in; no
    further than this directory where there is no repository."""
    above = [start, *start.parents]
    root = next((d for d in above if (d / ".git").exists()), start)
    yield from above[: above.index(root) + 1]
