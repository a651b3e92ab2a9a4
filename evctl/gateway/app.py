"""The gateway as an ASGI application.

Behaviour beyond OpenAI's reference, for whoever writes clients:

- max_tokens is lowered to what the context has left after the prompt; only one above the whole
  context is refused. Without it: default_max_tokens of the limits, or what is left.
- Raw prompts of /v1/completions may spell out special tokens; chat messages cannot.
- A body is JSON: another declared Content-Type is a 415. Every error has a code.
- A reply ends before an incomplete character, and bytes that are no UTF-8 show as U+FFFD.
- A stream begins with the first token, so overload is always a 429 with Retry-After; an error
  after that is an SSE event with `error`, after which the stream closes without [DONE].
- Extensions in the body: ignore_eos, return_token_ids (adds token_ids and, in the first chunk,
  prompt_token_ids to the choice), evctl_forced_token_ids (where replay is allowed), branch.
- The id of an answer is the request's id in the whole cluster, also sent as X-Request-Id.
- POST /v1/branches/{id}/end|rewrite|fork: {id} is the branch that ends, was rewritten, or is
  the new one of a fork; the other fields come as X-Branch-* headers or as a flat JSON object.
  A signal may come twice, late, or for a branch that nobody knows: `applied` says whether it
  changed something, and `reason` why not.
- GET /v1/branches?limit=&after= lists the caller's branches that have not ended, by id;
  GET /v1/branches/{id} is one of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from evctl.control.frontdoor import FrontDoor, ModelCard
from evctl.gateway.apierror import (
    SERVER_ERROR,
    ApiError,
    json_response,
)
from evctl.gateway.branch_pages import BranchPages
from evctl.gateway.framing import RefuseAmbiguousEnd
from evctl.gateway.generation import Inference, InferenceEndpoint
from evctl.gateway.limits import GatewayLimits
from evctl.gateway.metrics import CountAnswers
from evctl.gateway.prompt import unknown_model
from evctl.gateway.shapes import ChatShape, CompletionShape
from evctl.gateway.tenants import ApiKeys

DEFAULT_LIMITS = GatewayLimits()


def create_app(
    front_door: FrontDoor,
    api_keys: Mapping[str, str],
    *,
    limits: GatewayLimits = DEFAULT_LIMITS,
) -> Starlette:
    """The gateway in front of `front_door`. api_keys: key -> tenant; empty for everybody.

    Raises ValueError for a key or tenant that cannot be used. Serve it with one event loop; its
    lifespan ends the threads that tokenise.
    """
    inference = Inference(front_door, ApiKeys(api_keys), limits)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        inference.stop()

    pages = _Pages(inference)
    branches = BranchPages(inference)
    chat = InferenceEndpoint(inference, ChatShape())
    completion = InferenceEndpoint(inference, CompletionShape())
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", completion, methods=["POST"]),
            Route("/v1/models", pages.models),
            Route("/v1/models/{model:path}", pages.model),
            Route("/v1/branches", branches.listed),
            # An id may hold slashes, so what follows the last one is a signal only in a POST.
            Route("/v1/branches/{branch:path}/{signal}", branches.signal, methods=["POST"]),
            Route("/v1/branches/{branch:path}", branches.one),
            Route("/healthz", pages.healthz),
            Route("/readyz", pages.readyz),
            Route("/metrics", pages.metrics),
        ],
        middleware=[
            Middleware(CountAnswers, metrics=inference.metrics),
            Middleware(RefuseAmbiguousEnd),
        ],
        exception_handlers={
            ApiError: _on_api_error,
            HTTPException: _on_http_exception,
            Exception: _on_bug,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


class _Pages:
    """The endpoints that generate nothing."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._front_door = inference.front_door

    async def models(self, request: Request) -> Response:
        self._inference.keys.tenant(request.headers)
        card = self._front_door.model()
        return json_response(
            {"object": "list", "data": [] if card is None else [_model_object(card)]}
        )

    async def model(self, request: Request) -> Response:
        self._inference.keys.tenant(request.headers)
        card = self._front_door.model()
        name = request.path_params["model"]
        if card is None or card.name != name:
            raise unknown_model(name)
        return json_response(_model_object(card))

    async def healthz(self, _request: Request) -> Response:
        return json_response({"status": "ok"})

    async def readyz(self, _request: Request) -> Response:
        reason = self._front_door.ready()
        if reason:
            return json_response({"status": "not ready", "reason": reason}, 503)
        return json_response({"status": "ready"})

    async def metrics(self, _request: Request) -> Response:
        return self._inference.metrics.response()


def _model_object(card: ModelCard) -> dict[str, object]:
    return {
        "id": card.name,
        "object": "model",
        "created": card.created_s,
        "owned_by": "evctl",
        "max_model_len": card.context_tokens,
    }


def _on_api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    shown = f"{request.method} {request.url.path[:200]}"
    message = {
        404: f"Unknown request URL: {shown}",
        405: f"Not allowed: {shown}",
    }.get(error.status_code, HTTPStatus(error.status_code).phrase)
    code = {404: "unknown_url", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    return ApiError(error.status_code, message, code=code, headers=error.headers or {}).response()


def _on_bug(_request: Request, _error: Exception) -> Response:
    """Starlette raises the exception again after this answer, so that the server logs it."""
    return ApiError(500, "internal error", kind=SERVER_ERROR, code="internal_error").response()
