"""Text from tokens, piece by piece: the same as from all of them at once."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from evctl.gateway.detokenise import StopScanner, Utf8Stream, token_bytes
from evengine.models.tokenizer import byte_characters, byte_tokenizer

BYTES = byte_characters()
TOKENIZER = byte_tokenizer()

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(data) + 1) for place in at}), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def stream_tokens(tokens: list[str]) -> list[str]:
    stream = Utf8Stream()
    return [stream.push(token_bytes(token)) for token in tokens]


@given(texts, st.lists(st.integers(0, 400), max_size=30))
def test_any_text_over_any_split_comes_out_whole(text: str, at: list[int]) -> None:
    tokens = ["".join(BYTES[byte] for byte in piece) for piece in cut(text.encode(), at)]
    pieces = stream_tokens(tokens)
    assert "".join(pieces) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@example([0xED, 0xA0])
@given(st.lists(st.integers(0, 255), max_size=60))
def test_any_tokens_decode_as_the_library_does_up_to_an_incomplete_end(ids: list[int]) -> None:
    streamed = "".join(stream_tokens([BYTES[token_id] for token_id in ids]))
    whole = TOKENIZER.decode(ids, skip_special_tokens=True)
    assert whole.startswith(streamed)
    assert whole[len(streamed) :] in ("", "\ufffd")


def test_a_token_outside_the_byte_alphabet_is_its_own_text() -> None:
    assert token_bytes("é漢") == "é漢".encode()
    assert token_bytes(BYTES[0xE6] + BYTES[0xBC]) == b"\xe6\xbc"


def test_an_incomplete_character_never_comes_out() -> None:
    assert stream_tokens([BYTES[byte] for byte in "€".encode()[:2]]) == ["", ""]


stops = st.lists(st.text("ab€", min_size=1, max_size=4), min_size=1, max_size=4)


@given(st.text("abc€", max_size=30), stops, st.lists(st.integers(0, 40), max_size=12))
def test_stop_strings_cut_the_same_text_however_it_arrives(
    text: str, stop: list[str], at: list[int]
) -> None:
    scanner = StopScanner(stop)
    edges = [0, *sorted({place % (len(text) + 1) for place in at}), len(text)]
    shown = ""
    for start, end in pairwise(edges):
        shown += scanner.push(text[start:end])
        assert not any(s in shown for s in stop)
        ends = [text.find(s) + len(s) for s in stop if s in text[:end]]
        assert scanner.stopped == bool(ends)
    found = [(text.find(s) + len(s), text.find(s)) for s in stop if s in text]
    expected = text[: min(found)[1]] if found else text
    assert shown + scanner.finish() == expected


@given(st.text("ab", max_size=30), stops)
def test_no_more_is_held_back_than_may_begin_a_stop(text: str, stop: list[str]) -> None:
    scanner = StopScanner(stop)
    shown = "".join(scanner.push(character) for character in text)
    held = text[len(shown) :]
    if not scanner.stopped:
        assert not held or any(s.startswith(held) and s != held for s in stop)
