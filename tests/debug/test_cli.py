"""`sidecar explain`: the same answer from a running sidecar and from flags, as a tree."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from sidecar.debug.cli import main
from tests.bombs import packed
from tests.debug.serving import DEBUG, debugging
from tests.engines import saying, scripted
from tests.test_answers import closed_port

BODY = '{"prompt":"secret","max_tokens":4,"temperature":0.70}'
HEADERS = ("-H", "x-prefiller-host-port: 10.0.0.2:8000", "-H", "x-kv-cache-source-host-port: 10.0.0.3:8000")
UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

TREE = """\
POST /v1/completions (completions), connector offloading: legs
├─ why
│  ├─ prefiller 10.0.0.2:8000: computes the prompt, and the decoder gets its blocks
│  └─ source 10.0.0.3:8000: the prefiller pulls from its P2P port 7777 (source guard off)
├─ 1 prefill  POST http://10.0.0.2:8000/v1/completions
│  ├─ sent, and its answer awaited
│  ├─ its engine pulls from 10.0.0.3:7777
│  ├─ headers
│  │  ├─ content-type: application/json
│  │  └─ x-request-id: <uuid>
│  └─ body, 285 bytes
│     ├─ prompt: "<elided: 8 bytes>"
│     ├─ max_tokens: 1
│     ├─ temperature: 0.70
│     ├─ stream: false
│     └─ kv_transfer_params: {"remote_decoder": {"kv_request_id": "<uuid>"}, "remote_kv_source": \
{"kv_request_id": "<uuid>", "remote_host": "10.0.0.3", "remote_port": 7777}}
├─ 2 decode  POST http://localhost:PORT/v1/completions
│  ├─ sent, and its answer given to the client
│  ├─ headers
│  │  ├─ content-type: application/json
│  │  └─ x-request-id: <uuid>
│  └─ body, 196 bytes
│     ├─ prompt: "<elided: 8 bytes>"
│     ├─ max_tokens: 4
│     ├─ temperature: 0.70
│     └─ kv_transfer_params: {"remote_prefiller": {"kv_request_id": "<uuid>", "remote_host": "10.0.0.2", \
"remote_port": 7777}}
└─ to know
   ├─ nothing was sent; ids are fresh for each request, so those shown are examples
   └─ that engines answer is taken for granted; values in <…> stand for what they would answer
