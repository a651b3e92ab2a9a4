"""The evctl-control process: gateway, admin API and the one writer over a cluster's engines.

    python -m evctl.serve --cluster-dir DIR

DIR is a cluster's state directory, with cluster.json, keys and secret, as `evctl up` makes it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pydantic import ValidationError

from evctl.config.cluster import ClusterConfig
from evctl.control.process import GatewayPlan, run
from evctl.control.settings import ControlSettings, planner_config, unusable_config
from evctl.gateway.apierror import told_below_http
from evctl.gateway.app import create_app


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="evctl.serve", description="Serve one evctl cluster.")
    parser.add_argument("--cluster-dir", required=True, type=Path, help="its state directory")
    directory = parser.parse_args(argv).cluster_dir.absolute()
    return run(lambda: plan_of(directory))


def plan_of(directory: Path) -> tuple[ControlSettings, GatewayPlan]:
    """What cluster.json asks for. Raises ConfigError (EV-1302)."""
    path = directory / "cluster.json"
    try:
        config = ClusterConfig.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise unusable_config(path, str(error)) from error
    settings = ControlSettings(
        directory=directory,
        cluster=config.name,
        nodes=config.node_names,
        split=config.split,
        model=config.model,
        block_tokens=config.block_tokens,
        allow_replay=config.allow_replay,
        max_queued=config.max_queued,
        node_late_after_s=config.node_late_after_s,
        node_lost_after_s=config.node_lost_after_s,
        cooldown_s=config.planner.cooldown_s,
        planner=planner_config(**config.planner.model_dump()),
        tenants=config.tenants,
        fetch_ahead=config.fetch_ahead,
        suspect_after_s={str(k): s for k, s in config.suspect_after_s.items()},
    )
    gateway = GatewayPlan(
        create=lambda front_door: create_app(front_door, config.api_keys),
        host=config.gateway.host,
        port=config.gateway.port,
        strict=config.gateway.port_strict,
        tell=told_below_http,
    )
    return settings, gateway


if __name__ == "__main__":
    sys.exit(main())
