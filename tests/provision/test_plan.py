"""What has to be restarted for a change of the cluster file."""

from __future__ import annotations

import re
from pathlib import Path

from evctl import serve
from evctl.provision.engine_config import CONTROL_KEYS


def test_what_the_control_plane_reads_restarts_it() -> None:
    """A key that it reads and that restarts nothing would be "updated" and change nothing."""
    source = Path(serve.__file__).read_text(encoding="utf-8")
    read = set(re.findall(r"config\.([a-z_0-9]+)", source[source.index("def plan_of") :]))
    derived = {"node_names": "nodes", "tenants": "api_keys"}
    assert len(read) > 15, "looked in the wrong place"
    assert {derived.get(key, key) for key in read} - {"split"} <= set(CONTROL_KEYS)
