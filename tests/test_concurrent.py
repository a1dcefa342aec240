"""Prefill and decode side by side (`sglang`, `mooncake`): when each leg runs, and who survives whom."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from time import monotonic

import pytest

from sidecar.api import APIS
from tests.engines import COMPLETION, Answer, Got, Script, ScriptedEngine, complete, scripted
from tests.serving import BODY, PREFILLER, Said, Served, post, read_answer, serving

STREAM = BODY[:-1] + b',"stream":true}'
# What tells that something happened at once, or because of something else, on a machine with other work.
SOON_S = 3.0

concurrent = pytest.mark.parametrize("connector", ["sglang", "mooncake"])


async def never(got: Got, answer: Answer) -> None:
    """An engine that computes for ever."""
    await asyncio.sleep(30)


async def engines(got: Got, answer: Answer) -> None:
    """A bootstrap server of one rank."""
    await answer.json({"0": {"engine_id": "e-0", "worker_addr": {}}})


@dataclass
class Pair:
    """A prefiller and a decoder with the sidecar before it."""

    sidecar: Served
    prefiller: ScriptedEngine
    decoder: ScriptedEngine
    bootstrap: ScriptedEngine

    @property
    def headers(self) -> list[tuple[str, str]]:
        return [(PREFILLER, self.prefiller.netloc)]

    async def post(self, path: str = "/v1/chat/completions", body: bytes = BODY) -> Said:
        return await self.sidecar.post(path, body, self.headers)


@asynccontextmanager
async def paired(connector: str, prefill: Script, decode: Script, *flags: str) -> AsyncIterator[Pair]:
    async with scripted(prefill) as prefiller, scripted(decode) as decoder, scripted(engines) as bootstrap:
        port = {"MOONCAKE_BOOTSTRAP_PORT": str(bootstrap.port)}
        chosen = f"--kv-connector={connector}"
        async with serving(decoder.port, chosen, *flags, environ=port) as sidecar:
            yield Pair(sidecar, prefiller, decoder, bootstrap)


async def closed(got: Got) -> float:
    """When the sidecar closed the connection of a request that was not answered."""
    async with asyncio.timeout(2):
        await got.closed.wait()
    assert got.closed_s is not None
    return got.closed_s


async def answered(got: Got) -> float:
    """When the engine's script had given its answer."""
    async with asyncio.timeout(2):
        while got.answered_s is None:
            await asyncio.sleep(0.002)
    return got.answered_s


@concurrent
async def test_both_legs_run_at_once_and_the_answer_may_wait_for_the_prefill(connector: str) -> None:
    async def early(got: Got, answer: Answer) -> None:
        await pair.decoder.came()
        await complete(got, answer)

    async def late(got: Got, answer: Answer) -> None:
        await pair.prefiller.came()
        await asyncio.sleep(0.05)
        await complete(got, answer)

    async with paired(connector, early, late) as pair:
        answer = await pair.post()
        assert (answer.status, answer.json, answer.whole) == (200, COMPLETION, True)
        prefill, decode = pair.prefiller.last, pair.decoder.last
        answered_s = [await answered(got) for got in (prefill, decode)]
        assert max(prefill.came_s, decode.came_s) <= min(answered_s)
        assert abs(prefill.came_s - decode.came_s) < SOON_S


@concurrent
async def test_a_decode_that_is_done_first_is_not_held_and_does_not_end_the_prefill(connector: str) -> None:
    go = asyncio.Event()

    async def late(got: Got, answer: Answer) -> None:
        await go.wait()
        await complete(got, answer)

    async with paired(connector, late, complete) as pair:
        answer = await pair.post()
        ended_s = monotonic()
        assert (answer.status, answer.json, answer.whole) == (200, COMPLETION, True)
        prefill, decode = await pair.prefiller.came(), pair.decoder.last
        await asyncio.sleep(0.05)
        assert (prefill.answered_s, prefill.closed.is_set()) == (None, False)
        go.set()
        assert decode.came_s < ended_s < await answered(prefill)
        assert not prefill.closed.is_set()


