"""Encoders first: one leg per multimodal item, and what they answered goes on (contract section 7)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.connectors import CONNECTORS
from sidecar.encoders import MOST_ITEMS, items
from sidecar.endpoint import Endpoint
from sidecar.errors import BadRequest, EngineDied
from sidecar.headers import Headers
from sidecar.plan import Ask, Deliver, Leg, Pull, Reply, Role
from sidecar.planning import Planner
from sidecar.routing import NoPull, Route
from tests.connectors.play import (
    DECODER,
    OPTIONS,
    PREFILLER,
    SOURCE,
    Played,
    call_of,
    fresh_ids,
    play,
    reply_of,
)
from tests.engines import COMPLETION, PREFILLED, Answer, Got, complete, prefilled, scripted
from tests.json_texts import VALUES, objects_of
from tests.serving import PREFILLER as PREFILLER_HEADER
from tests.serving import SOURCE as SOURCE_HEADER
from tests.serving import post, serving

CHAT = b"/v1/chat/completions"
ENCODERS = (Endpoint("10.0.0.8", 8000), Endpoint("10.0.0.9", 8000))
ENCODER_HEADER = "x-encoder-hosts-ports"

CAT = b'{"type":"image_url", "image_url":{"url":"http:\\/\\/a\\/cat.png","detail":"high"}}'
CAT_AGAIN = b'{"image_url":{"url":"http://a/cat.png"},"type":"image_url"}'
SONG = b'{"type":"audio_url","audio_url":{"url":"http://a/song.mp3"},"uuid":1.0}'
FILM = b'{"type":"video_url","video_url":{"url":"data:video/mp4;base64,AAAA"},"note":"\\ud83d"}'
SPEECH = b'{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}'
TEXT = b'{"type":"text","text":"what \\ud83d is this?"}'
MESSAGES = b'[ {"role":"system","content":"be brief"}, {"role":"user","content":[%b]},%b ]' % (
    b" , ".join((TEXT, CAT, SPEECH, SONG, CAT_AGAIN)),
    b'{"role":"tool","tool_call_id":"t","content":[%b]}' % FILM,
)
BODY = (
    b'{"model":"m","messages":' + MESSAGES + b',"max_tokens":50,"stream":true,'
    b'"stream_options":{"include_usage":true},"temperature":0.70,"min_tokens":2,"n":2,'
    b'"continue_final_message":true,"add_generation_prompt":false,"echo":false,'
    b'"kv_transfer_params":{"client":1},"ec_transfer_params":{"client":1},"cache_hit_threshold":0.8}'
)


def planner(ec_connector: str | None = "ec-nixl", kv_connector: str = "nixlv2") -> Planner:
    return Planner(CONNECTORS[kv_connector], OPTIONS, ec_connector)


def encoder_reply(params: Any = None) -> Reply:
    return reply_of(json.dumps({"id": "e", "ec_transfer_params": params}).encode())


def played(
    route: Route, *replies: Reply, ec_connector: str = "ec-nixl", raw: bytes = BODY, headers: Headers = ()
) -> Played:
    """The plan of a chat with these encoders, as the sidecar makes and plays it."""
    call = call_of(raw, "chat_completions", headers, ids=replace(fresh_ids(), request="rid", pull="pull"))
    plans = planner(ec_connector)
    return play(plans.plan(call, plans.settled(call, route)), *replies)


DECODE_ONLY = Route(DECODER, encoders=ENCODERS, encoder_candidates=2)


def encode_leg(index: int, item: bytes) -> Leg:
    """The whole leg that is expected for an item of BODY."""
    content = (
        b'{"model":"m","messages":[{"role":"user","content":[' + item + b"]}],"
        b'"max_tokens":1,"stream":false,"temperature":0.70,"cache_hit_threshold":0.8,"max_completion_tokens":1}'
    )
    headers = ((b"x-request-id", b"rid-enc-%d" % index),)
    return Leg(Role.ENCODE, ENCODERS[index % 2], b"POST", CHAT, headers, content)


def test_every_item_is_encoded_once_in_one_step_and_round_robin() -> None:
    made = played(DECODE_ONLY, encoder_reply(), encoder_reply(), encoder_reply(), ec_connector="ec-example")
    assert made.steps == [Ask((encode_leg(0, CAT), encode_leg(1, SONG), encode_leg(2, FILM)))]
    content = BODY.replace(b'_threshold":0.8', b'_threshold":0')
    headers = ((b"x-request-id", b"rid"),)
    assert made.deliver == Deliver(Leg(Role.DECODE, DECODER, b"POST", CHAT, headers, content))


def test_the_clients_headers_and_request_id_go_to_encoders() -> None:
    headers = (
        (b"Authorization", b"Bearer k"),
        (b"X-Request-ID", b"mine"),
        (b"x-encoder-hosts-ports", b"e:1"),
    )
    made = played(DECODE_ONLY, *[encoder_reply()] * 3, headers=headers)
    assert [leg.headers for leg in made.legs] == [
        *[((b"Authorization", b"Bearer k"), (b"x-request-id", b"mine-enc-%d" % index)) for index in range(3)],
        ((b"Authorization", b"Bearer k"), (b"X-Request-ID", b"mine")),
    ]


def test_what_the_encoders_answered_is_merged_into_both_following_bodies() -> None:
    replies = [
        encoder_reply({"hash-1": {"peer_host": "10.0.0.8", "peer_port": 1}, "both": 1}),
        encoder_reply(None),
        encoder_reply({"hash-3": {"size_bytes": 12345678901234567890}, "both": 2}),
    ]
    route = replace(DECODE_ONLY, prefiller=PREFILLER)
    handed_over = reply_of(b'{"kv_transfer_params":{"do_remote_prefill":false,"x":1}}')
    made = played(route, *replies, handed_over)
    assert [leg.role for leg in made.legs] == [Role.ENCODE] * 3 + [Role.PREFILL, Role.DECODE]
    expected = {
        "hash-1": {"peer_host": "10.0.0.8", "peer_port": 1},
        "both": 2,
        "hash-3": {"size_bytes": 12345678901234567890},
    }
    for leg in made.legs[3:]:
        body = json.loads(leg.content or b"")
        assert (body["ec_transfer_params"], body["cache_hit_threshold"]) == (expected, 0)


@pytest.mark.parametrize("params", [None, {}, [], "x", 7])
def test_without_params_from_the_encoders_none_go_on_and_never_the_clients(params: Any) -> None:
    made = played(DECODE_ONLY, *[encoder_reply(params)] * 3)
    expected = BODY.replace(b'"ec_transfer_params":{"client":1},', b"").replace(b"0.8}", b"0}")
    assert made.deliver.leg.content == expected


def test_no_pull_goes_with_encoders_and_the_route_says_why() -> None:
    route = replace(DECODE_ONLY, source=SOURCE, named_source=SOURCE.endpoint, prefiller=PREFILLER)
    call = call_of(BODY, "chat_completions")
    assert planner().settled(call, route) == route.without_source(NoPull.ENCODERS)
    made = played(route, *[encoder_reply()] * 3, reply_of(b"{}"))
    assert [leg.pull for leg in made.legs] == [None] * 5
    assert not any(b"remote_kv_source" in (leg.content or b"") for leg in made.legs)


NOTHING_TO_ENCODE = {
    "text": b'[{"role":"user","content":"http://a/cat.png image_url"}]',
    "text parts": b'[{"role":"user","content":[%b]}]' % TEXT,
    "own data": b'[{"role":"user","content":[%b]}]' % SPEECH,
    "no messages": b"[]",
    "too many": b'[{"role":"user","content":[%b]}]'
    % b",".join(
        [b'{"type":"image_url","image_url":{"url":"%d"}}' % number for number in range(MOST_ITEMS + 1)]
    ),
}


@pytest.mark.parametrize("messages", NOTHING_TO_ENCODE.values(), ids=NOTHING_TO_ENCODE.keys())
def test_with_nothing_to_encode_the_flow_goes_on_unchanged_pull_and_all(messages: bytes) -> None:
    raw = b'{"messages":' + messages + b',"cache_hit_threshold":0.8}'
    assert played(DECODE_ONLY, raw=raw) == played(Route(DECODER), raw=raw)
    made = played(replace(DECODE_ONLY, source=SOURCE), raw=raw)
    assert made.deliver.leg.pull == Pull(SOURCE, "pull")


@pytest.mark.parametrize("api", ["completions", "responses", "messages", "vllm_generate", "sglang_generate"])
def test_only_chats_have_items(api: str) -> None:
    call = call_of(BODY, api)
    route = replace(DECODE_ONLY, source=SOURCE)
    assert planner().settled(call, route) is route
    assert [leg.role for leg in play(planner().plan(call, route)).legs] == [Role.DECODE]


def test_as_many_items_as_an_engine_takes_are_encoded() -> None:
    parts = [b'{"type":"image_url","image_url":{"url":"%d"}}' % number for number in range(MOST_ITEMS)]
    raw = b'{"messages":[{"content":[%b]}]}' % b",".join(parts)
    assert items(call_of(raw, "chat_completions")) == tuple(parts)


def test_a_bare_text_is_a_url_too() -> None:
    part = b'{"type":"image_url","image_url":"http://a/cat.png"}'
    raw = b'{"messages":[{"content":[%b,%b]}]}' % (part, CAT)
    assert items(call_of(raw, "chat_completions")) == (part,)


ODD_PARTS = (
    *(b"null", b"7", b'"image_url"', b"[]", b"{}", b'{"type":null}', b'{"type":["image_url"]}'),
    *(b'{"image_url":{"url":"x"}}', b'{"type":"image_url"}', b'{"type":"image_url","image_url":null}'),
    *(b'{"type":"image_url","image_url":{}}', b'{"type":"image_url","image_url":{"url":null}}'),
    *(b'{"type":"image_url","image_url":{"url":""}}', b'{"type":"image_url","image_url":[{"url":"x"}]}'),
    b'{"type":"audio_url","image_url":{"url":"x"}}',
)


@pytest.mark.parametrize("part", ODD_PARTS)
def test_a_part_of_another_shape_is_no_item(part: bytes) -> None:
    raw = b'{"messages":[{"content":[%b , %b]}]}' % (part, SONG)
    assert items(call_of(raw, "chat_completions")) == (SONG,)


# Of few members each: they are within one another, and making them is what takes the time.
_PARTS = objects_of("type", "image_url", value=st.one_of(VALUES, objects_of("url", most=2)), most=3)
_CONTENT = st.lists(_PARTS, max_size=3).map(lambda parts: "[" + " ,".join(parts) + "]")
_MESSAGES = st.lists(objects_of("content", value=st.one_of(VALUES, _CONTENT), most=2), max_size=3).map(
    lambda messages: "[" + ",".join(messages) + "]"
)


@settings(max_examples=80, deadline=None)
@given(messages=st.one_of(VALUES, _MESSAGES))
def test_messages_of_any_shape_have_items_in_their_own_bytes_or_none(messages: str) -> None:
    call = call_of(b'{"messages":' + messages.encode() + b"}", "chat_completions")
    for item in items(call):
        assert item in messages.encode()
        assert json.loads(item)["type"] in ("image_url", "audio_url", "video_url")


def test_an_encoder_that_fails_fails_the_plan() -> None:
    call = call_of(BODY, "chat_completions")
    plan = planner().plan(call, DECODE_ONLY)
    step = next(plan)
    assert isinstance(step, Ask)
    with pytest.raises(EngineDied):
        plan.throw(EngineDied(step.legs[1]))


def test_without_encoders_a_chat_with_items_is_forwarded_byte_for_byte() -> None:
    assert played(Route(DECODER)).deliver.leg.content == BODY


# On real sockets.

FLAGS = ("--ec-connector=ec-nixl", "--source-guard=off", "--kv-connector=offloading")


def two_images(*names: str) -> bytes:
    parts = [{"type": "image_url", "image_url": {"url": f"http://a/{name}"}} for name in names]
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": parts}]}).encode()


async def test_encoders_run_in_parallel_and_all_end_before_prefill_and_decode() -> None:
    both = asyncio.Barrier(2)

    async def encoding(got: Got, answer: Answer) -> None:
        await both.wait()  # neither answers before the other has come
        name = got.json["messages"][0]["content"][0]["image_url"]["url"]
        await answer.json({"ec_transfer_params": {name: {"peer_port": 5}}})

    async with (
        scripted() as decoder,
        scripted(prefilled) as prefiller,
        scripted(encoding) as one,
        scripted(encoding) as two,
        serving(decoder.port, *FLAGS) as sidecar,
    ):
        headers = [
            (ENCODER_HEADER, f"nonsense,{one.netloc} , {two.netloc}"),
            (PREFILLER_HEADER, prefiller.netloc),
            (SOURCE_HEADER, "127.9.8.7:8000"),
            ("x-request-id", "r"),
        ]
        answer = await sidecar.post(body=two_images("1", "2"), headers=headers)
        assert (answer.status, answer.json["id"]) == (200, COMPLETION["id"])

    assert [got.all("x-request-id") for got in (*one.requests, *two.requests)] == [["r-enc-0"], ["r-enc-1"]]
    merged = {"http://a/1": {"peer_port": 5}, "http://a/2": {"peer_port": 5}}
    for got in (prefiller.last, decoder.last):
        assert (got.json["ec_transfer_params"], got.json["cache_hit_threshold"]) == (merged, 0)
        assert got.all(ENCODER_HEADER) == []
        assert "remote_kv_source" not in got.json["kv_transfer_params"]
    answered = [got.answered_s for got in (one.last, two.last)]
    assert max(moment for moment in answered if moment) <= prefiller.last.came_s + 0.05
    assert prefiller.last.came_s < decoder.last.came_s


@pytest.mark.parametrize("status", [400, 429, 500, 503])
async def test_the_first_encoder_that_fails_ends_the_others_and_is_a_502(status: int) -> None:
    async def never(got: Got, answer: Answer) -> None:
        await asyncio.sleep(30)

    async def refusing(got: Got, answer: Answer) -> None:
        await one.came()
        await answer.json({"secret": 1}, status)

    async with scripted() as decoder, scripted(never) as one, scripted(refusing) as two:
        async with serving(decoder.port, *FLAGS) as sidecar:
            headers = [(ENCODER_HEADER, f"{one.netloc},{two.netloc}")]
            answer = await sidecar.post(body=two_images("1", "2"), headers=headers)
            assert (answer.status, answer.all("x-sidecar-error")) == (502, ["502"])
            assert answer.json["message"] == f"the encode engine answered {status}"
            async with asyncio.timeout(1):
                await one.last.closed.wait()
        assert decoder.requests == []


async def test_an_encoder_that_cannot_be_reached_is_a_502() -> None:
    async with scripted() as decoder, serving(decoder.port, *FLAGS) as sidecar:
        answer = await sidecar.post(body=two_images("1"), headers=[(ENCODER_HEADER, "127.0.0.1:9")])
        assert (answer.status, answer.all("x-sidecar-error"), decoder.requests) == (502, ["502"], [])


async def test_a_client_that_goes_away_ends_every_encoder_leg() -> None:
    async def never(got: Got, answer: Answer) -> None:
        await asyncio.sleep(30)

    async with scripted() as decoder, scripted(never) as encoder, serving(decoder.port, *FLAGS) as sidecar:
        async with sidecar.connected() as (_, writer):
            writer.write(post(body=two_images("1", "2"), headers=[(ENCODER_HEADER, encoder.netloc)]))
            await encoder.came(2)
        async with asyncio.timeout(1):
            for got in encoder.requests:
                await got.closed.wait()
        assert decoder.requests == []


async def test_without_an_ec_connector_encoders_are_not_even_looked_at() -> None:
    async with scripted() as decoder, scripted(complete) as encoder, serving(decoder.port) as sidecar:
        body = two_images("1")
        answer = await sidecar.post(body=body, headers=[(ENCODER_HEADER, encoder.netloc)])
        assert (answer.json, decoder.last.body, encoder.requests) == (COMPLETION, body, [])


async def test_a_chat_without_items_is_forwarded_byte_for_byte_beside_encoders() -> None:
    async with scripted() as decoder, scripted(complete) as encoder, serving(decoder.port, *FLAGS) as sidecar:
        answer = await sidecar.post(headers=[(ENCODER_HEADER, encoder.netloc)])
        assert (answer.json, encoder.requests) == (COMPLETION, [])
        assert decoder.last.body.startswith(b'{"model":"m", "messages"')


async def test_ec_example_reads_nothing_of_the_encoders_answers() -> None:
    async def encoding(got: Got, answer: Answer) -> None:
        await answer.json({**PREFILLED, "ec_transfer_params": {"h": 1}})

    async with scripted() as decoder, scripted(encoding) as encoder:
        async with serving(decoder.port, "--ec-connector=ec-example") as sidecar:
            body = two_images("1")
            await sidecar.post(body=body, headers=[(ENCODER_HEADER, encoder.netloc)])
        assert decoder.last.json == {**json.loads(body), "cache_hit_threshold": 0}


def test_a_chat_of_ten_thousand_parts_is_looked_through() -> None:
    for content in (b'{"content":[%b]}', b'{"role":"user","content":[%b]}'):
        texts = b",".join([content % TEXT] * 10_000)
        raw = b'{"messages":[%b,{"content":[%b]}]}' % (texts, CAT)
        assert items(call_of(raw, "chat_completions")) == (CAT,)


@pytest.mark.parametrize("element", [b"[]", b"{}", b"1", b'{"content":[{"type":"x"}]}'])
def test_a_chat_that_is_too_much_to_look_through_is_refused_by_name(element: bytes) -> None:
    raw = b'{"messages":[{"content":[%b]},%b]}' % (CAT, b",".join([element] * 100_000))
    for route in (DECODE_ONLY, replace(DECODE_ONLY, source=SOURCE)):
        with pytest.raises(BadRequest, match=r'^field "messages" holds more than 100000 values, one of them'):
            played(route, raw=raw)
    without = raw.replace(b"image_url", b"image")
    assert played(DECODE_ONLY, raw=without).deliver.leg.content == without


async def test_the_refusal_is_an_answer_before_any_leg() -> None:
    raw = b'{"messages":[{"content":[%b]},%b]}' % (CAT, b",".join([b"[]"] * 100_000))
    headers = [("x-encoder-hosts-ports", "127.0.0.1:9")]
    async with scripted() as decoder, serving(decoder.port, "--ec-connector=ec-example") as sidecar:
        answer = await sidecar.post(body=raw, headers=headers)
        assert (answer.status, decoder.requests) == (400, [])
        assert answer.json["message"].startswith('field "messages" holds more than 100000 values')
