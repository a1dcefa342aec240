"""The naive proxy: the same pull and handoff in a page of FastAPI, httpx, json and StreamingResponse.

Rule: it is what most people would write first, and it is written well of its kind: one client with no limit
on connections, the body's bytes passed on as they come. Usage: naive PORT ENGINE_PORT
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

SOURCE = "x-kv-cache-source-host-port"
PREFILLER = "x-prefiller-host-port"


def naive_app(engine_port: int) -> FastAPI:
    """The application."""
    unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    engine = httpx.AsyncClient(base_url=f"http://127.0.0.1:{engine_port}", timeout=None, limits=unlimited)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with engine:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> StreamingResponse:
        body = json.loads(await request.body())
        source = request.headers.get(SOURCE)
        if source:
            body["kv_transfer_params"] = {
                "remote_kv_source": {
                    "kv_request_id": str(uuid4()),
                    "remote_host": source.rpartition(":")[0],
                    "remote_port": 7777,
                }
            }
        prefiller = request.headers.get(PREFILLER)
        if prefiller:
            leg = {**body, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
            prefilled = await engine.post(f"http://{prefiller}{request.url.path}", json=leg)
            body["kv_transfer_params"] = prefilled.json()["kv_transfer_params"]
        response = await engine.send(engine.build_request("POST", request.url.path, json=body), stream=True)

        async def relay() -> AsyncIterator[bytes]:
            try:
                async for piece in response.aiter_raw():
                    yield piece
            finally:
                await response.aclose()

        headers = {name: value for name, value in response.headers.items() if name != "transfer-encoding"}
        return StreamingResponse(relay(), response.status_code, headers)

    return app


if __name__ == "__main__":
    uvicorn.run(naive_app(int(sys.argv[2])), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
