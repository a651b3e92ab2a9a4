"""The few things a user sets once: default cluster, output format, colour.

Precedence: flag > EVCTL_* > evctl.yaml here or above > the user's config.yaml > /etc > default.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import msgspec

from evctl.config.paths import cluster_names, config_root, system_config_root, walk_up
from evctl.core.errors import ConfigError

DEFAULTS: Final = {"cluster": "local", "output": "table", "color": "auto"}
CHOICES: Final = {
    "output": ("table", "json", "yaml", "name", "jsonl"),
    "color": ("auto", "always", "never"),
}
DESCRIPTIONS: Final = {
    "cluster": "cluster that commands mean when none is named",
    "output": "form of results",
    "color": "colour in the terminal; NO_COLOR and TERM=dumb turn it off too",
}


class Setting(msgspec.Struct, frozen=True):
    """origin: flag, the variable's name, file:line or default."""

    value: str
    origin: str


class Settings(msgspec.Struct, frozen=True):
    cluster: Setting
    output: Setting
    color: Setting


def load_settings(
    flags: Mapping[str, str | None] | None = None,
    environment: Mapping[str, str] | None = None,
    start: Path | None = None,
) -> Settings:
    """Merge all layers. Raises ConfigError (EV-1705) that names the layer with the mistake."""
    env = os.environ if environment is None else environment
    found = {key: Setting(value, "default") for key, value in DEFAULTS.items()}
    for path in reversed(list(settings_files(start))):
        found.update(_read(path))
    for key in DEFAULTS:
        variable = f"EVCTL_{key.upper()}"
        if env.get(variable):
            found[key] = _checked(key, env[variable], f"${variable}")
        flag = (flags or {}).get(key)
        if flag is not None:
            found[key] = _checked(key, flag, f"--{key}")
    return Settings(**found)


def cluster_flag(name: str) -> str:
    """What a command needs beside its name to mean this cluster: ` -c NAME`, or "" for the one it
    means anyway. For hints that somebody pastes."""
    try:
        setting = load_settings().cluster
    except ConfigError:
        return f" -c {name}"
    if setting.value == name:
        return ""
    names = cluster_names()
    only = setting.origin == "default" and setting.value not in names and names == (name,)
    return "" if only else f" -c {name}"


def settings_files(start: Path | None = None) -> Iterator[Path]:
    """Places of settings, strongest first, whether or not a file is there."""
    for directory in walk_up(start or Path.cwd()):
        if (directory / "evctl.yaml").is_file():
            yield directory / "evctl.yaml"
            break
    yield config_root() / "config.yaml"
    yield system_config_root() / "config.yaml"


def _read(path: Path) -> dict[str, Setting]:
    if not path.is_file():
        return {}
    # Not at import: most commands run without any such file, and YAML costs 25 ms.
    from evctl.config.marked_yaml import read_marked

    document = read_marked(path)
    if document.value is None:
        return {}
    if not isinstance(document.value, dict):
        raise _bad(
            f"{path}:1", "settings are a mapping of keys to values", "write `cluster: NAME`"
        )
    found = {}
    for key, value in document.value.items():
        where = document.where((key,))
        if key not in DEFAULTS:
            near = get_close_matches(str(key), DEFAULTS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(DEFAULTS)}"
            raise _bad(where, f"unknown key {key!r}", hint)
        found[key] = _checked(key, value, where)
    return found


def _checked(key: str, value: object, origin: str) -> Setting:
    choices = CHOICES.get(key)
    if not isinstance(value, str) or not value:
        raise _bad(origin, f"{key} is {value!r}, not a word", "quote it")
    if choices and value not in choices:
        near = get_close_matches(value, choices, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(choices)}"
        raise _bad(origin, f"{key} cannot be {value!r}", hint)
    return Setting(value, origin)


def _bad(where: str, what: str, hint: str) -> ConfigError:
    return ConfigError(
        what="a setting is wrong", why=f"{where}: {what}", next_step=hint, code="EV-1705"
    )
