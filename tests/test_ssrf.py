"""SSRF protection on the wire: what is not allowed is never contacted (contract sections 1, 3, 7 and 9)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sidecar.allowlist import Allowlist, entry
from sidecar.endpoint import Endpoint
from sidecar.errors import TargetDenied
from sidecar.plan import Peer
from sidecar.routing import NoPull, Route, permitted
from tests.certificates import Authority, server_tls
from tests.commands import command
from tests.engines import ScriptedEngine, prefilled, scripted
from tests.observers.play import stage
from tests.pool.kube import PODS, POOLS, kube, pod, pool
from tests.pool.test_watch import kubeconfig, until
from tests.serving import CHAT, PREFILLER, SOURCE, post, read_answer, serving

ENCODERS = "x-encoder-hosts-ports"
DECODER = Endpoint("localhost", 8200)
DENIED = b"Forbidden: prefill target not allowed by SSRF protection"
ALLOWLIST = Allowlist.of([entry("10.0.0.0/8:8000")])


def peer(text: str) -> Peer:
    return Peer(Endpoint.parse(text), 7777)


def test_without_protection_a_route_stays() -> None:
    route = Route(DECODER, peer("1.2.3.4:5"), source=peer("1.2.3.5:5"), encoders=(Endpoint("e", 1),))
    assert permitted(route, None) == route


def test_a_prefiller_that_is_not_listed_is_denied_at_its_host_and_at_its_port() -> None:
    allowed = Route(DECODER, peer("10.1.1.1:8000"), prefill_candidates=1)
    assert permitted(allowed, ALLOWLIST) == allowed
    for text in ("11.1.1.1:8000", "10.1.1.1:8001", "name:8000"):
        with pytest.raises(TargetDenied) as denied:
            permitted(Route(DECODER, peer(text)), ALLOWLIST)
        assert denied.value.target == Endpoint.parse(text)


def test_a_source_is_ignored_and_encoders_are_dropped_one_by_one() -> None:
    good, bad = Endpoint("10.0.0.8", 8000), Endpoint("10.0.0.8", 22)
    source = Endpoint("192.168.0.1", 8000)
    route = Route(
        DECODER, source=Peer(source, 7777), named_source=source, encoders=(bad, good), encoder_candidates=2
    )
    assert permitted(route, ALLOWLIST) == Route(
        DECODER, named_source=source, no_pull=NoPull.DENIED, encoders=(good,), encoder_candidates=2
    )


@pytest.fixture
async def prefiller() -> AsyncIterator[ScriptedEngine]:
    async with scripted(prefilled) as engine:
        yield engine


@pytest.fixture
async def decoder() -> AsyncIterator[ScriptedEngine]:
    async with scripted() as engine:
        yield engine


async def test_a_denied_prefiller_is_a_403_in_the_peers_words_and_contacts_nobody(
    decoder: ScriptedEngine, prefiller: ScriptedEngine
) -> None:
    flags = (f"--allowed-endpoints=127.0.0.1:{prefiller.port + 1}",)
    async with serving(decoder.port, *flags) as sidecar:
        for path in (CHAT, "/v1/messages", "/v1/responses"):
            said = await sidecar.post(path, headers=[(PREFILLER, prefiller.netloc)])
            assert (said.status, said.body) == (403, DENIED)
            assert said.headers[:3] == [
                ("content-type", "text/plain; charset=utf-8"),
                ("content-length", "56"),
                ("x-sidecar-error", "403"),
            ]
    assert (prefiller.connections, decoder.requests) == (0, [])


async def test_a_listed_prefiller_is_asked(decoder: ScriptedEngine, prefiller: ScriptedEngine) -> None:
    async with serving(decoder.port, f"--allowed-endpoints={prefiller.netloc}") as sidecar:
        said = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])
    assert (said.status, len(prefiller.requests), len(decoder.requests)) == (200, 1, 1)


async def test_a_denied_source_is_neither_probed_nor_pulled_from(
    decoder: ScriptedEngine, prefiller: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "sidecar.exchange")
    flags = (
        "--kv-connector=offloading",
        f"--p2p-connector-port={prefiller.port}",
        "--allowed-endpoints=10.0.0.0/8,127.0.0.0/8:9",
    )
    async with serving(decoder.port, *flags) as sidecar:
        body = b'{"model":"m", "prompt":"hi"}'
        said = await sidecar.post("/v1/completions", body, [(SOURCE, "127.0.0.1:8")])
        assert (said.status, decoder.last.body, prefiller.connections) == (200, body, 0)
        await sidecar.post("/v1/completions", body, [(SOURCE, "127.0.0.1:9")])
        assert "remote_kv_source" in decoder.last.json["kv_transfer_params"]
    fields = [record.fields for record in caplog.records if hasattr(record, "fields")]
    assert [(one.get("reason"), one["source"]) for one in fields] == [
        ("source_not_allowed", "127.0.0.1:8"),
        (None, "127.0.0.1:9"),
    ]


async def test_a_denied_encoder_is_left_out(decoder: ScriptedEngine, prefiller: ScriptedEngine) -> None:
    item = {"type": "image_url", "image_url": {"url": "http://a/cat.png"}}
    body = json.dumps({"messages": [{"role": "user", "content": [item]}]}).encode()
    flags = ("--ec-connector=ec-example", "--allowed-endpoints=127.0.0.1:9")
    async with serving(decoder.port, *flags) as sidecar:
        said = await sidecar.post(body=body, headers=[(ENCODERS, f"{prefiller.netloc},evil:80")])
    assert (said.status, prefiller.connections, decoder.last.body) == (200, 0, body)


@pytest.mark.parametrize("policy", ["validate", "strip", "pass"])
async def test_a_clients_own_params_may_name_hosts_of_the_list_only(
    policy: str, decoder: ScriptedEngine
) -> None:
    def body(host: str) -> bytes:
        source = {"kv_request_id": "k", "remote_host": host, "remote_port": 7777}
        return json.dumps({"prompt": "hi", "kv_transfer_params": {"remote_kv_source": source}}).encode()

    flags = (f"--client-kv-transfer-params={policy}", "--allowed-endpoints=10.0.0.1:8000")
    async with serving(decoder.port, *flags) as sidecar:
        assert (await sidecar.post("/v1/completions", body("10.0.0.1"))).status == 200
        said = await sidecar.post("/v1/completions", body("10.0.0.2"))
    if policy == "validate":
        assert (said.status, len(decoder.requests)) == (400, 1)
        assert said.json["message"] == (
            'field "kv_transfer_params.remote_kv_source.remote_host" names a host that SSRF protection does '
            "not allow"
        )
    else:
        assert (said.status, len(decoder.requests)) == (200, 2)


async def test_the_span_names_the_target_that_was_denied(decoder: ScriptedEngine) -> None:
    watched = stage()
    async with serving(decoder.port, "--allowed-endpoints=a:1", watchers=[watched.tracing]) as sidecar:
        await sidecar.post(headers=[(PREFILLER, "169.254.169.254:80")])
    [span] = watched.trees()
    told = span.attributes
    assert told["llm_d.pd_proxy.error"] == "ssrf_protection_denied"
    assert told["llm_d.pd_proxy.denied_target"] == "169.254.169.254:80"
    assert told["http.response.status_code"] == 403


READY = b"GET /ready HTTP/1.1\r\nhost: sidecar\r\n\r\n"


async def test_until_the_pool_is_known_it_is_not_ready_and_denies(
    decoder: ScriptedEngine, prefiller: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority()
    async with kube(server_tls(authority.write(tmp_path / "api", "127.0.0.1"))) as api:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(api, authority, tmp_path)))
        flags = ("--enable-ssrf-protection", "--inference-pool=ns/pool")
        async with serving(decoder.port, *flags) as sidecar:
            said = await sidecar.ask(READY)
            assert (said.status, said.json["message"]) == (
                503,
                "not ready: the InferencePool is not known yet",
            )
            assert (await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])).status == 403
            assert (await sidecar.post()).status == 200  # the local engine needs no list
            api.put(PODS, pod("p", "127.0.0.1"))
            api.put(POOLS, pool(ports=(prefiller.port,)))
            async with asyncio.timeout(5):
                while (await sidecar.ask(READY)).status != 200:
                    await asyncio.sleep(0.02)
            assert (await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])).status == 200
        await until(lambda: not api.watching)


async def test_every_process_of_the_command_watches_the_pool(
    decoder: ScriptedEngine, prefiller: ScriptedEngine, tmp_path: Path
) -> None:
    authority = Authority()
    async with kube(server_tls(authority.write(tmp_path / "api", "127.0.0.1"))) as api:
        api.put(PODS, pod("p", "127.0.0.1"))
        api.put(POOLS, pool(ports=(prefiller.port,)))
        environ = {
            "KUBECONFIG": str(kubeconfig(api, authority, tmp_path)),
            "INFERENCE_POOL": "ns/pool",
            "POD_IP": "127.0.0.1",
        }
        flags = ("--enable-ssrf-protection", "--workers=2")
        async with command(tmp_path, decoder.port, *flags, environ=environ) as sidecar:
            await until(lambda: len(api.watching) == 4)
            for target, status in ((prefiller.netloc, 200), ("127.0.0.1:9", 403)):
                reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.port)
                writer.write(post(headers=[(PREFILLER, target)]))
                assert (await read_answer(reader)).status == status
                writer.close()
            assert "SSRF protection is off" not in sidecar.log


async def test_a_pool_that_cannot_be_watched_refuses_to_start(tmp_path: Path) -> None:
    flags = ("--enable-ssrf-protection", "--inference-pool=ns/pool")
    environ = {"KUBECONFIG": str(tmp_path / "none")}
    async with command(tmp_path, 9, *flags, environ=environ, ready=False) as sidecar:
        assert await sidecar.ended() == 2
        assert sidecar.log.startswith("sidecar: --inference-pool: no access to Kubernetes: ")
        assert sidecar.log.count("\n") == 1
