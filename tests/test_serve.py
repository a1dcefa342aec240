"""The command as a user runs it: as a process, with its start line, signals, exit codes and log."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import ssl
import sys
from pathlib import Path

import pytest

from sidecar.server.tls import serving_context
from tests.commands import command, listens
from tests.engines import Answer, Got, complete, scripted
from tests.serving import BODY, CHAT, post, read_answer
from tests.test_answers import closed_port
from tests.test_metrics_port import ask

SECRETS = ("s3cret-prompt", "s3cret-answer", "s3cret-bearer", "s3cret-cookie", "s3cret-query")


async def test_it_serves_tls_by_default_and_the_command_it_names_works(tmp_path: Path) -> None:
    async with scripted() as engine, command(tmp_path, engine.port, plain=False) as sidecar:
        first = sidecar.log.splitlines()[0]
        assert first.startswith(f"sidecar 0.1.0 on https://*:{sidecar.port}, ")
        assert f"decoder http://localhost:{engine.port}, connector nixlv2; try: curl -k https://" in first

        curl = shlex.split(first.partition("try: ")[2])
        tried = await asyncio.create_subprocess_exec(*curl, "-s", stdout=asyncio.subprocess.PIPE)
        output, _ = await tried.communicate()
        assert (tried.returncode, json.loads(output)["id"], engine.last.target) == (0, "c", "/v1/models")


async def test_sigterm_lets_a_stream_finish_refuses_new_connections_and_exits_0(tmp_path: Path) -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.events(*(b"data: %d\n\n" % number for number in range(15)), gap_s=0.05)

    async with scripted(script) as engine, command(tmp_path, engine.port) as sidecar:
        reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.port)
        writer.write(post())
        await engine.came()
        sidecar.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert not await listens(sidecar.port)
        answer = await read_answer(reader)
        writer.close()

        assert (answer.whole, answer.body.endswith(b"data: 14\n\n")) == (True, True)
        assert await sidecar.ended() == 0
        assert "Traceback" not in sidecar.log


async def test_the_grace_of_a_shutdown_is_bounded(tmp_path: Path) -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.events(*(b"data: %d\n\n" % number for number in range(1000)), gap_s=0.05)

    async with scripted(script) as engine, command(tmp_path, engine.port, "--shutdown-grace=1s") as sidecar:
        reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.port)
        writer.write(post())
        got = await engine.came()
        sidecar.process.send_signal(signal.SIGTERM)
        answer = await read_answer(reader)
        writer.close()

        assert not answer.whole
        assert await sidecar.ended() == 0
        await got.closed.wait()
        assert "Traceback" not in sidecar.log
        said = "requests that are cut, since the grace of --shutdown-grace is over: 1"
        assert f'"level":"warning","logger":"uvicorn.error","message":"{said}"' in sidecar.log
        assert '"level":"error"' not in sidecar.log


async def test_a_grace_of_nothing_says_nothing_where_nothing_runs(tmp_path: Path) -> None:
    async with scripted() as engine, command(tmp_path, engine.port, "--shutdown-grace=0") as sidecar:
        reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.port)
        writer.write(post())
        assert (await read_answer(reader)).status == 200
        sidecar.process.send_signal(signal.SIGTERM)
        assert await sidecar.ended() == 0
        writer.close()
        assert "cut" not in sidecar.log


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_terminal_that_closes_twice_cuts_nothing(workers: int, tmp_path: Path) -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.events(*(b"data: %d\n\n" % number for number in range(15)), gap_s=0.05)

    flags = (f"--workers={workers}",)
    async with scripted(script) as engine, command(tmp_path, engine.port, *flags) as sidecar:
        reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.port)
        writer.write(post())
        await engine.came()
        for _ in range(2):
            sidecar.process.send_signal(signal.SIGHUP)
            await asyncio.sleep(0.1)
        assert (await read_answer(reader)).whole
        writer.close()
        assert await sidecar.ended() == 0


async def test_a_terminal_that_closes_ends_nothing_under_nohup(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        async with scripted() as engine, command(tmp_path, engine.port) as sidecar:
            sidecar.process.send_signal(signal.SIGHUP)
            await asyncio.sleep(0.2)
            assert (await ask(sidecar.port, post())).status == 200
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    "signals",
    [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGINT), (signal.SIGHUP, signal.SIGTERM)],
)
async def test_a_second_signal_ends_what_still_runs(
    tmp_path: Path, signals: tuple[signal.Signals, signal.Signals]
) -> None:
    async def script(got: Got, answer: Answer) -> None:
        await asyncio.sleep(30)

    async with scripted(script) as engine, command(tmp_path, engine.port) as sidecar:
        reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.port)
        writer.write(post())
        await engine.came()
        sidecar.process.send_signal(signals[0])
        await asyncio.sleep(0.2)
        sidecar.process.send_signal(signals[1])
        answer = await read_answer(reader)
        writer.close()

        assert (answer.status, answer.json["message"]) == (503, "the sidecar is shutting down")
        assert await sidecar.ended() == 0
        assert "Traceback" not in sidecar.log


async def test_what_has_no_effect_is_one_warning_in_the_log(tmp_path: Path) -> None:
    flags = ("--moriio-tp-size=2", "--mooncake-bootstrap-port=9", "--workers=2")
    async with scripted() as engine, command(tmp_path, engine.port, *flags) as sidecar:
        lines = [json.loads(line) for line in sidecar.log.splitlines() if "no effect" in line]
    why = {
        "--moriio-tp-size": "--moriio-write-mode and --kv-connector=nixlv2",
        "--mooncake-bootstrap-port": "--kv-connector=mooncake",
    }
    assert {line["message"] for line in lines} == {
        f"{flag}: has no effect without {needs}" for flag, needs in why.items()
    }
    assert [line["level"] for line in lines] == ["warning"] * 2


async def test_a_taken_port_is_said_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        flags = (f"--port={port}",)
        async with command(tmp_path, 1, *flags, ready=False) as sidecar:
            assert await sidecar.ended() == 1
            assert sidecar.log == f"sidecar: --port: cannot listen on *:{port}: Address already in use\n"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--host=\udcff"], "--host: '\\udcff' is not UTF-8"),
        (['--configuration={host: "a\\0b"}'], "--host (in --configuration): 'a\\x00b' has a NUL in it"),
        (
            ["--moriio-write-mode", "--moriio-local-pod-ip=10.0.0.1", "--moriio-remote-hosts=\udcff"],
            "--moriio-remote-hosts: '\\udcff' is not UTF-8",
        ),
        (
            ["--configuration={tracing: !!bool abc}"],
            "--tracing (in --configuration): 'abc' is not a boolean (true or false)",
        ),
        (["--client-ca-file={}/pipe"], "--client-ca-file: '{}/pipe' is not a regular file"),
        (
            ["--configuration-file={}/pipe"],
            "--configuration-file: cannot read '{}/pipe': it is not a regular file",
        ),
        (
            ["--enable-tls=decoder", "--upstream-server-name=decoder=a..b"],
            "--upstream-server-name: 'a..b' is not a host name or an IP address",
        ),
    ],
)
async def test_what_cannot_be_started_with_is_said_in_one_line(
    tmp_path: Path, flags: list[str], said: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    given = [flag.replace("{}", str(tmp_path)) for flag in flags]
    async with command(tmp_path, 1, *given, plain=False, ready=False) as sidecar:
        assert await sidecar.ended() == 2
        assert sidecar.log == f"sidecar: {said.replace('{}', str(tmp_path))}\n"


async def test_a_wrong_variable_of_tracing_is_said_in_one_line(tmp_path: Path) -> None:
    environ = {"OTEL_TRACES_EXPORTER": "carrier-pigeon"}
    async with command(tmp_path, 1, "--tracing", ready=False, environ=environ) as sidecar:
        assert await sidecar.ended() == 2
        assert re.fullmatch(r"sidecar: .*OTEL_TRACES_EXPORTER.*carrier-pigeon.*\n", sidecar.log)


@pytest.mark.parametrize("flags", [(), ("--tracing",)], ids=["no traces", "traces"])
async def test_what_every_pod_is_told_of_propagation_stops_no_start(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    environ = {
        "OTEL_PROPAGATORS": "tracecontext,baggage,b3",
        "OTEL_PYTHON_CONTEXT": "theirs",
        "OTEL_TRACES_EXPORTER": "none",
    }
    async with scripted() as engine, command(tmp_path, engine.port, *flags, environ=environ) as sidecar:
        assert (await ask(sidecar.port, post())).status == 200
        assert "Traceback" not in sidecar.log
        told = [
            name
            for name in ("OTEL_PROPAGATORS", "OTEL_PYTHON_CONTEXT")
            if f"{name}: has no effect" in sidecar.log
        ]
        assert told == (["OTEL_PROPAGATORS", "OTEL_PYTHON_CONTEXT"] if flags else [])


@pytest.mark.parametrize("redirected", ["2>/dev/full", "2>&-"])
async def test_a_log_that_cannot_be_written_stops_nothing(redirected: str) -> None:
    async with scripted() as engine:
        port = closed_port()
        flags = f"--port={port} --model-server-port={engine.port} --secure-serving=false"
        process = await asyncio.create_subprocess_shell(
            f"exec {shlex.quote(sys.executable)} -m sidecar {flags} {redirected}"
        )
        async with asyncio.timeout(20):
            while not await listens(port):
                await asyncio.sleep(0.05)
        assert (await ask(port, post())).status == 200
        process.terminate()
        assert await process.wait() == 0


async def test_nothing_secret_is_logged_or_traced(tmp_path: Path) -> None:
    async def script(got: Got, answer: Answer) -> None:
        if b"stream" in got.body:
            await answer.events(b'data: {"delta":"s3cret-answer"}\n\n')
        elif b"die" in got.body:
            answer.drop()
        else:
            await answer.json({"text": "s3cret-answer"}, headers=[("set-cookie", "s3cret-cookie")])

    environ = {"OTEL_TRACES_EXPORTER": "console", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    headers = [("authorization", "Bearer s3cret-bearer"), ("cookie", "s3cret-cookie")]
    bodies = (
        b'{"prompt":"s3cret-prompt"}',
        b'{"prompt":"s3cret-prompt","stream":true}',
        b'{"prompt":"s3cret-prompt","die":1}',
        b'{"prompt":"s3cret-prompt"',
        b'{"prompt":"","kv_transfer_params":"s3cret-prompt"}',
    )
    async with (
        scripted(script) as engine,
        command(tmp_path, engine.port, "--tracing", environ=environ) as sidecar,
    ):
        for path in (CHAT, "/v1/messages", "/v1/embeddings"):
            for body in bodies:
                reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.port)
                writer.write(post(path + "?key=s3cret-query", body, headers))
                await read_answer(reader)
                writer.close()
                await writer.wait_closed()
        sidecar.process.terminate()
        assert await sidecar.ended() == 0

        lines = [json.loads(line) for line in sidecar.log.splitlines() if line.startswith("{")]
        assert len([line for line in lines if line["message"] == "exchange"]) == 3 * len(bodies)
        assert sidecar.output.count('"trace_id"') > len(bodies)  # the spans
        assert [secret for secret in SECRETS if secret in sidecar.log + sidecar.output] == []


@pytest.mark.parametrize(("verified", "status"), [(False, 200), (True, 502)])
async def test_engines_are_reached_over_tls_and_verified_unless_told_otherwise(
    tmp_path: Path, verified: bool, status: int
) -> None:
    context = serving_context(None, "VersionTLS12", (), None)
    flags = ["--enable-tls=decoder"] + ([] if verified else ["--tls-insecure-skip-verify=decoder"])
    async with scripted(complete, tls=context) as engine, command(tmp_path, engine.port, *flags) as sidecar:
        reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.port)
        writer.write(post(body=BODY))
        answer = await read_answer(reader)
        writer.close()
        await writer.wait_closed()

        assert answer.status == status
        assert len(engine.requests) == (status == 200)


async def test_a_certificate_of_ones_own_is_served(tmp_path: Path) -> None:
    key, certificate = tmp_path / "tls.key", tmp_path / "tls.crt"
    made = await asyncio.create_subprocess_exec(
        *shlex.split(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=own"
        ),
        *("-addext", "subjectAltName=DNS:own.test", "-keyout", key, "-out", certificate),
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await made.wait() == 0
    flag = f"--cert-path={tmp_path}"
    async with scripted() as engine, command(tmp_path, engine.port, flag, plain=False) as sidecar:
        trusting = ssl.create_default_context(cafile=str(certificate))
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", sidecar.port, ssl=trusting, server_hostname="own.test"
        )
        writer.write(post())
        assert (await read_answer(reader)).status == 200
        writer.close()
        await writer.wait_closed()