@pytest.mark.parametrize("path", [api.path.decode() for api in APIS])
async def test_sglang_sends_the_same_body_to_both_with_the_room_that_they_meet_in(path: str) -> None:
    body = b'{"text":"hi","stream":false,"max_tokens":50,"routed_dp_rank":0,"seed":12345678901234567890}'
    async with paired("sglang", complete, complete) as pair:
        rooms = set()
        for n in (1, 2):
            assert (await pair.post(path, body)).status == 200
            prefill, decode = await pair.prefiller.came(n), pair.decoder.last
            assert prefill.body == decode.body
            room = prefill.json["bootstrap_room"]
            expected = b',"bootstrap_host":"127.0.0.1","bootstrap_port":8998,"bootstrap_room":%d}' % room
            assert decode.body == body[:-1] + expected
            assert (prefill.target, decode.target) == (path, path)
            assert 0 <= room < 2**63
            rooms.add(room)
        assert len(rooms) == 2
        assert pair.bootstrap.requests == []


async def test_sglang_takes_its_port_from_the_variable() -> None:
    async with scripted() as prefiller, scripted() as decoder:
        environ = {"SGLANG_BOOTSTRAP_PORT": "30001"}
        async with serving(decoder.port, "--kv-connector=sglang", environ=environ) as sidecar:
            await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])
            assert decoder.last.json["bootstrap_port"] == 30001


async def test_mooncake_hands_over_by_one_transfer_id_and_the_prefillers_engine_id() -> None:
    async with paired("mooncake", complete, complete) as pair:
        await pair.post()
        prefill, decode = await pair.prefiller.came(), pair.decoder.last
        transfer_id = prefill.json["kv_transfer_params"]["transfer_id"]
        assert transfer_id.startswith("xfer-")
        assert prefill.body == (
            b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":1,"temperature":0.70,'
            b'"ignore_eos":true,"max_completion_tokens":1,"stream":false,"kv_transfer_params":'
            b'{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"%s"}}' % transfer_id.encode()
        )
        assert prefill.all("x-data-parallel-rank") == ["0"]
        assert decode.all("x-data-parallel-rank") == []
        assert prefill.all("x-request-id") == decode.all("x-request-id") != []
        assert decode.json == json.loads(BODY) | {
            "kv_transfer_params": {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "transfer_id": transfer_id,
                "remote_bootstrap_addr": f"http://{pair.bootstrap.netloc}",
                "remote_engine_id": "e-0",
            }
        }


