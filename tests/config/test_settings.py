"""Layers of settings, and where each value is from."""

from __future__ import annotations

from pathlib import Path

import pytest

from evctl.config.settings import Setting, load_settings
from evctl.core.errors import ConfigError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "evctl").mkdir(parents=True)
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    (tmp_path / "repo" / "deep").mkdir()
    return tmp_path


def test_each_layer_beats_the_one_below(home: Path) -> None:
    start = home / "repo" / "deep"
    user, project = home / "config" / "evctl" / "config.yaml", home / "repo" / "evctl.yaml"

    def cluster(flags: dict[str, str | None] | None = None, **env: str) -> Setting:
        return load_settings(flags, env, start).cluster

    assert cluster() == Setting("local", "default")
    user.write_text("color: never\ncluster: mine\n")
    assert cluster() == Setting("mine", f"{user}:2")
    project.write_text("cluster: ours\n")
    assert cluster() == Setting("ours", f"{project}:1")
    assert cluster(EVCTL_CLUSTER="env") == Setting("env", "$EVCTL_CLUSTER")
    assert cluster({"cluster": "flag"}, EVCTL_CLUSTER="env") == Setting("flag", "--cluster")
    # A layer that does not set a value leaves the one below.
    assert load_settings(None, {}, start).color == Setting("never", f"{user}:1")


def test_an_empty_file_and_an_empty_variable_set_nothing(home: Path) -> None:
    (home / "repo" / "evctl.yaml").write_text("# nothing\n")
    settings = load_settings(None, {"EVCTL_OUTPUT": ""}, home / "repo")
    assert settings.output == Setting("table", "default")


@pytest.mark.parametrize(
    ("text", "line", "hint"),
    [
        ("clster: a\n", 1, "did you mean 'cluster'?"),
        ("cluster: a\noutput: jsn\n", 2, "did you mean 'json'?"),
        ("cluster: 5\n", 1, "quote it"),
        ("- a\n", 1, "cluster: NAME"),
    ],
)
def test_a_mistake_names_its_line(home: Path, text: str, line: int, hint: str) -> None:
    (home / "repo" / "evctl.yaml").write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_settings(None, {}, home / "repo")
    assert f"evctl.yaml:{line}:" in raised.value.why
    assert hint in raised.value.next_step


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings(None, {"EVCTL_COLOR": "sometimes"})
    assert "$EVCTL_COLOR" in raised.value.why
