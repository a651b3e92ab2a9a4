"""Rules that shut the ports of the transfer library against everybody but the pool's nodes.

Our rules are a table of their own, so that loading them anew replaces them and touches nothing
else, and so that the doctor can find them again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from evctl.provision.doctor.facts import PortRange


def table_name(cluster: str) -> str:
    """A name of nftables has no dashes."""
    return "evctl_" + cluster.replace("-", "_")


def merged(ports: Iterable[PortRange]) -> tuple[PortRange, ...]:
    """The same ports in as few ranges as possible: a set of nftables refuses overlaps."""
    found: list[PortRange] = []
    for first, last in sorted(ports):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def told_ports(ports: Iterable[PortRange], dash: str = "-", comma: str = ", ") -> str:
    return comma.join(
        str(first) if first == last else f"{first}{dash}{last}" for first, last in ports
    )


def nftables_rules(
    cluster: str, ports: Sequence[PortRange], sources: Sequence[str]
) -> tuple[str, ...]:
    """A file for `nft -f`. sources: addresses of the pool's other machines; loopback is open."""
    table, dports = f"inet {table_name(cluster)}", f"{{ {told_ports(ports)} }}"
    return (
        f"table {table}",
        f"delete table {table}",
        f"table {table} {{",
        "  chain input {",
        "    type filter hook input priority -10; policy accept;",
        '    iifname "lo" accept',
        *(f"    {line}" for line in _accepted(sources, dports)),
        f"    tcp dport {dports} drop",
        "  }",
        "}",
    )


def _accepted(sources: Sequence[str], dports: str) -> list[str]:
    """A line an address family; without any source, one that shows how to add the network."""
    lines = []
    for family, colon in (("ip", False), ("ip6", True)):
        these = [source for source in sources if (":" in source) is colon]
        if these:
            lines.append(f"{family} saddr {{ {', '.join(these)} }} tcp dport {dports} accept")
    return lines or [f"# ip saddr {{ NETWORK OF THE POOL }} tcp dport {dports} accept"]


def iptables_rules(ports: Sequence[PortRange], sources: Sequence[str]) -> tuple[str, ...]:
    """The same as commands, for where there is no nft. Each goes in front of those before it."""
    match = f"-p tcp -m multiport --dports {told_ports(ports, ':', ',')}"
    lines = [
        f"{program} -I INPUT ! -i lo {match} -j DROP" for program in ("iptables", "ip6tables")
    ]
    for source in sources:
        program = "ip6tables" if ":" in source else "iptables"
        lines.append(f"{program} -I INPUT -s {source} {match} -j ACCEPT")
    return tuple(lines)


def guarded_ports(listing: str) -> tuple[PortRange, ...]:
    """Ports that the table in a listing of `nft list table` drops."""
    found: list[PortRange] = []
    for match in re.finditer(r"^\s*tcp dport (\{[^}]*\}|\S+) drop$", listing, re.MULTILINE):
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", match[1]):
            found.append((int(first), int(last or first)))
    return merged(found)


def covers(guarded: Iterable[PortRange], port: int) -> bool:
    return any(first <= port <= last for first, last in guarded)