@concurrent
async def test_the_answer_is_the_decoders_byte_for_byte_as_it_comes(connector: str) -> None:
    usage = (
        b'data: {"choices":[],"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":3}}}\n\n'
    )
    events = (b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', usage, b"data: [DONE]\n\n")
    go = asyncio.Event()

    async def streaming(got: Got, answer: Answer) -> None:
        await answer.head(headers=[("content-type", "text/event-stream")])
        await answer.chunk(events[0])
        await go.wait()
        await answer.chunk(events[1] + events[2])
        await answer.end()

    async with paired(connector, complete, streaming) as pair, pair.sidecar.connected() as (reader, writer):
        writer.write(post(body=STREAM, headers=pair.headers))
        async with asyncio.timeout(2):
            head = await reader.readuntil(events[0])
        go.set()
        rest = await reader.readuntil(b"0\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert events[1] + events[2] in rest


async def test_sglangs_prefiller_may_stream_its_answer_which_nobody_reads() -> None:
    async def streaming(got: Got, answer: Answer) -> None:
        await answer.events(b'data: {"text":"h"}\n\n', b"data: [DONE]\n\n", gap_s=0.01)

    async with paired("sglang", streaming, complete) as pair:
        answer = await pair.post(body=STREAM)
        assert (answer.status, answer.json) == (200, COMPLETION)
        assert pair.prefiller.last.json["stream"] is True
        await asyncio.sleep(0.05)
        assert not pair.prefiller.last.closed.is_set()


@concurrent
@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
async def test_a_prefill_that_fails_cancels_a_waiting_decode_and_is_relayed(
    connector: str, status: int
) -> None:
    async def refusing(got: Got, answer: Answer) -> None:
        await pair.decoder.came()
        await answer.json(b'{"error" : "why"}', status, [("X-Why", "load"), ("x-why", "more")])

    async with paired(connector, refusing, never) as pair:
        answer = await pair.post()
        assert (answer.status, answer.reason, answer.body) == (status, "Said", b'{"error" : "why"}')
        assert answer.headers == [
            ("content-type", "application/json"),
            ("X-Why", "load"),
            ("x-why", "more"),
            ("content-length", "17"),
        ]
        closed_s = await closed(pair.decoder.last)
        assert abs(closed_s - await answered(pair.prefiller.last)) < SOON_S


@concurrent
async def test_a_prefiller_that_is_gone_is_a_502_and_ends_decode(connector: str) -> None:
    async with scripted() as gone:
        gone_netloc = gone.netloc
    async with paired(connector, complete, never) as pair:
        answer = await pair.sidecar.post(headers=[(PREFILLER, gone_netloc)])
        assert (answer.status, answer.all("x-sidecar-error")) == (502, ["502"])
        for got in pair.decoder.requests:
            await closed(got)


@concurrent
async def test_a_prefiller_that_dies_is_a_502_and_ends_decode(connector: str) -> None:
    async def dying(got: Got, answer: Answer) -> None:
        await pair.decoder.came()
        answer.drop()

    async with paired(connector, dying, never) as pair:
        answer = await pair.post()
        assert (answer.status, answer.all("x-sidecar-error")) == (502, ["502"])
        await closed(pair.decoder.last)


@concurrent
async def test_a_prefill_that_fails_after_the_first_byte_cuts_the_answer(connector: str) -> None:
    begun = asyncio.Event()

    async def begin(got: Got, answer: Answer) -> None:
        await answer.head(headers=[("content-type", "text/event-stream")])
        await answer.chunk(b'data: {"n":1}\n\n')
        begun.set()
        await asyncio.sleep(30)

    async def failing(got: Got, answer: Answer) -> None:
        await begun.wait()
        await asyncio.sleep(0.05)
        await answer.json({"late": 1}, 500)

    async with paired(connector, failing, begin) as pair:
        answer = await pair.post(body=STREAM)
        assert (answer.status, answer.whole) == (200, False)
        assert answer.body.startswith(b'data: {"n":1}\n\n')
        await closed(pair.decoder.last)


@concurrent
@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_a_client_that_goes_away_closes_both_legs_at_once(connector: str, body: bytes) -> None:
    async with paired(connector, never, never) as pair:
        async with pair.sidecar.connected() as (_, writer):
            writer.write(post(body=body, headers=pair.headers))
            legs = [await pair.decoder.came(), await pair.prefiller.came()]
            left_s = monotonic()
        for got in legs:
            assert await closed(got) - left_s < SOON_S


@concurrent
async def test_a_decode_that_fails_is_relayed_and_leaves_the_prefill_alone(connector: str) -> None:
    async def refusing(got: Got, answer: Answer) -> None:
        await pair.prefiller.came()
        await answer.json({"full": 1}, 429)

    async with paired(connector, never, refusing, "--shutdown-grace=100ms") as pair:
        answer = await pair.post()
        assert (answer.status, answer.json) == (429, {"full": 1})
        await asyncio.sleep(0.05)
        assert not pair.prefiller.last.closed.is_set()


@concurrent
@pytest.mark.parametrize(("failures", "status"), [(2, 200), (9, 503)])
async def test_a_prefill_is_tried_again_with_the_same_body_while_decode_waits(
    connector: str, failures: int, status: int
) -> None:
    async def busy(got: Got, answer: Answer) -> None:
        if len(pair.prefiller.requests) <= failures:
            await answer.json({"busy": 1}, 503)
        else:
            await complete(got, answer)

    async def waiting(got: Got, answer: Answer) -> None:
        await pair.prefiller.came(failures + 1)
        await complete(got, answer)

    flags = ("--prefill-max-retries=3", "--prefill-retry-backoff=20ms")
    async with paired(connector, busy, waiting, *flags) as pair:
        answer = await pair.post()
        tries = pair.prefiller.requests
        assert (answer.status, len(tries)) == (status, min(failures, 3) + 1)
        assert len({got.body for got in tries}) == 1
        assert all(two.came_s - one.came_s >= 0.02 for one, two in pairwise(tries))
        assert len(pair.decoder.requests) == 1


@concurrent
async def test_a_connection_takes_the_next_request_while_a_prefill_of_the_last_one_runs(
    connector: str,
) -> None:
    go = asyncio.Event()

    async def slow(got: Got, answer: Answer) -> None:
        await go.wait()
        await complete(got, answer)

    async with paired(connector, slow, complete) as pair:
        async with pair.sidecar.connected() as (reader, writer):
            for _ in range(2):
                writer.write(post(headers=pair.headers))
                assert (await read_answer(reader)).whole
        await pair.prefiller.came(2)
        await asyncio.sleep(0.05)
        assert not any(got.closed.is_set() for got in pair.prefiller.requests)
        go.set()
