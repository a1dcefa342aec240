"""The question that `mooncake` asks a prefiller's bootstrap server: when, what for, and what if it fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sidecar.connectors import mooncake
from tests.engines import Answer, Got, Script, ScriptedEngine, complete, saying, scripted
from tests.serving import PREFILLER, Served, post, serving

MOONCAKE = "--kv-connector=mooncake"


def ranks(*engine_ids: str) -> Script:
    """A bootstrap server of these engines, rank by rank."""

    async def script(got: Got, answer: Answer) -> None:
        await answer.json({str(rank): {"engine_id": engine_id} for rank, engine_id in enumerate(engine_ids)})

    return script


async def never(got: Got, answer: Answer) -> None:
    await asyncio.sleep(30)


async def dropping(got: Got, answer: Answer) -> None:
    answer.drop()


def engine_of(decoder: ScriptedEngine) -> str:
    """Which engine the decoder was told to fetch from."""
    return str(decoder.last.json["kv_transfer_params"]["remote_engine_id"])


@asynccontextmanager
async def fronted(decoder: ScriptedEngine, bootstrap_port: int, *flags: str) -> AsyncIterator[Served]:
    port = f"--mooncake-bootstrap-port={bootstrap_port}"
    async with serving(decoder.port, MOONCAKE, port, *flags) as sidecar:
        yield sidecar


async def test_the_question_carries_nothing_of_the_clients_and_is_asked_once() -> None:
    secret = [("Authorization", "Bearer k"), ("Cookie", "c")]
    async with scripted() as decoder, scripted() as prefiller, scripted(ranks("e-0")) as bootstrap:
        async with fronted(decoder, bootstrap.port) as sidecar:
            for _ in range(3):
                answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc), *secret])
                assert (answer.status, engine_of(decoder)) == (200, "e-0")
        [asked] = bootstrap.requests
        assert (asked.method, asked.target, asked.body) == ("GET", "/query", b"")
        assert [name for name, _ in asked.headers if name.lower() in ("authorization", "cookie")] == []
        assert asked.came_s < min(got.came_s for got in (*decoder.requests, *prefiller.requests))


async def test_rank_and_engine_go_together_and_all_are_used() -> None:
    seen = set()
    async with (
        scripted() as decoder,
        scripted() as prefiller,
        scripted(ranks("e-0", "e-1")) as bootstrap,
        fronted(decoder, bootstrap.port) as sidecar,
    ):
        for n in range(1, 31):
            await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])
            [rank] = (await prefiller.came(n)).all("x-data-parallel-rank")
            assert engine_of(decoder) == f"e-{rank}"
            seen.add(rank)
    assert seen == {"0", "1"}  # once in 2 ** 29 runs they are not


async def test_every_prefiller_is_asked_for_its_own_engines() -> None:
    async with (
        scripted() as decoder,
        scripted() as one,
        scripted(host="127.0.0.2") as two,
        scripted(ranks("e-one")) as bootstrap,
        scripted(ranks("e-two"), "127.0.0.2", bootstrap.port),
        fronted(decoder, bootstrap.port) as sidecar,
    ):
        for prefiller, expected in ((one, "e-one"), (two, "e-two"), (one, "e-one")):
            await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])
            assert engine_of(decoder) == expected


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (saying({}, 404), "the lookup engine answered 404"),
        (saying({}, 503), "the lookup engine answered 503"),
        (saying(b"<html>"), "the lookup engine's answer cannot be read: "),
        (saying([]), "the lookup engine's answer cannot be read: the body must be a JSON object"),
        (saying({}), "the bootstrap server at {netloc} names no engine with a rank"),
        (saying({"0": {"engine_id": None}}), "the bootstrap server at {netloc} names no engine with a rank"),
        (never, "the lookup engine did not answer within 0.2 s"),
        (dropping, "the lookup engine ended the connection before its answer was complete"),
    ],
)
async def test_a_question_without_a_usable_answer_is_a_502_and_no_engine_is_asked(
    script: Script, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script is never:
        monkeypatch.setattr(mooncake, "QUERY_TIMEOUT_S", 0.2)
    async with (
        scripted() as decoder,
        scripted() as prefiller,
        scripted(script) as bootstrap,
        fronted(decoder, bootstrap.port, "--prefill-max-retries=3") as sidecar,
    ):
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])
        assert (answer.status, answer.json["type"]) == (502, "BadGateway")
        assert answer.json["message"].startswith(says.format(netloc=bootstrap.netloc))
        assert answer.all("x-sidecar-error") == ["502"]
        assert (prefiller.requests, decoder.requests) == ([], [])
        bootstrap.script = ranks("e-0")  # a failure is not remembered
        assert (await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])).status == 200


async def test_a_bootstrap_server_that_is_not_there_is_a_502_that_says_where() -> None:
    async with scripted() as gone:
        port = gone.port
    async with scripted() as decoder, scripted() as prefiller, fronted(decoder, port) as sidecar:
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])
        assert (answer.status, prefiller.requests, decoder.requests) == (502, [], [])
        assert answer.json["message"] == f"the lookup engine at 127.0.0.1:{port} cannot be reached"


@pytest.mark.parametrize("fails", ["prefill", "decode"])
async def test_a_leg_that_fails_drops_what_was_remembered(fails: str) -> None:
    failing = saying({"stale": 1}, 500)

    async def beside(got: Got, answer: Answer) -> None:
        await prefiller.came(len(decoder.requests))
        await complete(got, answer)

    async with (
        scripted(beside) as decoder,
        scripted() as prefiller,
        scripted(ranks("old")) as bootstrap,
        fronted(decoder, bootstrap.port) as sidecar,
    ):
        headers = [(PREFILLER, prefiller.netloc)]
        assert (await sidecar.post(headers=headers)).status == 200
        bootstrap.script = ranks("new")
        assert (await sidecar.post(headers=headers)).status == 200
        assert (engine_of(decoder), len(bootstrap.requests)) == ("old", 1)
        if fails == "prefill":
            prefiller.script, decoder.script = failing, never
        else:
            decoder.script = failing
        assert (await sidecar.post(headers=headers)).status == 500
        prefiller.script, decoder.script = complete, complete
        assert (await sidecar.post(headers=headers)).status == 200
        assert (engine_of(decoder), len(bootstrap.requests)) == ("new", 2)


async def test_a_prefill_that_fails_after_the_answer_drops_it_too() -> None:
    go = asyncio.Event()

    async def late(got: Got, answer: Answer) -> None:
        await go.wait()
        await answer.json({"late": 1}, 500)

    async with (
        scripted() as decoder,
        scripted(late) as prefiller,
        scripted(ranks("old")) as bootstrap,
        fronted(decoder, bootstrap.port) as sidecar,
    ):
        headers = [(PREFILLER, prefiller.netloc)]
        assert (await sidecar.post(headers=headers)).status == 200
        await prefiller.came()
        go.set()
        await asyncio.sleep(0.1)
        assert (await sidecar.post(headers=headers)).status == 200
        assert len(bootstrap.requests) == 2


async def test_a_client_that_goes_away_ends_the_question() -> None:
    async with (
        scripted() as decoder,
        scripted() as prefiller,
        scripted(never) as bootstrap,
        fronted(decoder, bootstrap.port) as sidecar,
    ):
        async with sidecar.connected() as (_, writer):
            writer.write(post(headers=[(PREFILLER, prefiller.netloc)]))
            got = await bootstrap.came()
        async with asyncio.timeout(2):
            await got.closed.wait()
        assert (prefiller.requests, decoder.requests) == ([], [])
