"""Configuration of one engine process, read from a JSON file that whoever starts it wrote."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import msgspec

from evctl.core.errors import ConfigError
from evengine.limits import LoopLimits
from evengine.runner.paced import Pace

MAX_RANKS = 16


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """control_endpoint, control_public_key (z85): whom to dial. keypair: file of this node's
    CURVE pair. model: a prepared model's directory. listen_host: address that the peer channel
    binds; advertise_host: the one that peers dial. prefix_cache: off, every
    prompt is computed anew (to compare with). require_exact: refuse to start on a machine
    whose arithmetic depends on the batch. threads: of torch; more than the node's share of
    cores makes everything slower. ranks: processes that share the KV heads of every sequence,
    each with its part of L1 (latent KV: a whole copy) and so many threads. l2_blocks: 0, no pool.
    eviction: order of L2, by its name in evctl.policy.eviction. pace: make iterations last as on
    other hardware.
    """

    cluster: str
    node: str
    control_endpoint: str
    control_public_key: str
    keypair: str
    model: str
    block_tokens: int = 16
    l1_blocks: int = 512
    l2_blocks: int = 0
    eviction: str = "paper"
    transfer: str = "shm"
    listen_host: str = "127.0.0.1"
    advertise_host: str = "127.0.0.1"
    prefix_cache: bool = True
    require_exact: bool = True
    threads: int = 1
    ranks: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)] = 1
    pace: Pace | None = None
    log_level: str = "INFO"
    limits: LoopLimits = LoopLimits()


def load_config(path: Path) -> EngineConfig:
    """Read and check a configuration. Raises ConfigError that names the file and the key."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=EngineConfig)
    except OSError as error:
        raise _bad(path, error.strerror or str(error), "check the path") from error
    except msgspec.ValidationError as error:
        raise _bad(path, str(error), _nearest(str(error))) from error
    except msgspec.DecodeError as error:
        raise _bad(path, f"not JSON: {error}", "write it as one JSON object") from error


def _nearest(reason: str) -> str:
    """The known key closest to an unknown one that msgspec complains about."""
    unknown = reason.split("`")[1] if reason.startswith("Object contains unknown") else ""
    near = get_close_matches(unknown, EngineConfig.__struct_fields__, n=1)
    return f"did you mean {near[0]!r}?" if near else "see evengine.config.EngineConfig"


def _bad(path: Path, why: str, next_step: str) -> ConfigError:
    return ConfigError(
        what=f"cannot use the engine configuration {path}",
        why=why,
        next_step=next_step,
        code="EV-2001",
    )
