"""What each command prints, held against files in golden/.

A change of output is a change of a contract: look at the difference, then write the files anew
with `EVCTL_UPDATE_GOLDEN=1 pytest tests/cli/test_golden.py`. CI never writes them.
"""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path

import msgspec
import pytest

from evctl import __version__
from evctl.core.status import EventRecord, Move, Refusal, SplitWrite
from tests.cli.conftest import Run, write_state
from tests.client.fake_admin import FakeAdmin, node, status
from tests.client.fake_why import CHANGE, blind
from tests.conftest import ROOT

GOLDEN = Path(__file__).parent / "golden"
WRITES = (
    SplitWrite(
        mode="hold",
        before="2P1D",
        after="1P2D",
        by="ada@desk",
        reason="evening load",
        generation=8,
        moves=(Move("n2", "P", "D", running=1, queued=2),),
    ),
    SplitWrite("advise", "1P2D", "1P2D", by="bob@laptop", reason="", generation=9),
)
UPDATE = os.environ.get("EVCTL_UPDATE_GOLDEN") == "1" and os.environ.get("CI") != "true"


def plain(text: str, home: Path) -> str:
    """Without what differs between machines, runs and releases."""
    text = text.replace(str(home), "HOME").replace(str(ROOT), "CHECKOUT")
    text = text.replace(__version__, "VERSION").replace(platform.python_version(), "PYTHON")
    text = re.sub(r"(Linux|Darwin) \w+", "PLATFORM", text)
    if "/evctl/clusters" in text:  # columns as wide as this machine's paths
        text = re.sub(" {2,}", "  ", text)
    return re.sub(r"\d+ (s|min|h|d) ago", "AGO", text)


def hold_against_file(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if UPDATE:
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path.name} differs; see {__file__}"


# name of the file, command, exit code. Before "up --plan" there is no cluster.
ALONE = [
    ("help", "", 0),
    ("version", "version", 0),
    ("version_json", "version -o json", 0),
    ("config_view", "config view --origin", 0),
    ("config_view_json", "config view -o json", 0),
    ("config_get", "config get gateway.port", 0),
    ("config_schema", "config schema", 0),
    ("config_path", "config path", 0),
    ("config_validate", "config validate", 0),
    ("config_validate_bad", "config validate bad.yaml", 3),
    ("config_validate_bad_json", "config validate bad.yaml -o json", 3),
    ("explain", "explain EV-1352", 0),
    ("explain_exit_codes", "explain exit-codes", 0),
    ("completion_bash", "completion bash", 0),
    ("up_plan", "up --plan", 0),
    ("up_plan_json", "up --plan -o json", 0),
    ("status_absent", "status", 9),
    ("typo", "splt get", 2),
    ("typo_json", "splt get -o json", 2),
    ("up_help", "up --help", 0),
    ("split_help", "split", 0),
    ("bench_help", "bench", 0),
    ("bench_exact_help", "bench exact --help", 0),
    ("bench_planner_help", "bench planner --help", 0),
    ("bench_transfer_help", "bench transfer --help", 0),
    ("branches_help", "branches --help", 0),
    ("branch_help", "branch", 0),
    ("kv_help", "kv", 0),
    ("plan_help", "plan --help", 0),
    ("why_help", "why", 0),
    ("explain_reference_count", "explain reference-count", 0),
    ("explain_branch", "explain branch", 0),
    ("explain_block", "explain block", 0),
]

RUNNING = [
    ("status", "status", 0),
    ("status_json", "status -o json", 0),
    ("status_yaml", "status -o yaml", 0),
    ("status_name", "status -o name", 0),
    ("split_get", "split get", 0),
    ("split_get_json", "split get -o json", 0),
    ("split_set", "split set 1P2D -y", 0),
    ("split_set_json", "split set 1p2d -y -o json", 0),
    ("split_set_plan", "split set +1D --plan", 0),
    ("split_set_asks", "split set 1P2D", 8),
    ("split_hold", "split hold", 0),
    ("split_hold_for", "split hold --for 30m", 0),
    ("split_auto", "split auto", 0),
    ("split_auto_json", "split auto -o json", 0),
    ("plan", "plan", 0),
    ("plan_json", "plan -o json", 0),
    ("why_split", "why split", 0),
    ("why_split_json", "why split 4 -o json", 0),
    ("why_split_absent", "why split 9", 9),
    ("why_node", "why node n2", 0),
    ("why_request", "why request r-7", 0),
    ("why_request_json", "why request r-7 -o json", 0),
    ("why_request_absent", "why request nobody", 9),
    ("why_block", "why block 00112233", 0),
    ("split_history", "split history", 0),
    ("split_history_json", "split history -o json", 0),
    ("logs", "logs", 0),
    ("logs_filtered", "logs n1 --level warning -o jsonl", 0),
    ("down_plan_nothing", "down --plan", 0),
    ("kv_summary", "kv summary", 0),
    ("kv_summary_json", "kv summary -o json", 0),
    ("kv_check", "kv check", 0),
    ("kv_check_json", "kv check -o json", 0),
    ("kv_block", "kv block 00112233", 0),
    ("kv_block_json", "kv block 00112233 -o json", 0),
    ("kv_block_absent", "kv block ffffffff", 9),
    ("kv_block_bad", "kv block 0011223", 2),
    ("branches", "branches", 0),
    ("branches_sorted", "branches --sort blocks --limit 2", 0),
    ("branches_all", "branches -A --kind fork", 0),
    ("branches_none", "branches --tenant nobody", 0),
    ("branches_json", "branches -o json", 0),
    ("branches_jsonl", "branches -o jsonl", 0),
    ("branches_name", "branches --state live -o name", 0),
    ("branch_show", "branch show agent-7/main", 0),
    ("branch_show_yaml", "branch show agent-7/main -o yaml", 0),
    ("branch_absent", "branch show agent-9", 9),
    ("branch_tree", "branch tree agent-7/main", 0),
    ("branch_tree_json", "branch tree agent-7/main -o json", 0),
    ("branch_tree_name", "branch tree agent-7/main -o name", 0),
    ("branch_end", "branch end agent-7/main -y", 0),
    ("branch_end_json", "branch end agent-7/main -y -o json", 0),
    ("branch_end_plan", "branch end agent-7/main --plan", 0),
    ("branch_end_asks", "branch end agent-7/main", 8),
    ("branch_end_again", "branch end agent-7/old", 0),
    ("branch_end_absent", "branch end agent-9 -y", 9),
]


