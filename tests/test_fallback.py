"""`--prefill-failure-policy`: what the client gets when no prefiller can be had, on real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from sidecar.call import Call
from sidecar.connectors import CONNECTORS, Connector, Options
from sidecar.plan import Ask, Deliver, Plan, Start
from sidecar.routing import Route
from tests.engines import COMPLETION, Answer, Got, Script, complete, prefilled, scripted
from tests.serving import BODY, PREFILLER, SOURCE, serving

LOCAL = "--prefill-failure-policy=local"
RETRIES = ("--prefill-max-retries=2", "--prefill-retry-backoff=5ms")


@contextmanager
def refusing_port() -> Iterator[str]:
    """An address on which nothing listens, and nothing else will for as long as the block lasts."""
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def answering(status: int) -> Script:
    async def script(got: Got, answer: Answer) -> None:
        await answer.json({"no": 1}, status)

    return script


def line_of(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    [told] = [entry.__dict__["fields"] for entry in caplog.records if entry.getMessage() == "exchange"]
    assert isinstance(told, dict)
    return told


async def test_a_prefiller_that_refuses_connections_is_done_without(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sidecar.exchange")
    with refusing_port() as nowhere:
        async with scripted() as decoder, serving(decoder.port, LOCAL, *RETRIES) as sidecar:
            answer = await sidecar.post(headers=[(PREFILLER, nowhere)])

            assert (answer.status, answer.json, answer.all("x-sidecar-error")) == (200, COMPLETION, [])
            assert json.loads(decoder.last.body) == json.loads(BODY)
    told = line_of(caplog)
    assert (told["reason"], told.get("error")) == ("prefill_failed", None)
    assert [(leg["role"], leg["status"], leg.get("attempts"), leg.get("error")) for leg in told["legs"]] == [
        ("prefill", None, 3, "unreachable"),
        ("decode", 200, None, None),
    ]


async def test_by_default_it_is_a_502() -> None:
    with refusing_port() as nowhere:
        async with scripted() as decoder, serving(decoder.port) as sidecar:
            answer = await sidecar.post(headers=[(PREFILLER, nowhere)])

            assert (answer.status, answer.all("x-sidecar-error"), decoder.requests) == (502, ["502"], [])


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_busy_prefiller_is_asked_again_and_then_done_without(status: int) -> None:
    async with (
        scripted() as decoder,
        scripted(answering(status)) as prefiller,
        serving(decoder.port, LOCAL, *RETRIES) as sidecar,
    ):
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc), ("x-request-id", "r-1")])

        assert (answer.status, answer.json, len(prefiller.requests)) == (200, COMPLETION, 3)
        assert decoder.last.all("x-request-id") == ["r-1"]


@pytest.mark.parametrize("status", [400, 404, 429, 500])
async def test_any_other_status_is_relayed(status: int) -> None:
    async with (
        scripted() as decoder,
        scripted(answering(status)) as prefiller,
        serving(decoder.port, LOCAL, *RETRIES) as sidecar,
    ):
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])

        assert (answer.status, answer.json, len(prefiller.requests)) == (status, {"no": 1}, 1)
        assert decoder.requests == []


async def test_a_prefiller_that_dies_is_a_502() -> None:
    async def dying(got: Got, answer: Answer) -> None:
        answer.drop()

    async with (
        scripted() as decoder,
        scripted(dying) as prefiller,
        serving(decoder.port, LOCAL) as sidecar,
    ):
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])

        assert (answer.status, decoder.requests) == (502, [])


async def test_a_decoder_that_is_not_ready_is_not_asked_twice() -> None:
    async with (
        scripted(answering(503)) as decoder,
        scripted(prefilled) as prefiller,
        serving(decoder.port, LOCAL) as sidecar,
    ):
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])

        assert (answer.status, len(decoder.requests)) == (503, 1)


async def test_the_local_engine_pulls_what_the_prefiller_would_have_pulled() -> None:
    flags = ("--kv-connector=offloading", "--source-guard=off", LOCAL)
    with refusing_port() as nowhere:
        async with scripted() as decoder, serving(decoder.port, *flags) as sidecar:
            await sidecar.post(headers=[(PREFILLER, nowhere), (SOURCE, "127.9.8.7:8000")])
            pull = decoder.last.json["kv_transfer_params"]["remote_kv_source"]
            assert (pull["remote_host"], pull["remote_port"]) == ("127.9.8.7", 7777)

            await sidecar.post(headers=[(PREFILLER, nowhere), (SOURCE, f"127.0.0.1:{sidecar.port}")])
            assert "kv_transfer_params" not in decoder.last.json


def concurrent(call: Call, route: Route, options: Options) -> Plan:
    """Prefill and decode together."""
    assert route.prefiller is not None
    yield Start(call.prefill(route.prefiller, {"n": 1}, None))
    return Deliver(call.decode_after_prefill(route.decoder, b'{"waits":1}'))


def playing(monkeypatch: pytest.MonkeyPatch, plan: Any) -> None:
    monkeypatch.setitem(CONNECTORS, "nixlv2", Connector(plan, pulls=False))


async def waiting_for_blocks(got: Got, answer: Answer) -> None:
    """A decoder that waits for its prefiller, unless it computes the prompt itself."""
    if "kv_transfer_params" in got.json:
        await asyncio.sleep(30)
    await complete(got, answer)


async def test_a_decode_that_waits_for_such_a_prefiller_is_cut_and_one_without_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def busy(got: Got, answer: Answer) -> None:
        await decoder.came()
        await answer.json({}, 503)

    playing(monkeypatch, concurrent)
    async with (
        scripted(waiting_for_blocks) as decoder,
        scripted(busy) as prefiller,
        serving(decoder.port, LOCAL) as sidecar,
    ):
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])

        assert (answer.status, answer.json) == (200, COMPLETION)
        assert [json.loads(got.body) == json.loads(BODY) for got in decoder.requests] == [False, True]
        async with asyncio.timeout(1):
            await decoder.requests[0].closed.wait()


async def test_a_prefill_that_fails_while_the_plan_still_asks_is_done_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def plan(call: Call, route: Route, options: Options) -> Plan:
        assert route.prefiller is not None
        yield Start(call.prefill(route.prefiller, {}, None))
        yield Ask((call.decode_after_prefill(route.decoder, b'{"waits":1}'),))
        raise AssertionError("not reached")

    playing(monkeypatch, plan)
    with refusing_port() as nowhere:
        async with scripted(waiting_for_blocks) as decoder, serving(decoder.port, LOCAL) as sidecar:
            answer = await sidecar.post(headers=[(PREFILLER, nowhere)])

            assert (answer.status, answer.json) == (200, COMPLETION)
            assert json.loads(decoder.last.body) == json.loads(BODY)


async def test_after_the_first_byte_nothing_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    async def busy(got: Got, answer: Answer) -> None:
        await begun.wait()
        await answer.json({}, 503)

    async def streaming(got: Got, answer: Answer) -> None:
        await answer.head(headers=[("content-type", "text/event-stream")])
        await answer.chunk(b'data: {"n":1}\n\n')
        await asyncio.sleep(30)

    begun = asyncio.Event()
    playing(monkeypatch, concurrent)
    async with (
        scripted(streaming) as decoder,
        scripted(busy) as prefiller,
        serving(decoder.port, LOCAL) as sidecar,
    ):
        asked = asyncio.ensure_future(sidecar.post(headers=[(PREFILLER, prefiller.netloc)]))
        await decoder.came()
        await asyncio.sleep(0.1)  # the event has gone through by then; if not, the test fails below
        begun.set()
        answer = await asked

        assert (answer.status, answer.whole, len(decoder.requests)) == (200, False, 1)
        assert answer.body.startswith(b'data: {"n":1}\n\n')
