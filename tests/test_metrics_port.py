"""The metrics port of the command: who answers there, over what, and what is counted."""

from __future__ import annotations

import asyncio
import re
import shlex
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from sidecar import app
from sidecar.metrics_port import MetricsPort
from sidecar.observers.board import Board
from sidecar.server.run import Server, listen
from sidecar.server.tls import serving_context
from sidecar.settings import load
from tests.commands import Command, command
from tests.engines import PREFILLED, Answer, Got, complete, prefilled, scripted
from tests.serving import PREFILLER, Said, post, read_answer
from tests.test_answers import closed_port

PREFIX = "llm_d_disagg_sidecar_"


async def ask(port: int, request: bytes, tls: ssl.SSLContext | None = None) -> Said:
    """Send a request on a fresh connection and read the answer."""
    async with asyncio.timeout(40):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        try:
            writer.write(request)
            return await read_answer(reader)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def get(path: str) -> bytes:
    """The bytes of a GET."""
    return f"GET {path} HTTP/1.1\r\nhost: sidecar\r\n\r\n".encode()


# What is told of legs, sizes, times and the process itself: see test_prometheus.py and observers/.
BESIDE = (
    *("legs_", "overhead_", "request_body_", "answer_body_", "time_to_first_", "stream_write_"),
    *("requests_in_flight", "upstream_connections", "event_loop_lag_", "workers"),
)


async def numbers(port: int, tls: ssl.SSLContext | None = None) -> Mapping[str, float]:
    """The series that are not zero, by name without the prefix; buckets and what is beside left out."""
    answer = await ask(port, get("/metrics"), tls)
    assert (answer.status, answer.all("content-type")) == (200, ["text/plain; version=0.0.4; charset=utf-8"])
    samples = re.findall(r"^([a-z_]+(?:\{.*\})?) (\S+)$", answer.body.decode(), re.MULTILINE)
    shown = {name.removeprefix(PREFIX): float(value) for name, value in samples if "_bucket{" not in name}
    return {name: value for name, value in shown.items() if value and not name.startswith(BESIDE)}


async def certified(directory: Path) -> Path:
    """Put a fresh certificate and its key there; the certificate."""
    certificate = directory / "tls.crt"
    openssl = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=own"
    made = await asyncio.create_subprocess_exec(
        *shlex.split(openssl),
        *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", directory / "tls.key", "-out", certificate),
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await made.wait() == 0
    return certificate


async def ended(sidecar: Command) -> int:
    """Its exit code after SIGTERM."""
    sidecar.process.terminate()
    return await sidecar.ended()


async def test_requests_stages_and_errors_of_a_running_sidecar_are_counted(tmp_path: Path) -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.json({"error": "boom"}, status=500)

    metrics = closed_port()
    async with (
        scripted(complete) as decoder,
        scripted(prefilled) as prefiller,
        scripted(script) as failing,
        command(tmp_path, decoder.port, f"--metrics-port={metrics}") as sidecar,
    ):
        for path in ("/v1/chat/completions", "/v1/messages"):
            assert (await ask(sidecar.port, post(path))).status == 200
        for netloc, status in ((prefiller.netloc, 200), (failing.netloc, 500)):
            assert (await ask(sidecar.port, post(headers=[(PREFILLER, netloc)]))).status == status
        assert (await ask(sidecar.port, post(body=b"["))).status == 400
        assert (await ask(sidecar.port, get("/v1/models"))).status == 200

        counts = dict(await numbers(metrics))
        sums = [counts.pop(f"{stage}_duration_seconds_sum") for stage in ("prefill", "decode")]
        assert counts == {
            'requests_total{api_type="chat_completions"}': 4.0,
            'requests_total{api_type="messages"}': 1.0,
            'disagg_requests_total{disagg_type="p/d"}': 2.0,
            "prefill_duration_seconds_count": 2.0,
            "decode_duration_seconds_count": 3.0,
            'request_errors_total{stage="prefill"}': 1.0,
        }
        assert all(0 < seconds < 10 for seconds in sums)
        assert await ended(sidecar) == 0
        assert "Traceback" not in sidecar.log


async def test_the_data_ports_metrics_are_the_engines_and_the_metrics_port_passes_nothing_on(
    tmp_path: Path,
) -> None:
    metrics = closed_port()
    async with (
        scripted(complete) as engine,
        command(tmp_path, engine.port, f"--metrics-port={metrics}", "--pull-verification=off") as sidecar,
    ):
        assert (await ask(sidecar.port, get("/metrics"))).json["id"] == "c"
        assert engine.last.target == "/metrics"
        for path in ("/v1/models", "/docs", "/openapi.json", "/metrics/x"):
            assert (await ask(metrics, get(path))).status == 404
        assert (await ask(metrics, post())).status == 404
        assert len(engine.requests) == 1


async def test_a_handoff_that_is_lost_is_counted(tmp_path: Path) -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.json({**PREFILLED, "kv_transfer_params": None})

    metrics = closed_port()
    async with (
        scripted(complete) as decoder,
        scripted(script) as prefiller,
        command(tmp_path, decoder.port, f"--metrics-port={metrics}") as sidecar,
    ):
        assert (await ask(sidecar.port, post(headers=[(PREFILLER, prefiller.netloc)]))).status == 200
        lost = 'prefill_handoffs_lost_total{reason="prefill_without_kv_transfer_params"}'
        assert (await numbers(metrics))[lost] == 1.0


async def test_it_is_served_over_tls_with_a_certificate_of_its_own(tmp_path: Path) -> None:
    certificate = await certified(tmp_path)
    metrics, flag = closed_port(), f"--metrics-cert-dir={tmp_path}"
    async with (
        scripted() as engine,
        command(tmp_path, engine.port, f"--metrics-port={metrics}", flag) as sidecar,
    ):
        assert f"metrics https://*:{metrics}/metrics" in sidecar.log.splitlines()[0]
        trusting = ssl.create_default_context(cafile=str(certificate))
        assert await numbers(metrics, trusting) == {}
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError, ValueError)):
            await ask(metrics, get("/metrics"))