@pytest.mark.parametrize(("name", "command", "code"), ALONE, ids=[case[0] for case in ALONE])
def test_without_a_cluster(run: Run, home: Path, name: str, command: str, code: int) -> None:
    Path("bad.yaml").write_text("name: b\nnodes: 3\nsplit: 2P1D\nmodle: x\ngateway: {prot: 1}\n")
    ran = run(*command.split())
    assert ran.code == code, ran.err
    hold_against_file(name, plain(_both(ran.out, ran.err), home))


@pytest.mark.parametrize(("name", "command", "code"), RUNNING, ids=[case[0] for case in RUNNING])
def test_with_a_cluster(
    run: Run, home: Path, fake: FakeAdmin, name: str, command: str, code: int
) -> None:
    at_s = 1_790_000_000.5 if "json" in name else time.time() - 60
    fake.events = [
        EventRecord(1, time.time() - 300, "info", "joined as P", node="n1"),
        EventRecord(2, at_s, "info", WRITES[0].told(), write=WRITES[0]),
        EventRecord(3, at_s, "info", "role D", node="n2"),
        EventRecord(4, at_s + 1, "info", CHANGE.told(), transition=CHANGE),
        EventRecord(5, at_s + 1, "info", WRITES[1].told(), write=WRITES[1]),
    ]
    write_logs(home)
    ran = run(*command.split())
    assert ran.code == code, ran.err
    hold_against_file(name, plain(_both(ran.out, ran.err), home))


def test_status_of_a_cluster_in_trouble(run: Run, home: Path, fake: FakeAdmin) -> None:
    fake.status = status(
        split="2P1D",
        target_split="1P2D",
        mode="hold",
        held_by="ada@desk",
        hold_reason="evening load",
        gateway="",
        nodes=(
            node("n1", "P", state="late", age_s=4.2),
            node("n2", "P", target_role="D", running=3),
            node("n3", "D", state="lost", age_s=312.0),
        ),
        refusals=(
            Refusal(7, "n3", "k3", "EV-1335", "the cluster's weights are 1a2b, yours 3c4d"),
            Refusal(8, "", "k9", "EV-3014", "a key from 127.0.0.1 is not on the list"),
        ),
    )
    hold_against_file("status_trouble", plain(_both(run("status").out, ""), home))


def test_status_while_the_control_plane_is_gone(run: Run, home: Path) -> None:
    write_state("local", home / "gone.sock")
    ran = run("status", "-o", "json")
    assert ran.code == 4
    hold_against_file("status_unreachable", plain(_both(ran.out, ran.err), home))


def test_kv_check_of_wrong_counts(run: Run, home: Path, fake: FakeAdmin) -> None:
    problems = ("n1 counts classes [1, 0, 2], not [0, 0, 3]", "branch b names a node that is gone")
    fake.kv.check = msgspec.structs.replace(fake.kv.check, problems=problems, found=2)
    for form in ("table", "json"):
        ran = run("kv", "check", "-o", form)
        assert ran.code == 1
        hold_against_file(f"kv_check_wrong_{form}", plain(_both(ran.out, ran.err), home))


def test_a_planner_that_has_seen_too_little(run: Run, home: Path, fake: FakeAdmin) -> None:
    fake.why.plan = blind()
    for name, command in (("plan_blind", "plan"), ("split_set_blind", "split set +1D --plan")):
        ran = run(*command.split())
        assert ran.code == 0
        hold_against_file(name, plain(_both(ran.out, ran.err), home))


def test_a_hold_that_ends(run: Run, home: Path, fake: FakeAdmin) -> None:
    fake.status = status(
        mode="hold", held_by="ada@desk", held_until_s=time.time() + 1799.5, mode_after="auto"
    )
    hold_against_file("split_get_until", plain(run("split", "get").out, home))


def write_logs(home: Path) -> None:
    folder = home / "state" / "evctl" / "clusters" / "local" / "logs"
    lines = {
        "control": [(1_790_000_000.25, "info", "joined as P", {"node": "n1"})],
        "n1": [
            (1_790_000_000.0, "info", "ready", {"node": "n1", "pid": 7}),
            (1_790_000_001.0, "warning", "late push", {"peer": "n2", "why": "slow link"}),
        ],
    }
    for unit, entries in lines.items():
        text = "".join(
            msgspec.json.encode(
                {"time_s": at, "level": level, "logger": "x", "message": message, **extras}
            ).decode()
            + "\n"
            for at, level, message, extras in entries
        )
        (folder / f"{unit}.jsonl").write_text(text + ("Traceback: boom\n" if unit == "n1" else ""))


def _both(out: str, err: str) -> str:
    return out + (f"--- stderr\n{err}" if err else "")
