"""Prefill on one engine, decode on the local one: what each leg carries, when, and what comes back."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from time import monotonic

import pytest

from tests.engines import COMPLETION, PARAMS, PREFILLED, Answer, Got, Script, prefilled, scripted
from tests.serving import BODY, CHAT, PREFILLER, serving

STREAM = (
    b'{"model":"m","messages":[1.0],"max_tokens":50,"min_tokens":3,"stream":true,'
    b'"stream_options":{"include_usage":true}}'
)
USAGE = (
    b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":3,'
    b'"x":1.0}}}\n\n'
)


def events(*texts: bytes, gap_s: float = 0.0) -> Script:
    """An engine that streams these."""

    async def script(got: Got, answer: Answer) -> None:
        await answer.events(*texts, gap_s=gap_s)

    return script


async def test_nixl_prefill_is_capped_and_decode_gets_the_clients_body_with_the_params_whole() -> None:
    async with scripted() as decoder, scripted(prefilled) as prefiller, serving(decoder.port) as sidecar:
        answer = await sidecar.post(body=STREAM, headers=[(PREFILLER, prefiller.netloc)])

        assert answer.status == 200
        assert prefiller.last.body == (
            b'{"model":"m","messages":[1.0],"max_tokens":1,"stream":false,"max_completion_tokens":1,'
            b'"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
            b'"remote_block_ids":null,"remote_host":null,"remote_port":null}}'
        )
        params = json.dumps(PARAMS).encode()
        assert decoder.last.body == STREAM[:-1] + b',"kv_transfer_params":' + params + b"}"


async def test_decode_starts_after_prefill_has_answered() -> None:
    async with scripted() as decoder, scripted(prefilled) as prefiller, serving(decoder.port) as sidecar:
        await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])

        assert prefiller.last.answered_s is not None
        assert decoder.last.came_s >= prefiller.last.came_s


@pytest.mark.parametrize("sent", ["rid-1", None, ""])
async def test_both_legs_share_one_request_id(sent: str | None) -> None:
    headers = [] if sent is None else [("X-Request-Id", sent)]
    async with scripted() as decoder, scripted(prefilled) as prefiller, serving(decoder.port) as sidecar:
        await sidecar.post(headers=[(PREFILLER, prefiller.netloc), *headers])

        [first], [second] = prefiller.last.all("x-request-id"), decoder.last.all("x-request-id")
        assert first == second
        assert first == sent or not sent
        assert first


async def test_of_several_request_ids_and_traceparents_no_leg_carries_more_than_one() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    doubled = [("X-Request-Id", "a"), ("x-request-id", "b"), ("traceparent", trace), ("traceparent", trace)]
    async with scripted() as decoder, scripted(prefilled) as prefiller, serving(decoder.port) as sidecar:
        for headers in (doubled, [*doubled, (PREFILLER, prefiller.netloc)]):
            await sidecar.post(headers=headers)
        legs = [*decoder.requests, *prefiller.requests]
        assert [(got.all("x-request-id"), got.all("traceparent")) for got in legs] == [(["a"], [])] * 3


async def test_offloading_names_the_kept_blocks_by_one_id() -> None:
    async with (
        scripted() as decoder,
        scripted(prefilled) as prefiller,
        serving(decoder.port, "--kv-connector=offloading") as sidecar,
    ):
        await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])

        params = prefiller.last.json["kv_transfer_params"]
        key = params["remote_decoder"]["kv_request_id"]
        assert params == {"remote_decoder": {"kv_request_id": key}}
        assert decoder.last.json["kv_transfer_params"] == {
            "remote_prefiller": {"kv_request_id": key, "remote_host": "127.0.0.1", "remote_port": 7777}
        }


async def test_cached_tokens_of_a_json_answer_are_the_prefillers() -> None:
    async with scripted() as decoder, scripted(prefilled) as prefiller, serving(decoder.port) as sidecar:
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])

        usage = {**COMPLETION["usage"], "prompt_tokens_details": {"cached_tokens": 2}}
        assert answer.json == {**COMPLETION, "usage": usage}
        assert answer.all("content-length") == [str(len(answer.body))]


async def test_cached_tokens_of_a_stream_are_the_prefillers_wherever_the_stream_is_split() -> None:
    chunk = b'data: {"id":"c","choices":[{"delta":{"content":"usage"}}]}\n\n'
    whole = chunk + USAGE + b"data: [DONE]\n\n"
    expected = whole.replace(b'"cached_tokens":3', b'"cached_tokens":2')
    for cut in range(1, len(whole), 11):
        script = events(whole[:cut], whole[cut:])
        async with (
            scripted(script) as decoder,
            scripted(prefilled) as prefiller,
            serving(decoder.port) as sidecar,
        ):
            answer = await sidecar.post(body=STREAM, headers=[(PREFILLER, prefiller.netloc)])

            assert (answer.whole, answer.body) == (True, expected)


@pytest.mark.parametrize("whole", [b'data: {"a":1}\n\n', b""], ids=["after an event", "before any"])
async def test_half_a_line_before_a_decoders_death_is_relayed_once_the_client_has_a_byte(
    whole: bytes,
) -> None:
    async def dying(got: Got, answer: Answer) -> None:
        await answer.head(headers=[("content-type", "text/event-stream")])
        await answer.chunk(whole + b"data: half a")
        await asyncio.sleep(0.02)
        answer.drop()

    async with scripted(dying) as decoder, scripted(prefilled) as prefiller, serving(decoder.port) as sidecar:
        answer = await sidecar.post(body=STREAM, headers=[(PREFILLER, prefiller.netloc)])
    left = whole + b"data: half a\n\n" if whole else b""
    assert answer.body.strip(b"\n").startswith(left + b'data: {"error":')
    assert not answer.whole


async def test_no_leg_that_is_read_offers_compression() -> None:
    headers = [("Accept-Encoding", "gzip")]
    async with scripted() as decoder, scripted(prefilled) as prefiller, serving(decoder.port) as sidecar:
        await sidecar.post(headers=[(PREFILLER, prefiller.netloc), *headers])
        assert (prefiller.last.all("accept-encoding"), decoder.last.all("accept-encoding")) == ([], [])

        await sidecar.post(headers=headers)
        assert decoder.last.all("accept-encoding") == ["gzip"]


async def test_a_compressed_request_is_read_and_goes_on_plain() -> None:
    async with scripted() as decoder, serving(decoder.port) as sidecar:
        packed = gzip.compress(BODY)
        await sidecar.post(body=packed, headers=[("content-encoding", "gzip")])

        assert (decoder.last.body, decoder.last.all("content-encoding")) == (BODY, [])


async def test_several_lines_of_content_encoding_are_one_list_and_an_empty_one_is_none() -> None:
    async with scripted() as decoder, serving(decoder.port) as sidecar:
        doubled = [("content-encoding", "identity"), ("content-encoding", "gzip")]
        assert (await sidecar.post(headers=doubled)).status == 415
        assert (await sidecar.post(headers=[("content-encoding", "")])).status == 200
        assert (decoder.last.body, decoder.last.all("content-encoding")) == (BODY, [])


async def test_thousands_of_packed_members_are_refused_at_once() -> None:
    async with scripted() as decoder, serving(decoder.port) as sidecar:
        started_s = monotonic()
        packed = gzip.compress(b"") * 100_000
        answer = await sidecar.post(body=packed, headers=[("content-encoding", "gzip")])

        assert (answer.status, monotonic() - started_s < 3) == (400, True)


async def test_the_clients_params_keep_their_place_on_both_legs() -> None:
    body = b'{"kv_transfer_params":{"a":1},"model":"m","max_tokens":5}'
    async with scripted() as decoder, scripted(prefilled) as prefiller, serving(decoder.port) as sidecar:
        await sidecar.post(body=body, headers=[(PREFILLER, prefiller.netloc)])

        assert list(prefiller.last.json)[:3] == ["kv_transfer_params", "model", "max_tokens"]
        assert list(decoder.last.json) == ["kv_transfer_params", "model", "max_tokens"]


@pytest.mark.parametrize("field", ["tool_choice", "kv_transfer_params"])
@pytest.mark.parametrize("depth", [900, 980, 1100, 100_000])
async def test_nesting_of_any_depth_is_passed_or_refused_but_no_fault(field: str, depth: int) -> None:
    value = b"[" * depth + b"]" * depth
    if field == "kv_transfer_params":
        value = b'{"remote_block_ids":' + value + b"}"
    body = b'{"model":"m","%b":%b}' % (field.encode(), value)
    async with scripted() as decoder, scripted(prefilled) as prefiller, serving(decoder.port) as sidecar:
        for headers in ([], [(PREFILLER, prefiller.netloc)]):
            assert (await sidecar.post(body=body, headers=headers)).status in (200, 400)


@pytest.mark.parametrize(
    ("encoding", "status"), [("br", 415), ("gzip", 400), ("deflate", 400), ("gzip, gzip", 415)]
)
async def test_a_body_that_cannot_be_decoded_is_refused(encoding: str, status: int) -> None:
    async with scripted() as decoder, serving(decoder.port) as sidecar:
        answer = await sidecar.post(headers=[("content-encoding", encoding)])

        assert (answer.status, "content-encoding" in answer.json["message"]) == (status, True)
        assert decoder.requests == []


async def test_a_bomb_is_refused_before_it_is_inflated() -> None:
    packed = gzip.compress(b" " * 50_000_000)
    async with scripted() as decoder, serving(decoder.port, "--max-request-bytes=1000000") as sidecar:
        answer = await sidecar.post(body=packed, headers=[("content-encoding", "gzip")])

        assert (answer.status, answer.json["code"]) == (413, 413)


@pytest.mark.parametrize("params", [None, {"do_remote_prefill": True, "remote_host": "h"}, "text"])
async def test_a_handoff_that_would_kill_the_decoder_is_dropped(params: object) -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.json({**PREFILLED, "kv_transfer_params": params})

    async with scripted() as decoder, scripted(script) as prefiller, serving(decoder.port) as sidecar:
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])

        assert (answer.status, "kv_transfer_params" in decoder.last.json) == (200, False)


async def test_a_prefillers_refusal_is_relayed_verbatim_and_decode_is_never_sent() -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.json(
            b'{"error" : "no such model"}',
            404,
            [("X-Why", "model"), ("set-cookie", "a"), ("set-cookie", "b")],
        )

    async with scripted() as decoder, scripted(script) as prefiller, serving(decoder.port) as sidecar:
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])

        assert (answer.status, answer.reason, answer.body) == (404, "Said", b'{"error" : "no such model"}')
        assert answer.headers == [
            ("content-type", "application/json"),
            ("X-Why", "model"),
            ("set-cookie", "a"),
            ("set-cookie", "b"),
            ("content-length", "27"),
        ]
        assert decoder.requests == []


@pytest.mark.parametrize(("failures", "status", "tries"), [(2, 200, 3), (9, 503, 4)])
async def test_a_prefiller_is_asked_again_after_a_gateway_status(
    failures: int, status: int, tries: int
) -> None:
    async def script(got: Got, answer: Answer) -> None:
        if len(prefiller.requests) <= failures:
            await answer.json({"busy": 1}, 503)
        else:
            await prefilled(got, answer)

    flags = ("--prefill-max-retries=3", "--prefill-retry-backoff=5ms")
    async with scripted() as decoder, scripted(script) as prefiller, serving(decoder.port, *flags) as sidecar:
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])

        assert (answer.status, len(prefiller.requests)) == (status, tries)
        assert len({got.body for got in prefiller.requests}) == 1


@pytest.mark.parametrize("status", [400, 429, 500, 501])
async def test_other_statuses_are_not_tried_again(status: int) -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.json({"no": 1}, status)

    flags = ("--prefill-max-retries=3", "--prefill-retry-backoff=5ms")
    async with scripted() as decoder, scripted(script) as prefiller, serving(decoder.port, *flags) as sidecar:
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])

        assert (answer.status, len(prefiller.requests)) == (status, 1)


async def test_a_2xx_that_is_not_json_is_a_502() -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.json(b"<html>", 200)

    async with scripted() as decoder, scripted(script) as prefiller, serving(decoder.port) as sidecar:
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])

        assert (answer.status, answer.json["type"], decoder.requests) == (502, "BadGateway", [])


async def test_the_first_prefiller_is_taken_and_sampling_spreads() -> None:
    async with scripted() as decoder, scripted(prefilled) as one, scripted(prefilled) as two:
        async with serving(decoder.port) as sidecar:
            await sidecar.post(headers=[(PREFILLER, f" {one.netloc} , {two.netloc}")])
            await sidecar.post(headers=[(PREFILLER, two.netloc), (PREFILLER, one.netloc)])
            assert (len(one.requests), len(two.requests)) == (1, 1)
        async with serving(decoder.port, "--enable-prefiller-sampling") as sidecar:
            for _ in range(40):
                await sidecar.post(headers=[(PREFILLER, f"{one.netloc},{two.netloc}")])
            assert min(len(one.requests), len(two.requests)) > 5


async def test_a_prefiller_that_cannot_be_read_is_a_400_naming_the_header() -> None:
    async with scripted() as decoder, serving(decoder.port) as sidecar:
        answer = await sidecar.post(CHAT, headers=[(PREFILLER, "no-port")])

        assert (answer.status, PREFILLER in answer.json["message"], decoder.requests) == (400, True, [])


@pytest.mark.parametrize(
    ("path", "fields", "why"),
    [
        ("/v1/completions", b'"prompt":["a","b"]', "several_prompts"),
        ("/v1/completions", b'"prompt":"a","echo":true,"logprobs":1', "prompt_logprobs"),
        (CHAT, b'"messages":[],"use_beam_search":true,"n":2', "beam_search"),
    ],
)
async def test_what_cannot_be_handed_over_is_decoded_here_and_the_line_says_why(
    caplog: pytest.LogCaptureFixture, path: str, fields: bytes, why: str
) -> None:
    caplog.set_level(logging.INFO, "sidecar.exchange")
    body = b'{"model":"m",' + fields + b"}"
    async with scripted() as decoder, scripted(prefilled) as prefiller, serving(decoder.port) as sidecar:
        answer = await sidecar.post(path, body=body, headers=[(PREFILLER, prefiller.netloc)])

        assert (answer.status, answer.json, prefiller.requests) == (200, COMPLETION, [])
        assert (decoder.last.body, len(decoder.last.all("x-request-id"))) == (body, 1)
    [told] = [entry.__dict__["fields"] for entry in caplog.records if entry.getMessage() == "exchange"]
    assert told["reason"] == why


async def test_choices_share_what_the_p2p_tier_keeps() -> None:
    body = b'{"model":"m","prompt":"a","n":2}'
    flags = ("--kv-connector=offloading", "--source-guard=off")
    async with (
        scripted() as decoder,
        scripted(prefilled) as prefiller,
        serving(decoder.port, *flags) as sidecar,
    ):
        await sidecar.post("/v1/completions", body=body, headers=[(PREFILLER, prefiller.netloc)])

        assert ("n" in prefiller.last.json, decoder.last.json["n"]) == (False, 2)
