"""Numbers of any size in every field that takes one: an answer of ours, never a fault."""

from __future__ import annotations

import asyncio
import json
import typing
from collections.abc import Iterator

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evctl.control.admin_forms import MAX_COUNT
from evctl.gateway.app import create_app
from evctl.gateway.schema import BranchBody, ChatBody, CompletionBody
from tests.gateway.conftest import chat, completion
from tests.gateway.front_door import FakeFrontDoor, byte_model, says

SPECIAL = [
    "1" + "0" * 400,
    "-1" + "0" * 400,
    "1" + "0" * 5_000,
    "0." + "3" * 5_000,
    "1e400",
    "-1e400",
    "1e-400",
    "1e999999999",
    "NaN",
    "Infinity",
    "-Infinity",
    "-0",
    "1E5",
    "true",
    "null",
    str(2**63),
    str(-(2**63) - 1),
    str(2**64),
    str(MAX_COUNT + 1),
]
numbers = st.one_of(
    st.sampled_from(SPECIAL),
    st.integers().map(str),
    st.integers(0, 2_000).map(lambda zeros: "9" * (zeros + 1)),
    st.floats().map(json.dumps),
)


def _numeric(kind: type) -> list[str]:
    """Names of the fields of a body that take a number, alone or in a list or mapping."""

    def takes(annotation: object) -> bool:
        return annotation in (int, float) or any(takes(a) for a in typing.get_args(annotation))

    return [field.name for field in msgspec.structs.fields(kind) if takes(field.type)]


def _forms(path: str, kind: type, base: dict[str, object]) -> Iterator[tuple[str, str, str]]:
    """Path, field, and the body with # where the number goes."""
    text = json.dumps(base)[:-1]
    for name in (*_numeric(kind), "unknown"):
        for value in ("#", "[#]", '{"a": #}'):
            yield path, name, f'{text}, "{name}": {value}}}'
    for name in _numeric(BranchBody):
        yield path, name, f'{text}, "branch": {{"id": "b", "{name}": #}}}}'
    for value in ('[{"a": #}]', '[{"type": "function", "function": {"name": "f", "x": #}}]'):
        yield path, "tools", f'{text}, "tools": {value}}}'


FORMS = [
    *_forms("/v1/chat/completions", ChatBody, chat()),
    *_forms("/v1/completions", CompletionBody, completion()),
    *(
        (f"/v1/branches/b/{what}", name, f'{{"parent": "p", "{name}": #}}')
        for what in ("end", "rewrite", "fork")
        for name in _numeric(BranchBody)
    ),
]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> object:
    door = FakeFrontDoor(byte_model(tmp_path_factory.mktemp("numbers")), says("Paris."))
    door.allow_replay = True
    return create_app(door, {})


def test_the_fields_are_found() -> None:
    assert {"max_tokens", "seed", "n", "top_p", "logprobs"} <= set(_numeric(CompletionBody))
    assert set(_numeric(BranchBody)) == {"version", "expect_resume"}


def _answer(app: object, path: str, raw: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.post(path, content=raw)

    return asyncio.run(ask())


def _assert_ours(response: httpx.Response) -> None:
    assert response.status_code in (200, 400), response.text[:300]
    if response.status_code == 400:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(form=st.sampled_from(FORMS), number=numbers)
def test_any_number_in_any_field(app: object, form: tuple[str, str, str], number: str) -> None:
    path, _, raw = form
    _assert_ours(_answer(app, path, raw.replace("#", number)))


@pytest.mark.parametrize("number", ["1" + "0" * 400, "1e400", "NaN"])
def test_the_worst_numbers_in_every_field(app: object, number: str) -> None:
    for path, _, raw in FORMS:
        _assert_ours(_answer(app, path, raw.replace("#", number)))


@pytest.mark.parametrize("field", _numeric(BranchBody))
def test_a_version_of_any_size_is_a_400(app: object, field: str) -> None:
    for number in ("1" + "0" * 400, "-1" + "0" * 400):
        raw = f'{{"id": "b", "{field}": {number}}}'
        assert _answer(app, "/v1/branches/b/end", raw).status_code == 400
