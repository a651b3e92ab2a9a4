"""What docs/pool.md names exists."""

from __future__ import annotations

import re

from evctl.config.cluster import ClusterConfig
from evctl.provision.doctor.firewall import guarded_ports, nftables_rules
from evctl.provision.doctor.library import (
    DEFAULT_PORTS,
    KERNELS_PORTS,
    LEAST_VERSION,
    VARIABLES,
)
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "pool.md").read_text(encoding="utf-8")


def test_every_metric_is_counted_somewhere() -> None:
    """By its name, or by a pattern with a class or a reason in it."""
    source = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "engine").rglob("*.py")
    )
    written = set(re.findall(r'"([a-z0-9_{}.()]{5,})"', source))
    fixed_parts = [re.split(r"\{[^}]*\}", text) for text in written]
    patterns = [
        re.compile("[a-z0-9_]+".join(map(re.escape, parts)))
        for parts in fixed_parts
        if len("".join(parts)) > 4
    ]
    table = PAGE.partition("## What engines count")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    names = re.findall(r"`([a-z0-9_]+)`", " ".join(cells))
    assert len(names) > 20
    assert [n for n in names if not any(p.fullmatch(n) for p in patterns)] == []


def test_sizes_and_ports_are_those_of_the_code() -> None:
    for key in re.findall(r"^(l[12]_tokens):", PAGE, re.MULTILINE):
        assert key in ClusterConfig.model_fields
    for first, last in (DEFAULT_PORTS, KERNELS_PORTS):
        assert f"{first}-{last}" in PAGE
    assert all(f"{name}=" in PAGE for name in VARIABLES)
    assert LEAST_VERSION in PAGE


def test_the_rules_are_those_that_are_printed() -> None:
    rules = nftables_rules("prod", (DEFAULT_PORTS,), ("10.0.0.0/24",))
    assert "\n".join(f"  {line}" for line in rules) in PAGE
    assert guarded_ports(PAGE) == (DEFAULT_PORTS,)
