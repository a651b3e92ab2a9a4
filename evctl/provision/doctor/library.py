"""What the Mooncake transfer library needs, and where it looks for ports.

It takes two ports for each of its engine objects, one to open sessions and one for data, at
random from one range, and listens there on all interfaces whatever address it is told. Measured
with 0.3.13.post1; tests/provision/doctor/test_library_ports.py holds it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from evctl.provision.doctor.facts import LibraryPorts, PortRange

PACKAGE: Final = "mooncake-transfer-engine"
"""How the names of its packages begin."""
LEAST_VERSION: Final = "0.3.12.post1"
SHARED_OBJECTS: Final = ("libibverbs.so.1", "libnuma.so.1", "libcurl.so.4")
DEFAULT_PORTS: Final[PortRange] = (15_000, 17_000)
LEAST_PORT: Final = 1024
MOST_PORT: Final = 65_535
KERNELS_PORTS: Final[PortRange] = (32_768, 60_999)
"""The library takes no range that touches these, whatever the kernel's setting is."""
PORTS_EACH: Final = 2
VARIABLES: Final = ("MC_MIN_RPC_PORT", "MC_MAX_RPC_PORT")


def library_ports(environment: Mapping[str, str]) -> LibraryPorts:
    """As the library reads it: a range that it does not like is replaced by the default one
    without a word. MC_MIN_PRC_PORT is an older spelling."""
    said = [
        environment.get(name, environment.get(name.replace("RPC", "PRC"), ""))
        for name in VARIABLES
    ]
    first, last = (
        int(word) if re.fullmatch(r"\d{1,5}", word) else default
        for word, default in zip(said, DEFAULT_PORTS, strict=True)
    )
    touches = first <= KERNELS_PORTS[1] and last >= KERNELS_PORTS[0]
    if not LEAST_PORT <= first <= last <= MOST_PORT or touches:
        first, last = DEFAULT_PORTS
    ignored = any(
        word not in ("", str(port)) for word, port in zip(said, (first, last), strict=True)
    )
    return LibraryPorts(first, last, ignored)


def version_key(version: str) -> tuple[int, int, int, int]:
    """Orders versions such as 0.3.12.post1; what comes before a release is below it."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)(?:\.?post(\d+)|(.+))?", version)
    if match is None:
        return 0, 0, 0, 0
    major, minor, micro, post, rest = match.groups()
    return int(major), int(minor), int(micro), int(post or 0) - bool(rest)
