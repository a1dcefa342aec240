"""The scenarios whose span trees are kept: which engines run, how they answer, and what the client asks.

Rule: each is one request to a real sidecar before scripted engines; nothing in it depends on luck.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.engines import COMPLETION, Answer, Got, Script, complete, prefilled
from tests.serving import BODY, CHAT, PREFILLER, SOURCE

ENCODERS = "x-encoder-hosts-ports"
# Sources are never contacted but by the guard; nothing listens here.
DEAD = "127.9.8.7:8000"

_PULLS = ("--source-guard=off", "--pull-verification=on", "--pull-verification-interval=50ms")
_WRITE = ("--moriio-write-mode", "--moriio-local-pod-ip=127.0.0.1")
_ENCODING = ("--ec-connector=ec-nixl",)
_TRIED = BODY[:-1] + b',"cache_hit_threshold":0.8}'
_IMAGES = json.dumps(
    {
        "model": "m",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": f"http://a/{name}.png"}}
                    for name in ("cat", "dog")
                ],
            }
        ],
    }
).encode()


@dataclass(frozen=True, slots=True)
class Scenario:
    """One request. spans: how many it makes in all. engines: scripts by name, the decoder's among them.

    headers: routing headers, each naming engines of the scenario or an address. leaves: the client goes away
    once this engine has its request. unreachable: the decoder refuses connections.
    """

    spans: int
    flags: tuple[str, ...] = ()
    engines: Mapping[str, Script] = field(default_factory=dict)
    headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    body: bytes = BODY
    method: str = "POST"
    path: str = CHAT
    leaves: str | None = None
    unreachable: bool = False


async def _late(got: Got, answer: Answer) -> None:
    """A decoder that needs longer than the prefiller beside it."""
    await asyncio.sleep(0.1)
    await answer.json(COMPLETION)


async def _streaming(got: Got, answer: Answer) -> None:
    await answer.events(b'data: {"choices":[{"delta":{"content":"h"}}]}\n\n', b"data: [DONE]\n\n")


async def _never(got: Got, answer: Answer) -> None:
    await asyncio.sleep(30)


async def _refusing(got: Got, answer: Answer) -> None:
    await answer.json({"message": "too long"}, 400)


async def _listing(got: Got, answer: Answer) -> None:
    await answer.json({"object": "list", "data": []})


async def _encoding(got: Got, answer: Answer) -> None:
    await answer.json({"id": "e", "ec_transfer_params": {}})


async def _bootstrap(got: Got, answer: Answer) -> None:
    await answer.json({"0": {"engine_id": "e-0"}})


async def _below(got: Got, answer: Answer) -> None:
    """A decoder that has too little of the prompt, as long as a threshold asks for more than nothing."""
    refusal = {"id": "r", "choices": [{"text": "", "finish_reason": "cache_threshold"}]}
    await answer.json(refusal if got.json.get("cache_hit_threshold") else COMPLETION)


async def _in_pieces(got: Got, answer: Answer) -> None:
    """A decoder that needs three tokens, of which it may write two at a time."""
    goes_on = bool(got.json.get("continue_final_message"))
    message = {"role": "assistant", "content": "on" if goes_on else "Once up"}
    choice = {"index": 0, "message": message, "finish_reason": "stop" if goes_on else "length"}
    written = 1 if goes_on else 2
    usage = {"prompt_tokens": 9, "completion_tokens": written, "total_tokens": 9 + written}
    await answer.json({"id": "c", "model": "m", "choices": [choice], "usage": usage})


def _counting(answered: Script) -> Script:
    """A vLLM whose counters rise with each request that pulls: 4 KiB and 64 tokens, in 2.5 ms a token."""
    pulls = 0

    async def script(got: Got, answer: Answer) -> None:
        nonlocal pulls
        if got.target != "/metrics":
            pulls += b"remote_kv_source" in got.body
            await answered(got, answer)
            return
        lines = (
            'vllm:kv_offload_tiering_chunk_queries_total{engine="0",tier="1:p2p"} 9',
            f'vllm:kv_offload_tiering_read_bytes_total{{engine="0",tier="1:p2p"}} {4096 * pulls}',
            f'vllm:prompt_tokens_cached_by_source_total{{engine="0",source="p2p"}} {64 * pulls}',
            'vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 1000',
            'vllm:request_prefill_time_seconds_sum{engine="0"} 2.5',
        )
        content = "\n".join(lines)
        await answer.raw(f"HTTP/1.1 200 OK\r\ncontent-length: {len(content)}\r\n\r\n{content}".encode())

    return script


async def _reporting(got: Got, answer: Answer) -> None:
    usage = {"prompt_tokens": 70, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 64}}
    await answer.json({**COMPLETION, "usage": usage})


def _handoff(*flags: str, spans: int = 5, decode: Script = complete, prefill: Script = prefilled) -> Scenario:
    engines = {"decoder": decode, "prefiller": prefill}
    return Scenario(spans, flags, engines, {PREFILLER: ("prefiller",)})


def scenarios() -> Mapping[str, Scenario]:
    """All of them by name, with engines that have not been asked anything yet."""
    encoders = {"encoder-1": _encoding, "encoder-2": _encoding}
    to_encoders = {ENCODERS: ("encoder-1", "encoder-2")}
    both = {PREFILLER: ("prefiller",), SOURCE: (DEAD,)}
    return {
        "passthrough": Scenario(2, engines={"decoder": _listing}, method="GET", path="/v1/models", body=b""),
        "decode_only": Scenario(3),
        "decode_only_streamed": Scenario(
            3, engines={"decoder": _streaming}, body=BODY[:-1] + b',"stream":true}'
        ),
        "chunked_decode": Scenario(4, ("--decode-chunk-size=2",), {"decoder": _in_pieces}),
        "pull_at_decode": Scenario(
            4,
            ("--kv-connector=offloading", *_PULLS),
            {"decoder": _counting(_reporting)},
            {SOURCE: (DEAD,)},
        ),
        "pull_refused_by_guard": Scenario(3, ("--kv-connector=offloading",), headers={SOURCE: (DEAD,)}),
        "nixlv2_handoff": _handoff(),
        "nixlv2_handoff_with_pull": Scenario(
            6,
            ("--enable-p2p-pull", *_PULLS),
            {"decoder": complete, "prefiller": _counting(prefilled)},
            both,
        ),
        "offloading_handoff": _handoff("--kv-connector=offloading"),
        "mooncake_handoff": Scenario(
            7,
            ("--kv-connector=mooncake",),
            {"decoder": _late, "prefiller": complete, "bootstrap": _bootstrap},
            {PREFILLER: ("prefiller",)},
        ),
        "sglang_handoff": _handoff("--kv-connector=sglang", decode=_late, prefill=complete),
        "shared_storage_decode_first_refused": Scenario(
            7,
            ("--kv-connector=shared-storage",),
            {"decoder": _below, "prefiller": prefilled},
            {PREFILLER: ("prefiller",)},
            _TRIED,
        ),
        "moriio_serial_handoff": _handoff(*_WRITE),
        "moriio_parallel_handoff": _handoff(*_WRITE, "--moriio-parallel-dispatch", decode=_late),
        "encoders_before_decode": Scenario(
            7, _ENCODING, {"decoder": complete, **encoders}, to_encoders, _IMAGES
        ),
        "encoders_before_handoff": Scenario(
            9,
            _ENCODING,
            {"decoder": complete, "prefiller": prefilled, **encoders},
            {PREFILLER: ("prefiller",), **to_encoders},
            _IMAGES,
        ),
        "prefill_refused": _handoff(spans=3, prefill=_refusing),
        "decoder_unreachable": Scenario(3, unreachable=True),
        "client_gone_during_decode": Scenario(3, engines={"decoder": _never}, leaves="decoder"),
        "client_gone_during_prefill": Scenario(
            3,
            engines={"decoder": complete, "prefiller": _never},
            headers={PREFILLER: ("prefiller",)},
            leaves="prefiller",
        ),
    }
