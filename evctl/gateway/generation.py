"""One inference request: body, prompt, tokens, and the client's departure at any point."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from evctl.control.frontdoor import FrontDoor
from evctl.core.errors import EvctlError
from evctl.gateway.apierror import (
    ApiError,
    from_evctl,
    generation_failed,
    json_response,
    overloaded,
    unavailable,
)
from evctl.gateway.body import BodyReader, refuse_unread
from evctl.gateway.departure import while_client_stays
from evctl.gateway.limits import GatewayLimits
from evctl.gateway.metrics import Metrics
from evctl.gateway.output import Output, Piece
from evctl.gateway.prompt import Arrival, Prepared, PromptReader
from evctl.gateway.shapes import DONE_EVENT, Shape, event
from evctl.gateway.tenants import ApiKeys
from evctl.wire.messages import Tokens

log = logging.getLogger("evctl.gateway")

STREAM_HEADERS = {
    b"content-type": b"text/event-stream; charset=utf-8",
    b"cache-control": b"no-cache",
    b"x-accel-buffering": b"no",
}


class Inference:
    """What all inference requests share."""

    def __init__(self, front_door: FrontDoor, keys: ApiKeys, limits: GatewayLimits) -> None:
        self.front_door = front_door
        self.keys = keys
        self.limits = limits
        self.metrics = Metrics()
        self.bodies = BodyReader(limits)
        self.prompts = PromptReader(front_door.kv_secret, front_door.allow_replay, limits)
        self._short_prompts = ThreadPoolExecutor(limits.tokenizer_threads, "evctl-short")
        self._long_prompts = ThreadPoolExecutor(limits.tokenizer_threads, "evctl-long")
        self._in_flight = 0

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Hold one place among the requests in flight. Raises ApiError 429 if none is free."""
        if self._in_flight >= self.limits.max_in_flight:
            raise overloaded(
                f"{self._in_flight} requests are in progress here", self.limits.retry_after_s
            )
        self._in_flight += 1
        self.metrics.in_flight.inc()
        try:
            yield
        finally:
            self._in_flight -= 1
            self.metrics.in_flight.dec()

    async def prepare(self, arrival: Arrival, shape: Shape) -> Prepared:
        """Check and tokenise in a thread. Raises ApiError."""
        card = self.front_door.model()
        if card is None:
            why = self.front_door.ready() or "no engine has joined yet"
            raise unavailable(why, self.limits.retry_after_s)
        is_long = len(arrival.raw) >= self.limits.long_body_bytes
        return await asyncio.get_running_loop().run_in_executor(
            self._long_prompts if is_long else self._short_prompts,
            self.prompts.read,
            arrival,
            shape.body_type,
            card,
        )

    @asynccontextmanager
    async def tokens(self, prepared: Prepared) -> AsyncIterator[AsyncIterator[Tokens]]:
        """A request's tokens; leaving the block early cancels it on every node."""
        try:
            tokens = self.front_door.submit(prepared.request)
        except EvctlError as error:
            raise from_evctl(error) from error
        try:
            yield tokens
        finally:
            close = getattr(tokens, "aclose", None)
            if close is not None:
                await self._close(prepared, close)

    async def _close(self, prepared: Prepared, close: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(self.limits.close_timeout_s):
                await close()
        except TimeoutError:
            log.error("request %s does not let itself be closed", prepared.request.request_id)

    def stop(self) -> None:
        """End the threads; what they have not begun is dropped."""
        for pool in (self._short_prompts, self._long_prompts):
            pool.shutdown(wait=False, cancel_futures=True)


class InferenceEndpoint:
    """ASGI endpoint of one shape."""

    def __init__(self, inference: Inference, shape: Shape) -> None:
        self._inference = inference
        self._shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        metrics = self._inference.metrics
        arrived_s = time.monotonic()
        try:
            # What is held is let go of at the end, also by a client that was refused and lingers.
            with ExitStack() as held:
                try:
                    arrival = await self._arrive(scope, receive, held)
                except ApiError as error:
                    await refuse_unread(error, receive, send)
                    return
                generation = Generation(self._inference, self._shape, arrival, arrived_s, send)
                if not await while_client_stays(receive, generation.run()):
                    metrics.disconnects.inc()
        except ClientDisconnect:
            metrics.disconnects.inc()

    async def _arrive(self, scope: Scope, receive: Receive, held: ExitStack) -> Arrival:
        """Who it is, a place for it, and its body. Raises ApiError and ClientDisconnect."""
        inference = self._inference
        headers = Headers(scope=scope)
        tenant = inference.keys.tenant(headers)
        held.enter_context(inference.admitted())
        raw = await inference.bodies.read(scope, receive)
        held.enter_context(inference.bodies.held(raw))
        return Arrival(self._new_id(), tenant, headers, raw)

    def _new_id(self) -> str:
        return self._shape.id_prefix + secrets.token_hex(12)


class Generation:
    """One request after its body was read. Raises ApiError until the answer has begun."""

    def __init__(
        self, inference: Inference, shape: Shape, arrival: Arrival, arrived_s: float, send: Send
    ) -> None:
        self._inference = inference
        self._shape = shape
        self._arrival = arrival
        self._arrived_s = arrived_s
        self._send_raw = send
        self._created_s = int(time.time())

    async def run(self) -> None:
        """Prepare, submit, answer."""
        inference = self._inference
        prepared = await inference.prepare(self._arrival, self._shape)
        output = Output(prepared)
        inference.metrics.prompt_tokens.inc(len(prepared.request.prompt))
        try:
            async with (
                inference.tokens(prepared) as tokens,
                aclosing(self._pieces(output, tokens)) as pieces,
            ):
                # The answer begins with the first token, so that a refusal can still be a 429.
                first = await anext(pieces)
                inference.metrics.ttft_s.observe(time.monotonic() - self._arrived_s)
                if prepared.stream:
                    await self._stream(prepared, output, first, pieces)
                else:
                    await self._whole(prepared, output, first, pieces)
        except ApiError as error:
            if error.status >= 500:
                inference.metrics.failures.inc()
            raise
        finally:
            inference.metrics.output_tokens.inc(output.output_tokens)

    async def _pieces(
        self, output: Output, tokens: AsyncIterator[Tokens]
    ) -> AsyncGenerator[Piece]:
        """The reply piece by piece; the last has `finish`. Raises ApiError."""
        try:
            async for message in tokens:
                piece = output.add(message)
                yield piece
                if piece.finish is not None:
                    return
        except EvctlError as error:
            raise from_evctl(error) from error
        raise generation_failed("the output ended without saying why")

    async def _whole(
        self, prepared: Prepared, output: Output, first: Piece, rest: AsyncIterator[Piece]
    ) -> None:
        pieces = [first]
        if first.finish is None:
            pieces.extend([piece async for piece in rest])
        self._observe_end()
        answer = self._shape.whole(prepared, self._created_s, pieces, output)
        headers = {"x-request-id": prepared.request.request_id}
        response = json_response(answer, headers=headers)
        await self._send(
            {
                "type": "http.response.start",
                "status": response.status_code,
                "headers": response.raw_headers,
            }
        )
        await self._send({"type": "http.response.body", "body": response.body})

    async def _stream(
        self, prepared: Prepared, output: Output, first: Piece, rest: AsyncIterator[Piece]
    ) -> None:
        request_id = prepared.request.request_id.encode()
        headers = [*STREAM_HEADERS.items(), (b"x-request-id", request_id)]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await self._send_piece(prepared, first)
            if first.finish is None:
                async for piece in rest:
                    if piece.text or piece.scores or piece.finish or prepared.token_ids:
                        await self._send_piece(prepared, piece)
            self._observe_end()
            if prepared.include_usage:
                await self._send_event(
                    event(self._shape.usage_chunk(prepared, self._created_s, output))
                )
            await self._send_event(DONE_EVENT)
        except (ClientDisconnect, asyncio.CancelledError):
            raise
        except ApiError as error:
            await self._send_failure(error)
        except Exception:
            log.exception("request %s failed", prepared.request.request_id)
            await self._send_failure(generation_failed("internal error"))
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_failure(self, error: ApiError) -> None:
        """The status is gone out, so the error travels as an event, and no [DONE] follows."""
        self._inference.metrics.failures.inc()
        await self._send_event(event(error.payload()))

    async def _send_piece(self, prepared: Prepared, piece: Piece) -> None:
        chunk = self._shape.chunk(prepared, self._created_s, piece)
        await self._send_event(event(chunk))

    async def _send_event(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _send(self, message: Message) -> None:
        """Raises ClientDisconnect when the client takes nothing any more."""
        try:
            async with asyncio.timeout(self._inference.limits.send_timeout_s):
                await self._send_raw(message)
        except (TimeoutError, OSError) as error:
            raise ClientDisconnect from error

    def _observe_end(self) -> None:
        self._inference.metrics.e2e_s.observe(time.monotonic() - self._arrived_s)
