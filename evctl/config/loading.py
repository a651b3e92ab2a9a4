"""From a cluster's file or name to a checked ClusterConfig that knows where each value stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel, ValidationError

from evctl.config.cluster import (
    ClusterConfig,
    GatewayConfig,
    Mistake,
    NodeConfig,
    PlannerKeys,
    mistakes_of,
)
from evctl.config.marked_yaml import (
    InvalidConfigError,
    KeyPath,
    MarkedDocument,
    Problem,
    read_marked,
)
from evctl.config.paths import (
    CLUSTER_FILE,
    CLUSTER_NAME,
    cluster_dir,
    cluster_names,
    cluster_places,
    file_names,
)
from evctl.core.errors import ConfigError, NotFoundError

DEFAULT_ORIGIN = "default"
_STAND_INS = {"name": "c", "nodes": 2, "split": "1P1D"}
"""For the required keys of a file that lacks them, to look at the rest of it."""


class LoadedCluster(msgspec.Struct, frozen=True):
    """A checked config. source: the file it came from. origins: file:line, flag or default of
    each value, by dotted key."""

    config: ClusterConfig
    source: str
    origins: dict[str, str]


def find_cluster_file(target: str, start: Path | None = None) -> Path:
    """The file that `target` means: a path, or a name looked up in clusters/ of this directory
    and those above it, in the user's configuration and in the package; last, for a cluster that
    was up here, the config it had.

    Raises NotFoundError (EV-1707) with the nearest name.
    """
    if "/" in target or target.endswith((".yaml", ".yml")):
        path = Path(target).expanduser()
        if path.is_file():
            return path
        raise NotFoundError(
            what=f"no cluster file {target}",
            why="there is no such file",
            next_step="check the path, or give a name: evctl config path lists where names go",
            code="EV-1707",
        )
    for place in cluster_places(start):
        path = place / f"{target}.yaml"
        if path.is_file():
            return path
    if CLUSTER_NAME.fullmatch(target) and (cluster_dir(target) / CLUSTER_FILE).is_file():
        return cluster_dir(target) / CLUSTER_FILE
    known = sorted({*file_names(start), *cluster_names()})
    near = get_close_matches(target, known, n=1)
    raise NotFoundError(
        what=f"no cluster is named {target!r}",
        why=f"known are {', '.join(known)}",
        next_step=f"did you mean {near[0]!r}?" if near else "give one of them, or a file",
        code="EV-1707",
    )


def load_cluster(
    path: Path, overrides: Mapping[str, tuple[Any, str]] | None = None
) -> LoadedCluster:
    """Read and check a cluster file. overrides: key -> (value, origin), which beat the file.

    Raises ConfigError EV-1701, InvalidConfigError EV-1702 (not YAML), EV-1703 (keys and types)
    and EV-1704 (meaning), with all mistakes found and their lines.
    """
    document = read_marked(path, _shown(path))
    if not isinstance(document.value, dict):
        what = "a cluster file is a mapping of keys to values"
        raise InvalidConfigError(
            document.path, (Problem(document.where(()), what, "start with `name: `"),), "EV-1703"
        )
    values = {**document.value, **{key: value for key, (value, _) in (overrides or {}).items()}}
    flags = {key: origin for key, (_, origin) in (overrides or {}).items()}
    try:
        config = ClusterConfig.model_validate(values)
    except ValidationError as error:
        problems = [_problem(document, flags, dict(one)) for one in error.errors()]
        broken = {str(one["loc"][0]) for one in error.errors() if one["loc"]}
        problems += [_meaning(document, flags, one) for one in _mistakes_of_rest(values, broken)]
        raise InvalidConfigError(document.path, _by_line(problems), "EV-1703") from error
    wrong = [_meaning(document, flags, mistake) for mistake in mistakes_of(config)]
    if wrong:
        raise InvalidConfigError(document.path, _by_line(wrong), "EV-1704")
    return LoadedCluster(config, str(path.absolute()), _origins(document, flags, config))


def _mistakes_of_rest(values: Mapping[str, Any], broken: set[str]) -> list[Mistake]:
    """What is wrong with the meaning of the keys that can be read, where others cannot: all
    mistakes of a file are told at once."""
    whole = {key: value for key, value in values.items() if key not in broken}
    try:
        config = ClusterConfig.model_validate({**_STAND_INS, **whole})
    except ValidationError:
        return []
    # What rests on a key that cannot be read says nothing.
    doubtful = broken | ({"split"} if "nodes" in broken else set())
    found = mistakes_of(config)
    return [mistake for mistake in found if str(mistake.key_path[0]) not in doubtful]


def read_resolved(name: str) -> ClusterConfig:
    """The config that a cluster on this machine was brought up with.

    Raises NotFoundError (EV-1708) for a cluster that was never up here, ConfigError (EV-1703)
    when its file is damaged or of another version.
    """
    path = cluster_dir(name) / CLUSTER_FILE
    try:
        return ClusterConfig.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise NotFoundError(
            what=f"cluster {name} has no state on this machine",
            why=f"{path} does not exist",
            next_step=f"evctl up {name}",
            code="EV-1708",
        ) from error
    except (OSError, ValidationError) as error:
        why = str(error).splitlines()[0]
        raise ConfigError(
            what=f"cannot use {path}",
            why=f"{why}: damaged, or written by another version",
            next_step=f"evctl up {name} writes it anew",
            code="EV-1703",
        ) from error


def flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of a config as (dotted key, value); an empty mapping or list is a leaf."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from flat(item, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and value:
        for i, item in enumerate(value):
            yield from flat(item, f"{prefix}.{i}")
    else:
        yield prefix, value


def _shown(path: Path) -> str:
    """A path as short as it can be said from here."""
    absolute = path.absolute()
    try:
        return str(absolute.relative_to(Path.cwd()))
    except ValueError:
        return str(absolute)


def _origins(
    document: MarkedDocument, flags: Mapping[str, str], config: ClusterConfig
) -> dict[str, str]:
    origins = {}
    for key, _ in flat(config.model_dump(mode="json")):
        path: KeyPath = tuple(int(p) if p.isdigit() else p for p in key.split("."))
        if str(path[0]) in flags:
            origins[key] = flags[str(path[0])]
        elif path in document.lines or (path[0] == "nodes" and ("nodes",) in document.lines):
            origins[key] = document.where(path)
        else:
            origins[key] = DEFAULT_ORIGIN
    return origins


def _where(document: MarkedDocument, flags: Mapping[str, str], path: KeyPath) -> str:
    if path and path[0] in flags:
        return flags[str(path[0])]
    return document.where(path)


def _meaning(document: MarkedDocument, flags: Mapping[str, str], mistake: Mistake) -> Problem:
    return Problem(_where(document, flags, mistake.key_path), mistake.what, mistake.hint)


def _problem(document: MarkedDocument, flags: Mapping[str, str], error: dict[str, Any]) -> Problem:
    """One pydantic error in our words, at its line."""
    path: KeyPath = tuple(error["loc"])
    dotted = ".".join(map(str, path))
    where = _where(document, flags, path)
    if error["type"] == "extra_forbidden":
        near = get_close_matches(str(path[-1]), _keys_at(path), n=1)
        known = ", ".join(_keys_at(path))
        hint = f"did you mean {near[0]!r}?" if near else f"known keys are {known}"
        return Problem(where, f"unknown key {dotted!r}", hint)
    if error["type"] == "missing":
        return Problem(where, f"key {dotted!r} is missing", f"add `{path[-1]}: `")
    message = error["msg"][0].lower() + error["msg"][1:]
    if path[0] == "api_keys":  # keys are secret, and here they are part of the path
        return Problem(where, f"api_keys: {message}", "write each as `KEY: TENANT`")
    return Problem(where, f"{dotted}: {message}, not {repr(error['input'])[:60]}")


def _by_line(problems: list[Problem]) -> tuple[Problem, ...]:
    def line(problem: Problem) -> int:
        number = problem.where.rpartition(":")[2]
        return int(number) if number.isdigit() else 0

    return tuple(sorted(problems, key=line))


def _keys_at(path: KeyPath) -> list[str]:
    """Keys that the mapping around this key may have."""
    around: type[BaseModel] = ClusterConfig
    if path[0] == "nodes" and len(path) > 1:
        around = NodeConfig
    elif path[0] == "gateway" and len(path) > 1:
        around = GatewayConfig
    elif path[0] == "planner" and len(path) > 1:
        around = PlannerKeys
    return list(around.model_fields)
