"""How long calls of the Mooncake binding block, and whether they hold the GIL meanwhile.

Run as root: `python tests/perf/mooncake_blocking.py`; takes about four minutes. It moves itself
into a network namespace of its own (the transfer engine listens on all interfaces and checks
nobody's identity), and prints one line a call: how long the call took and the longest gap that
a 1 ms ticker thread saw during it. A gap as long as the call means that the GIL was held.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

REGION_BYTES = 16 << 20
BLOCK_BYTES = 64 << 10
CASES = ("healthy", "stopped-warm", "stopped-cold", "dead-warm", "dead-cold", "silent", "probe")


class Ticker:
    """Measures the longest time for which a sleeping Python thread could not run."""

    def __init__(self) -> None:
        self.gap_s = 0.0
        self._last_s = time.perf_counter()
        threading.Thread(target=self._tick, daemon=True).start()

    def _tick(self) -> None:
        while True:
            time.sleep(0.001)
            now_s = time.perf_counter()
            self.gap_s = max(self.gap_s, now_s - self._last_s)
            self._last_s = now_s

    def measure(self, label: str, call: Callable[[], int], quiet: bool = False) -> int:
        time.sleep(0.01)
        self.gap_s = 0.0
        start_s = time.perf_counter()
        value = call()
        took_s = time.perf_counter() - start_s
        time.sleep(0.01)
        if not quiet:
            print(
                f"  {label:34} {took_s * 1e3:10.2f} ms  gap {self.gap_s * 1e3:9.2f} ms  -> {value}"
            )
        return value


def region() -> tuple[mmap.mmap, int]:
    memory = mmap.mmap(-1, REGION_BYTES)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


def open_engine(ticker: Ticker | None) -> tuple[object, int, mmap.mmap]:
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    memory, base = region()
    steps: list[tuple[str, Callable[[], int]]] = [
        ("initialize", lambda: engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "")),
        ("batch_register_memory", lambda: engine.batch_register_memory([base], [REGION_BYTES])),
    ]
    for label, call in steps:
        value = ticker.measure(label, call) if ticker else call()
        assert value == 0, (label, value)
    return engine, base, memory


def peer_main() -> None:
    engine, base, _memory = open_engine(None)
    print(engine.get_rpc_port(), base, flush=True)  # type: ignore[attr-defined]
    sys.stdin.read()


def start_peer() -> tuple[subprocess.Popen[str], str, int]:
    peer = subprocess.Popen(
        [sys.executable, __file__, "peer"], stdin=-1, stdout=-1, stderr=-3, text=True
    )
    assert peer.stdout is not None
    port, base = peer.stdout.readline().split()
    return peer, f"127.0.0.1:{port}", int(base)


def silent_listener() -> tuple[socket.socket, str]:
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, f"127.0.0.1:{listener.getsockname()[1]}"


def transfer(
    ticker: Ticker, engine: object, base: int, session: str, remote: int, tag: str
) -> None:
    """One asynchronous batch of 16 blocks, then its status until it ends or 20 s pass."""
    count = 16
    local = [base + 2 * i * BLOCK_BYTES for i in range(count)]
    far = [remote + 2 * i * BLOCK_BYTES for i in range(count)]
    submit = lambda: engine.batch_transfer_async_write(  # type: ignore[attr-defined] # noqa: E731
        session, local, far, [BLOCK_BYTES] * count
    )
    batch = ticker.measure(f"submit ({tag})", submit)
    if batch == 0:
        return
    poll = lambda: engine.transfer_check_status(batch)  # type: ignore[attr-defined] # noqa: E731
    status = ticker.measure(f"first status ({tag})", poll)
    start_s = time.perf_counter()
    longest_s = 0.0
    while status == 0 and time.perf_counter() - start_s < 20:
        time.sleep(0.002)
        before_s = time.perf_counter()
        status = poll()
        longest_s = max(longest_s, time.perf_counter() - before_s)
    ended_s = time.perf_counter() - start_s
    slowest = f"longest call {longest_s * 1e3:.2f} ms"
    print(f"  status ({tag}) ended as {status} after {ended_s:.2f} s, {slowest}")


def beside(ticker: Ticker, engine: object, base: int, mute: str, remote_mute: int) -> None:
    """A healthy, warmed peer while another thread opens a session with one that is mute."""
    peer, session, remote = start_peer()
    transfer(ticker, engine, base, session, remote, "healthy, before")
    opener = threading.Thread(
        target=lambda: transfer(ticker, engine, base, mute, remote_mute, "mute, in a thread")
    )
    opener.start()
    time.sleep(0.3)
    transfer(ticker, engine, base, session, remote, "healthy, meanwhile")
    other, session, remote = start_peer()
    transfer(ticker, engine, base, session, remote, "healthy but new, meanwhile")
    opener.join()
    other.kill()
    peer.kill()


def probe_beside(ticker: Ticker, engine: object, base: int) -> None:
    """send_probe to a mute peer, and a healthy, warmed peer meanwhile."""
    peer, session, remote = start_peer()
    transfer(ticker, engine, base, session, remote, "healthy, before")
    _listener, mute = silent_listener()
    probe = lambda: engine.send_probe(mute)  # type: ignore[attr-defined] # noqa: E731
    prober = threading.Thread(target=lambda: ticker.measure("send_probe (silent)", probe))
    prober.start()
    time.sleep(0.3)
    transfer(ticker, engine, base, session, remote, "healthy, meanwhile")
    prober.join()
    peer.kill()


def case_main(case: str) -> None:
    ticker = Ticker()
    engine, base, _memory = open_engine(ticker)
    if case == "probe":
        probe_beside(ticker, engine, base)
        os._exit(0)
    if case == "silent":
        _listener, session = silent_listener()
        beside(ticker, engine, base, session, 4096)
        os._exit(0)
    peer, session, remote = start_peer()
    if case.endswith("warm") or case == "healthy":
        transfer(ticker, engine, base, session, remote, "cold session")
        transfer(ticker, engine, base, session, remote, "warm session")
    if case.startswith("stopped"):
        peer.send_signal(signal.SIGSTOP)
    if case.startswith("dead"):
        peer.kill()
        peer.wait()
    if case == "stopped-cold":
        beside(ticker, engine, base, session, remote)
    elif case != "healthy":
        transfer(ticker, engine, base, session, remote, case)
        transfer(ticker, engine, base, session, remote, case + ", again")
    peer.kill()
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    if sys.argv[1:2] == ["peer"]:
        return peer_main()
    if sys.argv[1:2] == ["case"]:
        return case_main(sys.argv[2])
    if sys.argv[1:2] != ["inside"]:
        enter = 'ip link set lo up && exec "$@"'
        os.execvp(
            "unshare",
            ["unshare", "-n", "sh", "-c", enter, "sh", sys.executable, __file__, "inside"],
        )
    environment = {**os.environ, "MC_FORCE_TCP": "1", "MC_TRANSFER_TIMEOUT": "5"}
    for case in sys.argv[2:] or CASES:
        print(f"{case}:", flush=True)
        command = [sys.executable, "-u", __file__, "case", case]
        subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, timeout=180)


if __name__ == "__main__":
    main()
