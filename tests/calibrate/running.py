"""Runs `sidecar calibrate` as a process, as a user does, against embedded engines of this process."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from sidecar.lab import Engine, EngineConfig
from tests.engines import Answer, Got, ScriptedEngine, scripted

# The longest of these tests takes some ten seconds; busy machines take several times as long.
TIMEOUT_S = 90


@dataclass(frozen=True)
class Ended:
    """What a run left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, where it is JSON."""
        return json.loads(self.out)


async def begun(*flags: str) -> asyncio.subprocess.Process:
    """The running command; nobody is at its standard input."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sidecar", "calibrate", *flags),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def calibrated(*flags: str) -> Ended:
    """The command, run to its end."""
    process = await begun(*flags)
    async with asyncio.timeout(TIMEOUT_S):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


@asynccontextmanager
async def pair(source: dict[str, Any] | None = None, **consumer: Any) -> AsyncIterator[tuple[Engine, Engine]]:
    """A source that computes at once, and a consumer; what is given of the source differs from it."""
    fields: dict[str, Any] = {
        "profile": "instant",
        "max_model_len": 32768,
        "enable_prompt_tokens_details": True,
    }
    a = Engine(EngineConfig(**{**fields, "p2p_host": "127.0.0.1", **(source or {})}))
    b = Engine(EngineConfig(**{**fields, "p2p_host": "127.0.0.2", **consumer}))
    async with a, b:
        yield a, b


def at(a: Engine, b: Engine) -> tuple[str, ...]:
    """The flags that name a pair of engines."""
    return (f"--source={a.url}", f"--consumer={b.url}", f"--source-p2p={a.p2p_host}:{a.p2p_port}")


@asynccontextmanager
async def relayed(engine: Engine, change: Any) -> AsyncIterator[ScriptedEngine]:
    """A gateway before an engine: `change(body)` is what it makes of a completion's decoded body.

    What it gives back is sent on; None is refused as vLLM refuses token ids it has not: in a stream.
    """
    async with httpx.AsyncClient(timeout=30, trust_env=False) as client:

        async def relay(got: Got, answer: Answer) -> None:
            content = got.body
            if got.method == "POST" and content.startswith(b"{"):
                changed = change(got.json)
                if changed is None:
                    error = {"error": {"message": "Token id 29240 is out of vocabulary", "code": 400}}
                    await answer.events(f"data: {json.dumps(error)}\n\n".encode(), b"data: [DONE]\n\n")
                    return
                content = json.dumps(changed).encode()
            headers = {"content-type": "application/json"}
            said = await client.request(
                got.method, f"{engine.url}{got.target}", content=content, headers=headers
            )
            kind = said.headers.get("content-type", "")
            await answer.head(said.status_code, [("content-type", kind)])
            await answer.chunk(said.content or b" ")
            await answer.end()

        async with scripted(relay) as gateway:
            yield gateway
