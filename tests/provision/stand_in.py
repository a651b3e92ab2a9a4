"""Stand-ins for the programs of a cluster: they start at once and do as they are told.

stand_in.py control --cluster-dir DIR    serves status on DIR/admin.sock, writes control.json
stand_in.py engine --config FILE         waits for SIGTERM; fails when FILE's .fail exists, and is
                                         refused by the control plane when FILE's .refused does
stand_in.py models fetch NAME            prints a directory
"""

from __future__ import annotations

import json
import os
import signal
import socketserver
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import msgspec
import psutil

from evctl.core.status import ClusterStatus, NodeStatus, QueueStatus, Refusal

QUEUE = QueueStatus(waiting=0, running=0, wait_p50_s=None, wait_p95_s=None)


def models(arguments: list[str]) -> int:
    assert arguments[0] == "fetch"
    if arguments[1] == "random-8l512":
        print("error[EV-2102]: x\n  why:  the index is away\n  next: wait", file=sys.stderr)
        return 4
    folder = Path(os.environ["STAND_IN_MODELS"]) / arguments[1]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    print("made it", file=sys.stderr)
    print(folder)
    return 0


def engine(arguments: list[str]) -> int:
    path = Path(arguments[1])
    if path.with_suffix(".fail").exists():
        print("cannot start: told to fail", file=sys.stderr)
        return 3
    boot = path.with_suffix(".boot")
    refused = path.with_suffix(".refused")
    if refused.exists():
        number = int(refused.read_text() or 0) + 1
        refused.write_text(str(number))
        signal.sigwait({signal.SIGTERM})
        return 0
    boot.write_text(f"boot-{os.getpid()}")
    print(json.dumps({"time_s": time.time(), "level": "info", "message": "ready"}), flush=True)
    signal.sigwait({signal.SIGTERM})
    return 0


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def control(arguments: list[str]) -> int:
    directory = Path(arguments[1])
    if (fail := directory / "control.fail").exists():
        print(fail.read_text() or "no gateway for you", file=sys.stderr)
        return 3
    while (directory / "control.slow").exists():
        time.sleep(0.01)
    before = directory / "control.json"
    epoch = json.loads(before.read_text())["epoch"] + 1 if before.exists() else 1
    socket_path = directory / "admin.sock"
    socket_path.unlink(missing_ok=True)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(msgspec.json.encode(status(directory, epoch)))

        def do_POST(self) -> None:
            self.answer(b"{}")
            if not (directory / "control.busy").exists():
                threading.Thread(target=server.shutdown).start()

        def do_DELETE(self) -> None:
            (directory / "control.called-off").touch()
            self.answer(b'{"stopping": false, "drain": false}')

        def answer(self, content: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def address_string(self) -> str:
            return "unix"

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = Server(str(socket_path), Handler)
    record = {
        "pid": os.getpid(),
        "start_time": psutil.Process().create_time(),
        "boot_id": "b",
        "epoch": epoch,
        "control_endpoint": "tcp://127.0.0.1:1",
        "gateway": f"http://127.0.0.1:{gateway_port(directory)}",
        "admin": str(socket_path),
    }
    draft = directory / ".control.json"
    draft.write_text(json.dumps(record))
    draft.replace(before)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server.serve_forever(poll_interval=0.02)
    return 0


def gateway_port(directory: Path) -> int:
    """The one of the file control.port, as if the wanted one were taken; else the wanted one."""
    other = directory / "control.port"
    if other.exists():
        return int(other.read_text())
    return int(json.loads((directory / "cluster.json").read_text())["gateway"]["port"])


def is_stopped(pid: int) -> bool:
    """As after SIGSTOP: it lives and says nothing."""
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def status(directory: Path, epoch: int) -> ClusterStatus:
    config = json.loads((directory / "cluster.json").read_text())
    nodes, refusals = [], []
    for name in (node["name"] for node in config["nodes"]):
        refused = directory / "nodes" / f"{name}.config.refused"
        if refused.exists() and (number := refused.read_text()):
            refusals.append(Refusal(int(number), name, "key", "EV-1334", "another model"))
        record = directory / "nodes" / f"{name}.json"
        boot = directory / "nodes" / f"{name}.config.boot"
        if record.exists() and boot.exists():
            pid = json.loads(record.read_text())["pid"]
            alive = psutil.pid_exists(pid) and boot.read_text() == f"boot-{pid}"
            nodes.append(
                NodeStatus(
                    name=name,
                    role="P",
                    target_role="P",
                    state="ok" if alive and not is_stopped(pid) else "lost",
                    boot_id=boot.read_text(),
                    age_s=31.0 if alive and is_stopped(pid) else 0.0,
                    queue=0,
                    running=0,
                    running_prefill=0,
                    running_decode=0,
                    l1=0.0,
                    l2=0.0,
                )
            )
    return ClusterStatus(
        cluster=config["name"],
        gateway="http://127.0.0.1:2",
        admin=str(directory / "admin.sock"),
        model=config["model"],
        split=config["split"],
        target_split=config["split"],
        mode="advise",
        generation=0,
        epoch=epoch,
        sequence=0,
        in_flight=0,
        prefill=QUEUE,
        decode=QUEUE,
        ttft_p50_s=None,
        ttft_p95_s=None,
        requests_done=0,
        requests_failed=0,
        requests_rejected=0,
        throughput_rps=0.0,
        nodes=tuple(nodes),
        refusals=tuple(refusals),
    )


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM} if sys.argv[1] == "engine" else ())
    programs = {"models": models, "engine": engine, "control": control}
    sys.exit(programs[sys.argv[1]](sys.argv[2:]))