"""


def shown(out: str) -> str:
    return UUID.sub("<uuid>", out)


def test_from_flags_it_is_worked_out_without_a_sidecar(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--", "--kv-connector=offloading", "--source-guard=off")
    assert main(["/v1/completions", *HEADERS, "-sS", "-X", "POST", "-d", BODY, *flags]) == 0
    assert shown(capsys.readouterr().out) == TREE.replace("PORT", "8200")


async def test_a_running_sidecar_says_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "body.json"
    file.write_text(BODY)
    flags = (DEBUG, "--kv-connector=offloading", "--source-guard=off")
    async with scripted() as engine, debugging(engine.port, *flags) as sidecar:
        url = f"http://127.0.0.1:{sidecar.debug.port}/v1/completions"
        assert await asyncio.to_thread(main, [url, *HEADERS, "--json", f"@{file}"]) == 0
        assert engine.connections == 0
        assert shown(capsys.readouterr().out) == TREE.replace("PORT", str(engine.port))

        assert await asyncio.to_thread(main, [url, *HEADERS, "-d", BODY, "--raw", "--prompts"]) == 0
        assert json.loads(capsys.readouterr().out)["legs"][0]["body"]["prompt"] == "secret"


async def test_a_sidecar_without_debug_endpoints_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    async with scripted() as engine, debugging(engine.port) as sidecar:
        base = f"http://127.0.0.1:{sidecar.debug.port}"
        assert await asyncio.to_thread(main, [f"{base}/v1/completions", "-d", BODY]) == 1
    said = "no debug endpoints there (--debug-endpoints, on --metrics-port)"
    assert capsys.readouterr().err == f"sidecar explain: {base}: {said}\n"


def test_a_port_that_nobody_has_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    base = f"http://127.0.0.1:{closed_port()}"
    assert main([f"{base}/v1/completions", "-d", BODY]) == 1
    assert capsys.readouterr().err == f"sidecar explain: {base}: All connection attempts failed\n"


NO_HEADER = "-H: not 'NAME: VALUE' with a header's name, in one line (it is not shown here)"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["completions"],
            "'completions': neither a URL with a path nor a path, such as /v1/chat/completions",
        ),
        (["ftp://h/v1/completions"], "'ftp://h/v1/completions': not an http or https URL"),
        (["http://h:99999/v1/completions"], "'http://h:99999/v1/completions': Port out of range 0-65535"),
        (["http://[::1/v1/completions"], "'http://[::1/v1/completions': Invalid IPv6 URL"),
        *(
            (["/v1/completions", "-H", given], NO_HEADER)
            for given in ("secret", "a b: secret", "a: b\r\nc: d")
        ),
        (["/v1/completions", "--", "--port=0"], "--port: '0' is not a port (1 to 65535)"),
        (
            ["http://127.0.0.1:1/v1/completions", "--", "--workers=2"],
            "flags after -- go with a path alone: a running sidecar has its own",
        ),
        (["/v1/completions", "-d", "@/nope"], "-d: '@/nope': No such file or directory"),
        (["/v1/completions", "--json", "@/"], "-d: '@/': Is a directory"),
        (["/v1/completions", "-d", "@a\0b"], "-d: '@a\\x00b': embedded null byte"),
        (["/v1/completions", "--nothing"], "unrecognized arguments: --nothing"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert capsys.readouterr().err == f"sidecar explain: {said}\n"


def test_a_request_that_would_be_refused_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["/v1/completions", "-d", "[", "--", "--kv-connector=offloading"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "POST /v1/completions (completions), connector offloading: refused",
        "├─ answered 400 BadRequestError",
    ]


async def test_a_packed_answer_is_not_unpacked(capsys: pytest.CaptureFixture[str]) -> None:
    async with scripted(packed("gzip, gzip")) as port:
        url = f"http://{port.netloc}/v1/completions"
        assert await asyncio.to_thread(main, [url, "-d", "{}"]) == 1
    told = (
        f"sidecar explain: http://{port.netloc}: content-encoding 'gzip, gzip', where identity was asked for"
    )
    assert capsys.readouterr().err.strip() == told


@pytest.mark.parametrize(
    "content",
    [
        b"<html>",
        b"\xff",
        b"",
        b"[]",
        b"{}",
        b'{"data":[]}',
        b"[" * 100_000,
        b"9" * 6_000,
        b'{"request":{"method":"POST","path":"/","api":null},"connector":"x","answer":"y","why":[],"legs":[{}]}',
        b'{"request":{"method":"POST","path":"/","api":null},"connector":"x","answer":NaN,"why":[],"legs":[]}',
    ],
    ids=lambda content: content[:12].decode("ascii", "replace"),
)
@pytest.mark.parametrize("raw", [(), ("--raw",)], ids=["tree", "raw"])
async def test_what_is_no_explanation_is_no_answer(
    content: bytes, raw: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    async with scripted(saying(content)) as port:
        url = f"http://{port.netloc}/v1/completions"
        assert await asyncio.to_thread(main, [url, "-d", "{}", *raw]) == 1
    told = f"sidecar explain: http://{port.netloc}: what answers there is no sidecar's debug port\n"
    assert capsys.readouterr() == ("", told)


async def test_what_a_peer_says_reaches_the_terminal_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    said = "\x1b[31m\x9b2J\u202e"
    shown = "\\x1b[31m\\x9b2J\\u202e"
    explanation = {
        "request": {"method": "POST", "path": "/", "api": None},
        "connector": said,
        "answer": "legs",
        "why": [said, "\ud83d"],
        "legs": [],
    }
    async with (
        scripted(saying(said.encode(), 500)) as failing,
        scripted(saying(json.dumps(explanation).encode())) as answering,
    ):
        ask = [f"http://{engine.netloc}/v1/completions" for engine in (failing, answering)]
        assert [await asyncio.to_thread(main, [url, "-d", "{}"]) for url in ask] == [1, 0]
    out, err = capsys.readouterr()
    assert err == f"sidecar explain: http://{failing.netloc}: answered 500: {shown}\n"
    title = f"POST /, connector {shown}: legs"
    assert out.splitlines() == [title, "└─ why", f"   ├─ {shown}", "   └─ \\ud83d"]


def test_a_number_of_any_length_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    digits = "7" * 5000
    body = f'{{"prompt":"hi","seed":{digits}}}'
    assert main(["/v1/completions", "-d", body, "--", "--source-guard=off"]) == 0
    assert f"seed: {digits}" in capsys.readouterr().out


def test_a_body_nested_as_deep_as_can_be_read_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    body = '{"prompt":' + "[" * 900 + "]" * 900 + "}"
    assert main(["/v1/completions", "-d", body, "--prompts", "--", "--source-guard=off"]) == 0
    assert "[" * 900 in capsys.readouterr().out
