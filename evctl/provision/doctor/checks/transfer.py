"""The way KV takes between nodes: its library, and who can reach its ports.

Engines speak to the control plane and to each other on channels that prove both ends by their
keys. The data ports of Mooncake prove nothing: whoever reaches one reads and writes KV memory.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

from evctl.provision.doctor.checks.access import is_loopback
from evctl.provision.doctor.facts import ListeningSocket, PortRange, Process, Subject
from evctl.provision.doctor.firewall import (
    covers,
    iptables_rules,
    merged,
    nftables_rules,
    told_ports,
)
from evctl.provision.doctor.library import (
    DEFAULT_PORTS,
    LEAST_VERSION,
    PACKAGE,
    PORTS_EACH,
    VARIABLES,
    version_key,
)
from evctl.provision.doctor.report import Check, Level

LEAST_RANGE: Final = 100
"""Ports to choose for the library: an engine draws two more for each peer that has come back at
a port that it had before, which in a narrow range it soon does."""
UNAUTHENTICATED: Final = (
    "Mooncake listens on all interfaces and asks nobody who they are: whoever reaches these"
    " ports, users of this machine among them, reads and writes the KV memory of the node"
)


def library(subject: Subject) -> Check:
    facts, name = subject.facts, "transfer"
    if subject.config.transfer == "shm":
        why = "KV moves by copies in shared memory; no port is opened for it"
        return Check(name, Level.OK, "shm", why)
    why = f"below {LEAST_VERSION} a write over TCP could be called done before it was"
    if not facts.libraries:
        next_step = "scripts/setup, or pip install 'evctl[local]'"
        return Check(name, Level.FAIL, f"no {PACKAGE} is installed", why, next_step)
    found = ", ".join(f"{package.name} {package.version}" for package in facts.libraries)
    oldest = min(facts.libraries, key=lambda package: version_key(package.version))
    if version_key(oldest.version) < version_key(LEAST_VERSION):
        next_step = f"pip install '{oldest.name}>={LEAST_VERSION}'"
        return Check(name, Level.FAIL, found, why, next_step)
    if facts.missing_libraries:
        found += f", without {', '.join(facts.missing_libraries)}"
        next_step = "apt-get install libibverbs1 libnuma1 libcurl4"
        return Check(name, Level.FAIL, found, "the package does not load without it", next_step)
    return Check(name, Level.OK, found, why)


def is_channel(process: Process, listening: ListeningSocket) -> bool:
    """Whether it is the socket that an engine's peers dial, which proves both ends. An address of
    its own tells. Where it is on all interfaces as the library's ports are, the port tells: it is
    not in the library's range. In doubt it is none."""
    if listening.address != process.listen_host:
        return False
    if not listening.on_all_interfaces:
        return True
    ports = process.library_ports
    return ports is not None and not covers((ports.range,), listening.port)


def open_sockets(process: Process) -> tuple[ListeningSocket, ...]:
    """Those of an engine that are not its channel, and not for this machine alone."""
    return tuple(
        listening
        for listening in process.listens or ()
        if not is_channel(process, listening) and not is_loopback(listening.address)
    )


def channels(subject: Subject) -> Check:
    """Sockets that ask for a key, or are the gateway."""
    name, told, blind = "channels", [], []
    control = subject.facts.control
    if control is not None:
        for listening in control.process.listens or ():
            known = {control.channel_port: "engines", control.gateway_port: "clients"}
            told.append(f"control {listening} for {known.get(listening.port, 'unknown')}")
    for engine in subject.facts.engines:
        if engine.listens is None:
            blind.append(engine.unit)
        sockets = (one for one in engine.listens or () if is_channel(engine, one))
        told += [f"{engine.unit} {listening} for its peers" for listening in sockets]
    why = "control plane and engines prove themselves to each other by their keys (CURVE)"
    if blind:
        found = f"where {', '.join(blind)} listen cannot be found out"
        return Check(name, Level.WARN, found, why, "run this as the user that ran evctl up")
    if not told:
        return Check(name, Level.INFO, "nothing runs", why)
    if any(text.endswith("unknown") for text in told):
        why = "the control plane listens on a port that it does not account for"
        return Check(name, Level.WARN, "; ".join(told), why, "find out what it is: report it")
    return Check(name, Level.OK, "; ".join(told), why)


