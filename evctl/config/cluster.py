"""What a cluster is: its nodes, model, memory, first split and limits."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from evctl.config.marked_yaml import KeyPath
from evctl.config.paths import CLUSTER_NAME
from evctl.core.errors import RefusedError, UsageError
from evctl.core.split import Split, parse_split

MODEL_KV_HEADS: Final[Mapping[str, int | None]] = {
    "smollm2-135m": 3,
    "random-2l128": 2,
    "random-4l256": 2,
    "random-6l384": 2,
    "random-8l512": 2,
    "random-4l256-latent": None,
    "random-4l256-kv4": 4,
}
"""Models that engines know, and the KV heads that a node's ranks divide; None: latent KV, which
every rank keeps whole. A test holds this against the engine's own."""

KNOWN_MODELS: Final = tuple(MODEL_KV_HEADS)

KEY_BLOCK_TOKENS: Final = 256
RESERVED_NAMES: Final = frozenset({"control", "all"})

PositiveSeconds = Annotated[float, Field(gt=0)]
Name = Annotated[str, StringConstraints(pattern=f"^{CLUSTER_NAME.pattern}$")]


class _Strict(BaseModel):
    """Unknown keys are mistakes, "16" is not 16, and no number is without end: it would not come
    back from the resolved configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class NodeConfig(_Strict):
    """One node. Where it is comes later, with the driver that reaches it."""

    name: Name = Field(description="unique in the cluster")


class GatewayConfig(_Strict):
    """Where clients of the cluster connect."""

    host: str = Field(
        default="127.0.0.1", min_length=1, description="address that the gateway binds"
    )
    port: int = Field(default=8080, ge=0, le=65535, description="0: any free port")
    port_strict: bool = Field(
        default=False, description="fail when the port is taken, take no other"
    )


class PaceConfig(_Strict):
    """How long iterations last at least, in seconds: many nodes on few cores, with a model so
    small that it takes next to nothing. See evengine.runner.paced."""

    prefill_s: float = Field(default=0.0, ge=0, description="a prefill iteration")
    token_s: float = Field(default=0.0, ge=0, description="a new token of a prompt")
    pair_s: float = Field(default=0.0, ge=0, description="a query-key pair")
    decode_s: float = Field(default=0.0, ge=0, description="a decode iteration")
    request_s: float = Field(default=0.0, ge=0, description="a request that decodes")
    context_s: float = Field(default=0.0, ge=0, description="1,000 tokens of their contexts")
    half_tokens: float = Field(
        default=0.0, ge=0, description="a chunk of so many takes twice as long a token"
    )
    noise: float = Field(
        default=0.0, ge=0, le=2, description="standard deviation of the logarithm"
    )


class PlannerKeys(_Strict):
    """How the split is decided. Times in seconds."""

    rules: Literal["plus", "paper"] = Field(
        default="plus", description="paper: by the paper's rule alone, to compare with"
    )
    window_s: float = Field(default=600.0, ge=1, description="one decision a window")
    slices: int = Field(default=10, ge=6, le=60, description="parts that a window is weighed in")
    cooldown_s: float = Field(
        default=120.0, ge=0, description="least time between the end of a change and the next"
    )
    least_requests: int = Field(
        default=20,
        ge=1,
        le=1_000_000_000,
        description="a slice with fewer says nothing; most of them: no decision",
    )
    least_prefill: int = Field(default=1, ge=1, description="nodes that prefill keeps")
    least_decode: int = Field(default=1, ge=1, description="nodes that decode keeps")
    ttft_target_s: float = Field(
        default=0.0,
        ge=0,
        description="no split whose 95th percentile of waits for prefill exceeds it; 0: any",
    )


def _numbered(value: Any) -> Any:
    """A number of nodes as nodes n1, n2, ..."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 1024:
        return [{"name": f"n{i}"} for i in range(1, value + 1)]
    return value


