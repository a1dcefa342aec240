"""Decode first, where both engines share a store (`shared-storage`): what is tried, seen and sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

import pytest

from tests.engines import COMPLETION, Answer, Got, Script, ScriptedEngine, complete, prefilled, scripted
from tests.serving import BODY, PREFILLER, Said, Served, post, serving

TRIED = (
    b'{"model":"m", "cache_hit_threshold":0.80,"messages":[{"role":"user","content":"hi"}],"max_tokens":50}'
)
STREAMED = TRIED[:-1] + b',"stream":true}'
REFUSAL = {"id": "r", "choices": [{"text": "", "finish_reason": "cache_threshold"}], "usage": None}
# What tells that something happened at once, or because of something else, on a machine with other work.
SOON_S = 3.0


def event(finish_reason: str | None, text: str = "") -> bytes:
    choice = {"delta": {"content": text}, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


async def never(got: Got, answer: Answer) -> None:
    await asyncio.sleep(30)


def below(value: Any = REFUSAL) -> Script:
    """A decoder that has too little of the prompt, as long as a threshold asks for more than nothing."""

    async def script(got: Got, answer: Answer) -> None:
        await answer.json(value if got.json.get("cache_hit_threshold") else COMPLETION)

    return script


def streaming_below(*events: bytes) -> Script:
    """The same in a stream of these events."""

    async def script(got: Got, answer: Answer) -> None:
        if got.json["cache_hit_threshold"]:
            await answer.events(*events, gap_s=0.005)
        else:
            await answer.events(event(None, "h"), event("stop"), b"data: [DONE]\n\n")

    return script


ANSWERED = event(None, "h") + event("stop") + b"data: [DONE]\n\n"


@dataclass
class Stored:
    """A prefiller and a decoder with the sidecar before it."""

    sidecar: Served
    prefiller: ScriptedEngine
    decoder: ScriptedEngine

    @property
    def headers(self) -> list[tuple[str, str]]:
        return [(PREFILLER, self.prefiller.netloc)]

    async def post(self, body: bytes = TRIED, path: str = "/v1/chat/completions") -> Said:
        return await self.sidecar.post(path, body, self.headers)


@asynccontextmanager
async def stored(decode: Script, prefill: Script = prefilled, *flags: str) -> AsyncIterator[Stored]:
    async with (
        scripted(decode) as decoder,
        scripted(prefill) as prefiller,
        serving(decoder.port, "--kv-connector=shared-storage", *flags) as sidecar,
    ):
        yield Stored(sidecar, prefiller, decoder)


async def test_a_refused_attempt_leaves_no_trace_and_prefill_and_decode_follow() -> None:
    async with stored(below()) as pods:
        answer = await pods.post()

        assert (answer.status, answer.json, answer.whole) == (200, COMPLETION, True)
        first, second = pods.decoder.requests
        [prefill] = pods.prefiller.requests
        assert first.body == TRIED
        assert prefill.body == (
            b'{"model":"m","cache_hit_threshold":0,"messages":[{"role":"user","content":"hi"}],'
            b'"max_tokens":1,"max_completion_tokens":1,"stream":false}'
        )
        assert second.body == TRIED.replace(b"0.80", b"0").replace(b'"m", ', b'"m",')
        assert first.came_s < prefill.came_s < second.came_s
        assert first.all("x-request-id") == prefill.all("x-request-id") == second.all("x-request-id") != []


async def test_each_leg_begins_after_the_one_before_has_answered() -> None:
    async def slow(got: Got, answer: Answer) -> None:
        await asyncio.sleep(0.05)
        await prefilled(got, answer)

    async with stored(below(), slow) as pods:
        await pods.post()
        [prefill], second = pods.prefiller.requests, pods.decoder.last
        assert second.came_s - prefill.came_s >= 0.05


async def test_without_a_threshold_prefill_goes_first_and_once() -> None:
    async with stored(complete) as pods:
        answer = await pods.post(BODY)
        assert (answer.status, answer.json) == (200, COMPLETION)
        [prefill], [decode] = pods.prefiller.requests, pods.decoder.requests
        assert prefill.came_s < decode.came_s
        assert decode.body == BODY
        assert "kv_transfer_params" not in prefill.json


@pytest.mark.parametrize(
    "refusal",
    [
        (event("cache_threshold"), b"data: [DONE]\n\n"),
        (event(None), event("cache_threshold"), b"data: [DONE]\n\n"),
        (event(None).replace(b"\n\n", b"\r\n\r\nda"), event("cache_threshold")[2:]),
    ],
    ids=["first event", "second event", "split within an event"],
)
async def test_a_stream_that_begins_with_a_refusal_never_reaches_the_client(
    refusal: tuple[bytes, ...],
) -> None:
    async with stored(streaming_below(*refusal)) as pods:
        answer = await pods.post(STREAMED)
        assert (answer.status, answer.body, answer.whole) == (200, ANSWERED, True)
        assert (len(pods.decoder.requests), len(pods.prefiller.requests)) == (2, 1)


async def test_what_a_stream_says_after_two_events_is_the_clients() -> None:
    events = (event(None, "a"), event(None, "b"), event("cache_threshold"), b"data: [DONE]\n\n")
    async with stored(streaming_below(*events)) as pods:
        answer = await pods.post(STREAMED)
        assert (answer.status, answer.body, answer.whole) == (200, b"".join(events), True)
        assert (len(pods.decoder.requests), pods.prefiller.requests) == (1, [])


async def test_an_attempt_that_is_taken_streams_on_as_it_comes() -> None:
    go = asyncio.Event()

    async def streaming(got: Got, answer: Answer) -> None:
        await answer.head(headers=[("content-type", "text/event-stream"), ("X-Engine", "d")])
        await answer.chunk(event(None, "a"))
        await answer.chunk(event(None, "b"))
        await go.wait()
        await answer.chunk(b"data: [DONE]\n\n")
        await answer.end()

    async with stored(streaming) as pods, pods.sidecar.connected() as (reader, writer):
        writer.write(post(body=STREAMED, headers=pods.headers))
        async with asyncio.timeout(2):
            begun = await reader.readuntil(event(None, "b"))
        assert begun.startswith(b"HTTP/1.1 200 Said\r\n")
        assert b"X-Engine: d\r\n" in begun
        assert event(None, "a") in begun
        go.set()
        assert b"data: [DONE]\n\n" in await reader.readuntil(b"0\r\n\r\n")
        assert pods.prefiller.requests == []


@pytest.mark.parametrize(
    "answer",
    [
        COMPLETION,
        {"choices": [{"finish_reason": "length"}, {"finish_reason": "cache_threshold"}]},
        {"choices": [], "note": "cache_threshold"},
        b'{ "choices" : [ {"finish_reason":"stop"} ], "x": 1.0 }',
        b"not json",
    ],
)
async def test_every_other_document_is_the_clients_byte_for_byte(answer: Any) -> None:
    async with stored(below(answer)) as pods:
        said = await pods.post()
        expected = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        assert (said.status, said.body, said.whole) == (200, expected, True)
        assert said.all("content-length") == [str(len(expected))]
        assert (len(pods.decoder.requests), pods.prefiller.requests) == (1, [])


@pytest.mark.parametrize("body", [TRIED, STREAMED])
@pytest.mark.parametrize("status", [400, 429, 500, 503])
async def test_an_attempt_that_fails_is_relayed_and_nothing_follows(status: int, body: bytes) -> None:
    async def failing(got: Got, answer: Answer) -> None:
        await answer.json(json.dumps(REFUSAL).encode(), status, [("x-why", "full")])

    async with stored(failing, prefilled, "--prefill-max-retries=2") as pods:
        answer = await pods.post(body)
        assert (answer.status, answer.json, answer.all("x-why")) == (status, REFUSAL, ["full"])
        assert (len(pods.decoder.requests), pods.prefiller.requests) == (1, [])


@pytest.mark.parametrize("status", [404, 500, 503])
async def test_a_prefill_that_fails_after_a_refusal_is_relayed_and_decode_is_not_sent_again(
    status: int,
) -> None:
    async def failing(got: Got, answer: Answer) -> None:
        await answer.json({"why": 1}, status)

    async with stored(below(), failing) as pods:
        answer = await pods.post()
        assert (answer.status, answer.json) == (status, {"why": 1})
        assert len(pods.decoder.requests) == 1


async def test_a_prefill_answer_that_is_not_json_is_a_502() -> None:
    async def html(got: Got, answer: Answer) -> None:
        await answer.json(b"<html>")

    async with stored(below(), html) as pods:
        answer = await pods.post()
        assert (answer.status, answer.all("x-sidecar-error"), len(pods.decoder.requests)) == (502, ["502"], 1)


async def test_a_prefill_is_tried_again_and_the_attempt_is_not() -> None:
    async def busy(got: Got, answer: Answer) -> None:
        if len(pods.prefiller.requests) < 3:
            await answer.json({"busy": 1}, 503)
        else:
            await prefilled(got, answer)

    flags = ("--prefill-max-retries=3", "--prefill-retry-backoff=5ms")
    async with stored(below(), busy, *flags) as pods:
        answer = await pods.post()
        assert (answer.status, answer.json) == (200, COMPLETION)
        assert (len(pods.prefiller.requests), len(pods.decoder.requests)) == (3, 2)


async def test_a_decoder_that_dies_before_its_first_event_is_a_502() -> None:
    async def dying(got: Got, answer: Answer) -> None:
        await answer.head(headers=[("content-type", "text/event-stream")])
        await answer.chunk(b": waiting\n\n")
        answer.drop()

    async with stored(dying) as pods:
        answer = await pods.post(STREAMED)
        assert (answer.status, answer.all("x-sidecar-error"), pods.prefiller.requests) == (502, ["502"], [])


async def test_the_count_of_cached_tokens_stays_the_decoders() -> None:
    usage = {"usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 3}}}

    async def counting(got: Got, answer: Answer) -> None:
        await answer.json(REFUSAL if got.json.get("cache_hit_threshold") else usage)

    async with stored(counting) as pods:
        for body in (TRIED, BODY):
            assert (await pods.post(body)).json == usage


@pytest.mark.parametrize("moment", ["attempt", "prefill"])
async def test_a_client_that_goes_away_ends_the_leg_that_runs(moment: str) -> None:
    decode, prefill = (never, prefilled) if moment == "attempt" else (below(), never)
    async with stored(decode, prefill) as pods:
        running = pods.decoder if moment == "attempt" else pods.prefiller
        async with pods.sidecar.connected() as (_, writer):
            writer.write(post(body=TRIED, headers=pods.headers))
            got = await running.came()
            left_s = monotonic()
        async with asyncio.timeout(2):
            await got.closed.wait()
        assert got.closed_s is not None
        assert got.closed_s - left_s < SOON_S
        assert len(pods.decoder.requests) == 1


async def test_without_a_prefiller_the_threshold_is_the_engines_own_business() -> None:
    async with stored(below()) as pods:
        answer = await pods.sidecar.post(body=TRIED)
        assert (answer.status, answer.json) == (200, REFUSAL)
        assert (pods.decoder.last.body, len(pods.decoder.requests)) == (TRIED, 1)


@pytest.mark.parametrize("path", ["/v1/completions", "/inference/v1/generate"])
async def test_apis_with_choices_are_refused_alike(path: str) -> None:
    async with stored(below()) as pods:
        answer = await pods.post(path=path)
        assert (answer.status, answer.json) == (200, COMPLETION)
        assert [got.target for got in (*pods.decoder.requests, *pods.prefiller.requests)] == [path] * 3
