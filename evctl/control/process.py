"""The control plane as a process: its servers, its signals, its log, its exit code."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import signal
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from evctl.control.admin import create_admin_app
from evctl.control.admin_forms import told_below_http
from evctl.control.connections import Door, Shares, Sparing, Tell, raise_descriptor_limit
from evctl.control.frontdoor import FrontDoor
from evctl.control.plane import ControlPlane
from evctl.control.serving import HttpServer, listen_tcp, listen_unix, url_of
from evctl.control.settings import ControlSettings
from evctl.control.statedir import unusable_system
from evctl.core.errors import EvctlError, ExitCode


class GatewayPlan(msgspec.Struct, frozen=True):
    """create: the gateway's ASGI app over a front door. strict: this port or none. tell: the body
    of an answer to what is no HTTP request, or one too many."""

    create: Callable[[FrontDoor], Any]
    host: str
    port: int
    strict: bool
    tell: Tell


class _JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the extras given."""

    _plain = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {
        "message",
        "color_message",  # uvicorn's message once more, with escapes for a terminal
    }

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time_s": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({k: v for k, v in record.__dict__.items() if k not in self._plain})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=repr)


def run(make: Callable[[], tuple[ControlSettings, GatewayPlan | None]]) -> int:
    """Serve until SIGTERM, SIGINT or a stop over the admin API; the process's exit code.

    make: reads the configuration; what it raises is reported like any other failure.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("uvicorn.error").addFilter(Sparing())
    try:
        settings, gateway = make()
        _spare_collections()
        asyncio.run(serve(settings, gateway))
    except EvctlError as error:
        return _report(error)
    except OSError as error:
        logging.getLogger(__name__).exception("the system refuses something")
        return _report(unusable_system(error))
    return int(ExitCode.DONE)


def _report(error: EvctlError) -> int:
    logging.getLogger(__name__).error("%s", error, extra={"code": error.code})
    sys.stderr.write(error.render() + "\n")
    return error.exit_code


def _spare_collections() -> None:
    """The directory is a tree of a great many objects that live long and whose cycles are cut by
    hand; looking through them for garbage stops the writer for milliseconds. What is loaded by
    now is never garbage, and the rest is looked through a hundred times less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(70_000, 50, 100)


async def serve(settings: ControlSettings, gateway: GatewayPlan | None) -> None:
    """Run the control plane with its admin API and gateway until told to stop."""
    shares = Shares(raise_descriptor_limit(), len(settings.nodes))
    plane = ControlPlane(settings)
    earlier = plane.directory.control_record()
    servers: list[HttpServer] = []
    try:
        plane.start()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: plane.request_stop(drain=False))
        url = ""
        if gateway is not None:
            ports = _ports(gateway, earlier.gateway if earlier else "")
            listener = listen_tcp(gateway.host, ports)
            url = url_of(listener)
            door = _door(plane, "gateway", shares.gateway, gateway.tell)
            servers.append(HttpServer(gateway.create(plane), listener, "gateway", door))
        admin = listen_unix(plane.directory.admin_socket())
        door = _door(plane, "admin", shares.admin, told_below_http)
        servers.append(HttpServer(create_admin_app(plane), admin, "admin", door))
        for server in servers:
            await server.start()
        plane.publish(url)
        await plane.stopping.wait()
    finally:
        # First the streams, so that open answers end and the servers can.
        plane.end_streams()
        for server in servers:
            await server.close()
        await plane.close()
        plane.directory.admin_socket().unlink(missing_ok=True)


def _door(plane: ControlPlane, name: str, most: int, tell: Tell) -> Door:
    def count() -> None:
        plane.counters[f"{name}_connections_refused"] += 1

    return Door(name, most, tell=tell, on_refused=count)


def _ports(gateway: GatewayPlan, earlier_url: str) -> list[int]:
    """The configured port, else the one of an earlier life, else any."""
    if gateway.strict:
        return [gateway.port]
    try:
        earlier = urlsplit(earlier_url).port
    except ValueError:
        earlier = None  # control.json was damaged
    wanted = [gateway.port] if gateway.port else []
    return list(dict.fromkeys([*wanted, *([earlier] if earlier else []), 0]))
