"""No prompt, completion or credential in what a run puts out: lines, spans, metrics and errors of its own."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sidecar.api import APIS
from tests.commands import Command, command
from tests.engines import Answer, Got, ScriptedEngine, scripted
from tests.faults.broken import FAULTS, End, Seen
from tests.faults.ways import BOOTSTRAP, DECODE, HEADERS, TEXT, WAYS, Way, answering
from tests.serving import Said, post, read_answer
from tests.test_answers import closed_port
from tests.test_metrics_port import get

# Each stands in one place only, so that a leak says where it comes from.
CLIENTS = {
    "prompt": "s3cret-prompt",
    "user": "s3cret-user",
    "key": "s3cret-key",
    "params": "s3cret-params",
    "query": "s3cret-query",
    "authorization": "s3cret-bearer",
    "cookie": "s3cret-cookie",
    "api key": "s3cret-api-key",
    "proxy": "s3cret-proxy",
    "image": "s3cret-image",
}
# What engines say: an answer, the text of a refusal, and what is put into heads and garbage.
ENGINES = (TEXT, '"told"', "s3cret-set-cookie", "s3cret-reason", "s3cret-garbage", "s3cret-refusal")
HEADERS_SENT = [
    ("authorization", f"Bearer {CLIENTS['authorization']}"),
    ("cookie", f"session={CLIENTS['cookie']}"),
    ("x-api-key", CLIENTS["api key"]),
    ("proxy-authorization", f"Basic {CLIENTS['proxy']}"),
]
SAID: dict[str, bytes] = {
    "a cookie": b"HTTP/1.1 200 s3cret-reason\r\nset-cookie: s3cret-set-cookie\r\ncontent-length: 2\r\n\r\n{}",
    "a refusal": b"HTTP/1.1 422 s3cret-reason\r\ncontent-length: 25\r\n\r\n"
    + b'{"detail":"s3cret-refusal"'[:25],
    "garbage": b"s3cret-garbage\r\n\r\n",
    "a bad field": b"HTTP/1.1 200 OK\r\ns3cret-garbage\x01: s3cret-garbage\r\n\r\n",
    "a bad chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\ns3cret-garbage\r\n",
    "a bad coding": b"HTTP/1.1 200 OK\r\ntransfer-encoding: s3cret-garbage\r\n\r\n",
    "bad JSON": b'HTTP/1.1 200 OK\r\ncontent-length: 19\r\n\r\n{"s3cret-garbage":}',
    "bad params": b'HTTP/1.1 200 OK\r\ncontent-length: 41\r\n\r\n{"kv_transfer_params":"s3cret-garbage   "}',
}
REFUSED = (
    b'{"prompt":"s3cret-prompt"',
    b'{"s3cret-key":s3cret-prompt}',
    b'["s3cret-prompt"]',
    b'{"prompt":"\xff s3cret-prompt"}',
    b'{"prompt":"x","kv_transfer_params":"s3cret-params"}',
    b'{"prompt":"x","kv_transfer_params":{"do_remote_prefill":"s3cret-params"}}',
    b'{"prompt":"x","kv_transfer_params":{"do_remote_prefill":true,"s3cret-key":1}}',
    b'{"input":"s3cret-prompt","previous_response_id":"s3cret-user"}',
    b'{"input":[{"type":"message","content":[{"type":"input_file","file_id":"s3cret-user"}]}]}',
)


@dataclass
class Run:
    """One running sidecar, what it said to clients of its own, and what is wrong with which engine now."""

    way: Way
    sidecar: Command
    metrics: int
    engines: dict[str, ScriptedEngine]
    own: list[Said] = field(default_factory=list)

    async def ask(self, request: bytes) -> None:
        """Send it; keep the answer if it is the sidecar's own."""
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.sidecar.port, limit=1 << 26)
            try:
                writer.write(request)
                said = await read_answer(reader)
            finally:
                writer.transport.abort()
        if said.all("x-sidecar-error"):
            self.own.append(said)

    def request(self, path: str, body: bytes) -> bytes:
        """With every credential, by the way's engines."""
        named = [(HEADERS[role], self.engines[role].netloc) for role in self.way.roles if role in HEADERS]
        return post(f"{path}?key={CLIENTS['query']}", body, [*named, *HEADERS_SENT])

    def body(self, *, stream: bool) -> bytes:
        """The way's, with secrets wherever a client may put them."""
        asked = json.loads(self.way.body(stream=stream))
        content = asked["messages"][0]["content"]
        content[0]["text"] = CLIENTS["prompt"]
        for part in content[1:]:
            part["image_url"]["url"] = f"http://images/{CLIENTS['image']}.png"
        return json.dumps({**asked, "user": CLIENTS["user"], CLIENTS["key"]: 1}).encode()


