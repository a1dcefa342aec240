"""`/ready` beside `/health`: whether clients are to be sent here, and how a sidecar comes and goes."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from time import monotonic

import pytest
import yaml

from sidecar import readiness
from sidecar.endpoint import Endpoint
from sidecar.engine_tls import EngineTLS, Trust
from sidecar.readiness import Readiness
from sidecar.settings import load
from tests.commands import closed_ports, command
from tests.engines import COMPLETION, Answer, Got, complete, scripted
from tests.serving import post, read_answer, serving
from tests.test_answers import closed_port
from tests.test_metrics_port import ask, get

CONFIG = Path(__file__).parent.parent / "config"


async def test_ready_asks_the_engine_and_health_asks_nobody() -> None:
    async with scripted() as engine, serving(engine.port) as sidecar:
        answer = await ask(sidecar.port, get("/health"))
        assert (answer.status, engine.requests) == (200, [])
        answer = await ask(sidecar.port, get("/ready"))
        assert (answer.status, answer.body) == (200, b"")
        assert [(got.method, got.target) for got in engine.requests] == [("GET", "/health")]


async def test_only_a_get_is_for_us() -> None:
    async with scripted() as engine, serving(engine.port) as sidecar:
        assert (await sidecar.post("/ready")).json == COMPLETION
        assert (await ask(sidecar.port, get("/ready/x"))).json == COMPLETION
        assert [got.target for got in engine.requests] == ["/ready", "/ready/x"]


async def test_a_sidecar_may_start_before_its_engine() -> None:
    port = closed_port()
    async with serving(port) as sidecar:
        assert (await ask(sidecar.port, get("/health"))).status == 200
        answer = await ask(sidecar.port, get("/ready"))
        assert (answer.status, answer.all("x-sidecar-error")) == (503, ["503"])
        assert answer.json["message"] == f"not ready: the engine at localhost:{port} cannot be reached"
        assert (await sidecar.post()).status == 503
        async with scripted(port=port):
            assert (await ask(sidecar.port, get("/ready"))).status == 200
            assert (await sidecar.post()).json == COMPLETION
        assert (await ask(sidecar.port, get("/ready"))).status == 503


async def test_an_engine_that_says_it_is_dead_is_not_ready_and_one_that_knows_no_health_is() -> None:
    says = [200]

    async def script(got: Got, answer: Answer) -> None:
        await answer.json({}, says[0])

    async with scripted(script) as engine, serving(engine.port) as sidecar:
        for says[0], expected in ((200, 200), (404, 200), (401, 200), (500, 503), (503, 503)):
            assert (await ask(sidecar.port, get("/ready"))).status == expected


async def test_an_engine_that_hangs_is_not_ready_in_time_and_is_asked_once_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(readiness, "ENGINE_TIMEOUT_S", 0.2)

    async def script(got: Got, answer: Answer) -> None:
        await asyncio.sleep(30)

    async with scripted(script) as engine, serving(engine.port) as sidecar:
        began_s = monotonic()
        answers = await asyncio.gather(*(ask(sidecar.port, get("/ready")) for _ in range(20)))
        assert {answer.status for answer in answers} == {503}
        assert "does not answer within 0.2 s" in answers[0].json["message"]
        assert monotonic() - began_s < 10
        # Those that came while the first was asking share the second question.
        assert len(engine.requests) <= 3


async def test_a_condition_that_does_not_hold_is_told_and_no_engine_is_asked() -> None:
    why: list[str | None] = ["the allowlist is not synced"]
    async with scripted() as engine:
        ready = Readiness(
            [Endpoint("127.0.0.1", engine.port)], EngineTLS(Trust()), [lambda: None, lambda: why[0]]
        )
        assert (await ready.reason(), engine.requests) == ("the allowlist is not synced", [])
        why[0] = None
        assert await ready.reason() is None
        assert len(engine.requests) == 1


async def test_a_sidecar_that_is_told_to_stop_is_not_ready_at_once() -> None:
    async with scripted() as engine, serving(engine.port) as sidecar:
        sidecar.server.handle_exit(signal.SIGTERM, None)
        answer = await ask(sidecar.port, get("/ready"))
        assert (answer.status, engine.requests) == (503, [])
        assert answer.json["message"] == "not ready: the sidecar is shutting down"
        assert (await ask(sidecar.port, get("/health"))).status == 200


async def test_the_metrics_port_says_that_it_drains_while_a_stream_goes_on(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def script(got: Got, answer: Answer) -> None:
        if got.method == "GET":
            await complete(got, answer)
            return
        await answer.head(headers=[("content-type", "text/event-stream")])
        await answer.chunk(b"data: 1\n\n")
        await go.wait()
        await answer.chunk(b"data: [DONE]\n\n")
        await answer.end()

    metrics = closed_port()
    flags = (f"--metrics-port={metrics}", "--shutdown-grace=60s")
    async with scripted(script) as engine, command(tmp_path, engine.port, *flags) as sidecar:
        assert (await ask(metrics, get("/ready"))).status == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.port)
        writer.write(post())
        await engine.came()
        async with asyncio.timeout(10):
            while not any(got.method == "POST" for got in engine.requests):
                await asyncio.sleep(0.01)
        sidecar.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            while (answer := await ask(metrics, get("/ready"))).status == 200:
                await asyncio.sleep(0.02)
        assert (answer.status, answer.json["message"]) == (503, "not ready: the sidecar is shutting down")
        assert (await ask(metrics, get("/health"))).status == 200
        go.set()
        said = await read_answer(reader)
        writer.close()
        assert (said.whole, said.body) == (True, b"data: 1\n\ndata: [DONE]\n\n")
        assert await sidecar.ended() == 0


async def test_each_rank_is_ready_for_itself_and_the_metrics_port_for_all(tmp_path: Path) -> None:
    engine_port, metrics = closed_ports(2), closed_port()
    flags = ("--data-parallel-size=2", f"--metrics-port={metrics}")
    async with scripted(port=engine_port), command(tmp_path, engine_port, *flags, ports=2) as sidecar:
        assert (await ask(sidecar.port, get("/ready"))).status == 200
        for port in (sidecar.port + 1, metrics):
            async with asyncio.timeout(20):
                answer = await ask(port, get("/ready"))
            assert answer.status == 503
            assert f"localhost:{engine_port + 1} cannot be reached" in answer.json["message"]
        async with scripted(port=engine_port + 1):
            for port in (sidecar.port + 1, metrics):
                assert (await ask(port, get("/ready"))).status == 200


async def test_an_engine_drains_through_a_sidecar_that_nobody_has_told_to_stop() -> None:
    go = asyncio.Event()

    async def script(got: Got, answer: Answer) -> None:
        await go.wait()
        await complete(got, answer)

    async with (
        scripted(script) as engine,
        serving(engine.port) as sidecar,
        sidecar.connected() as (reader, writer),
    ):
        writer.write(post())
        await engine.came()
        engine.stop_accepting()  # as an engine that was told to stop: what runs goes on
        assert (await ask(sidecar.port, get("/ready"))).status == 503
        assert (await ask(sidecar.port, get("/health"))).status == 200
        assert (await sidecar.post()).status == 503
        go.set()
        assert (await read_answer(reader)).json == COMPLETION


def test_the_sample_pod_starts_the_engine_behind_a_sidecar_that_lives_and_is_ready_with_it() -> None:
    pod = yaml.safe_load((CONFIG / "pod.yaml").read_text())
    [sidecar] = pod["spec"]["initContainers"]
    [engine] = pod["spec"]["containers"]
    assert sidecar["restartPolicy"] == "Always"  # a native sidecar: stopped after the engine
    settings = load(sidecar["args"], {"POD_IP": "127.0.0.1"})
    for probe, path in (
        ("startupProbe", "/health"),
        ("livenessProbe", "/health"),
        ("readinessProbe", "/ready"),
    ):
        asked = sidecar[probe]["httpGet"]
        assert (asked["path"], asked["port"], asked["scheme"]) == (path, settings.port, "HTTPS")
    assert f"--port={settings.model_server_port}" in engine["args"]
    assert settings.shutdown_grace_s < pod["spec"]["terminationGracePeriodSeconds"]
