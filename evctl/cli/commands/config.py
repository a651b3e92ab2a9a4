"""evctl config validate | view | get | schema | path"""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import Annotated, Any

import typer

from evctl.cli.groups import group
from evctl.cli.output import (
    DocumentOption,
    Form,
    NamesOption,
    chosen,
    number_of,
    output_option,
    print_document,
    table,
)
from evctl.cli.target import complete_file
from evctl.config.settings import DEFAULTS, load_settings, settings_files
from evctl.core.errors import ConfigError, NotFoundError

app = group("Check and show cluster files and settings.")

FileArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="CLUSTER|FILE",
        help="A cluster file, or a name that is looked up.",
        autocompletion=complete_file,
        show_default=False,
    ),
]


def _load(target: str | None) -> Any:
    from evctl.config.loading import find_cluster_file, load_cluster

    return load_cluster(find_cluster_file(target or load_settings().cluster.value))


@app.command()
def validate(target: FileArgument = None, output: DocumentOption = None) -> None:
    """Check a cluster file: keys, types and meaning. All mistakes are listed; exit 3 for any."""
    from evctl.config.marked_yaml import InvalidConfigError

    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML)
    try:
        loaded = _load(target)
    except InvalidConfigError as error:
        if form is not Form.TABLE:
            raise
        print("\n".join(str(problem) for problem in error.problems))
        raise ConfigError(
            what=error.what.partition(",")[0],
            why=f"{number_of(len(error.problems), 'mistake')}, listed above",
            next_step="correct what is listed, then run this again",
            code=error.code,
        ) from error
    values = {"valid": True, "file": loaded.source, "cluster": loaded.config.name}
    if form is Form.TABLE:
        print(f"{loaded.source}: valid ({loaded.config.name})")
    else:
        print_document(form, "Validation", values)


def _shown(loaded: Any) -> dict[str, Any]:
    """The config without its secrets."""
    values: dict[str, Any] = loaded.config.model_dump(mode="json")
    keys = values["api_keys"]
    values["api_keys"] = {f"{key[:2]}… ({len(key)})": tenant for key, tenant in keys.items()}
    return values


@app.command()
def view(
    target: FileArgument = None,
    origin: Annotated[
        bool, typer.Option("--origin", help="Say where each value is from.")
    ] = False,
    output: DocumentOption = None,
) -> None:
    """Show a cluster's config and the user's settings, defaults filled in."""
    from evctl.config.loading import flat

    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML)
    loaded = _load(target)
    values, settings = _shown(loaded), _settings()
    if form is not Form.TABLE:
        content = {
            "file": loaded.source,
            "cluster": values,
            "settings": {key: value for key, (value, _) in settings.items()},
        }
        if origin:
            content["origins"] = {
                "cluster": loaded.origins,
                "settings": {key: where for key, (_, where) in settings.items()},
            }
        print_document(form, "Config", content)
        return
    rows = []
    for key, value in flat(values):
        top = key.partition(".")[0]
        where = loaded.origins.get(key) or loaded.origins.get(top) or _nearest_origin(loaded, top)
        rows.append((key, _told(value), where))
    rows.extend((f"(setting) {key}", value, where) for key, (value, where) in settings.items())
    head = ("KEY", "VALUE", "ORIGIN")
    print(table(head, rows) if origin else table(head[:2], [row[:2] for row in rows]))


def _nearest_origin(loaded: Any, top: str) -> str:
    """Of a value whose key is not shown as it stands."""
    found = (where for key, where in loaded.origins.items() if key.startswith(f"{top}."))
    return next(found, "default")


def _settings() -> dict[str, tuple[str, str]]:
    settings = load_settings()
    found = {key: getattr(settings, key) for key in DEFAULTS}
    return {key: (setting.value, setting.origin) for key, setting in found.items()}


def _told(value: Any) -> str:
    if value == {} or value == []:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def complete_key(incomplete: str) -> list[str]:
    """Settings, and keys of a cluster file."""
    from evctl.config.cluster import ClusterConfig, GatewayConfig

    keys = [*DEFAULTS, *ClusterConfig.model_fields]
    keys += [f"gateway.{key}" for key in GatewayConfig.model_fields]
    return sorted(key for key in keys if key.startswith(incomplete))


@app.command()
def get(
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="Dotted, such as gateway.port; or a setting.",
            autocompletion=complete_key,
        ),
    ],
    target: FileArgument = None,
    output: NamesOption = None,
) -> None:
    """Print one value of a cluster's config, or one setting."""
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML, Form.NAME)
    settings = _settings()
    value: Any
    if key in settings:
        value = settings[key][0]
    else:
        value = _shown(_load(target))
        for part in key.split("."):
            value = _inside(value, part, key)
    if form in (Form.TABLE, Form.NAME):
        print(_told(value))
    else:
        print_document(form, "ConfigValue", {"key": key, "value": value})


def _inside(value: Any, part: str, key: str) -> Any:
    if isinstance(value, list) and part.isdigit() and int(part) < len(value):
        return value[int(part)]
    if isinstance(value, dict) and part in value:
        return value[part]
    names = list(value) if isinstance(value, dict) else []
    near = get_close_matches(part, names, n=1)
    raise NotFoundError(
        what=f"there is no key {key!r}",
        why=f"{part!r} is not among {', '.join(names)}" if names else f"{part!r} leads nowhere",
        next_step=f"did you mean {near[0]!r}?" if near else "evctl config view lists all",
        code="EV-1808",
    )


@app.command()
def schema(
    output: Annotated[Form | None, output_option(Form.JSON, Form.YAML)] = None,
) -> None:
    """Print the JSON Schema of a cluster file, for editors."""
    from evctl.config.cluster import ClusterConfig

    form = chosen(output, Form.JSON, Form.YAML)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    content = {**head, **ClusterConfig.model_json_schema()}
    if form is Form.YAML:
        import yaml

        print(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), end="")
    else:
        print(json.dumps(content, indent=2, ensure_ascii=False))


@app.command()
def path(output: DocumentOption = None) -> None:
    """List where settings, cluster files and state are looked for."""
    from evctl.config import paths

    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML)
    found: list[tuple[str, str, bool]] = []
    for file in settings_files():
        found.append(("settings", str(file), file.is_file()))
    for folder in paths.cluster_places():
        found.append(("clusters", str(folder), folder.is_dir()))
    found.append(("state", str(paths.state_root()), paths.state_root().is_dir()))
    found.append(("cache", str(paths.cache_root()), paths.cache_root().is_dir()))
    if form is Form.TABLE:
        rows = [(kind, place, "yes" if there else "-") for kind, place, there in found]
        print(table(("WHAT", "PATH", "THERE"), rows))
        return
    rows_out = [{"what": kind, "path": place, "exists": there} for kind, place, there in found]
    print_document(form, "Paths", {"paths": rows_out})
