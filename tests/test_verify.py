"""Pulls verified by the counters of engines, on real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from sidecar.evidence import Outcome
from sidecar.observers import Observer, PullRecord
from tests.engines import COMPLETION, Answer, Got, ScriptedEngine, complete, prefilled, scripted
from tests.serving import BODY, PREFILLER, SOURCE, Served, serving

LIVE = ("--kv-connector=offloading", "--source-guard=off", "--pull-verification-interval=50ms")
ON = (*LIVE, "--pull-verification=on")
PULL = [(SOURCE, "127.0.0.2:8000")]


class Told(Observer):
    """Keeps what observers are told of pulls."""

    def __init__(self) -> None:
        self.pulls: list[PullRecord] = []

    def pull(self, record: PullRecord) -> None:
        self.pulls.append(record)

    async def of(self, count: int) -> list[PullRecord]:
        """Wait for that many."""
        async with asyncio.timeout(5):
            while len(self.pulls) < count:
                await asyncio.sleep(0.01)
        return self.pulls


@dataclass
class Engine:
    """A vLLM whose counters rise with every request that pulls. gives: bytes and tokens of one pull."""

    gives: tuple[int, int] = (4096, 64)
    usage: dict[str, Any] = field(default_factory=dict)
    pulls: int = 0
    status: int = 200
    scrapes: int = 0

    async def script(self, got: Got, answer: Answer) -> None:
        if got.target == "/metrics":
            self.scrapes += 1
            await answer.raw(self.text())
            return
        self.pulls += b"remote_kv_source" in got.body
        await answer.json({**COMPLETION, "usage": self.usage} if self.usage else COMPLETION)

    def text(self) -> bytes:
        moved, tokens = (self.pulls * amount for amount in self.gives)
        lines = (
            'vllm:kv_offload_tiering_chunk_queries_total{engine="0",tier="1:p2p"} 9',
            f'vllm:kv_offload_tiering_read_bytes_total{{engine="0",tier="1:p2p"}} {moved}',
            f'vllm:prompt_tokens_cached_by_source_total{{engine="0",source="p2p"}} {tokens}',
            'vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 1000',
            'vllm:request_prefill_time_seconds_sum{engine="0"} 2.5',
        )
        content = "\n".join(lines).encode()
        head = f"HTTP/1.1 {self.status} Said\r\ncontent-length: {len(content)}\r\n\r\n"
        return head.encode() + content


@asynccontextmanager
async def verified(engine: Engine, *flags: str) -> AsyncIterator[tuple[Served, Told]]:
    """A sidecar with pull verification before this engine, and what it tells."""
    told = Told()
    async with scripted(engine.script) as decoder, serving(decoder.port, *flags, watchers=[told]) as sidecar:
        await asyncio.sleep(0.1)  # the first look, at the start
        yield sidecar, told


async def test_a_pull_tells_what_it_moved_and_what_that_saved() -> None:
    engine = Engine(usage={"prompt_tokens": 70, "prompt_tokens_details": {"cached_tokens": 64}})
    async with verified(engine, *ON) as (sidecar, told):
        await sidecar.post(headers=[*PULL, ("x-request-id", "r-1")])
        [pull] = await told.of(1)
    assert (pull.outcome, pull.moved_bytes, pull.moved_tokens) == (Outcome.MOVED, 4096, 64)
    assert (pull.prompt_tokens, pull.cached_tokens, pull.saved_s) == (70, 64, 0.16)
    assert (pull.source.netloc, pull.request_id, str(pull.role)) == ("127.0.0.2:7777", "r-1", "decode")
    assert pull.first_byte_s is not None
    assert pull.first_byte_s > pull.started_s


async def test_a_pull_that_moved_nothing_says_so() -> None:
    async with verified(Engine(gives=(0, 0)), *ON) as (sidecar, told):
        await sidecar.post(headers=PULL)
        [pull] = await told.of(1)
    assert (pull.outcome, pull.moved_bytes, pull.moved_tokens, pull.saved_s) == (Outcome.NOTHING, 0, 0, None)


async def test_pulls_at_once_are_summed_up_and_not_divided() -> None:
    engine = Engine()
    async with verified(engine, *ON) as (sidecar, told):
        await asyncio.gather(*(sidecar.post(headers=PULL) for _ in range(3)))
        pulls = await told.of(3)
    assert {pull.outcome for pull in pulls} == {Outcome.UNKNOWN}
    assert {pull.moved_bytes for pull in pulls} == {None}


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_usage_of_no_cached_token_is_proof_enough(*, streamed: bool) -> None:
    usage = {"prompt_tokens": 70, "prompt_tokens_details": {"cached_tokens": 0}}

    async def answering(got: Got, answer: Answer) -> None:
        if streamed:
            end = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
            await answer.events(b'data: {"choices":[{"text":"\\"usage\\""}]}\n\n', end, b"data: [DONE]\n\n")
        else:
            await answer.json({"choices": [{"text": '"cached_tokens":9'}], "usage": usage})

    told = Told()
    async with scripted(answering) as decoder, serving(decoder.port, *LIVE, watchers=[told]) as sidecar:
        await sidecar.post(headers=PULL)
        [pull] = await told.of(1)
        assert [got.target for got in decoder.requests] == ["/v1/chat/completions"]  # nobody asked for a look
    assert (pull.outcome, pull.prompt_tokens, pull.cached_tokens) == (Outcome.NOTHING, 70, 0)


_TEXT = b'data: {"choices":[{"text":"a"}]}\n\n'
_USAGE = b'data: {"usage":{"prompt_tokens":70,"prompt_tokens_details":{"cached_tokens":0}}}\n\n'
_DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    "pieces",
    [
        (_TEXT, _USAGE[:30], _USAGE[30:], _DONE),
        (_TEXT, _USAGE + _DONE),
        (_USAGE, *([_TEXT] * 9), _DONE),  # Anthropic's stand in the first event
        (_TEXT, _USAGE, b": still here\n\n", _DONE),
        (_TEXT, *(_USAGE[at : at + 5] for at in range(0, len(_USAGE), 5)), _DONE),
        (_USAGE[:24], _USAGE[24:], *([_TEXT] * 300), _DONE),
        (_TEXT * 300, _USAGE[:24], _USAGE[24:], _DONE),
        (_USAGE + _TEXT * 300, *([_TEXT] * 9), _DONE),
        (_USAGE[:40], _USAGE[40:] + _TEXT * 300 + _DONE),
        (_USAGE, _USAGE[:28], b'7,"x":"%b' % (b"a" * 5000 + b'"') + b'9,"y":"%b"' % (b"b" * 4088)),
    ],
    ids=[
        "in two pieces",
        "with the end",
        "first",
        "before a comment",
        "in many pieces",
        "first, and cut within a number",
        "cut within a number",
        "first, in a large piece",
        "first, and cut before a large piece",
        "a key, and much later what seems to be its number",
    ],
)
async def test_a_streams_usage_is_found_in_its_first_and_its_last_pieces(pieces: tuple[bytes, ...]) -> None:
    async def answering(got: Got, answer: Answer) -> None:
        await answer.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
        await answer.raw(b"transfer-encoding: chunked\r\n\r\n")
        for piece in pieces:
            await answer.raw(b"%x\r\n%b\r\n" % (len(piece), piece))
            await asyncio.sleep(0.01)  # each in a read of its own
        await answer.raw(b"0\r\n\r\n")

    told = Told()
    async with scripted(answering) as decoder, serving(decoder.port, *LIVE, watchers=[told]) as sidecar:
        got = await sidecar.post(headers=PULL)
        [pull] = await told.of(1)
    assert got.body == b"".join(pieces)
    assert (pull.outcome, pull.prompt_tokens, pull.cached_tokens) == (Outcome.NOTHING, 70, 0)


async def test_a_documents_usage_is_found_however_small_its_pieces() -> None:
    usage = b'"usage":{"prompt_tokens":70,"prompt_tokens_details":{"cached_tokens":0}}'
    content = b'{"choices":[{"text":"%b"}],%b}' % (b"a" * 9000, usage)

    async def answering(got: Got, answer: Answer) -> None:
        await answer.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
        await answer.raw(b"content-length: %d\r\n\r\n" % len(content))
        cuts = [0, 8990, *range(9000, len(content), 7), len(content)]
        for start, end in pairwise(cuts):
            await answer.raw(content[start:end])
            await asyncio.sleep(0.002)

    told = Told()
    async with scripted(answering) as decoder, serving(decoder.port, *LIVE, watchers=[told]) as sidecar:
        await sidecar.post(headers=PULL)
        [pull] = await told.of(1)
    assert (pull.prompt_tokens, pull.cached_tokens) == (70, 0)


@pytest.mark.parametrize("status", [404, 500])
async def test_an_engine_without_metrics_leaves_pulls_unknown_and_fails_no_request(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with verified(Engine(status=status), *ON) as (sidecar, told):
        answers = [await sidecar.post(headers=PULL) for _ in range(2)]
        pulls = await told.of(2)
    assert [answer.status for answer in answers] == [200, 200]
    assert [pull.outcome for pull in pulls] == [Outcome.UNKNOWN, Outcome.UNKNOWN]
    assert [(pull.moved_bytes, pull.moved_tokens) for pull in pulls] == [(None, None)] * 2
    warnings = [record.getMessage() for record in caplog.records if "cannot be verified" in record.message]
    assert len(warnings) == 1
    assert warnings[0].endswith(f"cannot be verified: status {status}")


async def test_an_engine_is_looked_at_only_while_pulls_are_unsettled() -> None:
    engine = Engine()
    async with verified(engine, *ON) as (sidecar, told):
        await sidecar.post()
        await asyncio.sleep(0.2)
        assert engine.scrapes == 1
        await sidecar.post(headers=PULL)
        await told.of(1)
        seen = engine.scrapes
        await asyncio.sleep(0.2)
        assert engine.scrapes == seen


async def test_a_pull_of_a_prefiller_is_proven_by_zeros_and_usage_only() -> None:
    told = Told()
    prefiller_counts = Engine()

    async def prefill(got: Got, answer: Answer) -> None:
        if got.target == "/metrics":
            await answer.raw(prefiller_counts.text())
        else:
            prefiller_counts.pulls += 1
            await prefilled(got, answer)

    async with (
        scripted(complete) as decoder,
        scripted(prefill) as prefiller,
        serving(decoder.port, *ON, watchers=[told]) as sidecar,
    ):
        for _ in range(2):
            await sidecar.post(headers=[*PULL, (PREFILLER, prefiller.netloc)])
        pulls = await told.of(2)
        assert prefiller.requests[0].target == "/v1/chat/completions"
    assert [(str(pull.role), pull.engine.netloc) for pull in pulls] == [("prefill", prefiller.netloc)] * 2
    assert {pull.outcome for pull in pulls} == {Outcome.UNKNOWN}
    assert {pull.cached_tokens for pull in pulls} == {2}


class Scraped:
    """An engine that answers as a NIXL prefiller, or with its counters."""

    def __init__(self) -> None:
        self.scrapes = 0

    async def script(self, got: Got, answer: Answer) -> None:
        if got.target == "/metrics":
            self.scrapes += 1
            await answer.raw(Engine().text())
        else:
            await prefilled(got, answer)


async def test_only_the_engine_whose_leg_pulls_and_its_source_are_looked_at() -> None:
    told, decodes, prefills, gives = Told(), Scraped(), Scraped(), Scraped()
    flags = (
        "--enable-p2p-pull",
        "--source-guard=off",
        "--pull-verification=on",
        "--pull-verification-interval=50ms",
    )
    async with (
        scripted(decodes.script) as decoder,
        scripted(prefills.script) as prefiller,
        scripted(gives.script) as source,
        serving(decoder.port, *flags, watchers=[told]) as sidecar,
    ):
        await asyncio.sleep(0.1)
        assert (decodes.scrapes, prefills.scrapes) == (1, 0)  # what the first pull's count is compared with
        await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])
        await asyncio.sleep(0.3)
        assert (decodes.scrapes, prefills.scrapes, gives.scrapes) == (1, 0, 0)  # a handoff is no pull
        for _ in range(2):
            await sidecar.post(headers=[(PREFILLER, prefiller.netloc), (SOURCE, source.netloc)])
        pulls = await told.of(2)
        await asyncio.sleep(0.3)
    assert {pull.engine.netloc for pull in pulls} == {prefiller.netloc}
    assert (decodes.scrapes, gives.scrapes) == (1, 1)
    assert 1 <= prefills.scrapes <= 2


async def test_a_prefiller_that_no_resolver_can_name_ends_nothing_but_its_own_request() -> None:
    engine = Engine()
    flags = ("--enable-p2p-pull", "--pull-verification=on", "--pull-verification-interval=50ms")
    async with verified(engine, *flags, "--source-guard=off") as (sidecar, told):
        for _ in range(2):
            answer = await sidecar.post(headers=[*PULL, (PREFILLER, "xn--a:8000")])
            assert answer.status >= 500
            await asyncio.sleep(0.2)  # a look at that engine
        assert (await sidecar.post(headers=PULL)).status == 200
        assert (await told.of(3))[2].outcome is Outcome.MOVED


async def test_a_source_that_gives_nothing_is_left_alone_and_tried_again() -> None:
    engine = Engine(usage={"prompt_tokens": 70, "prompt_tokens_details": {"cached_tokens": 0}})
    flags = (*LIVE, "--silent-zero-threshold=2", "--silent-zero-retry=1s")
    async with verified(engine, *flags) as (sidecar, told):
        for _ in range(4):
            assert (await sidecar.post(headers=PULL)).status == 200
        assert engine.pulls == 2
        await asyncio.sleep(1.01)
        for _ in range(2):
            await sidecar.post(headers=PULL)
        assert (engine.pulls, len(told.pulls)) == (3, 3)


async def test_a_client_that_leaves_before_the_first_byte_leaves_no_pull_open() -> None:
    told = Told()

    async def silent(got: Got, answer: Answer) -> None:
        if got.target == "/metrics":
            await answer.raw(Engine().text())
        else:
            await asyncio.sleep(30)

    async with scripted(silent) as decoder, serving(decoder.port, *ON, watchers=[told]) as sidecar:
        await asyncio.sleep(0.1)  # the first look, at the start
        async with sidecar.connected() as (_, writer):
            head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\n{SOURCE}: 127.0.0.2:8000\r\n"
            writer.write(f"{head}content-length: {len(BODY)}\r\n\r\n".encode() + BODY)
            await _posted(decoder)
        [pull] = await told.of(1)
    assert (pull.first_byte_s, pull.outcome) == (None, Outcome.NOTHING)


async def _posted(engine: ScriptedEngine) -> None:
    posted: Callable[[], bool] = lambda: any(got.method == "POST" for got in engine.requests)  # noqa: E731
    async with asyncio.timeout(5):
        while not posted():
            await asyncio.sleep(0.002)
