"""What stands around a body: its declared type, and where it ends."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from tests.gateway.conftest import chat
from tests.gateway.front_door import FakeFrontDoor
from tests.gateway.test_bad_input import CHAT, TEXT, assert_error


@pytest.mark.parametrize("declared", ["text/plain", "multipart/form-data; boundary=x", "json"])
async def test_what_a_web_page_may_send_unasked_is_refused(
    client: httpx.AsyncClient, front_door: FakeFrontDoor, declared: str
) -> None:
    body, headers = json.dumps(chat()).encode(), {"Content-Type": declared}
    for path in (CHAT, TEXT, "/v1/branches/b/end"):
        response = await client.post(path, content=body, headers=headers)
        assert_error(response, 415, param="content-type", code="unsupported_media_type")
    assert not front_door.requests
    assert not front_door.signals
    good = {"Content-Type": "application/json; charset=utf-8"}
    assert (await client.post(CHAT, content=body, headers=good)).status_code == 200


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_an_ambiguous_end_of_a_body_ends_the_connection(
    url: str, front_door: FakeFrontDoor, version: str
) -> None:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    length = "Content-Length: 5\r\n" if version == "1.1" else ""
    writer.write(
        f"GET /v1/models HTTP/{version}\r\nHost: x\r\n{length}"
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    )
    answer = await asyncio.wait_for(reader.read(), 5)
    assert answer.count(b"HTTP/1.1 ") == 1, "what follows is not taken for a request"
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"ambiguous_length" in answer
    writer.close()