async def test_a_renewed_certificate_is_served_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_CERT_POLL_S", 0.05)
    await certified(tmp_path)
    listener = listen("127.0.0.1", 0)
    tls = serving_context(tmp_path, "VersionTLS12", (), None)
    shared = app.Shared(None, MetricsPort(listener, tls, Board(1)))
    flags = ["--metrics-port=1", f"--metrics-cert-dir={tmp_path}", "--secure-serving=false"]
    server = app.server_of(load(flags, {}), [], shared)
    address = listener.getsockname()
    async with serving_server(server):
        await asyncio.sleep(0.2)  # the first look only makes sure
        before = await asyncio.to_thread(ssl.get_server_certificate, address)
        after = (await certified(tmp_path)).read_text()
        async with asyncio.timeout(40):
            while (served := await asyncio.to_thread(ssl.get_server_certificate, address)) == before:
                await asyncio.sleep(0.05)
    assert served.split() == after.split()


@asynccontextmanager
async def serving_server(server: Server) -> AsyncIterator[None]:
    """Run the server on a port of no interest."""
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup(sockets=[listen("127.0.0.1", 0)])
    try:
        yield
    finally:
        await server.shutdown()


async def test_metrics_are_served_until_the_last_request_has_ended(tmp_path: Path) -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.events(*(b"data: %d\n\n" % number for number in range(12)), gap_s=0.05)

    metrics = closed_port()
    async with (
        scripted(script) as engine,
        command(tmp_path, engine.port, f"--metrics-port={metrics}") as sidecar,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.port)
        writer.write(post())
        await engine.came()
        sidecar.process.terminate()
        await asyncio.sleep(0.2)
        assert await numbers(metrics) == {'requests_total{api_type="chat_completions"}': 1.0}
        assert (await read_answer(reader)).whole
        writer.close()
        assert await sidecar.ended() == 0


async def test_a_taken_metrics_port_is_said_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        async with command(tmp_path, 1, f"--metrics-port={port}", ready=False) as sidecar:
            assert await sidecar.ended() == 1
            said = f"sidecar: --metrics-port: cannot listen on *:{port}: Address already in use\n"
            assert sidecar.log == said


async def test_an_unusable_certificate_is_said_in_one_line(tmp_path: Path) -> None:
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).write_text("no certificate")
    flags = (f"--metrics-port={closed_port()}", f"--metrics-cert-dir={tmp_path}")
    async with command(tmp_path, 1, *flags, ready=False) as sidecar:
        assert await sidecar.ended() == 2
        assert re.fullmatch(rf"sidecar: --metrics-cert-dir: {tmp_path}: .*\n", sidecar.log)


@pytest.mark.parametrize(("flags", "loaded"), [((), False), (("--metrics-port=1",), True)])
async def test_prometheus_client_is_loaded_only_for_a_metrics_port(
    flags: tuple[str, ...], loaded: bool
) -> None:
    code = (
        "import asyncio, sys\n"
        "from sidecar.settings import load\n"
        "from sidecar import start\n"
        "from sidecar.engine_tls import EngineTLS, Trust\n"
        "from sidecar.metrics_port import MetricsPort, _endpoints\n"
        "from sidecar.readiness import Readiness\n"
        "from sidecar.observers.board import Board\n"
        "ready = Readiness([], EngineTLS(Trust()))\n"
        "if load(sys.argv[1:], {}).metrics_port: _endpoints(MetricsPort(None, None, Board(1)), ready, None)\n"
        "print('prometheus_client' in sys.modules)\n"
    )
    ran = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *flags, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await ran.communicate()
    assert output.decode().strip() == str(loaded)
