"""The trial after a rescue, on real sockets: who has it, what wins it, and what gives it back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from sidecar import rescue
from sidecar.call import Call
from sidecar.connectors import CONNECTORS, Connector, Options
from sidecar.plan import Ask, Deliver, Leg, Plan, Start
from sidecar.routing import Route
from tests.engines import COMPLETION, Answer, Got, ScriptedEngine, prefilled, scripted
from tests.serving import PREFILLER, SOURCE
from tests.test_fallback import refusing_port
from tests.test_rescue import EVENTS, PULL, STREAM, WHOLE, Wedged, before, posted

PAUSE_S = 0.4
REFUSED = STREAM.replace(b'"hi"', b'"bad"')
# Longer than the test: whether a trial is given back is seen before it runs out.
PATIENT = "--pull-rescue-after=1s"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescue, "FIRST_PAUSE_S", PAUSE_S)


class Strict(Wedged):
    """An engine that refuses some bodies before it looks at their pull."""

    async def script(self, got: Got, answer: Answer) -> None:
        if b'"bad"' in got.body:
            await answer.json({"error": {"message": "no"}}, 400)
        else:
            await super().script(got, answer)


def directed(engine: ScriptedEngine) -> list[bool]:
    return [b"remote_kv_source" in got.body for got in posted(engine)]


# Refused, several prompts, no JSON.
WITHOUT_PULL = (
    ("/v1/responses", b'{"input":"a","previous_response_id":"x"}'),
    ("/v1/completions", b'{"prompt":["a","b"],"stream":true}'),
    ("/v1/completions", b"{"),
)


async def test_requests_that_send_no_leg_with_a_pull_take_no_trial() -> None:
    engine = Wedged()
    async with before(engine, PATIENT) as (sidecar, decoder):
        await sidecar.post("/v1/completions", STREAM, PULL)
        engine.hangs = False
        await asyncio.sleep(PAUSE_S + 0.05)
        for path, body in WITHOUT_PULL:
            await sidecar.post(path, body, PULL)
        assert not any(directed(decoder)[1:])
        answer = await sidecar.post("/v1/completions", STREAM, PULL)
        assert answer.body == b"".join(EVENTS)
        assert directed(decoder)[-1]


async def test_an_engine_that_refuses_the_trial_has_not_shown_that_it_pulls(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Strict()
    with caplog.at_level(logging.INFO, "sidecar.pulls"):
        async with before(engine) as (sidecar, decoder):
            await sidecar.post("/v1/completions", STREAM, PULL)
            await asyncio.sleep(PAUSE_S + 0.05)
            assert (await sidecar.post("/v1/completions", REFUSED, PULL)).status == 400
            for _ in range(2):  # the next one is the trial, and hangs
                assert (await sidecar.post("/v1/completions", STREAM, PULL)).status == 200
            assert directed(decoder) == [True, False, True, True, False, False]
    [warning] = [entry for entry in caplog.records if entry.name == "sidecar.pulls"]
    assert warning.levelname == "WARNING"


async def test_of_several_requests_at_once_one_is_the_trial() -> None:
    engine = Wedged()
    async with before(engine) as (sidecar, decoder):
        await sidecar.post("/v1/completions", STREAM, PULL)
        await asyncio.sleep(PAUSE_S + 0.05)
        asked = [sidecar.post("/v1/completions", STREAM, PULL) for _ in range(5)]
        assert [answer.status for answer in await asyncio.gather(*asked)] == [200] * 5
        assert sorted(directed(decoder)[2:]) == [False] * 5 + [True]


async def test_pulls_that_hang_together_begin_one_pause() -> None:
    engine = Wedged()
    async with before(engine) as (sidecar, decoder):
        asked = [sidecar.post("/v1/completions", STREAM, PULL) for _ in range(5)]
        assert [answer.status for answer in await asyncio.gather(*asked)] == [200] * 5
        assert sorted(directed(decoder)) == [False] * 5 + [True] * 5
        engine.hangs = False
        await asyncio.sleep(PAUSE_S + 0.1)
        await sidecar.post("/v1/completions", STREAM, PULL)
        assert directed(decoder)[-1]


async def test_a_stream_from_before_the_pause_does_not_end_it() -> None:
    class Long(Wedged):
        async def script(self, got: Got, answer: Answer) -> None:
            if b'"long"' not in got.body:
                await super().script(got, answer)
                return
            await answer.head(headers=[("content-type", "text/event-stream")])
            await answer.chunk(EVENTS[0])
            await go_on.wait()
            await answer.chunk(EVENTS[1])
            await answer.end()

    go_on = asyncio.Event()
    async with before(Long()) as (sidecar, decoder):
        long = asyncio.ensure_future(
            sidecar.post("/v1/completions", STREAM.replace(b'"hi"', b'"long"'), PULL)
        )
        await decoder.came()
        await sidecar.post("/v1/completions", STREAM, PULL)
        go_on.set()
        assert (await long).body == b"".join(EVENTS)
        await sidecar.post("/v1/completions", STREAM, PULL)
        assert directed(decoder) == [True, True, False, False]


async def test_a_local_engine_that_stands_in_is_not_made_to_pull_while_its_pulls_are_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rescue, "FIRST_PAUSE_S", 30.0)
    with refusing_port() as nowhere:
        async with before(Wedged(), "--prefill-failure-policy=local") as (sidecar, decoder):
            await sidecar.post("/v1/completions", STREAM, PULL)
            answer = await sidecar.post("/v1/completions", STREAM, [*PULL, (PREFILLER, nowhere)])
            assert (answer.status, answer.body) == (200, b"".join(EVENTS))
            assert directed(decoder) == [True, False, False]


async def test_a_source_that_gives_nothing_keeps_its_trial_while_the_engine_is_paused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rescue, "FIRST_PAUSE_S", 1.0)
    nothing = COMPLETION | {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}}

    class Empty(Wedged):
        async def script(self, got: Got, answer: Answer) -> None:
            if got.method == "POST" and b"127.0.0.2" in got.body:
                await answer.json(nothing)
            else:
                await super().script(got, answer)

    flags = ("--silent-zero-threshold=1", "--silent-zero-retry=600ms")
    async with before(Empty(), *flags) as (sidecar, decoder):
        await sidecar.post("/v1/completions", WHOLE, PULL)
        await sidecar.post("/v1/completions", STREAM, [(SOURCE, "127.0.0.3:8000")])  # pauses the engine
        await asyncio.sleep(0.6)
        await sidecar.post("/v1/completions", WHOLE, PULL)
        assert directed(decoder) == [True, True, False, False]
        await asyncio.sleep(0.45)
        for _ in range(2):
            await sidecar.post("/v1/completions", WHOLE, PULL)
        assert directed(decoder)[4:] == [True, False]


def asked(leg: Leg, otherwise: Leg) -> Plan:
    yield Ask((leg,))
    return Deliver(otherwise)


def started(leg: Leg, otherwise: Leg) -> Plan:
    yield Start(leg)
    return Deliver(otherwise, after_started=True)


def delivered(leg: Leg, otherwise: Leg) -> Plan:
    yield from ()
    return Deliver(leg)


@pytest.mark.parametrize("sent", [asked, started, delivered])
async def test_a_pull_is_left_out_where_its_engine_is_found_suspended_as_the_leg_is_sent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sent: Callable[[Leg, Leg], Plan]
) -> None:
    def plan(call: Call, route: Route, options: Options) -> Plan:
        assert route.prefiller is not None
        yield Ask((call.prefill(route.prefiller, {}, None),))
        return (yield from sent(call.decode(route.decoder, route.source), call.decode(route.decoder, None)))

    monkeypatch.setattr(rescue, "FIRST_PAUSE_S", 30.0)
    monkeypatch.setitem(CONNECTORS, "offloading", Connector(plan, pulls=True))
    caplog.set_level(logging.INFO, "sidecar.exchange")
    async with before(Wedged()) as (sidecar, decoder), scripted(prefilled) as prefiller:
        await sidecar.post("/v1/completions", STREAM, PULL)
        answer = await sidecar.post("/v1/completions", WHOLE, [*PULL, (PREFILLER, prefiller.netloc)])
        assert (answer.status, answer.json) == (200, COMPLETION)
        assert directed(decoder) == [True, False, False] + [False] * (sent is not delivered)
    lines = [entry.__dict__["fields"] for entry in caplog.records if entry.getMessage() == "exchange"]
    assert lines[1]["reason"] == "pulls_suspended"
