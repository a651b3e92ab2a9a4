"""What the gateway counts, in a registry of its own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evctl.gateway.apierror import CLIENT_GONE_STATUS

TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300)
E2E_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600, 1800)

FIXED_ROUTES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/models",
    "/v1/branches",
    "/healthz",
    "/readyz",
    "/metrics",
)
ROUTES_WITH_ID = {"/v1/models/": "/v1/models/{id}", "/v1/branches/": "/v1/branches/{id}"}


class Metrics:
    """Prometheus metrics evctl_gateway_*; times in seconds."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prefix = "evctl_gateway_"
        self.requests = Counter(
            prefix + "requests",
            "Answers, by route and status (499: the client left before one began).",
            ["route", "status"],
            registry=self.registry,
        )
        self.in_flight = Gauge(
            prefix + "in_flight", "Inference requests in progress.", registry=self.registry
        )
        self.disconnects = Counter(
            prefix + "disconnects",
            "Clients that left before their answer was complete.",
            registry=self.registry,
        )
        self.failures = Counter(
            prefix + "failures",
            "Requests that ended in an error after they had been taken.",
            registry=self.registry,
        )
        self.ttft_s = Histogram(
            prefix + "ttft_seconds",
            "Arrival to first token.",
            buckets=TTFT_BUCKETS_S,
            registry=self.registry,
        )
        self.e2e_s = Histogram(
            prefix + "e2e_seconds",
            "Arrival to last token, of complete answers.",
            buckets=E2E_BUCKETS_S,
            registry=self.registry,
        )
        self.prompt_tokens = Counter(
            prefix + "prompt_tokens", "Tokens in, of requests taken.", registry=self.registry
        )
        self.output_tokens = Counter(
            prefix + "output_tokens", "Tokens out, of all requests.", registry=self.registry
        )

    def response(self) -> Response:
        """The text form that Prometheus reads."""
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)


class CountAnswers:
    """Middleware: one count for each HTTP request, by its route and the status sent."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = CLIENT_GONE_STATUS

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        finally:
            self._metrics.requests.labels(route_of(scope["path"]), str(status)).inc()


def route_of(path: str) -> str:
    """A path without ids, so that clients cannot make new label values."""
    if path in FIXED_ROUTES:
        return path
    return next(
        (route for prefix, route in ROUTES_WITH_ID.items() if path.startswith(prefix)), "other"
    )
