"""A control plane's admin API without a cluster: `python -m tests.tui.fake_admin SOCKET LOG`.

Speaks HTTP on a unix socket, as `evctl-control` does. Each accepted write goes to LOG, one JSON
line. A role change takes ROLE_CHANGE_S.
"""

from __future__ import annotations

import json
import socketserver
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

from evctl.core.errors import EvctlError
from evctl.core.split import parse_split
from evctl.core.status import ClusterStatus, ErrorBody, EventRecord, QueueStatus, WatchFrame
from tests.tui.fakes import POOL, change_of, cluster, node, replace
from tests.tui.minds import BRAIN, TIMES

ROLE_CHANGE_S = 0.6
FRAME_S = 0.25
HTTP_STATUS = {2: 422, 7: 409, 8: 409}


class State:
    """The cluster that is not there; figures move a little so that something is to be seen."""

    def __init__(self, log: Path) -> None:
        self.lock = threading.Lock()
        self.log = log
        self.began_s = time.monotonic()
        self.changed_s = 0.0
        self.status = cluster(
            node("n1", l1=0.62, queue=4),
            node("n2", l1=0.41, queue=2, running=3, running_prefill=3),
            node("n3", "D", l1=0.77, queue=0, running=6, running_decode=6),
            in_flight=13,
            held_by="",
            mode="advise",
            pool=POOL,
            brain=BRAIN,
            times=TIMES,
        )
        self.events: list[EventRecord] = []
        self.say("control plane listens")
        for name in ("n1", "n2", "n3"):
            self.say(f"{name} joined", node=name)

    def say(self, what: str, node: str = "", level: str = "info") -> None:
        number = len(self.events) + 1
        self.events.append(EventRecord(number, time.time(), level, what, node))

    def now(self) -> ClusterStatus:
        with self.lock:
            self._settle()
            wave = (time.monotonic() - self.began_s) % 20 / 20
            return replace(
                self.status,
                prefill=QueueStatus(6, 5, 0.3 + wave, 1.2 + 2 * wave),
                decode=QueueStatus(0, 6, 0.01, 0.05 + wave / 10),
                throughput_rps=2.2 + wave,
                sequence=len(self.events),
            )

    def _settle(self) -> None:
        status = self.status
        if status.split == status.target_split:
            return
        if time.monotonic() - self.changed_s < ROLE_CHANGE_S:
            return
        nodes = tuple(replace(each, role=each.target_role) for each in status.nodes)
        self.status = replace(status, nodes=nodes, split=status.target_split)
        self.say(f"split {status.split} -> {status.target_split} settled")

    def set_split(self, body: dict[str, object]) -> object:
        with self.lock:
            split, plan = str(body["split"]), bool(body["plan"])
            generation = body["generation"]
            assert generation is None or isinstance(generation, int)
            change = change_of(self.status, split, generation, plan=plan)
            if plan:
                return change
            with self.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(body) + "\n")
            moved = {move.node: move.after for move in change.moves}
            self.status = replace(
                self.status,
                target_split=str(parse_split(split)),
                mode="hold",
                held_by=str(body["by"]),
                generation=change.generation,
                nodes=tuple(
                    replace(each, target_role=moved.get(each.name, each.role))
                    for each in self.status.nodes
                ),
            )
            self.changed_s = time.monotonic()
            self.say(f"split {change.before} -> {change.after} by {body['by']}")
            return change


class Handler(BaseHTTPRequestHandler):
    """Routes of the admin API."""

    protocol_version = "HTTP/1.1"
    state: State

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: object) -> None:
        return

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/admin/v1/status":
            self._answer(200, self.state.now())
        elif path == "/admin/v1/events":
            since = int(parse_qs(urlsplit(self.path).query).get("since", ["0"])[0])
            self._answer(200, self.state.events[since:])
        elif path == "/admin/v1/watch":
            self._watch()
        else:
            self._answer(404, ErrorBody("EV-1404", "no such path", path, "", 9))

    def do_PUT(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            self._answer(200, self.state.set_split(body))
        except EvctlError as error:
            told = ErrorBody(error.code, error.what, error.why, error.next_step, error.exit_code)
            self._answer(HTTP_STATUS.get(error.exit_code, 500), told)

    def _answer(self, status: int, value: object) -> None:
        body = msgspec.json.encode(value)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        # As little as the snapshot may hold: the events before it are asked for.
        sequence, told = 0, len(self.state.events)
        try:
            while True:
                sequence += 1
                kind = "snapshot" if sequence == 1 else "status"
                status = self.state.now()
                fresh, told = self.state.events[told:], len(self.state.events)
                frame = WatchFrame(kind, sequence, status, tuple(fresh))
                line = msgspec.json.encode(frame) + b"\n"
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                time.sleep(FRAME_S)
        except OSError:
            self.close_connection = True


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


def main() -> None:
    socket, log = Path(sys.argv[1]), Path(sys.argv[2])
    socket.unlink(missing_ok=True)
    Handler.state = State(log)
    with Server(str(socket), Handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