@asynccontextmanager
async def running(name: str, tmp_path: Path) -> AsyncIterator[Run]:
    way = WAYS[name]
    async with AsyncExitStack() as stack:
        engines = {
            role: await stack.enter_async_context(scripted(answering(role))) for role in (DECODE, *way.roles)
        }
        environ = {"OTEL_TRACES_EXPORTER": "console", "OTEL_BSP_SCHEDULE_DELAY": "50", "POD_IP": "127.0.0.1"}
        if BOOTSTRAP in engines:
            environ["MOONCAKE_BOOTSTRAP_PORT"] = str(engines[BOOTSTRAP].port)
        metrics = closed_port()  # after the engines, which might have been given the same
        flags = (*way.flags, "--tracing", f"--metrics-port={metrics}", "--shutdown-grace=0s")
        running = command(tmp_path, engines[DECODE].port, *flags, environ=environ)
        yield Run(way, await stack.enter_async_context(running), metrics, engines)


async def every_fault(run: Run) -> None:
    """Each fault that ends by itself, at each engine; and what is said in heads and garbage."""
    for role, engine in run.engines.items():
        for index, fault in enumerate(FAULTS.values()):
            if fault.seen is not Seen.SILENT and fault.end is not End.RESET:
                engine.script = fault.script(role)
                await run.ask(run.request("/v1/chat/completions", run.body(stream=index % 2 == 0)))
        for wire in SAID.values():

            async def script(got: Got, answer: Answer, wire: bytes = wire) -> None:
                await answer.raw(wire)
                answer.drop()

            engine.script = script
            await run.ask(run.request("/v1/chat/completions", run.body(stream=False)))
        engine.script = answering(role)


@pytest.mark.parametrize("name", ["nixlv2", "mooncake", "encoders", "chunked"])
async def test_no_output_of_a_run_holds_a_secret(name: str, tmp_path: Path) -> None:
    async with running(name, tmp_path) as run:
        await every_fault(run)
        for api, body in itertools.product(APIS, REFUSED):
            await run.ask(run.request(api.path.decode(), body))
        await run.ask(run.request("/v1/embeddings", b'{"input":"s3cret-prompt"}'))
        reader, writer = await asyncio.open_connection("127.0.0.1", run.metrics)
        writer.write(get("/metrics"))
        metrics = (await read_answer(reader)).body.decode()
        writer.close()
        await writer.wait_closed()
        run.sidecar.process.terminate()
        assert await run.sidecar.ended() == 0

    outputs = {
        "log": run.sidecar.log,
        "spans": run.sidecar.output,
        "metrics": metrics,
        "own errors": "".join(f"{said.headers}{said.body!r}" for said in run.own),
    }
    assert '"message":"exchange"' in outputs["log"]
    assert '"trace_id"' in outputs["spans"]
    assert "request_errors_total" in metrics
    assert len(run.own) > 40
    leaks = [
        (where, secret, text[max(0, text.find(secret) - 200) : text.find(secret) + 60])
        for where, text in outputs.items()
        for secret in (*CLIENTS.values(), *ENGINES)
        if secret in text
    ]
    assert leaks == []
