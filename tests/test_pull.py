"""The main job: a directive to pull goes into the leg that computes the prompt; nothing else changes."""

from __future__ import annotations

import json
import re

import pytest

from tests.engines import PARAMS, PREFILLED, ScriptedEngine, prefilled, scripted
from tests.serving import BODY, CHAT, PREFILLER, SOURCE, serving

UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
OFFLOADING = "--kv-connector=offloading"
UNGUARDED = "--source-guard=off"


def pulled(engine: ScriptedEngine) -> dict[str, object]:
    """The directive of the newest request, its fresh id checked and taken out."""
    source = engine.last.json["kv_transfer_params"]["remote_kv_source"]
    assert UUID4.fullmatch(source.pop("kv_request_id"))
    assert isinstance(source, dict)
    return source


async def test_a_source_makes_the_decoder_pull_and_leaves_every_other_byte_alone() -> None:
    async with scripted() as engine, serving(engine.port, OFFLOADING, UNGUARDED) as sidecar:
        answer = await sidecar.post(headers=[(SOURCE, "127.9.8.7:8000")])

        assert answer.status == 200
        sent = engine.last.body
        head, _, params = sent.partition(b',"kv_transfer_params":')
        assert head == (
            b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":50,"temperature":0.70'
        )
        assert set(json.loads(params[:-1])) == {"remote_kv_source"}
        assert pulled(engine) == {"remote_host": "127.9.8.7", "remote_port": 7777}
        assert engine.last.all(SOURCE) == []


async def test_every_pull_has_its_own_id() -> None:
    async with scripted() as engine, serving(engine.port, OFFLOADING, UNGUARDED) as sidecar:
        for _ in range(3):
            await sidecar.post(headers=[(SOURCE, "127.9.8.7:8000")])

        sources = [got.json["kv_transfer_params"]["remote_kv_source"] for got in engine.requests]
        assert len({source["kv_request_id"] for source in sources}) == 3


@pytest.mark.parametrize(
    ("source", "host"),
    [
        ("127.9.8.7:8000", "127.9.8.7"),
        ("http://127.9.8.7:8000", "127.9.8.7"),
        ("[fd00::7]:8000", "fd00::7"),
        ("Pod-7.ns.svc:8000", "pod-7.ns.svc"),
    ],
)
async def test_the_source_is_named_as_the_engine_needs_it(source: str, host: str) -> None:
    async with scripted() as engine, serving(engine.port, OFFLOADING, UNGUARDED) as sidecar:
        await sidecar.post(headers=[(SOURCE, source)])

        assert pulled(engine) == {"remote_host": host, "remote_port": 7777}


@pytest.mark.parametrize(
    "header", [SOURCE, "x-llm-d-kv-cache-source-host-port", "X-KV-Cache-Source-Host-Port"]
)
async def test_both_header_spellings_name_the_source(header: str) -> None:
    async with scripted() as engine, serving(engine.port, OFFLOADING, UNGUARDED) as sidecar:
        await sidecar.post(headers=[(header, "127.9.8.7:8000")])

        assert pulled(engine)["remote_host"] == "127.9.8.7"


@pytest.mark.parametrize("source", ["127.9.8.7", ":8000", "127.9.8.7:x", "127.9.8.7:0", "a b:80", ""])
async def test_a_malformed_source_is_ignored_and_the_request_goes_on_unchanged(source: str) -> None:
    async with scripted() as engine, serving(engine.port, OFFLOADING, UNGUARDED) as sidecar:
        answer = await sidecar.post(headers=[(SOURCE, source)])

        assert (answer.status, engine.last.body, engine.last.all(SOURCE)) == (200, BODY, [])


async def test_this_pod_as_the_source_changes_nothing() -> None:
    async with scripted() as engine, serving(engine.port, OFFLOADING, UNGUARDED) as sidecar:
        await sidecar.post(headers=[(SOURCE, f"127.0.0.1:{sidecar.port}")])

        assert engine.last.body == BODY


@pytest.mark.parametrize(
    ("flags", "pulls"),
    [((), False), (("--enable-p2p-pull",), True), ((OFFLOADING,), True)],
)
async def test_only_a_connector_with_a_p2p_tier_pulls(flags: tuple[str, ...], pulls: bool) -> None:
    async with scripted() as engine, serving(engine.port, UNGUARDED, *flags) as sidecar:
        await sidecar.post(headers=[(SOURCE, "127.9.8.7:8000")])

        assert ("kv_transfer_params" in engine.last.json) is pulls


async def test_the_p2p_port_comes_from_flag_or_environment() -> None:
    async with scripted() as engine:
        async with serving(engine.port, OFFLOADING, UNGUARDED, "--p2p-connector-port=7999") as sidecar:
            await sidecar.post(headers=[(SOURCE, "127.9.8.7:8000")])
            assert pulled(engine)["remote_port"] == 7999
        environ = {"P2P_CONNECTOR_PORT": "7888"}
        async with serving(engine.port, OFFLOADING, UNGUARDED, environ=environ) as sidecar:
            await sidecar.post(headers=[(SOURCE, "127.9.8.7:8000")])
            assert pulled(engine)["remote_port"] == 7888


