"""Cluster files: what is accepted, and how each mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from evctl.config.cluster import KNOWN_MODELS, MODEL_KV_HEADS, ClusterConfig
from evctl.config.loading import find_cluster_file, load_cluster, read_resolved
from evctl.config.marked_yaml import InvalidConfigError
from evctl.config.paths import cluster_dir, packaged_clusters
from evctl.core.errors import ConfigError, EvctlError, NotFoundError, UsageError
from evengine.models.registry import RandomModel, model_names, model_spec
from tests.conftest import ROOT

GOOD = "name: x\nnodes: 3\nsplit: 2P1D\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "x.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_and_origins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load_cluster(written(tmp_path, GOOD + "gateway:\n  port: 0\n"))
    config = loaded.config
    assert config.node_names == ("n1", "n2", "n3")
    assert (config.gateway.port, config.gateway.host) == (0, "127.0.0.1")
    assert (config.l1_blocks, config.l2_blocks) == (1024, 2048)
    assert loaded.origins["split"] == "x.yaml:3"
    assert loaded.origins["gateway.port"] == "x.yaml:5"
    assert loaded.origins["nodes.2.name"] == "x.yaml:2"
    assert loaded.origins["gateway.host"] == loaded.origins["model"] == "default"


@pytest.mark.parametrize(
    ("written_as", "value"),
    [("1e-6", 1e-6), ("1E-6", 1e-6), ("+2e1", 20.0), ("1.5e-3", 1.5e-3), ("120", 120.0)],
)
def test_a_number_may_have_an_exponent_and_no_point(
    tmp_path: Path, written_as: str, value: float
) -> None:
    config = load_cluster(written(tmp_path, GOOD + f"warm_up_s: {written_as}\n")).config
    assert config.warm_up_s == value


def test_a_name_like_a_number_with_an_exponent_may_be_quoted(tmp_path: Path) -> None:
    assert load_cluster(written(tmp_path, GOOD.replace("x", '"n1e5"'))).config.name == "n1e5"
    with pytest.raises(ConfigError):
        load_cluster(written(tmp_path, GOOD.replace("x", "1e5")))


def test_times_are_learned_by_default(tmp_path: Path) -> None:
    config = load_cluster(written(tmp_path, GOOD)).config
    assert (config.warm_up_s, config.watch_drift, config.decode_context) == (120.0, True, True)
    text = GOOD + "warm_up_s: 0\nwatch_drift: false\ndecode_context: false\n"
    config = load_cluster(written(tmp_path, text)).config
    assert (config.warm_up_s, config.watch_drift, config.decode_context) == (0.0, False, False)
    with pytest.raises(InvalidConfigError):
        load_cluster(written(tmp_path, GOOD + "warm_up_s: -1\n"))


@pytest.mark.parametrize(
    ("keys", "blocks"),
    [
        ("", 2048),
        ("l1_tokens: 1600\n", 200),
        ("l2_tokens: 800\n", 50),
        ("l2_tokens: 0\n", 0),
        ("prefix_cache: false\n", 0),
    ],
)
def test_l2_is_twice_l1_unless_said_otherwise(tmp_path: Path, keys: str, blocks: int) -> None:
    assert load_cluster(written(tmp_path, GOOD + keys)).config.l2_blocks == blocks


@pytest.mark.parametrize("written_as", ["1e-6", "1E-06", "1.e-6", "0.000001", ".1e-5"])
def test_a_number_with_an_exponent_is_one(tmp_path: Path, written_as: str) -> None:
    text = GOOD + f"pace:\n  pair_s: {written_as}\n"
    pace = load_cluster(written(tmp_path, text)).config.pace
    assert pace is not None
    assert pace.pair_s == 1e-6
    with pytest.raises(InvalidConfigError):
        load_cluster(written(tmp_path, text.replace(written_as, f'"{written_as}"')))


def test_silence_is_by_kind_of_branch(tmp_path: Path) -> None:
    text = GOOD + "suspect_after_s:\n  sub-agent: 60\n  fork: 0.5\nfetch_ahead: false\n"
    config = load_cluster(written(tmp_path, text)).config
    assert config.suspect_after_s == {"sub-agent": 60.0, "fork": 0.5}
    assert config.fetch_ahead is False


def test_plus_switches_of_routing_are_off_unless_said(tmp_path: Path) -> None:
    config = load_cluster(written(tmp_path, GOOD)).config
    found = config.routing, config.shortest_first, config.append_tokens
    assert found == ("predicted", False, 0)
    text = "shortest_first: true\nprefill_ageing: 0.5\nappend_tokens: 1024\n"
    config = load_cluster(written(tmp_path, GOOD + text)).config
    found = config.shortest_first, config.prefill_ageing, config.append_tokens
    assert found == (True, 0.5, 1024)


@pytest.mark.parametrize(
    "keys",
    [
        "routing: fastest\n",
        "prefill_ageing: 0\n",
        "append_tokens: -1\n",
        "routing: session\nappend_tokens: 64\n",
    ],
)
def test_routing_that_cannot_be_is_an_error(tmp_path: Path, keys: str) -> None:
    with pytest.raises(ConfigError):
        load_cluster(written(tmp_path, GOOD + keys))


def test_tenants_are_those_of_the_keys(tmp_path: Path) -> None:
    assert load_cluster(written(tmp_path, GOOD)).config.tenants == ("default",)
    text = GOOD + "api_keys:\n  key-one-1: b\n  key-two-2: a\n  key-three: b\n"
    assert load_cluster(written(tmp_path, text)).config.tenants == ("a", "b")


def test_the_cluster_that_replays_are_compared_with_reuses_nothing() -> None:
    config = load_cluster(ROOT / "clusters" / "verify.yaml").config
    assert (config.l2_blocks, config.prefix_cache) == (0, False)
    assert config.l2_tokens == 0, "said, not left to the default"


def test_named_nodes(tmp_path: Path) -> None:
    text = "name: x\nnodes:\n  - name: a\n  - {name: b}\nsplit: 1d1p\n"
    loaded = load_cluster(written(tmp_path, text))
    assert loaded.config.node_names == ("a", "b")
    assert loaded.origins["nodes.1.name"].endswith("x.yaml:4")


def test_a_flag_beats_the_file(tmp_path: Path) -> None:
    loaded = load_cluster(written(tmp_path, GOOD), {"split": ("1P2D", "--split")})
    assert (loaded.config.split, loaded.origins["split"]) == ("1P2D", "--split")
    with pytest.raises(InvalidConfigError) as raised:
        load_cluster(written(tmp_path, GOOD), {"split": ("1P1D", "--split")})
    assert raised.value.problems[0].where == "--split"


@pytest.mark.parametrize(
    ("text", "code", "line", "what", "hint"),
    [
        (GOOD + "modle: a\n", "EV-1703", 4, "unknown key 'modle'", "did you mean 'model'?"),
        (GOOD + "gateway:\n  prot: 1\n", "EV-1703", 5, "gateway.prot", "did you mean 'port'?"),
        (GOOD + "block_tokens: '16'\n", "EV-1703", 4, "block_tokens", ""),
        (GOOD + "allow_replay: 1\n", "EV-1703", 4, "allow_replay", ""),
        (GOOD + "suspect_after_s: {side: 3}\n", "EV-1703", 4, "suspect_after_s.side", ""),
        (GOOD + "suspect_after_s:\n  fork: 0\n", "EV-1703", 5, "suspect_after_s.fork", ""),
        (GOOD + "l2_tokens: -1\n", "EV-1703", 4, "l2_tokens", ""),
        (GOOD + "gateway:\n  port: 65536\n", "EV-1703", 5, "gateway.port", ""),
        (GOOD + "planner:\n  windows: 3\n", "EV-1703", 5, "planner.windows", "'window_s'?"),
        (GOOD + "planner: {rules: best}\n", "EV-1703", 4, "planner.rules", ""),
        (GOOD + "planner: {slices: 5}\n", "EV-1703", 4, "planner.slices", ""),
        (GOOD + "planner: {window_s: .inf}\n", "EV-1703", 4, "finite", ""),
        (GOOD + "planner: {cooldown_s: .inf}\n", "EV-1703", 4, "finite", ""),
        (GOOD + "planner: {window_s: 0.001}\n", "EV-1703", 4, "planner.window_s", ""),
        (GOOD + f"planner: {{least_requests: {10**20}}}\n", "EV-1703", 4, "least_requests", ""),
        (GOOD + f"append_tokens: {10**20}\n", "EV-1703", 4, "append_tokens", ""),
        (GOOD + "planner: {least_decode: 3}\n", "EV-1704", 4, "4 nodes are to stay", "lower"),
        (GOOD + "transfer: rdma\n", "EV-1703", 4, "transfer", ""),
        ("nodes: 3\nsplit: 2P1D\n", "EV-1703", 1, "'name' is missing", "add"),
        ("name: X y\nnodes: 3\nsplit: 2P1D\n", "EV-1703", 1, "name", ""),
        (GOOD + "nodes: 2\n", "EV-1702", 4, "second time", "see line 2"),
        (GOOD + "gateway: {port: 1, port: 2}\n", "EV-1702", 4, "second time", ""),
        (GOOD + "api_keys: [\n", "EV-1702", 5, "not YAML", ""),
        (GOOD + "a: &x [*x]\n", "EV-1702", 1, "not YAML", ""),
        ("- 1\n", "EV-1703", 1, "mapping", ""),
        ("", "EV-1703", 1, "mapping", ""),
        (GOOD + "block_tokens: 24\n", "EV-1704", 4, "does not divide 256", "power of 2"),
        (GOOD + "model: smollm2\n", "EV-1704", 4, "no model", "did you mean 'smollm2-135m'?"),
        (GOOD + "node_lost_after_s: 1.0\n", "EV-1704", 4, "late before it is lost", ""),
        (GOOD + "ranks: 2\n", "EV-1704", 4, "2 does not divide the 3 KV heads", "1 or 3"),
        (GOOD + "ranks: 0\n", "EV-1703", 4, "ranks", ""),
        (GOOD + "l1_tokens: 16\n", "EV-1704", 4, "fewer than 8 blocks", ""),
        ("name: x\nnodes: 3\nsplit: 2P2D\n", "EV-1704", 3, "4 nodes", "2P1D"),
        ("name: x\nnodes: 3\nsplit: many\n", "EV-1704", 3, "many", "4P5D"),
        ("name: x\nnodes: 1\nsplit: 1P1D\n", "EV-1704", 2, "1 node,", "at least 2"),
        ("name: x\nnodes: [{name: a}, {name: a}]\nsplit: 1P1D\n", "EV-1704", 2, "second", ""),
        ("name: x\nnodes: [{name: control}, {name: a}]\nsplit: 1P1D\n", "EV-1704", 2, "", ""),
    ],
)
def test_a_mistake_is_told_with_its_line(
    tmp_path: Path, text: str, code: str, line: int, what: str, hint: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InvalidConfigError) as raised:
        load_cluster(path)
    problem = raised.value.problems[0]
    assert raised.value.code == code
    assert raised.value.exit_code == 3
    assert problem.where.endswith(f"x.yaml:{line}")
    assert what in problem.what
    assert hint in problem.hint


def test_all_mistakes_come_at_once_in_order(tmp_path: Path) -> None:
    text = "name: x\nnodse: 3\nsplit: 2P1D\nblock_tokens: x\nchunk_tokns: 3\n"
    with pytest.raises(InvalidConfigError) as raised:
        load_cluster(written(tmp_path, text))
    lines = [int(p.where.rpartition(":")[2]) for p in raised.value.problems]
    assert lines == [1, 2, 4, 5]


def test_a_secret_is_not_shown_in_an_error(tmp_path: Path) -> None:
    text = GOOD + "api_keys:\n  sk-very-secret: [1]\n"
    with pytest.raises(InvalidConfigError) as raised:
        load_cluster(written(tmp_path, text))
    assert "very-secret" not in raised.value.render() + str(raised.value.problems)


def test_hostile_files_end_soon(tmp_path: Path) -> None:
    bomb = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"{b}: &{b} [{','.join(['*' + a] * 10)}]\n"
        for a, b in zip("abcdefg", "bcdefgh", strict=True)
    )
    for text in (bomb, "[" * 5000, "\0", "name: \ud83d".encode("utf-8", "surrogatepass")):
        path = tmp_path / "x.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(ConfigError):
            load_cluster(path)


def test_an_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load_cluster(tmp_path)
    assert raised.value.code == "EV-1701"


def test_names_are_looked_up_here_above_and_in_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    repo = tmp_path / "repo"
    deep = repo / "a" / "b"
    deep.mkdir(parents=True)
    (repo / ".git").mkdir()
    monkeypatch.chdir(deep)
    assert find_cluster_file("local") == packaged_clusters() / "local.yaml"
    for folder in (tmp_path / "config" / "evctl" / "clusters", repo / "clusters"):
        folder.mkdir(parents=True)
        (folder / "local.yaml").write_text(GOOD)
        assert find_cluster_file("local") == folder / "local.yaml"
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "outside.yaml").write_text(GOOD)
    with pytest.raises(NotFoundError) as raised:
        find_cluster_file("lcal")
    assert "local" in raised.value.next_step
    with pytest.raises(NotFoundError):
        find_cluster_file("outside")
    with pytest.raises(NotFoundError):
        find_cluster_file("./absent.yaml")


def test_a_cluster_that_runs_can_be_named_without_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    config = load_cluster(written(tmp_path, GOOD)).config
    with pytest.raises(NotFoundError) as raised:
        read_resolved("x")
    assert raised.value.code == "EV-1708"
    cluster_dir("x").mkdir(parents=True)
    (cluster_dir("x") / "cluster.json").write_text(config.model_dump_json(indent=2))
    assert read_resolved("x") == config
    assert load_cluster(find_cluster_file("x")).config == config
    (cluster_dir("x") / "cluster.json").write_text("{")
    with pytest.raises(EvctlError) as damaged:
        read_resolved("x")
    assert damaged.value.code == "EV-1703"


@pytest.mark.parametrize("name", ["", "a/b", "..", "A", "a" * 41, "-a", "a\n"])
def test_a_cluster_name_is_no_path(name: str) -> None:
    with pytest.raises(UsageError):
        cluster_dir(name)


def test_the_packaged_files_are_those_of_the_checkout() -> None:
    ours = {path.name: path.read_text() for path in (ROOT / "clusters").glob("*.yaml")}
    packaged = {path.name: path.read_text() for path in packaged_clusters().glob("*.yaml")}
    assert ours == packaged
    assert {"local.yaml", "replay.yaml"} <= ours.keys()
    for path in packaged_clusters().glob("*.yaml"):
        assert load_cluster(path).config.name == path.stem


def test_the_models_known_here_are_those_of_the_engine() -> None:
    """tests/models/test_smollm2.py compares the KV heads of the one whose file says them."""
    assert set(KNOWN_MODELS) == set(model_names())
    for name in KNOWN_MODELS:
        spec = model_spec(name)
        if isinstance(spec, RandomModel):
            heads = None if spec.config.attention == "latent" else spec.config.n_kv_heads
            assert MODEL_KV_HEADS[name] == heads


@pytest.mark.parametrize(
    ("model", "ranks"), [("random-4l256", 2), ("smollm2-135m", 3), ("random-4l256-latent", 5)]
)
def test_ranks_that_divide_the_kv_heads_and_any_of_latent_kv_are_accepted(
    tmp_path: Path, model: str, ranks: int
) -> None:
    loaded = load_cluster(written(tmp_path, GOOD + f"model: {model}\nranks: {ranks}\n"))
    assert loaded.config.ranks == ranks


def test_the_resolved_config_survives_json() -> None:
    config = ClusterConfig.model_validate(
        {"name": "x", "nodes": 2, "split": "1P1D", "api_keys": {"k" * 8: "t"}}
    )
    assert ClusterConfig.model_validate_json(config.model_dump_json()) == config
