"""The file that an engine starts from (`evengine --config FILE`), as plain JSON values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the schema costs 60 ms, and only `up` reads it
    from evctl.config.cluster import ClusterConfig


def engine_config(
    config: ClusterConfig,
    node: str,
    *,
    control_endpoint: str,
    control_public_key: str,
    keypair: Path,
    model: str,
) -> dict[str, Any]:
    """control_endpoint: what engines dial. control_public_key: z85. model: its directory."""
    return {
        "cluster": config.name,
        "node": node,
        "control_endpoint": control_endpoint,
        "control_public_key": control_public_key,
        "keypair": str(keypair),
        "model": model,
        "block_tokens": config.block_tokens,
        "l1_blocks": config.l1_blocks,
        "l2_blocks": config.l2_blocks,
        "eviction": config.eviction,
        "ranks": config.ranks,
        "transfer": config.transfer,
        "prefix_cache": config.prefix_cache,
        "pace": config.pace.model_dump() if config.pace else None,
        "limits": {
            "chunk_tokens": config.chunk_tokens,
            "max_running": config.max_running,
            "max_waiting": max(1024, config.max_queued),
            "shortest_first": config.shortest_first,
            "prefill_ageing": config.prefill_ageing,
            "fetch": {"at_start": config.fetch == "at-start"},
        },
    }


CONTROL_KEYS = (
    "name",
    "nodes",
    "model",
    "block_tokens",
    "gateway",
    "allow_replay",
    "api_keys",
    "max_queued",
    "node_late_after_s",
    "node_lost_after_s",
    "fetch_ahead",
    "routing",
    "shortest_first",
    "prefill_ageing",
    "append_tokens",
    "suspect_after_s",
    "warm_up_s",
    "watch_drift",
    "decode_context",
    "planner",
)
"""What the control plane reads of a cluster's config, beside the first split."""


def control_config(config: ClusterConfig) -> dict[str, Any]:
    """What a control plane has to be restarted for when it changes."""
    return config.model_dump(mode="json", include=set(CONTROL_KEYS))


def difference(before: dict[str, Any] | None, after: dict[str, Any]) -> str:
    """`l1_blocks 1024 -> 2048, ...`; empty when equal. Keys to the API are named, not shown."""
    if before is None or before == after:
        return ""
    told = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        if isinstance(new, dict) and isinstance(old, dict) and key != "api_keys":
            told.append(", ".join(f"{key}.{part}" for part in difference(old, new).split(", ")))
        elif isinstance(new, dict | list) or isinstance(old, dict | list):
            told.append(f"{key} changed")
        else:
            told.append(f"{key} {old} -> {new}")
    return ", ".join(told)
