"""Requests between two SGLang servers, prefilled on A and decoded on B, then the other way round.

`.venv-sglang/bin/python tests/sglang/two_directions.py both|upstream|killed` (root)

    both       both servers run the plugin in plugin/: each has both phases' queues and managers
    upstream   SGLang as it is: POST /pd_role_switch to both servers between the directions
    killed     as both, and B is killed while requests go both ways; then C takes its place

Prints one JSON line: what each request had in cache at its prefill and its decode node, and
whether its tokens were those of its first run. `both` then sends many requests both ways at the
same time. Ends with 1 if a request failed or its tokens differed, or if a log complains. Moves
itself into a network namespace of its own.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import requests

HERE = Path(__file__).resolve().parent
PORTS = (9101, 9102, 9103)
START_LIMIT_S = 500
MANY = int(os.environ.get("EVCTL_REQUESTS", "40"))
FLAGS = [
    *("--device", "cpu", "--attention-backend", "torch_native", "--skip-tokenizer-init"),
    *("--host", "127.0.0.1", "--max-running-requests", "16"),
    *("--max-total-tokens", "8192", "--mem-fraction-static", "0.1"),
    *("--disaggregation-transfer-backend", "mooncake_tcp"),
    "--disaggregation-decode-enable-radix-cache",
    "--enable-pd-role-switch",
    "--disable-overlap-schedule",
]
ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "SGLANG_HOST_IP": "127.0.0.1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    # For `killed`: SGLang's own limits are minutes.
    "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "2",
    "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "20",
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "20",
}


def url(port: int, path: str) -> str:
    return f"http://127.0.0.1:{port}/{path}"


def bootstrap_port(port: int) -> int:
    return port + 100


def start(folder: Path, port: int, role: str, plugin: bool) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sglang.launch_server", *FLAGS, "--port", str(port)]
    command += ["--model-path", str(folder / "model"), "--disaggregation-mode", role]
    command += ["--disaggregation-bootstrap-port", str(bootstrap_port(port))]
    environment = {**os.environ, **ENVIRONMENT}
    if plugin:
        environment["PYTHONPATH"] = str(HERE / "plugin")
    with (folder / f"server-{port}.log").open("wb") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, start_new_session=True
        )


def wait_until_up(port: int) -> None:
    end_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end_s:
        try:
            if requests.get(url(port, "health"), timeout=5).status_code == 200:
                return
        except requests.RequestException:
            pass  # not up yet
        time.sleep(1)
    raise TimeoutError(f"the server at port {port} is not up after {START_LIMIT_S} s")


def ask(prefill: int, decode: int, tokens: list[int], count: int = 12) -> dict[str, Any]:
    """The same body to both: whose bootstrap address it carries prefills, the other decodes."""
    body = {
        "input_ids": tokens,
        "sampling_params": {"temperature": 0, "max_new_tokens": count, "ignore_eos": True},
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": bootstrap_port(prefill),
        "bootstrap_room": random.randrange(1 << 62),
    }
    with ThreadPoolExecutor(2) as threads:
        futures = [
            threads.submit(requests.post, url(port, "generate"), json=body, timeout=120)
            for port in (prefill, decode)
        ]
        answers = [future.result() for future in futures]
    for answer in answers:
        answer.raise_for_status()
    at_prefill, at_decode = (answer.json() for answer in answers)
    return {
        "prefill": prefill,
        "cached_at_prefill": at_prefill["meta_info"]["cached_tokens"],
        "cached_at_decode": at_decode["meta_info"]["cached_tokens"],
        "tokens": at_decode["output_ids"],
    }


def prompt(seed: int, length: int = 300) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(3, 500) for _ in range(length)]


def switch(port: int, role: str) -> dict[str, Any]:
    start_s = time.monotonic()
    # Asked for before decode graphs are captured, on a CPU too, where there are none.
    body = {"new_role": role, "decode_cuda_graph_memory_gb": 0}
    answer = requests.post(url(port, "pd_role_switch"), json=body, timeout=60)
    answer.raise_for_status()
    return {
        "port": port,
        "to": role,
        "seconds": round(time.monotonic() - start_s, 2),
    }


def turns(plugin: bool) -> dict[str, Any]:
    """One prompt twice from A to B, twice from B to A, once more from A to B."""
    a, b, _ = PORTS
    rows, switches = [], []
    for index, (prefill, decode) in enumerate([(a, b), (a, b), (b, a), (b, a), (a, b)]):
        if index in (2, 4) and not plugin:
            switches += [switch(decode, "decode"), switch(prefill, "prefill")]
        rows.append(ask(prefill, decode, prompt(1)))
    same = all(row["tokens"] == rows[0]["tokens"] for row in rows)
    for row in rows:
        del row["tokens"]
    return {"turns": rows, "switches": switches, "same_tokens": same}


def many() -> dict[str, Any]:
    """Prompts of several lengths both ways at once, then each alone the other way."""
    a, b, _ = PORTS
    jobs = [
        (*((a, b) if i % 2 else (b, a)), prompt(100 + i, 40 + 23 * (i % 17))) for i in range(MANY)
    ]
    start_s = time.monotonic()
    with ThreadPoolExecutor(12) as threads:
        at_once = list(threads.map(lambda job: ask(*job), jobs))
    seconds = time.monotonic() - start_s
    alone = [ask(decode, prefill, tokens) for prefill, decode, tokens in jobs]
    pairs = zip(at_once, alone, strict=True)
    return {
        "requests": MANY,
        "seconds": round(seconds, 1),
        "same_tokens": sum(x["tokens"] == y["tokens"] for x, y in pairs),
        "cached_later": sum(row["cached_at_prefill"] for row in alone),
        "tokens": sum(len(tokens) for _, _, tokens in jobs),
    }


def killed(victim: subprocess.Popen[bytes]) -> dict[str, Any]:
    """A's requests with B while B dies, and with C afterwards."""
    a, b, c = PORTS
    reference = ask(a, c, prompt(7))["tokens"]
    jobs = [(*((a, b) if i % 2 else (b, a)), prompt(200 + i, 200), 200) for i in range(24)]
    with ThreadPoolExecutor(len(jobs)) as threads:
        futures = [threads.submit(ask, *job) for job in jobs]
        time.sleep(1)
        os.killpg(victim.pid, 9)
        victim.wait()
        # What is sent to A alone is like what a control plane sent before it knew.
        futures += [threads.submit(ask_one, a, *pair) for pair in ((a, 300), (b, 301))]
        start_s = time.monotonic()
        failed = [future.exception() for future in futures]
        seconds = time.monotonic() - start_s
    after = [ask(prefill, decode, prompt(7)) for prefill, decode in ((c, a), (a, c)) * 5]
    return {
        "while_dying": {
            "answered": sum(error is None for error in failed),
            "failed": sum(error is not None for error in failed),
            "seconds_until_all_ended": round(seconds, 1),
        },
        "after": len(after),
        "same_tokens": sum(row["tokens"] == reference for row in after),
        "cached_at_prefill": [row["cached_at_prefill"] for row in after],
    }


