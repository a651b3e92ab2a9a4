"""The cache of prepared models: `$XDG_CACHE_HOME/evctl/models/<sha256>/`.

A prepared model is a directory with `weights.f32`, `index.json`, `config.json`,
`tokenizer.json`, `chat_template.jinja` and `LICENSE`. It appears by one rename, so it is whole
or absent; what a crash leaves behind is swept by the next process that prepares that model.
A process that only needs text (the gateway) reads the tokenizer and the template from there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from evctl.core.errors import EvctlError, NotFoundError
from evengine.models.config import ModelConfig
from evengine.models.download import Progress
from evengine.models.layout import damaged, read_index
from evengine.models.prepare import CONFIG_FILE, LICENCE_FILE, prepare
from evengine.models.registry import ModelSpec, model_spec
from evengine.models.tokenizer import TEMPLATE_FILE, TOKENIZER_FILE


def cache_root() -> Path:
    """Where prepared models lie; read from the environment at each call."""
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG rules ask to ignore a relative path.
    base = configured if configured.is_absolute() else Path.home() / ".cache"
    return base / "evctl" / "models"


def model_directory(spec: ModelSpec) -> Path:
    """Where that model lies, or will."""
    return cache_root() / spec.weights_hash


def ensure_model(name: str, progress: Progress = lambda line: None) -> Path:
    """Directory of the named model, prepared now if need be.

    Of several processes one prepares and the others wait. progress takes one line a step.
    Raises EvctlError: unknown name (EV-2101), no download (EV-2102), wrong hash (EV-2103),
    unusable file (EV-2104, 2105, 2108), cache not writable or full (EV-2106).
    """
    return ensure(model_spec(name), progress)


def ensure(spec: ModelSpec, progress: Progress = lambda line: None) -> Path:
    """As `ensure_model`, for a model given by value."""
    directory = model_directory(spec)
    if is_prepared(directory):
        return directory
    try:
        with _lock(spec, progress):
            if not is_prepared(directory):
                _prepare_in_place(spec, directory, progress)
    except OSError as error:
        raise _cache_error(spec, error) from error
    return directory


def find_model(name: str) -> Path:
    """Directory of the named model. Raises NotFoundError (EV-2110) when it is not prepared."""
    directory = model_directory(model_spec(name))
    if is_prepared(directory):
        return directory
    raise NotFoundError(
        what=f"model {name} is not on this machine",
        why=f"{directory} is absent or of another version",
        next_step=f"python -m evengine.models fetch {name}",
        code="EV-2110",
    )


def is_prepared(directory: Path) -> bool:
    """Whether a whole model of this version lies there, under its own hash."""
    try:
        config = load_model_config(directory)
        read_index(directory, config)
    except EvctlError:
        return False
    if config.weights_hash != directory.name:
        return False
    files = (TOKENIZER_FILE, TEMPLATE_FILE, LICENCE_FILE)
    return all((directory / file).is_file() for file in files)


def load_model_config(directory: Path) -> ModelConfig:
    """The config of a prepared model. Raises IntegrityError (EV-2107)."""
    try:
        return msgspec.json.decode((directory / CONFIG_FILE).read_bytes(), type=ModelConfig)
    except (OSError, msgspec.MsgspecError) as error:
        raise damaged(directory, str(error)) from error


def _prepare_in_place(spec: ModelSpec, directory: Path, progress: Progress) -> None:
    """Prepare beside the final place and rename. The lock must be held."""
    prefix = f".{spec.weights_hash}."
    for leftover in directory.parent.glob(prefix + "*"):
        shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=directory.parent) as temporary:
        work_dir, whole = Path(temporary) / "work", Path(temporary) / "model"
        work_dir.mkdir()
        whole.mkdir()
        prepare(spec, whole, work_dir, progress)
        if directory.exists():  # damaged, or of another version; users keep their open mapping
            directory.rename(Path(temporary) / "old")
        whole.rename(directory)
    progress(f"ready in {directory}")


@contextmanager
def _lock(spec: ModelSpec, progress: Progress) -> Iterator[None]:
    """Hold the model's lock; the kernel drops it when its holder dies."""
    path = cache_root() / f"{spec.weights_hash}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that prepares {spec.name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _cache_error(spec: ModelSpec, error: OSError) -> EvctlError:
    return EvctlError(
        what=f"model {spec.name} could not be stored in {cache_root()}",
        why=error.strerror or str(error),
        next_step="free some space there, or set XDG_CACHE_HOME to a directory with room",
        code="EV-2106",
    )
