"""The ways in which a request can go, each with healthy engines on loopback sockets.

Rule: one row for each way; what is wrong with an engine is `broken.py`'s.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.engines import PARAMS, Answer, Got, Script, ScriptedEngine, scripted
from tests.serving import Served, serving

DECODE, PREFILL, BOOTSTRAP, ENCODE = "decode", "prefill", "bootstrap", "encode"
TEXT = "the right answer"


@dataclass(frozen=True, slots=True)
class Way:
    """One way. roles: of the engines that it needs besides the decoder. fields: what its body must hold.

    beside: prefill and decode run at once. composed: the answer is the sidecar's, made of several.
    """

    roles: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    fields: dict[str, Any] = field(default_factory=dict)
    beside: bool = False
    composed: bool = False

    def body(self, *, stream: bool) -> bytes:
        """What the client asks."""
        content: list[dict[str, Any]] = [{"type": "text", "text": "hi"}]
        if ENCODE in self.roles:
            content.append({"type": "image_url", "image_url": {"url": "http://images/cat.png"}})
        asked = {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 50}
        return json.dumps({**asked, **self.fields, "stream": stream}).encode()


_MORIIO = ("--moriio-write-mode", "--moriio-local-pod-ip=127.0.0.1")
WAYS = {
    "decode alone": Way(),
    "nixlv2": Way((PREFILL,)),
    "offloading": Way((PREFILL,), ("--kv-connector=offloading",)),
    "mooncake": Way((PREFILL, BOOTSTRAP), ("--kv-connector=mooncake",), beside=True),
    "sglang": Way((PREFILL,), ("--kv-connector=sglang",), beside=True),
    "shared-storage": Way((PREFILL,), ("--kv-connector=shared-storage",)),
    "decode first": Way((PREFILL,), ("--kv-connector=shared-storage",), {"cache_hit_threshold": 0.8}),
    "moriio": Way((PREFILL,), _MORIIO),
    "moriio, side by side": Way((PREFILL,), (*_MORIIO, "--moriio-parallel-dispatch"), beside=True),
    "encoders": Way((PREFILL, ENCODE), ("--ec-connector=ec-nixl",)),
    "chunked": Way((), ("--decode-chunk-size=8",), composed=True),
}

HEADERS = {PREFILL: "x-prefiller-host-port", ENCODE: "x-encoder-hosts-ports"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def event(content: str | None, finish_reason: str | None = None) -> bytes:
    """One event of a streamed chat."""
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n"


STREAM = event(TEXT) + event(None, "stop") + b"data: [DONE]\n\n"
_REFUSED = {"id": "r", "choices": [{"index": 0, "message": {}, "finish_reason": "cache_threshold"}]}
_CHOICE = {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
_ANSWERS: dict[str, Any] = {
    DECODE: {"id": "c", "object": "chat.completion", "created": 1, "choices": [_CHOICE], "usage": USAGE},
    PREFILL: {"id": "p", "choices": [_CHOICE], "usage": USAGE, "kv_transfer_params": PARAMS},
    BOOTSTRAP: {"0": {"engine_id": "e-0", "worker_addr": {}}},
    ENCODE: {"id": "e", "choices": [_CHOICE], "usage": USAGE, "ec_transfer_params": {"k": 1}},
}


def healthy(role: str, got: Got) -> tuple[str, bytes]:
    """Type and bytes of what a healthy engine of this role answers."""
    asked = got.json if got.body else {}
    if role == DECODE and asked.get("cache_hit_threshold"):
        return "application/json", json.dumps(_REFUSED).encode()
    if role == DECODE and asked.get("stream"):
        return "text/event-stream", STREAM
    return "application/json", json.dumps(_ANSWERS[role]).encode()


def answering(role: str) -> Script:
    """A healthy engine of this role."""

    async def script(got: Got, answer: Answer) -> None:
        kind, content = healthy(role, got)
        length = f"content-type: {kind}\r\ncontent-length: {len(content)}"
        await answer.raw(f"HTTP/1.1 200 OK\r\n{length}\r\n\r\n".encode() + content)

    return script


async def never(got: Got, answer: Answer) -> None:
    """An engine that computes until it is left."""
    await asyncio.sleep(30)


def has_right_answer(body: bytes) -> bool:
    """Whether an answer, JSON or a stream of events, is the whole right one."""
    if body.startswith(b"data:"):
        return TEXT.encode() in body and body.endswith(b"data: [DONE]\n\n") and b'"error"' not in body
    try:
        answer = json.loads(body)
    except ValueError:
        return False
    if not isinstance(answer, dict) or answer.get("choices") != [_CHOICE]:
        return False
    return bool(answer["usage"]["prompt_tokens"] == USAGE["prompt_tokens"])


@dataclass(frozen=True, slots=True)
class Pod:
    """A sidecar before its decoder, and the other engines of its way."""

    way: Way
    sidecar: Served
    engines: dict[str, ScriptedEngine]

    @property
    def headers(self) -> list[tuple[str, str]]:
        """What the endpoint picker would say."""
        return [(HEADERS[role], self.engines[role].netloc) for role in self.way.roles if role in HEADERS]

    def script(self, role: str, script: Script) -> None:
        """What engines do from now on: this one as told, all others well."""
        for each, engine in self.engines.items():
            engine.script = answering(each)
        self.engines[role].script = script

    async def idle(self) -> None:
        """Wait until no exchange runs and every leg has ended. Raises TimeoutError."""
        async with asyncio.timeout(5):
            while self.sidecar.server.server_state.tasks or any(
                got.answered_s is None for engine in self.engines.values() for got in engine.requests
            ):
                await asyncio.sleep(0.002)


@asynccontextmanager
async def pod(name: str, *flags: str) -> AsyncIterator[Pod]:
    """Run the engines of a way, and a sidecar before them."""
    way = WAYS[name]
    async with AsyncExitStack() as stack:
        engines = {
            role: await stack.enter_async_context(scripted(answering(role))) for role in (DECODE, *way.roles)
        }
        ports = {"MOONCAKE_BOOTSTRAP_PORT": str(engines[BOOTSTRAP].port)} if BOOTSTRAP in engines else {}
        # Started legs are not waited for at the end: a hanging one would hold the test up.
        common = ("--shutdown-grace=0s", "--source-guard=off", *way.flags, *flags)
        sidecar = await stack.enter_async_context(serving(engines[DECODE].port, *common, environ=ports))
        yield Pod(way, sidecar, engines)