def data_ports(subject: Subject) -> Check:
    """Ports that ask for no key, and the rules that shut them."""
    name, engines = "data-ports", subject.facts.engines
    opened = [(engine, one) for engine in engines for one in open_sockets(engine)]
    if not opened and not _will_open(subject):
        why = "KV does not leave this machine's shared memory"
        return Check(name, Level.OK, "no engine listens for KV", why)
    ports = _ports_to_shut(subject, [one for _, one in opened])
    if opened:
        found = ", ".join(f"{engine.unit} {listening}" for engine, listening in opened)
    else:
        found = f"engines will listen on all interfaces, on two ports each of {told_ports(ports)}"
    level, reach = _reach(subject, ports, bool(opened))
    found = f"{found}; {reach}"
    if level is Level.OK:
        return Check(name, level, found, UNAUTHENTICATED)
    next_step = (
        "on one machine set transfer: shm, which opens none. Else load the first table with"
        " `nft -f FILE`, or without nftables run the commands below it; both leave loopback open."
        f" {_how_to_move(subject)}"
    )
    lines = _rules(subject, ports)
    return Check(name, level, found, UNAUTHENTICATED, next_step, lines)


def _will_open(subject: Subject) -> bool:
    return subject.config.transfer == "mooncake" and not subject.facts.engines


def _ports_to_shut(subject: Subject, opened: list[ListeningSocket]) -> tuple[PortRange, ...]:
    """The ranges that the library draws from, since it draws anew at each start, and whatever is
    open beside them."""
    ranges = [
        engine.library_ports.range
        for engine in subject.facts.engines
        if engine.library_ports is not None and engine.transfer == "mooncake"
    ]
    if _will_open(subject):
        ranges.append(subject.facts.library_ports.range)
    return merged([*ranges, *((one.port, one.port) for one in opened)])


def _reach(subject: Subject, ports: tuple[PortRange, ...], opened: bool) -> tuple[Level, str]:
    """How bad it is, and what tells so."""
    facts = subject.facts
    if facts.guarded is not None and all(
        any(first <= low and high <= last for first, last in facts.guarded) for low, high in ports
    ):
        return Level.OK, "our firewall table shuts them"
    if not facts.addresses:
        return Level.OK, "this machine has no address but loopback"
    public = [address for address in facts.addresses if ip_address(address).is_global]
    if public and opened:
        return Level.FAIL, f"this machine has public addresses: {', '.join(public)}"
    seen = "our firewall table is not loaded" if facts.guarded is not None else "no firewall seen"
    return Level.WARN, f"open to {', '.join(facts.addresses)} ({seen})"


def _rules(subject: Subject, ports: tuple[PortRange, ...]) -> tuple[str, ...]:
    hosts = {engine.advertise_host for engine in subject.facts.engines}
    sources = sorted(host for host in hosts if not is_loopback(host))
    return (
        *nftables_rules(subject.config.name, ports, sources),
        "",
        *iptables_rules(ports, sources),
    )


def _how_to_move(subject: Subject) -> str:
    """Where the range comes from."""
    wanted = max(LEAST_RANGE, 4 * PORTS_EACH * len(subject.config.nodes))
    low, high = VARIABLES
    said = f"The range is {told_ports([DEFAULT_PORTS])} unless {low} and {high} say otherwise"
    said += f" at evctl up: {wanted} ports or more, outside 32768-60999."
    facts = subject.facts
    places = [engine.library_ports for engine in facts.engines] or [facts.library_ports]
    if any(place is not None and place.ignored for place in places):
        said += " What is set there now is not taken."
    return said