class ClusterConfig(_Strict):
    """A whole cluster file. Times in seconds, memory in tokens of KV per node."""

    name: Name = Field(description="names the cluster on the command line and its state directory")
    nodes: Annotated[
        list[NodeConfig],
        BeforeValidator(_numbered, json_schema_input_type=int | list[NodeConfig]),
        Field(description="a number (n1, n2, ...) or a list of names"),
    ]
    split: str = Field(description="the first split, such as 2P1D; later: evctl split set")
    model: str = Field(default="smollm2-135m", description="what every node serves")
    block_tokens: int = Field(default=16, ge=1, le=256, description="tokens in one KV block")
    transfer: Literal["shm", "mooncake"] = Field(
        default="shm", description="how KV moves between nodes"
    )
    l1_tokens: int = Field(default=16_384, ge=1, description="KV that a node keeps for attention")
    ranks: int = Field(
        default=1, ge=1, le=16, description="processes of a node that share its KV heads"
    )
    l2_tokens: int | None = Field(
        default=None,
        ge=0,
        description="KV that a node keeps in host memory, for itself and its peers; 0: none;"
        " when not given, twice l1_tokens, none without prefix_cache",
    )
    eviction: Literal["paper", "expected", "lru"] = Field(
        default="paper", description="what leaves a full host memory first"
    )
    fetch: Literal["queued", "at-start"] = Field(
        default="queued",
        description="KV of peers comes while a request queues; at-start: to compare with",
    )
    fetch_ahead: bool = Field(
        default=True, description="fetch a waiting branch's KV before its next request"
    )
    suspect_after_s: dict[Literal["root", "fork", "sub-agent"], PositiveSeconds] = Field(
        default_factory=dict,
        description="silence by kind of branch, after which its KV goes before that of others;"
        " a kind left out: never",
    )
    warm_up_s: float = Field(
        default=120.0,
        ge=0,
        le=86_400,
        description="a new node works for both phases at first, until its times are learned;"
        " 0: never",
    )
    watch_drift: bool = Field(
        default=True, description="learn a node's times anew when they drift from what was learned"
    )
    decode_context: bool = Field(
        default=True,
        description="decode time depends on the tokens of context too, beside the paper's terms",
    )
    routing: Literal["predicted", "cache-aware", "session", "round-robin"] = Field(
        default="predicted",
        description="who chooses a request's nodes; all but the first are to compare with",
    )
    shortest_first: bool = Field(
        default=False, description="compute the prompt with the least left to compute first"
    )
    prefill_ageing: float = Field(
        default=0.1,
        gt=0,
        le=1000,
        description="with shortest_first: seconds of work that weigh as much as one of waiting",
    )
    append_tokens: int = Field(
        default=0,
        ge=0,
        le=1_000_000_000,
        description="most new tokens that a decode node with the rest of the prompt may compute"
        " itself; 0: none",
    )
    prefix_cache: bool = Field(
        default=True, description="reuse KV of equal prefixes; off to compare with"
    )
    chunk_tokens: int = Field(default=256, ge=1, description="prompt tokens in one iteration")
    max_running: int = Field(default=32, ge=1, le=4096, description="requests in one decode batch")
    pace: PaceConfig | None = Field(
        default=None, description="make iterations last as on other hardware, to study"
    )
    gateway: GatewayConfig = Field(default_factory=GatewayConfig)
    planner: PlannerKeys = Field(default_factory=PlannerKeys)
    allow_replay: bool = Field(
        default=False, description="accept requests that name their own output"
    )
    api_keys: dict[str, str] = Field(
        default_factory=dict, description="key: tenant; empty lets everybody in as `default`"
    )
    max_queued: int = Field(
        default=256, ge=1, le=1_000_000_000, description="requests that may wait; beyond: 429"
    )
    node_late_after_s: float = Field(default=5.0, gt=0, le=3600, description="no heartbeat: late")
    node_lost_after_s: float = Field(default=20.0, gt=0, le=3600, description="no heartbeat: lost")
    protected: bool = Field(default=False, description="ask once more before anything disruptive")

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes)

    @property
    def first_split(self) -> Split:
        return parse_split(self.split)

    @property
    def l1_blocks(self) -> int:
        return self.l1_tokens // self.block_tokens

    @property
    def l2_blocks(self) -> int:
        if self.l2_tokens is not None:
            return self.l2_tokens // self.block_tokens
        return 2 * self.l1_tokens // self.block_tokens if self.prefix_cache else 0

    @property
    def tenants(self) -> tuple[str, ...]:
        """Those that requests may come from."""
        return tuple(sorted(set(self.api_keys.values()))) or ("default",)