def ask_one(port: int, prefill: int, seed: int) -> None:
    body = {
        "input_ids": prompt(seed),
        "sampling_params": {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True},
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": bootstrap_port(prefill),
        "bootstrap_room": random.randrange(1 << 62),
    }
    requests.post(url(port, "generate"), json=body, timeout=120).raise_for_status()


def complaints(folder: Path) -> list[str]:
    """SGLang checks its pools when idle and writes what does not add up."""
    words = ("leak", "use-after-free", "Traceback", "hit an exception", "Failed to apply")
    return [
        line[:300]
        for log in sorted(folder.glob("server-*.log"))
        for line in log.read_text(errors="replace").splitlines()
        if any(word in line for word in words) and "server_args=" not in line
    ]


def main() -> int:
    if sys.argv[1:2] != ["inside"]:
        enter = 'ip link set lo up && exec "$@"'
        command = ["unshare", "-n", "sh", "-c", enter, "sh", sys.executable, __file__, "inside"]
        os.execvp("unshare", command + sys.argv[1:])
    mode = sys.argv[2]
    plugin = mode != "upstream"
    ports = PORTS if mode == "killed" else PORTS[:2]
    folder = Path(tempfile.mkdtemp(prefix="two-directions-"))
    print(f"logs in {folder}", file=sys.stderr)
    subprocess.run(
        [sys.executable, HERE / "tiny_model.py", folder / "model"],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    roles = ["decode"] * len(ports) if plugin else ["prefill", "decode"]
    servers = [start(folder, port, role, plugin) for port, role in zip(ports, roles, strict=True)]
    try:
        for port in ports:
            wait_until_up(port)
        if mode == "killed":
            result = killed(servers[1])
            ok = result["same_tokens"] == result["after"]
        else:
            result = turns(plugin)
            ok = result["same_tokens"]
        if mode == "both":
            result["many"] = many()
            ok = ok and result["many"]["same_tokens"] == MANY
        time.sleep(3)  # idle: the pools are checked
        result["complaints"] = complaints(folder)
    finally:
        for server in servers:
            if server.poll() is None:
                os.killpg(server.pid, 9)
                server.wait()
    print(json.dumps(result))
    return 0 if ok and not result["complaints"] else 1


if __name__ == "__main__":
    sys.exit(main())
