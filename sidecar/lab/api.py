"""The HTTP API of an embedded engine: vLLM's paths, as a FastAPI application.

Rule: routes and their refusals only; generating is in `generating.py`, shapes are in `answers.py` and
`streams.py`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from sidecar.lab import answers, asks, streams
from sidecar.lab.asks import Api, count_message_tokens, read_ask
from sidecar.lab.core import Core
from sidecar.lab.faults import INVALID, ApiError
from sidecar.lab.generating import Generating
from sidecar.lab.operators import Dated, server_info
from sidecar.lab.responses import response_answer
from sidecar.lab.streams import Stream, encode_json

MESSAGES_PATH = "/v1/messages"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Route:
    """One generating path: its API, and how its answers look whole and streamed."""

    path: str
    api: Api
    answer: answers.Answer
    stream: Callable[[], Stream]


ROUTES = (
    Route("/v1/chat/completions", asks.CHAT, answers.chat_answer, streams.ChatStream),
    Route("/v1/completions", asks.COMPLETIONS, answers.completion_answer, streams.CompletionStream),
    Route("/v1/responses", asks.RESPONSES, response_answer, streams.ResponseStream),
    Route(MESSAGES_PATH, asks.MESSAGES, answers.message_answer, streams.MessageStream),
    Route("/inference/v1/generate", asks.GENERATE, answers.generate_answer, streams.GenerateStream),
)


def build_app(core: Core) -> FastAPI:
    """The application of one engine."""
    app = FastAPI(openapi_url=None)
    for route in ROUTES:
        app.add_api_route(route.path, _generating_endpoint(core, route), methods=["POST"])
    _add_plain_routes(app, core)
    _add_server_info(app, core)
    app.add_middleware(Dated, ahead_s=core.config.clock_ahead_s)

    @app.exception_handler(ApiError)
    async def refuse(request: Request, error: ApiError) -> Response:
        anthropic = request.url.path.startswith(MESSAGES_PATH)
        return _json(error.body(anthropic=anthropic), error.status)

    @app.exception_handler(ClientDisconnect)
    async def give_up(_: Request, __: ClientDisconnect) -> Response:
        return Response()  # nobody reads it

    @app.exception_handler(HTTPException)
    async def refuse_path(_: Request, error: HTTPException) -> Response:
        phrase = HTTPStatus(error.status_code).phrase
        return _json(ApiError(error.detail, status=error.status_code, kind=phrase).body(), error.status_code)

    return app


def _add_plain_routes(app: FastAPI, core: Core) -> None:
    created_s = int(datetime.now(UTC).timestamp())

    @app.get("/health")
    @app.get("/ping")
    async def health() -> Response:
        return Response()

    @app.get("/version")
    async def version() -> Response:
        return _json({"version": core.config.version})

    @app.get("/v1/models")
    async def models() -> Response:
        return _json({"object": "list", "data": [_model_card(core, created_s)]})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(core.metrics_text(), media_type=METRICS_TYPE)

    @app.post(f"{MESSAGES_PATH}/count_tokens")
    async def count_tokens(request: Request) -> Response:
        tokens = count_message_tokens(await _body(request), core.config)
        return _json({"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}})

    @app.post("/reset_prefix_cache")
    async def reset_prefix_cache(request: Request) -> Response:
        core.forget(offloaded_too=request.query_params.get("reset_external") == "true")
        return Response()


def _add_server_info(app: FastAPI, core: Core) -> None:
    @app.get("/server_info")
    async def show(config_format: str = "text") -> Response:
        if not core.config.server_dev_mode:
            raise HTTPException(404)
        return _json(server_info(core.config, config_format))


def _generating_endpoint(core: Core, route: Route) -> Callable[[Request], Awaitable[Response]]:
    async def generate(request: Request) -> Response:
        if route.api is asks.GENERATE and not core.config.enable_scale_out:
            raise ApiError(
                "Forbidden: start the engine with --enable-scale-out", status=403, kind="Forbidden"
            )
        ask = read_ask(route.api, await _body(request), request.headers.get("x-request-id"), core.config)
        return Generating(core, ask, route.answer, route.stream() if ask.stream else None)

    return generate


async def _body(request: Request) -> object:
    """The decoded body; vLLM insists on the media type (validate_json_request)."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    content = await request.body()
    if media_type != "application/json":
        message = "Unsupported Media Type: Only 'application/json' is allowed"
        raise ApiError(message, kind=INVALID)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"JSON decode error: {error}", kind=INVALID, param="body") from error


def _json(value: object, status: int = 200) -> Response:
    return Response(encode_json(value), status, media_type="application/json")


def _model_card(core: Core, created_s: int) -> dict[str, object]:
    permission = {
        "id": f"modelperm-{uuid.uuid4().hex[:16]}",
        "object": "model_permission",
        "created": created_s,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": core.config.model,
        "object": "model",
        "created": created_s,
        "owned_by": "vllm",
        "root": core.config.model,
        "parent": None,
        "max_model_len": core.config.max_model_len,
        "permission": [permission],
    }
