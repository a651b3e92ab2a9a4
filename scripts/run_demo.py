"""The demo: every step is a command that an operator would type, and is printed before it runs.

A chat with SmolLM2 through the OpenAI API, then a replay of real coding-agent conversations by
concurrent agents while the split goes 2P1D -> 1P2D -> 2P1D with requests in both phases.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[1]
EVCTL = [sys.executable, "-m", "evctl.cli"]
QUESTION = "What is the capital of France?"
SPLITS = ("1P2D", "2P1D")
CHANGE_AFTER = (0.3, 0.6)
"""Shares of the replay after which the split changes."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=16)
    parser.add_argument("--requests", type=int, default=240)
    parser.add_argument("--gap-cap-s", type=float, default=1.0, help="longest pause of an agent")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-chat", action="store_true", help="only the replay")
    options = parser.parse_args()
    started_s = time.monotonic()
    if not options.no_chat:
        chat()
    failures = replay(options)
    say(f"done in {time.monotonic() - started_s:.0f} s")
    for failure in failures:
        print(f"NOT MET: {failure}")
    return 1 if failures else 0


def chat() -> None:
    """A question to a small real model on three engines."""
    say("a cluster of three engines with a small language model")
    up("clusters/local.yaml")
    try:
        gateway = status("local")["gateway"]
        say(f"POST {gateway}/v1/chat/completions: {QUESTION}")
        body = {
            "model": "smollm2-135m",
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": 24,
            "temperature": 0,
            "stream": True,
        }
        with httpx.stream("POST", f"{gateway}/v1/chat/completions", json=body, timeout=60) as r:
            r.raise_for_status()
            for line in r.iter_lines():
                if line.startswith("data: {"):
                    choices = json.loads(line[6:])["choices"]
                    text = choices[0]["delta"].get("content") if choices else None
                    print(text or "", end="", flush=True)
        print()
    finally:
        run("down", "local", "-y")


def replay(options: argparse.Namespace) -> list[str]:
    """Agents at work while the split changes; returns what was promised and not seen."""
    say("a cluster that replays traces: seeded-random weights, output given by the trace")
    up("clusters/replay.yaml")
    try:
        with tempfile.TemporaryDirectory() as folder:
            report_path = Path(folder) / "report.json"
            command = [
                *("trace", "replay", "sample", "-c", "replay", "--agents", str(options.agents)),
                *("--max-requests", str(options.requests), "--seed", str(options.seed)),
                *("--gap-cap-s", str(options.gap_cap_s), "--report", str(report_path)),
            ]
            say("evctl " + " ".join(command))
            process = subprocess.Popen([*EVCTL, *command], cwd=ROOT)
            try:
                changes = change_splits(process, options.requests)
            finally:
                process.wait(600)
            report = json.loads(report_path.read_text())["runs"][0]
    finally:
        run("down", "replay", "-y")
    return judge(report, changes)


def change_splits(process: subprocess.Popen[bytes], requests: int) -> list[dict[str, Any]]:
    """Change the split at given shares of the replay, each time with both phases at work."""
    changes = []
    for split, share in zip(SPLITS, CHANGE_AFTER, strict=True):
        while process.poll() is None:
            now = status("replay")
            both = now["prefill"]["running"] and now["decode"]["running"]
            if now["requests_done"] >= share * requests and both:
                prefill, decode = now["prefill"]["running"], now["decode"]["running"]
                say(
                    f"split {now['split']} -> {split} with {prefill} in prefill, {decode} in "
                    f"decode, {now['prefill']['waiting']} waiting"
                )
                run("split", "set", split, "-c", "replay", "-y", "--force", "--reason", "demo")
                changes.append({"to": split, "prefill": prefill, "decode": decode})
                break
            time.sleep(0.05)
    return changes


def judge(report: dict[str, Any], changes: list[dict[str, Any]]) -> list[str]:
    extras = report["extras"]
    say(
        f"{report['requests']} requests, {report['failed']} failed; mean prompt "
        f"{extras['mean_prompt_tokens']:.0f} tokens; in flight {extras['in_flight_mean']:.1f} on "
        f"average; up to {extras['branches_at_once_max']} branches at once; "
        f"{len(changes)} changes of the split under load"
    )
    promised = [
        (report["requests"] >= 200, "at least 200 requests"),
        (report["failed"] == 0, "no failed request"),
        (extras["changed_outputs"] == 0, "every output as the trace says"),
        (extras["mean_prompt_tokens"] >= 2000, "a mean prompt of at least 2,000 tokens"),
        (extras["in_flight_mean"] >= 4, "at least 4 requests in flight on average"),
        (extras["branches_at_once_max"] >= 12, "at least 12 concurrent branches"),
        (len(changes) == len(SPLITS), "two changes with requests in both phases"),
    ]
    return [what for met, what in promised if not met]


def up(cluster: str) -> None:
    run("up", cluster, "-y")


def run(*arguments: str) -> None:
    say("evctl " + " ".join(arguments))
    subprocess.run([*EVCTL, *arguments], cwd=ROOT, check=True)


def status(cluster: str) -> dict[str, Any]:
    command = [*EVCTL, "status", cluster, "-o", "json"]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(found.stdout)
    return answer


def say(what: str) -> None:
    print(f"\n── {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
