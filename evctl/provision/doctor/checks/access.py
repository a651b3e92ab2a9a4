"""Who gets at the cluster: gateway, admin API, keys, shared memory."""

from __future__ import annotations

from typing import Final

from evctl.provision.doctor.facts import Subject
from evctl.provision.doctor.report import Check, Level

OTHERS: Final = 0o077
"""Any right of a group or of everybody."""
LOOPBACK: Final = ("127.", "::1", "localhost")
MOST_LINES: Final = 8


def is_loopback(host: str) -> bool:
    return host.startswith(LOOPBACK)


def gateway_port(subject: Subject) -> Check:
    gateway, control = subject.config.gateway, subject.facts.control
    where = f"{gateway.host}, port {gateway.port}"
    why, name = "clients connect there", "gateway-port"
    if control is not None and control.gateway_port:
        served = f"port {control.gateway_port}"
        if gateway.port in (0, control.gateway_port):
            return Check(name, Level.OK, f"served by this cluster, {served}", why)
        found = f"served by this cluster on {served}, not {gateway.port}"
        next_step = f"tell clients, or free port {gateway.port} and then evctl up"
        return Check(name, Level.WARN, found, why, next_step)
    if gateway.port == 0:
        return Check(name, Level.OK, f"{gateway.host}, any free port", why)
    if not subject.facts.port_problem:
        return Check(name, Level.OK, f"{where}: free", why)
    found = subject.facts.port_problem
    next_step = "end what listens there, or set gateway.port to another one (0: any)"
    if gateway.port_strict:
        return Check(
            name, Level.FAIL, found, "port_strict: evctl up would take no other", next_step
        )
    return Check(name, Level.WARN, found, "evctl up would take another port", next_step)


def gateway_access(subject: Subject) -> Check:
    host, keys = subject.config.gateway.host, len(subject.config.api_keys)
    name, found = "gateway-access", f"{host}, {keys or 'no'} client key{'s' * (keys != 1)}"
    why = "without api_keys everybody who reaches the gateway is let in, as tenant default"
    if is_loopback(host) or keys:
        return Check(name, Level.OK, found, why)
    next_step = "set api_keys, or gateway.host to 127.0.0.1; TLS is for a proxy in front"
    return Check(name, Level.WARN, found, why, next_step)


def admin_socket(subject: Subject) -> Check:
    control, name = subject.facts.control, "admin-socket"
    why = "it steers the cluster and asks for no password: whoever opens it is in charge"
    if control is None:
        return Check(name, Level.INFO, "the control plane does not run", why)
    mode = control.admin_mode
    found = f"{control.admin or 'unknown'}, mode {'none' if mode is None else f'{mode:04o}'}"
    if control.admin_problem:
        found += f": {control.admin_problem}"
        cluster = subject.config.name
        next_step = f"evctl logs control --tail 50 -c {cluster}, then evctl up {cluster}"
        return Check(name, Level.FAIL, found, "status, split and top go through it", next_step)
    if mode is not None and mode & OTHERS and not control.admin_private:
        return Check(name, Level.FAIL, found, why, f"chmod 600 {control.admin}")
    return Check(name, Level.OK, found, why)


def keys(subject: Subject) -> Check:
    name, secrets = "keys", subject.facts.secrets
    why = "who reads them can speak as a node, or as the control plane, or as a client"
    if not secrets:
        return Check(name, Level.INFO, "none yet: evctl up makes them", why)
    bad = [secret for secret in secrets if secret.mode & OTHERS or not secret.mine]
    if not bad:
        return Check(
            name, Level.OK, f"{len(secrets)} files and folders, for their owner only", why
        )
    found = ", ".join(
        f"{secret.path} has mode {secret.mode:04o}"
        if secret.mine
        else f"{secret.path} is another's"
        for secret in bad[:MOST_LINES]
    )
    lines = tuple(f"chmod go-rwx {secret.path}" for secret in bad[:MOST_LINES] if secret.mine)
    next_step = (
        "shut them; where others may have read them, evctl down --purge and up make new ones:"
    )
    return Check(name, Level.FAIL, found, why, next_step, lines)


def segments(subject: Subject) -> Check:
    """Memory of engines that run, or ran, by its rights."""
    name = "segment-rights"
    why = "KV is made of what users wrote; with a right to the file it can be read and changed"
    ours = [segment for segment in subject.facts.segments if segment.mine]
    bad = [segment for segment in ours if segment.mode & OTHERS]
    if not bad:
        found = f"{len(ours)} in /dev/shm, for their owner only" if ours else "none in /dev/shm"
        return Check(name, Level.OK, found, why)
    found = ", ".join(f"{segment.name} has mode {segment.mode:04o}" for segment in bad)
    lines = tuple(f"chmod 600 /dev/shm/{segment.name}" for segment in bad[:MOST_LINES])
    return Check(name, Level.FAIL, found, why, "shut them, and find out who opened them:", lines)
