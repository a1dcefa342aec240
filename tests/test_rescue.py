"""Pulls that hang: left out in time, suspended for a while, tried again, on real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from sidecar import rescue
from sidecar.evidence import Outcome
from sidecar.kvparams import without_source
from sidecar.observers import Observer, PullRecord
from tests.engines import COMPLETION, Answer, Got, ScriptedEngine, complete, prefilled, scripted
from tests.serving import PREFILLER, SOURCE, Served, post, read_answer, serving

FLAGS = ("--kv-connector=offloading", "--source-guard=off", "--pull-rescue-after=200ms")
PULL = [(SOURCE, "127.0.0.2:8000")]
STREAM = b'{"model":"m","prompt":"hi", "stream":true}'
WHOLE = b'{"model":"m","prompt":"hi"}'
EVENTS = (b'data: {"n":1}\n\n', b"data: [DONE]\n\n")


@dataclass
class Wedged:
    """An engine on which every pull hangs, and nothing else. head: a stream's head comes all the same."""

    head: bool = False
    metrics: bytes | None = None
    hangs: bool = True

    async def script(self, got: Got, answer: Answer) -> None:
        if got.target == "/metrics":
            text = self.metrics or b""
            status = 200 if self.metrics is not None else 404
            await answer.raw(b"HTTP/1.1 %d Said\r\ncontent-length: %d\r\n\r\n%b" % (status, len(text), text))
            return
        if b"remote_kv_source" in got.body and self.hangs:
            if self.head:
                await answer.head(headers=[("content-type", "text/event-stream")])
            await asyncio.sleep(30)
        if b'"stream":true' in got.body:
            await answer.events(*EVENTS)
        else:
            await answer.json(COMPLETION)


class Told(Observer):
    def __init__(self) -> None:
        self.pulls: list[PullRecord] = []

    def pull(self, record: PullRecord) -> None:
        self.pulls.append(record)


@asynccontextmanager
async def before(
    engine: Wedged, *flags: str, told: Told | None = None
) -> AsyncIterator[tuple[Served, ScriptedEngine]]:
    async with (
        scripted(engine.script) as decoder,
        serving(decoder.port, *FLAGS, *flags, watchers=[told or Told()]) as sidecar,
    ):
        yield sidecar, decoder


def posted(engine: ScriptedEngine) -> list[Got]:
    return [got for got in engine.requests if got.method == "POST"]


@pytest.mark.parametrize("head", [False, True], ids=["nothing", "head"])
async def test_a_stream_whose_pull_hangs_is_sent_again_without_it(
    caplog: pytest.LogCaptureFixture, *, head: bool
) -> None:
    caplog.set_level(logging.INFO, "sidecar.exchange")
    told = Told()
    async with before(Wedged(head=head), told=told) as (sidecar, decoder):
        answer = await sidecar.post("/v1/completions", STREAM, PULL)
        assert (answer.status, answer.body, answer.whole) == (200, b"".join(EVENTS), True)
        first, second = posted(decoder)
        assert second.body == STREAM.replace(b" ", b"")
        async with asyncio.timeout(1):
            await first.closed.wait()
        assert 0.15 < second.came_s - first.came_s < 5
        assert first.all("x-request-id") == second.all("x-request-id")
    assert [(pull.outcome, pull.rescued) for pull in told.pulls] == [(Outcome.RESCUED, True)]
    [line] = [entry.__dict__["fields"] for entry in caplog.records if entry.getMessage() == "exchange"]
    assert line["legs"][0]["pull"]["outcome"] == "rescued"
    assert "pull" not in line["legs"][1]


async def test_a_prefill_leg_whose_pull_hangs_is_sent_again_with_its_own_params() -> None:
    async def prefill(got: Got, answer: Answer) -> None:
        if got.target == "/metrics":
            await answer.json({}, 404)
        elif b"remote_kv_source" in got.body:
            await asyncio.sleep(30)
        else:
            await prefilled(got, answer)

    async with (
        scripted(complete) as decoder,
        scripted(prefill) as prefiller,
        serving(decoder.port, *FLAGS) as sidecar,
    ):
        answer = await sidecar.post("/v1/completions", WHOLE, [*PULL, (PREFILLER, prefiller.netloc)])
        assert answer.status == 200
        first, second = posted(prefiller)
        params = first.json["kv_transfer_params"]
        del params["remote_kv_source"]
        assert second.json["kv_transfer_params"] == params
        assert list(params) == ["remote_decoder"]
        assert len(posted(decoder)) == 1


async def test_a_prefill_leg_whose_second_attempt_hangs_is_rescued_after_as_long_a_wait() -> None:
    async def prefill(got: Got, answer: Answer) -> None:
        if got.target == "/metrics":
            await answer.json({}, 404)
        elif len(posted(prefiller)) == 1:
            await asyncio.sleep(0.3)
            await answer.json({"busy": True}, 503)
        elif b"remote_kv_source" in got.body:
            await asyncio.sleep(30)
        else:
            await prefilled(got, answer)

    retries = ("--pull-rescue-after=400ms", "--prefill-max-retries=1", "--prefill-retry-backoff=1ms")
    async with (
        scripted(complete) as decoder,
        scripted(prefill) as prefiller,
        serving(decoder.port, *FLAGS, *retries) as sidecar,
    ):
        answer = await sidecar.post("/v1/completions", WHOLE, [*PULL, (PREFILLER, prefiller.netloc)])
        assert answer.status == 200
        _, hung, again = posted(prefiller)
        assert (b"remote_kv_source" in hung.body, b"remote_kv_source" in again.body) == (True, False)
        assert 0.35 < again.came_s - hung.came_s < 5


