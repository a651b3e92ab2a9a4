"""Tokenizers and chat templates."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evctl.core.errors import EvctlError
from evengine.models.gguf import GgufFile
from evengine.models.tokenizer import (
    CHATML_TEMPLATE,
    ChatTemplate,
    byte_tokenizer,
    load_chat_template,
    load_tokenizer,
    tokenizer_from_gguf,
)
from tests.models.gguf_files import tiny_llama

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TEXTS = ["plain text", "emoji 👩‍👩‍👧 and é, ß, 漢字", "0123 4567890", "tabs\t\n\n  spaces  ", ""]


@pytest.fixture
def metadata(tmp_path: Path) -> dict:
    (tmp_path / "tiny.gguf").write_bytes(tiny_llama())
    with GgufFile(tmp_path / "tiny.gguf") as gguf:
        return dict(gguf.metadata)


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_both_tokenizers(metadata: dict, text: str) -> None:
    for tokenizer in (byte_tokenizer(), tokenizer_from_gguf(metadata)):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_byte_tokenizer_gives_the_bytes(text: str) -> None:
    if "<|" not in text:
        assert byte_tokenizer().encode(text).ids == list(text.encode())


def test_special_tokens_are_matched_whole_and_skipped_on_request(metadata: dict) -> None:
    text = "<|im_start|>hi<|im_end|>"
    ids = byte_tokenizer().encode(text).ids
    assert ids == [257, *b"hi", 258]
    assert byte_tokenizer().decode(ids) == "hi"
    tokenizer = tokenizer_from_gguf(metadata)
    ids = tokenizer.encode(text).ids
    assert (ids[0], ids[-1], len(ids)) == (1, 2, 4)
    assert tokenizer.decode(ids) == "hi"


def test_merges_apply_and_digits_stay_single(metadata: dict) -> None:
    tokenizer = tokenizer_from_gguf(metadata)
    assert tokenizer.encode(" the 12").tokens == ["Ġthe", "Ġ", "1", "2"]


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("tokenizer.ggml.pre", "llama-bpe"),
        ("tokenizer.ggml.tokens", ["a", "a"]),
        ("tokenizer.ggml.merges", ["three part merge"]),
        ("tokenizer.ggml.merges", ["not there"]),
        ("tokenizer.ggml.merges", None),
        ("tokenizer.ggml.token_type", np.array([1, 2])),
        ("tokenizer.ggml.token_type", "x"),
    ],
)
def test_nonsense_vocabularies_are_refused(metadata: dict, key: str, wrong: object) -> None:
    with pytest.raises(EvctlError) as caught:
        tokenizer_from_gguf({**metadata, key: wrong})
    assert caught.value.code == "EV-2108"


def test_chat_template_renders_chatml() -> None:
    template = ChatTemplate(CHATML_TEMPLATE)
    expected = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
    assert template.render(QUESTION) == expected + "<|im_start|>assistant\n"
    assert template.render(QUESTION, add_generation_prompt=False) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0]['name'] }}",
        "{{ undefined_name }}",
        "{{ messages.append(1) }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{% for x in range(10 ** 9) %}{% endfor %}",
        "{{ 1 // 0 }}",
        "{% if %}",
    ],
)
def test_templates_that_fail_or_reach_out_are_refused(source: str) -> None:
    with pytest.raises(EvctlError) as caught:
        ChatTemplate(source).render(QUESTION)
    assert caught.value.code == "EV-2109"


def test_missing_fields_may_be_tested() -> None:
    source = "{% if tools %}T{% endif %}{% if messages[0].name %}N{% endif %}{{ bos }}"
    assert ChatTemplate(source).render(QUESTION, bos="<s>") == "<s>"


def test_content_of_the_wrong_type_is_an_error_not_a_crash() -> None:
    with pytest.raises(EvctlError, match="template"):
        ChatTemplate(CHATML_TEMPLATE).render([{"role": "user", "content": None}])


def test_damaged_files_are_errors(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_bytes(struct.pack("<I", 0xFFFFFFFF))
    with pytest.raises(EvctlError, match="tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(EvctlError, match="template"):
        load_chat_template(tmp_path)
