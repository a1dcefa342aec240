"""Legs that run beside their exchange and hang in their pull: MoRI-IO's, side by side, on real sockets."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic

import pytest

from sidecar.evidence import Outcome
from tests.engines import COMPLETION, Answer, Got, ScriptedEngine, complete, prefilled, scripted
from tests.serving import PREFILLER, SOURCE, serving
from tests.test_rescue import Told

FLAGS = (
    "--enable-p2p-pull",
    "--moriio-write-mode",
    "--moriio-local-pod-ip=127.0.0.1",
    "--moriio-parallel-dispatch",
    "--source-guard=off",
    "--pull-rescue-after=200ms",
)
DIRECTIVE = b"remote_kv_source"


async def wedged(got: Got, answer: Answer) -> None:
    """A prefiller on which every pull hangs, and nothing else."""
    if got.target == "/metrics":
        await answer.json({}, 404)
    elif DIRECTIVE in got.body:
        await asyncio.sleep(30)
    else:
        await prefilled(got, answer)


def pulling(prefiller: ScriptedEngine) -> list[tuple[str, str]]:
    return [(SOURCE, "127.0.0.2:8000"), (PREFILLER, prefiller.netloc)]


def posted(engine: ScriptedEngine) -> list[Got]:
    return [got for got in engine.requests if got.method == "POST"]


async def test_a_prefill_beside_its_decode_is_sent_again_without_its_pull(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "sidecar.exchange")
    told = Told()
    async with (
        scripted(complete) as decoder,
        scripted(wedged) as prefiller,
        serving(decoder.port, *FLAGS, watchers=[told]) as sidecar,
    ):
        answer = await sidecar.post(headers=pulling(prefiller))
        assert (answer.status, answer.json) == (200, COMPLETION)
        first, second = posted(prefiller)
        params = first.json["kv_transfer_params"]
        assert params.pop(DIRECTIVE.decode())["remote_host"] == "127.0.0.2"
        assert second.json == first.json | {"kv_transfer_params": params}
        assert first.all("x-request-id") == second.all("x-request-id")
        async with asyncio.timeout(1):
            await first.closed.wait()
        assert 0.15 < second.came_s - first.came_s < 5
        [decode] = posted(decoder)
        assert decode.came_s < second.came_s
        # It waits for this transfer and no other.
        assert decode.json["kv_transfer_params"]["transfer_id"] == params["transfer_id"]

        again = await sidecar.post(headers=pulling(prefiller))
        assert again.status == 200
        assert [DIRECTIVE in got.body for got in posted(prefiller)] == [True, False, False]
    assert [(pull.outcome, pull.rescued) for pull in told.pulls] == [(Outcome.RESCUED, True)]
    lines = [entry.__dict__["fields"] for entry in caplog.records if entry.getMessage() == "exchange"]
    assert [
        [(leg["role"], leg.get("pull", {}).get("outcome")) for leg in line["legs"]] for line in lines
    ] == [
        [("prefill", "rescued"), ("decode", None), ("prefill", None)],
        [("prefill", None), ("decode", None)],
    ]
    assert lines[1]["reason"] == "pulls_suspended"


async def test_a_prefill_that_has_answered_in_time_is_sent_once() -> None:
    async with (
        scripted(complete) as decoder,
        scripted(prefilled) as prefiller,
        serving(decoder.port, *FLAGS) as sidecar,
    ):
        for _ in range(2):
            assert (await sidecar.post(headers=pulling(prefiller))).status == 200
        assert [DIRECTIVE in got.body for got in prefiller.requests] == [True, True]


async def test_an_answer_that_has_begun_is_never_cut() -> None:
    async def slow(got: Got, answer: Answer) -> None:
        await answer.head(headers=[("content-type", "application/json")])
        await answer.chunk(b"{")
        await asyncio.sleep(0.5)
        await answer.chunk(b"}")
        await answer.end()

    async with (
        scripted(complete) as decoder,
        scripted(slow) as prefiller,
        serving(decoder.port, *FLAGS) as sidecar,
    ):
        assert (await sidecar.post(headers=pulling(prefiller))).status == 200
        assert len(prefiller.requests) == 1


async def test_the_wait_for_a_prefill_is_not_longer_for_being_sent_twice() -> None:
    async def silent(got: Got, answer: Answer) -> None:
        if got.target == "/metrics":
            await answer.json({}, 404)
        await asyncio.sleep(30)

    flags = (*FLAGS, "--pull-rescue-after=700ms", "--moriio-parallel-decode-wait-timeout=1s")
    async with (
        scripted(complete) as decoder,
        scripted(silent) as prefiller,
        serving(decoder.port, *flags) as sidecar,
    ):
        begun_s = monotonic()
        answer = await sidecar.post(headers=pulling(prefiller))
        assert 0.9 < monotonic() - begun_s < 1.6
        assert (answer.status, answer.json["message"]) == (
            504,
            "the prefill engine did not answer within 1 s",
        )
        assert [DIRECTIVE in got.body for got in posted(prefiller)] == [True, False]


async def test_the_local_engine_stands_in_for_a_prefiller_that_fails_the_second_time() -> None:
    async def busy(got: Got, answer: Answer) -> None:
        if got.target == "/metrics" or DIRECTIVE not in got.body:
            await answer.json({}, 503)
        await asyncio.sleep(30)

    async def waiting(got: Got, answer: Answer) -> None:
        if b"do_remote_prefill" in got.body:
            await asyncio.sleep(30)
        await complete(got, answer)

    flags = (*FLAGS, "--prefill-failure-policy=local")
    async with (
        scripted(waiting) as decoder,
        scripted(busy) as prefiller,
        serving(decoder.port, *flags) as sidecar,
    ):
        answer = await sidecar.post(headers=pulling(prefiller))
        assert (answer.status, answer.json) == (200, COMPLETION)
        assert len(posted(prefiller)) == 2
        assert len(posted(decoder)) == 2


async def test_a_client_that_leaves_while_the_pull_hangs_takes_both_legs_along() -> None:
    async def never(got: Got, answer: Answer) -> None:
        await asyncio.sleep(30)

    async with (
        scripted(never) as decoder,
        scripted(wedged) as prefiller,
        serving(decoder.port, *FLAGS, "--pull-rescue-after=30s") as sidecar,
    ):
        asking = asyncio.ensure_future(sidecar.post(headers=pulling(prefiller)))
        await decoder.came()
        await prefiller.came()
        asking.cancel()
        async with asyncio.timeout(5):
            await decoder.last.closed.wait()
            await prefiller.last.closed.wait()
        assert len(posted(prefiller)) == 1


async def test_a_prefill_whose_exchange_is_over_is_not_sent_again() -> None:
    async def dying(got: Got, answer: Answer) -> None:
        await prefiller.came()
        answer.drop()

    async with (
        scripted(dying) as decoder,
        scripted(wedged) as prefiller,
        serving(decoder.port, *FLAGS) as sidecar,
    ):
        answer = await sidecar.post(headers=pulling(prefiller))
        assert (answer.status, answer.json["message"]) == (502, "decode aborted before sending a response")
        async with asyncio.timeout(5):
            await posted(prefiller)[0].closed.wait()
        await asyncio.sleep(0.1)
        assert len(posted(prefiller)) == 1
