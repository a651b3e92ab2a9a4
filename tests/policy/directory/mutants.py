"""Faults put into a copy of the directory, which the soak must find.

python -m tests.policy.directory.mutants [NAME...] says which survive.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conftest import ROOT

STEPS = 6000
PACKAGE = Path("evctl/policy/directory")

MUTANTS: dict[str, tuple[str, str, str]] = {
    "sign: a dropped reference is added": (
        "ledger.py",
        "counts.add(run, first, last, holder, -unit)",
        "counts.add(run, first, last, holder, unit)",
    ),
    "missed phase: end drops P references only": (
        "ledger.py",
        "in PHASES:\n            self.assign(branch, phase, 0, branch.end, None)",
        "in PHASES[:1]:\n            self.assign(branch, phase, 0, branch.end, None)",
    ),
    "missed phase: a rewrite keeps its D references": (
        "ledger.py",
        "            for phase in PHASES:\n                self.assign(branch, phase, keep",
        "            for phase in PHASES[:1]:\n                self.assign(branch, phase, keep",
    ),
    "bound: a rewrite drops one block of the shared prefix": (
        "ledger.py",
        "self.assign(branch, phase, keep, branch.end, None)",
        "self.assign(branch, phase, max(0, keep - 1), branch.end, None)",
    ),
    "split of references forgotten": (
        "cuts.py",
        "    run.refs, upper.refs = _split_steps(run.refs, position)\n",
        "",
    ),
    "split of promises forgotten": (
        "cuts.py",
        "    run.promised, upper.promised = _split_steps(run.promised, position)\n",
        "",
    ),
    "split leaves tips at the wrong half": (
        "cuts.py",
        "moved = [tip for tip in run.tips or () if tip.end <= position]",
        "moved = [tip for tip in run.tips or () if tip.end < position]",
    ),
    "stale index: the old end of a copy stays": (
        "copies.py",
        "        self._tree.index.pop(run.key(end), None)\n",
        "",
    ),
    "stale index: a pruned run stays": (
        "tree.py",
        "            self.index.pop(bytes(keys[-KEY_BYTES:]), None)\n",
        "",
    ),
    "gap: an evicted middle is not noticed": (
        "spans.py",
        "            if start < low:\n                kept += (start, low)\n",
        "",
    ),
    "gap: coverage runs over it": (
        "matching.py",
        "reach = held[1] if held[0] <= start else start",
        "reach = held[-1] if held[0] <= start else start",
    ),
    "evict: what another eviction joined is looked at as it was": (
        "copies.py",
        "if run is None or (run.parent is not None and key in run.keys):",
        "if run is None or key in run.keys:",
    ),
    "other tier: a block that left L1 is gone": (
        "copies.py",
        "before, after = spans.union(old, other), spans.union(held, other)",
        "before, after = spans.union(old, other), held",
    ),
    "lost node: its references stay": (
        "ledger.py",
        "            for phase in PHASES:\n                held = branch.held[phase]\n",
        "            for phase in PHASES[:1]:\n                held = branch.held[phase]\n",
    ),
    "lost node: its references stay above the leaf": (
        "ledger.py",
        "done.get(run, run.end) > start:",
        "done.get(run, run.end) > start and run is branch.run:",
    ),
    "old boot: its facts are believed": (
        "directory.py",
        "if life is None or life.boot_id != boot_id or tier not in TIERS or not keys:",
        "if life is None or tier not in TIERS or not keys:",
    ),
    "late version: it rewrites the branch": (
        "rules.py",
        "_tallies.late_version += 1\n            return None\n        return branch",
        "_tallies.late_version += 1\n        return branch",
    ),
    "role D->P: P references are reset too": (
        "rules.py",
        "len(list(self._ledger.forget_node(node, (DECODE,))))",
        "len(list(self._ledger.forget_node(node, (DECODE, PREFILL))))",
    ),
    "relabel takes branches that are at work": (
        "rules.py",
        "for b in node.named if not b.open]",
        "for b in node.named]",
    ),
    "failed move: references move all the same": (
        "directory.py",
        "        self.requests.failed(request, _index(phase))",
        "        self.requests.moved(request, _index(phase))",
    ),
    "an older request's move wins": (
        "requests.py",
        "if branch.asked[phase] > request.number:",
        "if branch.asked[phase] > request.number + 99999:",
    ),
    "tenants share branch ids": (
        "rules.py",
        "        key = (tenant, signal.branch)\n",
        '        key = (tenant, signal.branch) if signal.branch != "b1" else ("red", "b1")\n',
    ),
    "a resumed branch stays suspect on its blocks": (
        "ledger.py",
        "for held in branch.held:\n            for start, end, node in held:",
        "for held in branch.held[:1]:\n            for start, end, node in held:",
    ),
    "leases are not given back": (
        "requests.py",
        "            if its_phase == phase:\n",
        "            if its_phase > phase:\n",
    ),
    "class: a lease does not protect": (
        "counts.py",
        "if count >= LIVE or count & _LEASES:",
        "if count >= LIVE:",
    ),
    "a new copy is not told its class": (
        "counts.py",
        "node.classes[block_class] += end - start\n            if block_class != UNTOLD:",
        "node.classes[block_class] += end - start\n            if block_class > UNTOLD:",
    ),
    "a new copy of an end without references is not told its class": (
        "counts.py",
        "        self._pending.append(RefDelta(node.name, node.boot_id, 0, keys, epoch))\n",
        "",
    ),
    "steps: what is before the end of the last one changes too": (
        "spans.py",
        "left = (*steps[:-2], start, before)",
        "left = (*steps[:-2], start, after)",
    ),
    "steps: two alike are not made one": (
        "spans.py",
        "if left and left[-1] == after:",
        "if left and left[-1] == -1:",
    ),
    "steps: a growing reference is not told where the copy is": (
        "counts.py",
        "self._turn(run, node, ((start, end, 0, delta),))",
        "pass",
    ),
    "match: who drops out takes the others along": (
        "matching.py",
        "        alive &= full\n        if partly:",
        "        alive &= full\n        if partly and not coverage:",
    ),
    "match: the last run is taken to be shared": (
        "tree.py",
        "return run, run.common(keys, run.start + 1, min(run.end, total), base)",
        "return run, min(run.end, total)",
    ),
    "hint: blocks that end where a path does begin there": (
        "places.py",
        "return on_path(run, end - count, parent)",
        "return run, end",
    ),
    "growth: its request is not asked": (
        "copies.py",
        "        self._requests.grew(request, node, position, run, run.end)\n",
        "",
    ),
    "output does not extend the branch": (
        "requests.py",
        "self._ledger.set_context(branch, at, run, end)",
        "pass",
    ),
    "what was named in advance stays named": (
        "requests.py",
        "            self._ledger.forget_unverified(branch, phase, self._scope(request), node)",
        "            pass",
    ),
    "growth: the mask forgets the other tier": (
        "copies.py",
        "if run.promised or not run.full:",
        "if run.promised:",
    ),
    "growth: the old end of other copies leaves the index": (
        "copies.py",
        "            if run.ends is None:\n                run.ends = {}\n"
        "            run.ends[start] = at_tail",
        "            index.pop(parent, None)",
    ),
}
"""Name -> file, text, text in its place."""


def survives(name: str, folder: Path) -> bool:
    """Whether the soak is content with that fault. Raises ValueError if the text is not there
    exactly once."""
    file, text, instead = MUTANTS[name]
    path = folder / PACKAGE / file
    original = (ROOT / PACKAGE / file).read_text(encoding="utf-8")
    if original.count(text) != 1:
        raise ValueError(f"{name}: its text is in {file} {original.count(text)} times")
    path.write_text(original.replace(text, instead), encoding="utf-8")
    try:
        return passes_soak(folder)
    finally:
        path.write_text(original, encoding="utf-8")


def copy_to(folder: Path) -> None:
    """What the soak needs, apart from the tree it is tested in."""
    ignore = shutil.ignore_patterns("__pycache__")
    for part in ("evctl/core", str(PACKAGE), "tests/policy/directory"):
        shutil.copytree(ROOT / part, folder / part, ignore=ignore)
    for part in ("evctl", "evctl/policy", "tests", "tests/policy"):
        (folder / part / "__init__.py").touch()


def passes_soak(folder: Path) -> bool:
    """Whether the copy in the folder agrees with the block model."""
    command = [sys.executable, "-m", "tests.policy.directory.soak", "--any-share"]
    command += ["--steps", str(STEPS)]
    paths = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        command, cwd=folder, env={**os.environ, **paths}, capture_output=True, check=False
    )
    return ran.returncode == 0


def main() -> int:
    chosen = sys.argv[1:] or list(MUTANTS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_to(folder)
        if not passes_soak(folder):
            print("the copy without a fault fails")
            return 1
        left = [mutant for mutant in chosen if survives(mutant, folder)]
    for mutant in chosen:
        print("SURVIVES" if mutant in left else "killed  ", mutant)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