async def test_a_client_can_not_name_its_own_source() -> None:
    own = b'{"model":"m","kv_transfer_params":{"remote_decoder":{"kv_request_id":"evil"}},"max_tokens":5}'
    async with scripted() as engine, serving(engine.port, OFFLOADING, UNGUARDED) as sidecar:
        await sidecar.post(body=own, headers=[(SOURCE, "127.9.8.7:8000")])

        assert set(engine.last.json["kv_transfer_params"]) == {"remote_kv_source"}
        assert b"evil" not in engine.last.body


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (b'{"remote_kv_source":"abc"}', "kv_transfer_params.remote_kv_source"),
        (b'{"do_remote_prefill":true}', "kv_transfer_params.remote_block_ids"),
        (b'"notadict"', "kv_transfer_params"),
    ],
)
async def test_params_that_would_kill_an_engine_are_refused_by_name(params: bytes, field: str) -> None:
    body = b'{"model":"m","kv_transfer_p\\u0061rams":' + params + b"}"
    async with scripted() as engine, serving(engine.port) as sidecar:
        answer = await sidecar.post(body=body)

        assert answer.status == 400
        assert f'"{field}"' in answer.json["error"]["message"]
        assert engine.requests == []


async def test_the_prefill_leg_pulls_and_the_decode_leg_never_does() -> None:
    async with (
        scripted() as decoder,
        scripted(prefilled) as prefiller,
        serving(decoder.port, "--enable-p2p-pull", UNGUARDED) as sidecar,
    ):
        await sidecar.post(headers=[(PREFILLER, prefiller.netloc), (SOURCE, "127.9.8.7:8000")])

        assert pulled(prefiller) == {"remote_host": "127.9.8.7", "remote_port": 7777}
        assert prefiller.last.json["kv_transfer_params"]["do_remote_decode"] is True
        assert decoder.last.json["kv_transfer_params"] == PREFILLED["kv_transfer_params"]


@pytest.mark.parametrize("prefix", ["", "http://"])
async def test_the_prefiller_does_not_pull_from_itself(prefix: str) -> None:
    async with (
        scripted() as decoder,
        scripted(prefilled) as prefiller,
        serving(decoder.port, "--enable-p2p-pull", UNGUARDED) as sidecar,
    ):
        await sidecar.post(headers=[(PREFILLER, prefiller.netloc), (SOURCE, prefix + prefiller.netloc)])

        assert "remote_kv_source" not in prefiller.last.json["kv_transfer_params"]


async def test_a_routed_request_without_routing_headers_is_forwarded_byte_for_byte() -> None:
    body = (
        b'{ "model":"m",\n "messages":[{"content":"\\u00e9 \\ud83d"}],"seed": 12345678901234567890,"x":1e-7 }'
    )
    async with scripted() as engine, serving(engine.port, OFFLOADING) as sidecar:
        await sidecar.post(CHAT + "?q=1", body, [("x-A", "1"), ("X-a", "2"), ("authorization", "Bearer k")])

        assert (engine.last.body, engine.last.target) == (body, CHAT + "?q=1")
        assert engine.last.headers[1:-1] == [
            ("content-type", "application/json"),
            ("x-A", "1"),
            ("X-a", "2"),
            ("authorization", "Bearer k"),
        ]


async def test_several_prompts_are_not_pulled_for() -> None:
    # On vLLM 0.32 they share the directive, and the engine process ends.
    body = b'{"model":"m","prompt":["a","b"]}'
    async with scripted() as engine, serving(engine.port, OFFLOADING, UNGUARDED) as sidecar:
        await sidecar.post("/v1/completions", body=body, headers=[(SOURCE, "127.9.8.7:8000")])
        assert engine.last.body == body

        await sidecar.post(
            "/v1/completions", body=body[:-1] + b',"n":1}', headers=[(SOURCE, "127.9.8.7:8000")]
        )
        assert "kv_transfer_params" not in engine.last.json


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (
            {"remote_kv_source": {"kv_request_id": "k", "remote_host": "h", "remote_port": 1}},
            "remote_kv_source",
        ),
        (PARAMS, "do_remote_prefill"),
    ],
)
async def test_a_client_cannot_make_several_prompts_share_a_fetch(params: object, field: str) -> None:
    several = json.dumps({"prompt": ["a", "b"], "kv_transfer_params": params}).encode()
    one = json.dumps({"prompt": ["a"], "kv_transfer_params": params}).encode()
    async with scripted() as engine, serving(engine.port, OFFLOADING, UNGUARDED) as sidecar:
        answer = await sidecar.post("/v1/completions", body=several)
        assert (answer.status, engine.requests) == (400, [])
        assert answer.json["message"] == (
            f'field "kv_transfer_params.{field}" serves one prompt, and the request has several'
        )
        assert (await sidecar.post("/v1/completions", body=one)).status == 200
        asks = json.dumps({"prompt": ["a", "b"], "kv_transfer_params": {"do_remote_decode": True}}).encode()
        assert (await sidecar.post("/v1/completions", body=asks)).status == 200
