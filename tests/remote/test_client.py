"""The client against embedded engines and a sidecar, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sidecar.endpoint import Endpoint
from sidecar.remote import NoAnswer, Place, Refused, Remote, Trust, by_body, by_header, connected
from sidecar.remote import client as client_module
from tests.bombs import packed
from tests.engines import Answer, Got, scripted
from tests.lab.bench import BLOCK, KV_BYTES, engines, prompt
from tests.serving import serving
from tests.test_answers import closed_port


@asynccontextmanager
async def remote(url: str, timeout_s: float = 10.0) -> AsyncIterator[Remote]:
    async with connected(Place.parse(url), Trust(), timeout_s=timeout_s) as client:
        yield client


async def test_an_engine_tells_its_facts() -> None:
    async with engines("127.0.0.1") as [engine], remote(engine.url) as client:
        facts = await client.facts()
    assert (facts.model, facts.max_model_tokens, facts.version) == ("tiny", 4096, "0.32.0")
    assert (facts.block_tokens, facts.through_sidecar) == (BLOCK, False)


async def test_a_completion_is_timed_and_a_pull_is_in_the_counters_of_both() -> None:
    async with (
        engines("127.0.0.1", "127.0.0.2") as [a, b],
        remote(a.url) as source,
        remote(b.url) as consumer,
    ):
        await source.complete("tiny", prompt(1))
        answer = await consumer.complete("tiny", prompt(1), by_body(Endpoint(a.p2p_host, a.p2p_port), "id"))
        pulled, gave = await consumer.counters(), await source.counters()
    assert 0 < answer.ttft_ms <= answer.total_ms
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (161, 1, 160)
    assert (pulled.pulled_bytes, pulled.pulled_tokens) == (160 * KV_BYTES, 160)
    assert (gave.stored_bytes, gave.found_chunks) == (160 * KV_BYTES, 160 / BLOCK)


async def test_a_sidecar_is_known_and_directed_by_header() -> None:
    async with engines("127.0.0.2", "127.0.0.1") as [a, b]:
        flags = ("--kv-connector=offloading", f"--p2p-connector-port={a.p2p_port}")
        async with serving(b.port, *flags) as sidecar, remote(f"http://127.0.0.1:{sidecar.port}") as client:
            assert (await client.facts()).through_sidecar
            async with remote(a.url) as source:
                await source.complete("tiny", prompt(1))
            answer = await client.complete("tiny", prompt(1), by_header(Endpoint(a.host, 8000)))
            assert b.core.offloading
            b.core.offloading.drop()  # its session with a, which it would keep for the next pull
    assert answer.cached_tokens == 160


async def test_a_refusal_has_the_engines_own_words() -> None:
    async with engines("127.0.0.1") as [engine], remote(engine.url) as client:
        with pytest.raises(Refused, match="The model `other` does not exist") as refused:
            await client.complete("other", prompt(1))
    assert refused.value.status == 404


async def test_an_engine_that_is_not_there_is_named() -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    async with remote(url) as client:
        with pytest.raises(NoAnswer, match=f"^{url}: Connection refused$"):
            await client.facts()


async def test_a_host_that_cannot_be_asked_for_is_named_too() -> None:
    async with remote("http://xn--a:1") as client:
        with pytest.raises(NoAnswer, match=r"^http://xn--a:1: no name service knows such a host$"):
            await client.facts()


async def test_an_answer_that_does_not_come_ends_by_its_bound() -> None:
    slow = engines("127.0.0.1", profile="glm", time_scale=100.0)
    async with slow as [engine], remote(engine.url, timeout_s=0.2) as client:
        with pytest.raises(NoAnswer, match=r"no whole answer within 0\.2 s"):
            await client.complete("tiny", prompt(1))


async def test_whatever_a_model_says_is_one_token_and_no_end_of_a_line() -> None:
    text = "\u2028\x85".encode()
    events = (
        b'data: {"choices":[{"text":"%b"}]}\n\ndata: {"choices":[],"usage":{"prompt_tokens":9}}\n\n' % text
    )
    pieces = [events[at : at + 7] for at in range(0, len(events), 7)]

    async def script(got: Got, answer: Answer) -> None:
        await answer.events(*pieces)

    async with scripted(script) as engine, remote(f"http://{engine.netloc}") as client:
        assert (await client.complete("tiny", prompt(1))).prompt_tokens == 9


async def test_an_error_within_a_stream_is_a_refusal_with_its_own_code() -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.events(b'data: {"error":{"message":"out of vocabulary","code":400}}\n\n')

    async with scripted(script) as engine, remote(f"http://{engine.netloc}") as client:
        with pytest.raises(Refused, match="answered 400: out of vocabulary") as refused:
            await client.complete("tiny", prompt(1))
    assert refused.value.status == 400


BOMB = b"[" * 200_000


async def test_an_answer_that_is_no_list_of_models_is_told_by_status_and_kind() -> None:
    async def script(got: Got, answer: Answer) -> None:
        contents = {"/v1/models": BOMB, "/version": b'{"version":"\\ud800"}'}
        await answer.head(200, [("content-type", "text/\x1b[2Jhtml")])
        await answer.chunk(contents.get(got.target, b"up 1"))
        await answer.end()

    async with scripted(script) as engine, remote(f"http://{engine.netloc}") as client:
        facts = await client.facts()
    told = r"answered 200 (text/\x1b[2Jhtml, 200,000 bytes) at /v1/models: JSON nested too deep"
    assert (facts.model, facts.version, facts.unlisted) == (None, r"\ud800", told)


async def test_of_a_refusal_that_is_no_error_nothing_is_repeated() -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.head(502, [("content-type", "text/html")])
        await answer.chunk(b"<p>prompt</p>")
        await answer.end()

    async with scripted(script) as engine, remote(f"http://{engine.netloc}") as client:
        with pytest.raises(Refused) as refused:
            await client.complete("tiny", prompt(1))
    assert str(refused.value) == f"http://{engine.netloc}: answered 502 (text/html, 13 bytes)"


async def test_a_question_has_no_more_than_the_time_of_a_request() -> None:
    async def silent(got: Got, answer: Answer) -> None:
        await asyncio.sleep(5)

    async with scripted(silent) as engine, remote(f"http://{engine.netloc}", timeout_s=0.1) as client:
        with pytest.raises(NoAnswer, match=r"no whole answer within 0\.1 s"):
            await client.metrics()


@pytest.mark.parametrize("ask", ["metrics", "facts", "post", "complete"])
async def test_a_packed_answer_is_not_asked_for_and_not_read(ask: str) -> None:
    asks = {
        "metrics": lambda client: client.metrics(),
        "facts": lambda client: client.facts(),
        "post": lambda client: client.post("/v1/completions", b"{}", {}),
        "complete": lambda client: client.complete("tiny", prompt(1)),
    }
    async with scripted(packed("gzip, gzip")) as engine, remote(f"http://{engine.netloc}") as client:
        with pytest.raises(NoAnswer, match="content-encoding 'gzip, gzip', where identity was asked for"):
            await asks[ask](client)
    assert engine.last.all("accept-encoding") == ["identity"]


async def test_an_answer_and_a_stream_over_their_bounds_are_not_read_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "_MOST_BYTES", 64)
    monkeypatch.setattr(client_module, "_MOST_STREAMED_BYTES", 128)

    async def endless(got: Got, answer: Answer) -> None:
        await answer.head()
        while True:
            await answer.chunk(b"data: {}\n\n")

    async with scripted(endless) as engine, remote(f"http://{engine.netloc}") as client:
        with pytest.raises(NoAnswer, match="over 64 bytes"):
            await client.get("/version")
        with pytest.raises(NoAnswer, match="over 128 bytes"):
            await client.complete("tiny", prompt(1))


async def test_a_credential_that_a_peer_repeats_is_not_in_what_it_is_said_to_have_said() -> None:
    async def echoing(got: Got, answer: Answer) -> None:
        said = "".join(got.all("authorization"))
        if got.target == "/metrics":
            await answer.raw(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
            await answer.raw(b'vllm:cache_config_info{block_size="16",x="%b"} 1\n' % said.encode())
            answer.drop()
        elif got.target == "/version":
            await answer.json({"version": said})
        else:
            await answer.json({"error": {"message": f"denied: {said}"}}, status=403)

    trust = Trust(headers={"authorization": "Bearer s3cret"})
    async with (
        scripted(echoing) as engine,
        connected(Place.parse(f"http://{engine.netloc}"), trust, timeout_s=5.0) as client,
    ):
        facts = await client.facts()
        with pytest.raises(Refused, match=r"answered 403: denied: \*\*\*$"):
            await client.complete("tiny", prompt(1))
        unready = await client.get("/ready")
    assert (facts.version, facts.cache["x"]) == ("***", "***")
    assert unready.json() == {"error": {"message": "denied: ***"}}
