"""MoRI-IO in write mode on real sockets: what the engines are sent, when, and what comes back."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

import pytest

from sidecar.connectors.moriio import rank_of
from tests.engines import COMPLETION, Answer, Got, Script, complete, prefilled, scripted
from tests.serving import BODY, PREFILLER, SOURCE, post, read_answer, serving

WRITE = ("--moriio-write-mode", "--moriio-local-pod-ip=10.0.0.1")
PARALLEL = (*WRITE, "--moriio-parallel-dispatch")
EVENTS = (b'data: {"n":1}\n\n', b"data: [DONE]\n\n")
SSE = [("content-type", "text/event-stream")]


async def never(got: Got, answer: Answer) -> None:
    await asyncio.sleep(30)


async def streamed(got: Got, answer: Answer) -> None:
    await answer.events(*EVENTS)


def params_of(got: Got) -> Any:
    return got.json["kv_transfer_params"]


async def closed(*requests: Got) -> None:
    """Wait until the sidecar has closed these connections before their answers ended."""
    async with asyncio.timeout(5):
        for got in requests:
            await got.closed.wait()


async def test_serial_decode_gets_the_prefill_answers_params_completed_and_its_rank() -> None:
    async def ranked(got: Got, answer: Answer) -> None:
        usage = {"prompt_tokens_details": {"cached_tokens": 2}}
        await answer.json({"usage": usage, "kv_transfer_params": {"remote_dp_rank": 9, "own": [1.0, None]}})

    flags = (*WRITE, "--moriio-dp-size=16", "--moriio-dp-size-local=8", "--moriio-prefill-notify-port=7")
    async with (
        scripted() as decoder,
        scripted(ranked) as prefiller,
        serving(decoder.port, *flags) as sidecar,
    ):
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc), ("x-request-id", "rid-1")])

        assert (answer.status, answer.json["usage"]["prompt_tokens_details"]) == (200, {"cached_tokens": 2})
        assert prefiller.last.answered_s is not None
        assert decoder.last.came_s >= prefiller.last.came_s
        rank = rank_of(b"rid-1", 16)
        sent = params_of(prefiller.last)
        assert (sent["remote_host"], sent["remote_dp_rank"]) == ("10.0.0.1", rank)
        assert prefiller.last.all("x-data-parallel-rank") == [str(rank % 8)]
        assert params_of(decoder.last) == {
            "remote_dp_rank": 9,
            "own": [1.0, None],
            "transfer_id": sent["transfer_id"],
            "remote_notify_port": 7,
            "remote_handshake_port": 6301,
            "remote_dp_size": 16,
            "remote_dp_rank_override": True,
        }
        assert decoder.last.all("x-data-parallel-rank") == ["1"]
        assert decoder.last.all("x-request-id") == prefiller.last.all("x-request-id") == ["rid-1"]


async def test_every_flag_reaches_the_engines() -> None:
    flags = (
        *PARALLEL,
        "--moriio-decode-notify-port=1",
        "--moriio-decode-handshake-port=2",
        "--moriio-prefill-notify-port=3",
        "--moriio-prefill-handshake-port=4",
        "--moriio-tp-size=5",
        "--moriio-dp-size=6",
        "--moriio-dp-size-local=3",
        "--moriio-remote-hosts=10.1.0.1,10.1.0.2",
        "--moriio-decode-hosts=10.2.0.1,10.2.0.2",
    )
    async with (
        scripted() as decoder,
        scripted(prefilled) as prefiller,
        serving(decoder.port, *flags) as sidecar,
    ):
        await sidecar.post(headers=[(PREFILLER, prefiller.netloc), ("x-request-id", "rid-1")])

        sent = params_of(prefiller.last)
        shared = {
            "remote_dp_rank": rank_of(b"rid-1", 6),
            "remote_dp_rank_override": True,
            "transfer_id": sent["transfer_id"],
            "tp_size": 5,
            "remote_dp_size": 6,
            "remote_dp_size_local": 3,
        }
        assert sent == {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": "10.0.0.1",
            "remote_port": None,
            "remote_notify_port": 1,
            "remote_handshake_port": 2,
            "remote_hosts": ["10.2.0.1", "10.2.0.2"],
            **shared,
        }
        assert params_of(decoder.last) == {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": "127.0.0.1:4",
            "remote_block_ids": [],
            "remote_host": "127.0.0.1",
            "remote_port": 4,
            "remote_notify_port": 3,
            "remote_handshake_port": 4,
            "remote_hosts": ["10.1.0.1", "10.1.0.2"],
            **shared,
        }
        local = [str(shared["remote_dp_rank"] % 3)]
        assert prefiller.last.all("x-data-parallel-rank") == local
        assert decoder.last.all("x-data-parallel-rank") == local


async def test_pod_ip_is_where_prefillers_find_the_decoder_and_a_name_is_looked_up() -> None:
    for environ, flags in (
        ({"POD_IP": "10.0.0.9"}, ()),
        ({"POD_IP": "10.0.0.9"}, ("--moriio-local-pod-ip=localhost",)),
    ):
        async with (
            scripted() as decoder,
            scripted(prefilled) as prefiller,
            serving(decoder.port, "--moriio-write-mode", *flags, environ=environ) as sidecar,
        ):
            await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])
            expected = "127.0.0.1" if flags else "10.0.0.9"
            assert params_of(prefiller.last)["remote_host"] == expected


async def test_without_a_prefiller_write_mode_changes_no_byte() -> None:
    async with scripted() as decoder, serving(decoder.port, *PARALLEL, "--moriio-dp-size=4") as sidecar:
        answer = await sidecar.post()
        assert (answer.json, decoder.last.body, decoder.last.all("x-data-parallel-rank")) == (
            COMPLETION,
            BODY,
            [],
        )


async def test_a_pull_goes_on_the_prefill_leg_where_the_flag_says_so() -> None:
    flags = (*PARALLEL, "--enable-p2p-pull", "--source-guard=off")
    async with (
        scripted() as decoder,
        scripted(prefilled) as prefiller,
        serving(decoder.port, *flags) as sidecar,
    ):
        await sidecar.post(headers=[(PREFILLER, prefiller.netloc), (SOURCE, "10.0.0.2:8000")])
        pull = params_of(prefiller.last)["remote_kv_source"]
        assert (pull["remote_host"], pull["remote_port"]) == ("10.0.0.2", 7777)
        assert "remote_kv_source" not in params_of(decoder.last)


async def test_parallel_legs_overlap_and_the_answer_is_held_until_prefill_has_succeeded() -> None:
    go = asyncio.Event()

    async def late(got: Got, answer: Answer) -> None:
        await decoder.came()
        await go.wait()
        await prefilled(got, answer)

    async with (
        scripted(streamed) as decoder,
        scripted(late) as prefiller,
        serving(decoder.port, *PARALLEL) as sidecar,
    ):
        async with sidecar.connected() as (reader, writer):
            writer.write(post(headers=[(PREFILLER, prefiller.netloc)]))
            await decoder.came()
            await prefiller.came()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.1)
            go.set()
            answer = await read_answer(reader)
        assert (answer.status, answer.body, answer.whole) == (200, b"".join(EVENTS), True)
        assert prefiller.last.answered_s is not None
        assert decoder.last.came_s < prefiller.last.answered_s
        assert answer.times_s[0] >= prefiller.last.answered_s - 0.05


async def _begun(got: Got, answer: Answer) -> None:
    """A stream that begins and goes on."""
    await answer.head(headers=SSE)
    await answer.chunk(EVENTS[0])
    await asyncio.sleep(30)


@pytest.mark.parametrize("decode", [never, _begun], ids=["silent", "held"])
@pytest.mark.parametrize("status", [400, 429, 500])
async def test_parallel_a_prefill_that_fails_cancels_decode_and_is_relayed(
    decode: Script, status: int
) -> None:
    async def refusing(got: Got, answer: Answer) -> None:
        await decoder.came()
        await answer.json({"no": 1}, status, headers=[("x-own", "kept")])

    async with (
        scripted(decode) as decoder,
        scripted(refusing) as prefiller,
        serving(decoder.port, *PARALLEL) as sidecar,
    ):
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])
        assert (answer.status, answer.json, answer.all("x-own")) == (status, {"no": 1}, ["kept"])
        await closed(decoder.last)


async def test_parallel_a_prefiller_that_cannot_be_reached_is_a_502_and_decode_is_cancelled() -> None:
    async with scripted(never) as decoder, serving(decoder.port, *PARALLEL) as sidecar:
        answer = await sidecar.post(headers=[(PREFILLER, "127.0.0.1:9")])
        assert (answer.status, answer.all("x-sidecar-error")) == (502, ["502"])
        if decoder.requests:  # prefill may have failed before decode was sent
            await closed(decoder.last)


@pytest.mark.parametrize("decode", [never, _begun], ids=["silent", "held"])
async def test_parallel_a_prefill_that_takes_too_long_is_a_504_and_both_legs_are_cancelled(
    decode: Script,
) -> None:
    flags = (*PARALLEL, "--moriio-parallel-decode-wait-timeout=150ms")
    async with (
        scripted(decode) as decoder,
        scripted(never) as prefiller,
        serving(decoder.port, *flags) as sidecar,
    ):
        begun_s = monotonic()
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])
        assert 0.14 < monotonic() - begun_s < 8
        assert (answer.status, answer.json["message"], answer.all("x-sidecar-error")) == (
            504,
            "the prefill engine did not answer within 0.15 s",
            ["504"],
        )
        await closed(prefiller.last, decoder.last)


async def test_parallel_retries_of_the_prefill_do_not_make_the_wait_longer() -> None:
    async def busy(got: Got, answer: Answer) -> None:
        await answer.json({}, 503)

    flags = (
        *PARALLEL,
        "--moriio-parallel-decode-wait-timeout=200ms",
        "--prefill-max-retries=1000",
        "--prefill-retry-backoff=20ms",
    )
    async with (
        scripted(never) as decoder,
        scripted(busy) as prefiller,
        serving(decoder.port, *flags) as sidecar,
    ):
        begun_s = monotonic()
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])
        assert (answer.status, len(prefiller.requests) > 1) == (504, True)
        assert monotonic() - begun_s < 8
        await closed(decoder.last)


async def test_serial_the_prefill_has_no_time_limit() -> None:
    async def slow(got: Got, answer: Answer) -> None:
        await asyncio.sleep(0.2)
        await prefilled(got, answer)

    flags = (*WRITE, "--moriio-parallel-decode-wait-timeout=50ms")
    async with scripted() as decoder, scripted(slow) as prefiller, serving(decoder.port, *flags) as sidecar:
        assert (await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])).status == 200


async def _cut_before_its_head(got: Got, answer: Answer) -> None:
    answer.drop()


async def _cut_in_its_first_event(got: Got, answer: Answer) -> None:
    await answer.head(headers=SSE)
    await answer.chunk(EVENTS[0])
    answer.drop()


@pytest.mark.parametrize("dying", [_cut_before_its_head, _cut_in_its_first_event])
async def test_parallel_a_decode_that_dies_before_any_byte_was_sent_is_a_502(dying: Script) -> None:
    async def late(got: Got, answer: Answer) -> None:
        await decoder.came()
        await asyncio.sleep(0.05)
        await prefilled(got, answer)

    async with (
        scripted(dying) as decoder,
        scripted(late) as prefiller,
        serving(decoder.port, *PARALLEL) as sidecar,
    ):
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])
        assert (answer.status, answer.json["message"], answer.all("x-sidecar-error")) == (
            502,
            "decode aborted before sending a response",
            ["502"],
        )


async def test_parallel_a_decode_that_dies_after_the_first_byte_is_cut() -> None:
    go = asyncio.Event()

    async def dying(got: Got, answer: Answer) -> None:
        await answer.head(headers=SSE)
        await answer.chunk(EVENTS[0])
        await go.wait()
        answer.drop()

    async with (
        scripted(dying) as decoder,
        scripted(prefilled) as prefiller,
        serving(decoder.port, *PARALLEL) as sidecar,
        sidecar.connected() as (reader, writer),
    ):
        writer.write(post(headers=[(PREFILLER, prefiller.netloc)]))
        reading = asyncio.ensure_future(read_answer(reader))
        await decoder.came()
        await asyncio.sleep(0.05)
        go.set()
        answer = await reading
        assert (answer.status, answer.whole) == (200, False)
        assert answer.body.startswith(EVENTS[0] + b'\n\ndata: {"error":')


async def test_parallel_a_decoder_that_is_not_ready_is_a_503_at_once() -> None:
    async with scripted(never) as prefiller, serving(9, *PARALLEL, "--shutdown-grace=50ms") as sidecar:
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])
        assert (answer.status, answer.all("x-sidecar-error")) == (503, ["503"])


async def test_parallel_a_client_that_goes_away_ends_both_legs() -> None:
    async with (
        scripted(never) as decoder,
        scripted(never) as prefiller,
        serving(decoder.port, *PARALLEL) as sidecar,
    ):
        async with sidecar.connected() as (_, writer):
            writer.write(post(headers=[(PREFILLER, prefiller.netloc)]))
            await decoder.came()
            await prefiller.came()
        await closed(decoder.last, prefiller.last)


async def test_parallel_decodes_own_error_waits_for_prefill_and_is_relayed() -> None:
    async def full(got: Got, answer: Answer) -> None:
        await answer.json({"full": 1}, 429)

    async with (
        scripted(full) as decoder,
        scripted(prefilled) as prefiller,
        serving(decoder.port, *PARALLEL) as sidecar,
    ):
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])
        assert (answer.status, answer.json) == (429, {"full": 1})


async def test_parallel_what_the_prefiller_cached_is_not_told_for_decode_is_relayed_as_it_is() -> None:
    async with (
        scripted(complete) as decoder,
        scripted(prefilled) as prefiller,
        serving(decoder.port, *PARALLEL) as sidecar,
    ):
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])
        assert answer.json == COMPLETION