FETCHING = b'vllm:num_requests_kv_fetch_by_stage{engine="0",stage="in_progress"} 1\n'
# As a hung pull shows on vLLM 0.32.
DEFERRED = (
    b'vllm:num_requests_kv_fetch_by_stage{engine="0",stage="in_progress"} 0\n'
    b'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 0\n'
    b'vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 1\n'
)
IDLE = DEFERRED.replace(b" 1\n", b" 0\n")
NO_STAGE = IDLE.partition(b"\n")[0] + b"\n"


@pytest.mark.parametrize(
    ("body", "metrics", "rescued"),
    [
        (WHOLE, FETCHING, True),
        (WHOLE, DEFERRED, True),
        (WHOLE, NO_STAGE, False),
        (STREAM, NO_STAGE, True),
        (STREAM, DEFERRED, True),
        (WHOLE, None, False),
        (WHOLE, b"up 1\n", False),
        (WHOLE, IDLE, False),
        (STREAM, FETCHING, True),
        (STREAM, b"up 1\n", True),
        (STREAM, IDLE, False),
    ],
)
async def test_who_waits_for_kv_is_told_by_the_engine_where_it_can(
    body: bytes, metrics: bytes | None, *, rescued: bool
) -> None:
    async with before(Wedged(metrics=metrics)) as (sidecar, decoder):
        asking = asyncio.ensure_future(sidecar.post("/v1/completions", body, PULL))
        if rescued:
            assert (await asking).status == 200
        else:
            await asyncio.wait((asking,), timeout=0.7)
            assert not asking.done()
        assert len(posted(decoder)) == (2 if rescued else 1)
        asking.cancel()


async def test_an_answer_that_has_begun_is_never_cut() -> None:
    async def slow(got: Got, answer: Answer) -> None:
        await answer.head(headers=[("content-type", "text/event-stream")])
        await answer.chunk(EVENTS[0])
        await asyncio.sleep(0.5)
        await answer.chunk(EVENTS[1])
        await answer.end()

    async with scripted(slow) as decoder, serving(decoder.port, *FLAGS) as sidecar:
        answer = await sidecar.post("/v1/completions", STREAM, PULL)
        assert (answer.body, answer.whole, len(decoder.requests)) == (b"".join(EVENTS), True, 1)


async def test_a_request_without_a_pull_waits_for_ever() -> None:
    async def slow(got: Got, answer: Answer) -> None:
        await asyncio.sleep(0.5)
        await complete(got, answer)

    async with scripted(slow) as decoder, serving(decoder.port, *FLAGS) as sidecar:
        assert (await sidecar.post("/v1/completions", STREAM)).json == COMPLETION
        assert len(decoder.requests) == 1


async def test_after_a_rescue_pulls_are_suspended_and_come_back_by_themselves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rescue, "FIRST_PAUSE_S", 1.0)
    engine = Wedged()
    with caplog.at_level(logging.INFO, "sidecar.pulls"):
        async with before(engine) as (sidecar, decoder):
            for _ in range(3):
                await sidecar.post("/v1/completions", STREAM, PULL)
            directed = [b"remote_kv_source" in got.body for got in posted(decoder)]
            assert directed == [True, False, False, False]
            await asyncio.sleep(1.05)
            engine.hangs = False
            await sidecar.post("/v1/completions", STREAM, PULL)
            await sidecar.post("/v1/completions", STREAM, PULL)
            directed = [b"remote_kv_source" in got.body for got in posted(decoder)]
            assert directed[4:] == [True, True]
    [warning, info] = [record for record in caplog.records if record.name == "sidecar.pulls"]
    assert (warning.levelname, "needs a restart" in warning.getMessage()) == ("WARNING", True)
    assert info.getMessage() == f"pulls of localhost:{decoder.port} are answered again"


async def test_a_client_that_leaves_while_its_pull_hangs_takes_the_leg_along() -> None:
    async with before(Wedged(), "--pull-rescue-after=30s") as (sidecar, decoder):
        async with sidecar.connected() as (_, writer):
            writer.write(post("/v1/completions", STREAM, PULL))
            await decoder.came()
        async with asyncio.timeout(1):
            await decoder.last.closed.wait()


async def test_with_zero_a_pull_may_hang_for_ever() -> None:
    async with before(Wedged(), "--pull-rescue-after=0") as (sidecar, decoder):
        async with sidecar.connected() as (reader, writer):
            writer.write(post("/v1/completions", STREAM, PULL))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(read_answer(reader), 0.6)
        assert len(posted(decoder)) == 1


@pytest.mark.parametrize(
    ("content", "left"),
    [
        (b'{"a": 1.0,"kv_transfer_params":{"remote_kv_source":{"kv_request_id":"k"}}}', b'{"a":1.0}'),
        (
            b'{"kv_transfer_params":{"x":{"b": 2},"remote_kv_source":{}},"a":1}',
            b'{"kv_transfer_params":{"x":{"b": 2}},"a":1}',
        ),
    ],
)
def test_what_is_left_of_a_body_without_its_directive(content: bytes, left: bytes) -> None:
    assert without_source(content) == left
    assert json.loads(left)
