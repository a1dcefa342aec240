"""Every kind of step that a plan can take, on real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sidecar.call import Call
from sidecar.connectors import CONNECTORS, Connector, Options
from sidecar.endpoint import Endpoint
from sidecar.errors import UnusableAnswer
from sidecar.plan import Ask, Deliver, Emit, Finish, Leg, Offer, Peer, Plan, Role, Start
from sidecar.routing import Route
from tests.engines import COMPLETION, Answer, Got, Script, complete, prefilled, scripted
from tests.serving import PREFILLER, post, read_answer, serving


def asking(*ports: int) -> Connector:
    """A connector that asks these prefillers at once and then decodes with what the first answered."""

    def plan(call: Call, route: Route, options: Options) -> Plan:
        peers = [Peer(Endpoint("127.0.0.1", port), 7777) for port in ports]
        replies = yield Ask(tuple(call.prefill(peer, {"n": n}, None) for n, peer in enumerate(peers)))
        return Deliver(call.decode_after_prefill(route.decoder, replies[0].body["kv_transfer_params"]))

    return Connector(plan, pulls=False)


async def test_legs_of_one_step_run_together_and_answer_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    both = asyncio.Event()

    async def first(got: Got, answer: Answer) -> None:
        await both.wait()
        await prefilled(got, answer)

    async def second(got: Got, answer: Answer) -> None:
        both.set()
        await answer.json({"kv_transfer_params": {"second": 1}})

    async with scripted() as decoder, scripted(first) as one, scripted(second) as two:
        monkeypatch.setitem(CONNECTORS, "nixlv2", asking(one.port, two.port))
        async with serving(decoder.port) as sidecar:
            answer = await sidecar.post(headers=[(PREFILLER, one.netloc)])

        assert (answer.status, one.last.json["kv_transfer_params"]) == (200, {"n": 0})
        assert two.last.json["kv_transfer_params"] == {"n": 1}
        assert decoder.last.json["kv_transfer_params"]["remote_engine_id"] == "engine-p"


async def test_the_first_leg_that_fails_ends_the_others_and_is_relayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(got: Got, answer: Answer) -> None:
        await asyncio.sleep(30)

    async def refusing(got: Got, answer: Answer) -> None:
        await one.came()
        await answer.json({"busy": 1}, 429)

    async with scripted() as decoder, scripted(never) as one, scripted(refusing) as two:
        monkeypatch.setitem(CONNECTORS, "nixlv2", asking(one.port, two.port))
        async with serving(decoder.port) as sidecar:
            answer = await sidecar.post(headers=[(PREFILLER, one.netloc)])

            assert (answer.status, answer.json, decoder.requests) == (429, {"busy": 1}, [])
            async with asyncio.timeout(1):
                await one.last.closed.wait()


def playing(monkeypatch: pytest.MonkeyPatch, plan: Callable[[Call, Route, Options], Plan]) -> None:
    """Let this plan run for requests that name a prefiller."""
    monkeypatch.setitem(CONNECTORS, "nixlv2", Connector(plan, pulls=False))


def starting(**deliver: Any) -> Callable[[Call, Route, Options], Plan]:
    """A plan that starts the prefill, and decodes at once."""

    def plan(call: Call, route: Route, options: Options) -> Plan:
        assert route.prefiller is not None
        yield Start(call.prefill(route.prefiller, {"n": 1}, None))
        return Deliver(call.decode(route.decoder, None), **deliver)

    return plan


async def never(got: Got, answer: Answer) -> None:
    await asyncio.sleep(30)


async def test_a_started_leg_runs_beside_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def waiting(got: Got, answer: Answer) -> None:
        await prefiller.came()
        await complete(got, answer)

    async def late(got: Got, answer: Answer) -> None:
        await decoder.came()
        await prefilled(got, answer)

    playing(monkeypatch, starting())
    async with (
        scripted(waiting) as decoder,
        scripted(late) as prefiller,
        serving(decoder.port) as sidecar,
    ):
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])
        assert (answer.status, answer.json, answer.whole) == (200, COMPLETION, True)


async def test_a_started_leg_outlives_an_answer_that_was_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    done = asyncio.Event()

    async def slow(got: Got, answer: Answer) -> None:
        await done.wait()
        await prefilled(got, answer)

    playing(monkeypatch, starting())
    async with scripted() as decoder, scripted(slow) as prefiller, serving(decoder.port) as sidecar:
        async with sidecar.connected() as (reader, writer):
            for _ in range(2):  # the connection takes the next request although a leg of the first still runs
                writer.write(post(headers=[(PREFILLER, prefiller.netloc)]))
                answer = await read_answer(reader)
                assert (answer.status, answer.whole) == (200, True)
        await prefiller.came(2)
        await asyncio.sleep(0.05)  # the client has left: its answers were complete, so nothing is cut
        assert not any(got.closed.is_set() for got in prefiller.requests)
        done.set()


@pytest.mark.parametrize("status", [429, 503])
async def test_a_started_leg_that_fails_first_ends_decode_and_is_relayed(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    async def refusing(got: Got, answer: Answer) -> None:
        await decoder.came()
        await answer.json({"busy": 1}, status)

    playing(monkeypatch, starting())
    async with scripted(never) as decoder, scripted(refusing) as prefiller, serving(decoder.port) as sidecar:
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])
        assert (answer.status, answer.json) == (status, {"busy": 1})
        async with asyncio.timeout(1):
            await decoder.last.closed.wait()


async def test_a_started_leg_that_fails_after_the_first_byte_cuts_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = asyncio.Event()

    async def begin(got: Got, answer: Answer) -> None:
        await answer.head(headers=[("content-type", "text/event-stream")])
        await answer.chunk(b'data: {"n":1}\n\n')
        begun.set()
        await asyncio.sleep(30)

    async def failing(got: Got, answer: Answer) -> None:
        await begun.wait()
        await asyncio.sleep(0.02)
        await answer.json({"late": 1}, 500)

    playing(monkeypatch, starting())
    async with (
        scripted(begin) as decoder,
        scripted(failing) as prefiller,
        serving(decoder.port) as sidecar,
    ):
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])
        assert (answer.status, answer.whole) == (200, False)
        assert answer.body.startswith(b'data: {"n":1}\n\n\n\ndata: {"error":')
        async with asyncio.timeout(1):
            await decoder.last.closed.wait()


async def test_a_client_that_goes_away_ends_the_started_leg_too(monkeypatch: pytest.MonkeyPatch) -> None:
    playing(monkeypatch, starting())
    async with scripted(never) as decoder, scripted(never) as prefiller, serving(decoder.port) as sidecar:
        async with sidecar.connected() as (_, writer):
            writer.write(post(headers=[(PREFILLER, prefiller.netloc)]))
            await decoder.came()
            await prefiller.came()
        async with asyncio.timeout(1):
            await decoder.last.closed.wait()
            await prefiller.last.closed.wait()


async def test_a_failing_decode_leaves_the_started_leg_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refusing(got: Got, answer: Answer) -> None:
        await prefiller.came()
        await answer.json({"full": 1}, 429)

    async def dying(got: Got, answer: Answer) -> None:
        await prefiller.came(2)
        answer.drop()

    playing(monkeypatch, starting())
    async with scripted(refusing) as decoder, scripted(never) as prefiller:
        async with serving(decoder.port, "--shutdown-grace=100ms") as sidecar:
            answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])
            assert (answer.status, answer.json) == (429, {"full": 1})
            decoder.script = dying
            assert (await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])).status == 502
            await asyncio.sleep(0.05)
            assert not any(got.closed.is_set() for got in prefiller.requests)
        async with asyncio.timeout(1):  # the sidecar has stopped: nothing is left
            for got in prefiller.requests:
                await got.closed.wait()


async def test_an_answer_is_held_until_the_started_leg_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    go = asyncio.Event()

    async def early(got: Got, answer: Answer) -> None:
        await answer.events(b'data: {"n":1}\n\n', b"data: [DONE]\n\n")

    async def late(got: Got, answer: Answer) -> None:
        await go.wait()
        await prefilled(got, answer)

    playing(monkeypatch, starting(after_started=True))
    async with scripted(early) as decoder, scripted(late) as prefiller, serving(decoder.port) as sidecar:
        async with sidecar.connected() as (reader, writer):
            writer.write(post(headers=[(PREFILLER, prefiller.netloc)]))
            await decoder.came()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.1)
            go.set()
            answer = await read_answer(reader)
        assert (answer.status, answer.body, answer.whole) == (200, b'data: {"n":1}\n\ndata: [DONE]\n\n', True)
        assert prefiller.last.answered_s is not None
        assert answer.times_s[0] >= prefiller.last.answered_s - 0.05


async def test_a_held_answer_that_dies_is_a_502(monkeypatch: pytest.MonkeyPatch) -> None:
    async def dying(got: Got, answer: Answer) -> None:
        await answer.head(headers=[("content-type", "text/event-stream")])
        await answer.chunk(b'data: {"n":1}\n\n')
        answer.drop()

    async def late(got: Got, answer: Answer) -> None:
        await decoder.came()
        await asyncio.sleep(0.05)
        await prefilled(got, answer)

    playing(monkeypatch, starting(after_started=True))
    async with scripted(dying) as decoder, scripted(late) as prefiller, serving(decoder.port) as sidecar:
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])
        assert (answer.status, answer.json["message"]) == (502, "decode aborted before sending a response")


async def test_a_leg_that_is_over_its_own_time_limit_is_a_504(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(call: Call, route: Route, options: Options) -> Plan:
        assert route.prefiller is not None
        yield Start(replace(call.prefill(route.prefiller, {}, None), timeout_s=0.1))
        return Deliver(call.decode(route.decoder, None), after_started=True)

    playing(monkeypatch, plan)
    async with scripted() as decoder, scripted(never) as prefiller, serving(decoder.port) as sidecar:
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])
        assert (answer.status, answer.json["message"]) == (
            504,
            "the prefill engine did not answer within 0.1 s",
        )
        async with asyncio.timeout(1):
            await prefiller.last.closed.wait()


@pytest.mark.parametrize(("status", "expected"), [(503, 200), (500, 500)])
async def test_what_stands_in_answers_when_a_started_leg_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch, status: int, expected: int
) -> None:
    def plan(call: Call, route: Route, options: Options) -> Plan:
        assert route.prefiller is not None
        yield Start(call.prefill(route.prefiller, {}, None))
        alone = Deliver(call.uncapped(Role.DECODE, route.decoder, {"alone": b"true"}), handoff_lost="gone")
        return Deliver(call.decode(route.decoder, None), otherwise=alone)

    async def decode(got: Got, answer: Answer) -> None:
        if "alone" not in got.json:
            await asyncio.sleep(30)
        await complete(got, answer)

    async def refusing(got: Got, answer: Answer) -> None:
        await decoder.came()
        await answer.json({}, status)

    playing(monkeypatch, plan)
    async with (
        scripted(decode) as decoder,
        scripted(refusing) as prefiller,
        serving(decoder.port) as sidecar,
    ):
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])
        assert answer.status == expected
        async with asyncio.timeout(1):
            await decoder.requests[0].closed.wait()


def offering(call: Call, route: Route, options: Options) -> Plan:
    """Decode first; the answer may say that it is none, and then the same with a mark."""
    yield Offer(call.decode(route.decoder, None), lambda body: "no" in body)
    return Deliver(call.uncapped(Role.DECODE, route.decoder, {"again": b"true"}))


EVENT = b'data: {"choices":[]}\n\n'


@pytest.mark.parametrize(
    ("first", "taken"),
    [
        ((b'data: {"no":1}\n\n',), False),
        ((EVENT, b'data: {"no":1}\n\n', EVENT), False),
        ((b'data: {"choices":[]}\r\n\r\nda', b'ta: {"no":1}\r\n\r\n'), False),
        ((EVENT, EVENT, b'data: {"no":1}\n\n'), True),
        ((EVENT,), True),
        ((), True),
    ],
)
async def test_an_offered_stream_is_taken_unless_one_of_its_first_events_refuses(
    monkeypatch: pytest.MonkeyPatch, first: tuple[bytes, ...], *, taken: bool
) -> None:
    async def decoding(got: Got, answer: Answer) -> None:
        if "again" in got.json:
            await complete(got, answer)
        else:
            await answer.events(*first, gap_s=0.01)

    playing(monkeypatch, offering)
    async with scripted(decoding) as decoder, serving(decoder.port) as sidecar:
        answer = await sidecar.post(headers=[(PREFILLER, "127.0.0.1:9")])
        assert (answer.status, answer.whole) == (200, True)
        assert answer.body == (b"".join(first) if taken else json.dumps(COMPLETION).encode())
        assert len(decoder.requests) == (1 if taken else 2)


@pytest.mark.parametrize(
    ("document", "taken"), [({"no": 1}, False), ({"text": "x" * 200_000}, True), ([], True)]
)
async def test_an_offered_document_is_taken_unless_it_refuses(
    monkeypatch: pytest.MonkeyPatch, document: Any, *, taken: bool
) -> None:
    async def decoding(got: Got, answer: Answer) -> None:
        await answer.json(COMPLETION if "again" in got.json else document)

    playing(monkeypatch, offering)
    async with scripted(decoding) as decoder, serving(decoder.port) as sidecar:
        answer = await sidecar.post(headers=[(PREFILLER, "127.0.0.1:9")])
        assert (answer.json, answer.whole) == (document if taken else COMPLETION, True)


@pytest.mark.parametrize("status", [400, 500])
async def test_an_offered_error_is_an_answer(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    async def refusing(got: Got, answer: Answer) -> None:
        await answer.json({"no": 1}, status)

    playing(monkeypatch, offering)
    async with scripted(refusing) as decoder, serving(decoder.port) as sidecar:
        answer = await sidecar.post(headers=[(PREFILLER, "127.0.0.1:9")])
        assert (answer.status, answer.json, len(decoder.requests)) == (status, {"no": 1}, 1)


async def test_an_offer_that_dies_before_its_first_event_is_a_502(monkeypatch: pytest.MonkeyPatch) -> None:
    async def dying(got: Got, answer: Answer) -> None:
        await answer.head(headers=[("content-type", "text/event-stream")])
        await answer.chunk(b": ping\n\n")
        answer.drop()

    playing(monkeypatch, offering)
    async with scripted(dying) as decoder, serving(decoder.port) as sidecar:
        answer = await sidecar.post(headers=[(PREFILLER, "127.0.0.1:9")])
        assert (answer.status, answer.all("x-sidecar-error")) == (502, ["502"])


def looking_up(port: int, cache_s: float, timeout_s: float = 30.0) -> Callable[[Call, Route, Options], Plan]:
    """A plan that asks one question of the server at `port` and then decodes with its answer."""

    def plan(call: Call, route: Route, options: Options) -> Plan:
        where = Endpoint("127.0.0.1", port)
        lookup = Leg(Role.LOOKUP, where, b"GET", b"/query", (), b"", timeout_s=timeout_s)
        [reply] = yield Ask((lookup,), cache_s)
        return Deliver(call.decode_after_prefill(route.decoder, reply.content))

    return plan


async def test_a_remembered_answer_is_asked_once_until_it_expires_or_a_leg_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def map_of(got: Got, answer: Answer) -> None:
        assert got.method == "GET"
        await answer.json({"engine": len(bootstrap.requests)})

    async def failing(got: Got, answer: Answer) -> None:
        await answer.json({}, 500)

    async def seen() -> int:
        await sidecar.post(headers=[(PREFILLER, "127.0.0.1:9")])
        return int(decoder.last.json["kv_transfer_params"]["engine"])

    async with scripted() as decoder, scripted(map_of) as bootstrap:
        playing(monkeypatch, looking_up(bootstrap.port, 1.0))
        async with serving(decoder.port) as sidecar:
            assert [await seen(), await seen()] == [1, 1]
            await asyncio.sleep(1.01)
            assert await seen() == 2
            decoder.script = failing
            assert await seen() == 2
            decoder.script = complete
            assert await seen() == 3


async def test_an_answer_that_the_plan_finds_of_no_use_is_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def map_of(got: Got, answer: Answer) -> None:
        await answer.json({"engine": 1} if len(bootstrap.requests) > 1 else {})

    def plan(call: Call, route: Route, options: Options) -> Plan:
        lookup = Leg(Role.LOOKUP, Endpoint("127.0.0.1", bootstrap.port), b"GET", b"/query", (), b"")
        [reply] = yield Ask((lookup,), 30)
        if "engine" not in reply.body:
            raise UnusableAnswer(lookup, "no engine")
        return Deliver(call.decode_after_prefill(route.decoder, reply.content))

    async with scripted() as decoder, scripted(map_of) as bootstrap:
        playing(monkeypatch, plan)
        async with serving(decoder.port) as sidecar:
            answers = [await sidecar.post(headers=[(PREFILLER, "127.0.0.1:9")]) for _ in range(3)]
        assert [answer.status for answer in answers] == [502, 200, 200]
        assert (answers[0].json["message"], len(bootstrap.requests)) == ("no engine", 2)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (never, "the lookup engine did not answer within 0.5 s"),
        (None, "the lookup engine answered 404"),
    ],
)
async def test_a_question_without_an_answer_is_a_502(
    monkeypatch: pytest.MonkeyPatch, script: Script | None, says: str
) -> None:
    async def unknown(got: Got, answer: Answer) -> None:
        await answer.json({}, 404)

    async with scripted() as decoder, scripted(script or unknown) as bootstrap:
        playing(monkeypatch, looking_up(bootstrap.port, 30, 0.5 if script else 30))
        async with serving(decoder.port) as sidecar:
            answer = await sidecar.post(headers=[(PREFILLER, "127.0.0.1:9")])
        assert (answer.status, answer.json["message"], decoder.requests) == (502, says, [])


def composing(call: Call, route: Route, options: Options) -> Plan:
    """An answer of two pieces, with a leg asked between them."""
    headers = ((b"content-type", b"text/event-stream"),)
    yield Emit(headers, b"data: 1\n\n")
    yield Ask((call.uncapped(Role.DECODE, route.decoder, {}),))
    yield Emit(headers, b"data: 2\n\n")
    return Finish()


async def test_a_composed_answer_reaches_the_client_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    playing(monkeypatch, composing)
    async with scripted() as decoder, serving(decoder.port) as sidecar:
        answer = await sidecar.post(headers=[(PREFILLER, "127.0.0.1:9")])
        assert (answer.status, answer.body, answer.whole) == (200, b"data: 1\n\ndata: 2\n\n", True)
        assert answer.all("content-type") == ["text/event-stream"]


async def test_a_composed_answer_whose_leg_fails_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(got: Got, answer: Answer) -> None:
        await answer.json({}, 500)

    playing(monkeypatch, composing)
    async with scripted(failing) as decoder, serving(decoder.port) as sidecar:
        answer = await sidecar.post(headers=[(PREFILLER, "127.0.0.1:9")])
        assert (answer.status, answer.whole) == (200, False)
        assert answer.body.startswith(b'data: 1\n\n\n\ndata: {"error":')


async def test_a_composed_document_is_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(call: Call, route: Route, options: Options) -> Plan:
        [reply] = yield Ask((call.uncapped(Role.DECODE, route.decoder, {}),))
        return Finish(replace(reply, headers=((b"content-type", b"application/json"),), content=b"{}"))

    playing(monkeypatch, plan)
    async with scripted() as decoder, serving(decoder.port) as sidecar:
        answer = await sidecar.post(headers=[(PREFILLER, "127.0.0.1:9")])
        assert (answer.status, answer.reason, answer.body, answer.whole) == (200, "Said", b"{}", True)
