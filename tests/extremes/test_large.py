"""Bodies and answers as large as they come: unchanged but for what is asked for, and quick."""

from __future__ import annotations

import base64
import json
from random import Random
from time import process_time

import pytest

from tests.engines import COMPLETION, PARAMS, PREFILLED, Answer, Got, prefilled, scripted
from tests.serving import PREFILLER, SOURCE, post, read_answer, serving

PULLS = ("--kv-connector=offloading", "--source-guard=off")
# CPU time, of engine, sidecar and client together, for what takes tens of milliseconds.
QUICK_CPU_S = 3.0
TOKENS = 100_000
EVENT = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":" token %d"}}]}\n\n'
LAST = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":9,"prompt_tokens_details":%b}}\n\n'
# Written by the engine at a time: several reads of the sidecar, cut wherever they are.
EVENTS_AT_ONCE = 1_000


def prompt(size_bytes: int) -> bytes:
    """A chat with such a prompt, as clients spell JSON: spaces, escapes, numbers of their own."""
    line = json.dumps('def f(x): return x["é"]  # 0.75 \\o/\n')[1:-1]
    text = line * (size_bytes // len(line))
    return (
        '{"model": "m",  "messages": [{"role": "user", "content": "' + text + '"}], "max_tokens": 50, '
        '"temperature": 0.70, "seed": 12345678901234567890}'
    ).encode()


def image(size_bytes: int) -> bytes:
    """A chat with an image of that many bytes, in base64."""
    content = base64.b64encode(Random(7).randbytes(size_bytes)).decode()
    return (
        '{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,'
        + content
        + '"}},{"type":"text","text":"what is this?"}]}],"model":"m","max_tokens":50}'
    ).encode()


BODIES = {"a prompt of 1,600 KB": prompt(1_600_000), "an image of 10 MB": image(10_000_000)}
large = pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())


@large
async def test_a_large_body_passes_unchanged(body: bytes) -> None:
    async with scripted() as engine, serving(engine.port) as sidecar:
        began_cpu_s = process_time()
        answer = await sidecar.post(body=body)

        assert (answer.status, engine.last.body == body) == (200, True)
        assert process_time() - began_cpu_s < QUICK_CPU_S


@large
async def test_a_large_body_gets_its_pull_and_no_other_change(body: bytes) -> None:
    async with scripted() as engine, serving(engine.port, *PULLS) as sidecar:
        began_cpu_s = process_time()
        answer = await sidecar.post(body=body, headers=[(SOURCE, "127.9.8.7:8000")])

        assert answer.status == 200
        assert process_time() - began_cpu_s < QUICK_CPU_S
        sent = engine.last.json
        assert sent.pop("kv_transfer_params")["remote_kv_source"]["remote_host"] == "127.9.8.7"
        assert sent == json.loads(body)
        # The large value is the client's own bytes, spelling and all.
        value = body[body.index(b"[") : body.rindex(b"]") + 1]
        assert value in engine.last.body


@large
async def test_a_large_body_goes_through_both_legs(body: bytes) -> None:
    async with scripted(prefilled) as prefiller, scripted() as decoder, serving(decoder.port) as sidecar:
        began_cpu_s = process_time()
        answer = await sidecar.post(body=body, headers=[(PREFILLER, prefiller.netloc)])

        assert answer.status == 200
        assert process_time() - began_cpu_s < 2 * QUICK_CPU_S
        client = json.loads(body)
        assert prefiller.last.json["messages"] == client["messages"]
        assert prefiller.last.json["max_tokens"] == 1
        assert decoder.last.json == {**client, "kv_transfer_params": PARAMS}


async def test_the_largest_body_passes_and_a_byte_more_is_refused() -> None:
    body = image(10_000_000)
    async with scripted() as engine, serving(engine.port, f"--max-request-bytes={len(body)}") as sidecar:
        passed = await sidecar.post(body=body)
        async with sidecar.connected() as (reader, writer):
            writer.write(post(body=body + b" "))  # answered while it is still being sent
            refused = await read_answer(reader)

        assert (passed.status, refused.status, len(engine.requests)) == (200, 413, 1)


def tokens(last: bytes) -> list[bytes]:
    """The events of a long answer; `last` stands for the details of its usage."""
    return [*(EVENT % number for number in range(TOKENS)), LAST % last, b"data: [DONE]\n\n"]


def long_answer(last: bytes) -> list[bytes]:
    """The same in the chunks in which an engine under load sends them."""
    events = tokens(last)
    return [b"".join(events[at : at + EVENTS_AT_ONCE]) for at in range(0, len(events), EVENTS_AT_ONCE)]


@pytest.mark.parametrize("through_prefill", [False, True])
async def test_an_answer_of_100_000_tokens_comes_whole(*, through_prefill: bool) -> None:
    async def stream(got: Got, answer: Answer) -> None:
        await answer.events(*long_answer(b'{"cached_tokens":8}'))

    async with (
        scripted(prefilled) as prefiller,
        scripted(stream) as decoder,
        serving(decoder.port) as sidecar,
    ):
        body = b'{"model":"m","messages":[],"stream":true}'
        headers = [(PREFILLER, prefiller.netloc)] if through_prefill else []
        said = await sidecar.post(body=body, headers=headers)

        # The prefiller's count is the client's after a handoff (engines.PREFILLED), in the last event only.
        cached = b'{"cached_tokens":2}' if through_prefill else b'{"cached_tokens":8}'
        assert (said.status, said.whole) == (200, True)
        assert said.body == b"".join(tokens(cached))


async def test_an_answer_of_100_000_tokens_in_one_document_comes_whole() -> None:
    text = " token" * TOKENS
    completion = {**COMPLETION, "choices": [{"text": text}]}

    async def whole(got: Got, answer: Answer) -> None:
        await answer.json(completion)

    async with scripted(prefilled) as prefiller, scripted(whole) as decoder, serving(decoder.port) as sidecar:
        said = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])

        usage = {**COMPLETION["usage"], "prompt_tokens_details": PREFILLED["usage"]["prompt_tokens_details"]}
        assert said.json == {**completion, "usage": usage}
