"""Engines and requests for the tests of `sidecar.lab`: small, fast, on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from sidecar.lab import Engine, EngineConfig
from sidecar.lab.clock import Clock

Json = dict[str, Any]

BLOCK = 32
KV_BYTES = 16
SMALL: Json = {
    "block_size": BLOCK,
    "num_gpu_blocks": 256,
    "cpu_blocks": 1024,
    "max_model_len": 4096,
    "kv_bytes_per_token": KV_BYTES,
    "profile": "instant",
    "time_scale": 0.1,
    "enable_prompt_tokens_details": True,
    "enable_scale_out": True,
}


class RecordingClock(Clock):
    """Passes no time, and remembers how much should have passed, in seconds."""

    def __init__(self) -> None:
        super().__init__(scale=1.0)
        self.slept_s: list[float] = []

    async def sleep(self, seconds: float, *, since_s: float | None = None) -> None:
        if seconds:
            self.slept_s.append(seconds)
        await asyncio.sleep(0)


def make_engine(host: str = "127.0.0.1", *, clock: Clock | None = None, **fields: Any) -> Engine:
    return Engine(EngineConfig(**{**SMALL, "host": host, **fields}), clock=clock)


@asynccontextmanager
async def engines(*hosts: str, **fields: Any) -> AsyncIterator[list[Engine]]:
    """One engine of the same kind on each loopback address."""
    started = [make_engine(host, **fields) for host in hosts]
    try:
        for engine in started:
            await engine.start()
        yield started
    finally:
        for engine in started:
            await engine.stop()


def prompt(seed: int, tokens: int = 161) -> list[int]:
    return [seed] + [(i * (seed + 7)) % 400 + 5 for i in range(tokens - 1)]


def kv_source(engine: Engine, kv_request_id: str = "pull-1") -> Json:
    return {"remote_kv_source": {"kv_request_id": kv_request_id, **engine.kv_source}}


async def post(engine: Engine, path: str, body: Json, **headers: str) -> httpx.Response:
    # Not verifying saves reading the certificate store each time: most of the cost of a client.
    async with httpx.AsyncClient(timeout=10, verify=False) as client:
        return await client.post(f"{engine.url}{path}", json=body, headers=headers)


async def complete(engine: Engine, ids: list[int], kv: Any = None, **more: Any) -> Json:
    """A completion's answer."""
    body = {"model": "tiny", "prompt": ids, "ignore_eos": True, "max_tokens": 6, **more}
    response = await post(
        engine, "/v1/completions", body if kv is None else body | {"kv_transfer_params": kv}
    )
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def words(joined: str) -> list[str]:
    """The words of a text, for key orders."""
    return joined.split()


def text(answer: Json) -> str:
    said: str = answer["choices"][0]["text"]
    return said


def cached(answer: Json) -> int:
    tokens: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


async def until(holds: Callable[[], bool], within_s: float = 3.0) -> None:
    """Waits for something that happens soon."""
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.002)
