"""`sidecar lab engine` as a process."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import signal
import socket
import sys

import httpx
import pytest

from sidecar.lab import EngineConfig
from sidecar.lab.cli import main
from tests.lab.bench import prompt

RUN = "import sys; from sidecar.lab.cli import main; sys.exit(main(sys.argv[1:]))"
FREE_PORTS = ("--port=0", "--p2p-port=0", "--nixl-port=0", "--profile=instant")


async def start(*flags: str) -> tuple[asyncio.subprocess.Process, str]:
    """The process and the line with which it says that it is ready."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUN, "engine", *FREE_PORTS, *flags, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    return process, (await process.stdout.readline()).decode()


async def test_it_says_when_it_is_ready_serves_and_ends_cleanly_on_sigterm() -> None:
    process, line = await start("--model=demo", "--kv-connector=multi")
    ready = re.fullmatch(
        r"engine demo ready at (http://127\.0\.0\.1:\d+), P2P 127\.0\.0\.1:\d+, NIXL 127\.0\.0\.1:\d+\n", line
    )
    assert ready, line
    async with httpx.AsyncClient(base_url=ready[1], verify=False) as client:
        answer = (await client.post("/v1/completions", json={"prompt": prompt(10), "max_tokens": 2})).json()
        assert answer["model"] == "demo"
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 5) == 0


async def test_a_fatal_request_ends_the_process_with_1() -> None:
    process, line = await start()
    body = json.dumps({"prompt": "x", "kv_transfer_params": {"remote_kv_source": "abc"}})
    async with httpx.AsyncClient(verify=False) as client:
        headers = {"content-type": "application/json"}
        url = line.split()[4].rstrip(",")
        with pytest.raises(httpx.ReadError):
            await client.post(f"{url}/v1/completions", content=body, headers=headers)
    assert await asyncio.wait_for(process.wait(), 5) == 1


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["engine", "--nope"], "sidecar lab engine: unrecognized arguments: --nope\n"),
        (["engine", "--port=x"], "sidecar lab engine: --port: invalid int value: 'x'\n"),
        (["engine", "--block-size=20"], "sidecar lab engine: --block-size: must be a multiple of 16\n"),
        (["bench"], "sidecar lab: bench: not one of engine, demo\n"),
        ([], "sidecar lab: nothing: not one of engine, demo\n"),
    ],
)
def test_bad_flags_are_one_line_and_2(argv: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert capsys.readouterr().err == line


def test_a_choice_that_is_none_names_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", "--kv-connector=mooncake"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("sidecar lab engine: --kv-connector: invalid choice: 'mooncake'")
    assert said.count("\n") == 1


def test_help_lists_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", "--help"]) == 0
    said = capsys.readouterr().out
    for field in dataclasses.fields(EngineConfig):
        assert f"--{field.name.replace('_', '-')}" in said
    assert main(["--help"]) == 0


def test_a_port_that_is_taken_is_one_line_and_1(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["engine", f"--port={port}", "--kv-connector=none"]) == 1
    said = capsys.readouterr().err
    assert "in use" in said
    assert said.count("\n") == 1
