"""What an odd peer says costs that peer its verdict, and nobody else anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.doctor.bench import HOSTS, PROMPT_TOKENS, Ran, doctor
from tests.engines import Answer, Got, Script, scripted
from tests.lab.bench import make_engine

DEEP = b"[" * 200_000
TIERED = "# TYPE vllm:kv_offload_tiering_read_bytes_total counter\n"
SAID: Mapping[str, bytes] = {
    "/health": b"{}",
    "/version": b'{"version":"0.32.0"}',
    "/v1/models": b'{"data":[{"id":"tiny","max_model_len":4096}]}',
    "/metrics": b"",
}


def says(said: Mapping[str, bytes], usage: Any = None, choice: bytes = b'{"text":" a"}') -> Script:
    """An engine that answers these bytes by path, and each completion with this usage."""

    async def script(got: Got, answer: Answer) -> None:
        path = got.target.partition("?")[0]
        content = {**SAID, **said}.get(path)
        if content is not None:
            await answer.json(content)
        elif got.method == "GET":
            await answer.json({"error": "no"}, 404)
        elif not isinstance(got.json, dict):
            await answer.json({"error": {"message": "no object"}}, 400)
        else:
            whole = b'{"choices":[%b],"usage":%b}' % (choice, json.dumps(usage).encode())
            streams = got.json.get("stream")
            await (answer.events(b"data: %b\n\n" % whole) if streams else answer.json(whole))

    return script


@asynccontextmanager
async def beside(script: Script) -> AsyncIterator[list[str]]:
    """A healthy engine A and an odd one B, whose P2P port accepts; the flags that name them."""
    async with (
        make_engine() as engine,
        scripted(script) as odd,
        await asyncio.start_server(lambda _, writer: writer.close(), HOSTS[1], 0) as tier,
    ):
        port = tier.sockets[0].getsockname()[1]
        p2p = [f"--p2p=A={engine.p2p_host}:{engine.p2p_port}", f"--p2p=B={HOSTS[1]}:{port}"]
        peers = f"--peers={engine.url},{odd.netloc}"
        yield [peers, *p2p, f"--prompt-tokens={PROMPT_TOKENS}", "--max-pairs=1", "--json"]


def of_a(ran: Ran) -> list[Any]:
    """What is told of the healthy one."""
    [told] = [one for one in ran.json["peers"] if one["name"] == "A"]
    return [told["ready"], told["model"], told["version"], told["block_tokens"]]


async def test_json_nested_too_deep_is_one_peers_fault() -> None:
    deep = dict.fromkeys(("/version", "/v1/models", "/server_info", "/v1/completions"), DEEP)
    async with beside(says(deep)) as flags:
        ran = await doctor(*flags)
    assert (ran.code, ran.err, of_a(ran)) == (3, "", [True, "tiny", "0.32.0", 32])
    assert ran.one("answers", "B")["says"].endswith("no completion: JSON nested too deep")
    assert ran.verdicts() == {"A to B": "untried"}


async def test_what_cannot_be_printed_is_escaped_and_bounded() -> None:
    odd = '"\\ud83d\\u001b[31m' + "x" * 5000 + '"'
    config = {"model_config": {"revision": "@"}, "kv_transfer_config": {"kv_connector": "@"}}
    said = {
        "/version": f'{{"version":{odd}}}'.encode(),
        "/v1/models": f'{{"data":[{{"id":{odd},"root":{odd}}}]}}'.encode(),
        "/server_info": json.dumps({"vllm_config": config}).replace('"@"', odd).encode(),
        "/metrics": b'vllm:cache_config_info{block_size="\x1b[31m9"} 1\n',
    }
    async with beside(
        says(said, {"prompt_tokens": PROMPT_TOKENS + 1}, f'{{"text":{odd}}}'.encode())
    ) as flags:
        ran = await doctor(*flags)
        text = await doctor(*[flag for flag in flags if flag != "--json"])
    assert (ran.code, text.code, text.err, of_a(ran)) == (3, 3, "", [True, "tiny", "0.32.0", 32])
    text.out.encode("utf-8")
    assert "\x1b" not in text.out + ran.out
    assert ran.one("version", "B")["value"].startswith("\\ud83d\\x1b[31mxxx")
    assert max(len(one["says"]) for one in ran.json["findings"]) < 2000


async def test_usage_and_counters_that_cannot_be_leave_it_open_what_came() -> None:
    said = {"/metrics": f'{TIERED}vllm:kv_offload_tiering_read_bytes_total{{tier="1:p2p"}} NaN\n'.encode()}
    usage = {"prompt_tokens": -16, "prompt_tokens_details": {"cached_tokens": 1024}}
    async with beside(says(said, usage)) as flags:
        ran = await doctor(*flags)
    assert (ran.code, of_a(ran)) == (1, [True, "tiny", "0.32.0", 32])
    assert ran.verdicts()["A to B"] == "unclear"
    found = ran.found()
    assert ("warning", "B", "counters") in found
    assert ("warning", "B", "token details") in found
    assert ran.one("pull", "A", "B")["says"] == (
        "could not tell what B got: its usage tells of 0 prompt tokens, 129 were sent"
    )
    assert not any("hash seed" in one["says"] for one in ran.json["findings"] if one["severity"] == "ok")