class Mistake(msgspec.Struct, frozen=True):
    """What is wrong with the meaning of one value."""

    key_path: KeyPath
    what: str
    hint: str = ""


def mistakes_of(config: ClusterConfig) -> list[Mistake]:
    """What the types cannot say: sums, divisors, names that must exist or differ."""
    return [*_split_mistakes(config), *_node_mistakes(config), *_value_mistakes(config)]


def _split_mistakes(config: ClusterConfig) -> list[Mistake]:
    count = len(config.nodes)
    if count < 2:
        why = f"{count} node{'s' * (count != 1)}, but each phase needs one"
        return [Mistake(key_path=("nodes",), what=why, hint="give at least 2 nodes")]
    try:
        split = config.first_split
    except (UsageError, RefusedError) as error:
        return [Mistake(key_path=("split",), what=str(error), hint=error.next_step)]
    if split.nodes != count:
        what = f"split {config.split} is for {split.nodes} nodes, the cluster has {count}"
        hint = f"write for example {(count + 1) // 2}P{count // 2}D"
        return [Mistake(key_path=("split",), what=what, hint=hint)]
    return []


def _node_mistakes(config: ClusterConfig) -> list[Mistake]:
    found = []
    names = config.node_names
    for i, name in enumerate(names):
        path: KeyPath = ("nodes", i, "name")
        if name in names[:i]:
            found.append(Mistake(key_path=path, what=f"a second node is named {name!r}"))
        if name in RESERVED_NAMES:
            found.append(Mistake(key_path=path, what=f"a node cannot be named {name!r}"))
    return found


def _value_mistakes(config: ClusterConfig) -> list[Mistake]:
    found = []

    def wrong(key: str, what: str, hint: str = "") -> None:
        found.append(Mistake(key_path=(key,), what=what, hint=hint))

    if config.model not in KNOWN_MODELS:
        near = get_close_matches(config.model, KNOWN_MODELS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(KNOWN_MODELS)}"
        wrong("model", f"no model is named {config.model!r}", hint)
    kv_heads = MODEL_KV_HEADS.get(config.model)
    if kv_heads is not None and kv_heads % config.ranks:
        divisors = [str(n) for n in range(1, kv_heads + 1) if kv_heads % n == 0]
        what = f"{config.ranks} does not divide the {kv_heads} KV heads of {config.model}"
        wrong("ranks", what, f"give {' or '.join(divisors)}")
    if KEY_BLOCK_TOKENS % config.block_tokens:
        wrong("block_tokens", f"{config.block_tokens} does not divide 256", "give a power of 2")
    if config.l1_blocks < 8:
        wrong("l1_tokens", f"{config.l1_tokens} tokens are fewer than 8 blocks")
    if config.l2_tokens and config.l2_blocks < 8:
        wrong("l2_tokens", f"{config.l2_tokens} tokens are fewer than 8 blocks", "0: no pool")
    if config.l2_tokens and not config.prefix_cache:
        wrong("l2_tokens", "without prefix_cache nothing is reused", "give 0, or leave it out")
    kept = config.planner.least_prefill + config.planner.least_decode
    if kept > max(2, len(config.nodes)):
        what = f"{kept} nodes are to stay in a phase, there are {len(config.nodes)}"
        wrong("planner", what, "lower least_prefill or least_decode")
    if config.append_tokens and config.routing != "predicted":
        what = f"routing {config.routing} has no times to compare appending with"
        wrong("append_tokens", what, "give 0, or leave it out")
    if config.node_lost_after_s <= config.node_late_after_s:
        wrong("node_lost_after_s", "a node must be late before it is lost", "give a larger number")
    for key, tenant in config.api_keys.items():
        if len(key) < 8 or not key.isprintable() or " " in key:
            wrong("api_keys", "a key has fewer than 8 characters, or spaces", "make a longer one")
        if not tenant:
            wrong("api_keys", "a key has no tenant")
    return found
