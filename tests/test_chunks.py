"""Chunked decode: one answer out of several legs, never another one than a single decode's (section 8)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.body import Body
from sidecar.call import Call
from sidecar.chunks import divisible
from sidecar.connectors import CONNECTORS, Connector, Options
from sidecar.errors import LegRefused, UnusableAnswer
from sidecar.observers import ExchangeRecord, Observer, Watch
from sidecar.plan import Ask, Chunk, Deliver, Emit, Finish, Leg, Plan, Reply, Role, Start
from sidecar.planning import Planner
from sidecar.routing import Route
from tests.connectors.play import DECODER, OPTIONS, PREFILLER, SOURCE, Played, call_of, play, reply_of
from tests.engines import Answer, Got, prefilled, scripted
from tests.json_texts import STRINGS, VALUES, json_objects
from tests.observers.play import stage
from tests.serving import PREFILLER as PREFILLER_HEADER
from tests.serving import SOURCE as SOURCE_HEADER
from tests.serving import post, read_answer, read_head, serving

CHAT = b"/v1/chat/completions"
MESSAGES = b'[{"role":"user","content":"\\ud83d hi"} ]'
BODY = b'{"model":"m","messages":' + MESSAGES + b',"temperature":0.70,"max_tokens":5%b}'
KV = b'{"kv_transfer_params":{"x":1},"usage":{"prompt_tokens_details":{"cached_tokens":96}}}'


def chat(text: str | None, finish: str = "length", tokens: int = 2, **more: Any) -> dict[str, Any]:
    """An engine's answer of so many tokens."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
    usage = {"prompt_tokens": 9, "total_tokens": 9 + tokens, "completion_tokens": tokens}
    answer = {
        "id": f"id-{text}",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [choice],
    }
    return {**answer, "usage": usage, **more}


def chat_reply(text: str | None, finish: str = "length", tokens: int = 2, **more: Any) -> Reply:
    return reply_of(json.dumps(chat(text, finish, tokens, **more)).encode())


def plan_of(raw: bytes, route: Route | None = None, size_tokens: int = 2) -> Plan:
    planner = Planner(CONNECTORS["nixlv2"], OPTIONS, chunk_tokens=size_tokens)
    return planner.plan(call_of(raw, "chat_completions"), route or Route(DECODER))


def played(raw: bytes, *replies: Reply, route: Route | None = None, size_tokens: int = 2) -> Played:
    return play(plan_of(raw, route, size_tokens), *replies)


def chunk_leg(index: int, budget: int, text: str = "", size_tokens: int = 2) -> Leg:
    """The whole leg that is expected for a chunk of BODY."""
    said = b"%b" % MESSAGES[:-1] + b',{"role":"assistant","content":%b}]' % json.dumps(text).encode()
    content = (
        b'{"model":"m","messages":'
        + (said if index else MESSAGES)
        + b',"temperature":0.70,"max_tokens":%d,"max_completion_tokens":%d,"stream":false' % (budget, budget)
        + (b',"continue_final_message":true,"add_generation_prompt":false}' if index else b"}")
    )
    return Leg(Role.DECODE, DECODER, b"POST", CHAT, (), content, chunk=Chunk(index, size_tokens))


def whole(played: Played) -> Any:
    """The one document that the client gets."""
    assert isinstance(played.end, Finish)
    assert played.end.reply is not None
    length = [value for name, value in played.end.reply.headers if name == b"content-length"]
    assert length in ([], [b"%d" % len(played.end.reply.content)])
    return json.loads(played.end.reply.content)


def events(played: Played) -> list[bytes]:
    return [step.content for step in played.steps if isinstance(step, Emit)]


def stream_of(raw: bytes) -> list[Any]:
    """The JSON of each event; the stream must end as one does."""
    *events, done, rest = raw.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [json.loads(event.removeprefix(b"data: ")) for event in events]


STREAMING = BODY % b',"stream":true,"stream_options":{"include_usage":true}'


def test_each_next_chunk_is_the_chat_and_one_message_with_all_the_text_so_far() -> None:
    made = played(BODY % b"", chat_reply('a" '), chat_reply("\ud83d"), chat_reply("b", "length", 1))
    assert made.legs == [chunk_leg(0, 2), chunk_leg(1, 2, 'a" '), chunk_leg(2, 1, 'a" \ud83d')]
    assert [step.refusable for step in made.steps if isinstance(step, Ask)] == [False, True, True]


def test_the_pieces_are_one_document_with_summed_usage() -> None:
    made = played(
        BODY % b"",
        chat_reply("Once ", service_tier="t"),
        chat_reply("upon \ud83d"),
        chat_reply("\ude00", "stop", 1, kv_transfer_params={"of": "the last"}),
    )
    assert whole(made) == {
        "id": "id-Once ",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Once upon \U0001f600"},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 9, "total_tokens": 14, "completion_tokens": 5},
        "kv_transfer_params": {"of": "the last"},
        "service_tier": "t",
    }
    assert isinstance(made.end, Finish)
    assert made.end.completion_tokens == 5


def test_an_answer_that_fits_into_the_first_chunk_is_the_engines_own_byte_for_byte() -> None:
    reply = chat_reply("short", "stop", 1)
    made = played(BODY % b"", reply)
    assert made.end == Finish(reply, 1)


def event(delta: Any, finish: str | None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    head = {"id": "id-Once ", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    return {**head, "choices": [choice], **more}


def test_a_stream_has_one_event_a_chunk_and_then_one_usage() -> None:
    made = played(STREAMING, chat_reply("Once "), chat_reply("upon"), chat_reply(" a", "stop", 1))
    assert [len(one.split(b"\n\n")) - 1 for one in events(made)] == [1, 1, 3]
    assert stream_of(b"".join(events(made))) == [
        event({"role": "assistant", "content": "Once "}, None),
        event({"content": "upon"}, None),
        event({"content": " a"}, "stop"),
        {
            **event({}, None),
            "choices": [],
            "usage": {"prompt_tokens": 9, "total_tokens": 14, "completion_tokens": 5},
        },
    ]
    assert made.end == Finish(None, 5)
    assert [step.headers for step in made.steps if isinstance(step, Emit)] == [
        ((b"content-type", b"text/event-stream"),)
    ] * 3
    assert [json.loads(leg.content or b"")["stream"] for leg in made.legs] == [False] * 3
    assert not any(b"stream_options" in (leg.content or b"") for leg in made.legs)


def test_a_stream_that_ends_in_its_first_chunk_says_everything_in_it() -> None:
    answer = chat(None, "stop", 1)
    answer["choices"][0]["message"]["reasoning"] = "hm"
    answer["choices"][0]["stop_reason"] = 3
    made = played(STREAMING, reply_of(json.dumps(answer).encode()))
    [first, usage] = stream_of(b"".join(events(made)))
    assert first["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "reasoning": "hm", "content": ""},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": 3,
        }
    ]
    assert usage["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("finish", ["stop", "content_filter", "tool_calls", "cache_threshold", None])
def test_any_other_finish_reason_ends_it(finish: Any) -> None:
    made = played(BODY % b"", chat_reply("a"), chat_reply("b", finish))
    assert whole(made)["choices"][0]["finish_reason"] == finish


@pytest.mark.parametrize("text", ["", None])
def test_an_empty_chunk_ends_it(text: str | None) -> None:
    made = played(BODY.replace(b',"max_tokens":5', b"") % b"", chat_reply("a"), chat_reply(text))
    answer = whole(made)
    assert answer["choices"][0] == {**chat("a")["choices"][0], "finish_reason": "length"}
    assert answer["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    ("limits", "budgets"),
    [
        (b'"max_tokens":5', [2, 2, 1]),
        (b'"max_completion_tokens":3', [2, 1]),
        (b'"max_tokens":50,"max_completion_tokens":3', [2, 1]),
        (b'"max_completion_tokens":null,"max_tokens":4', [2, 2]),
    ],
)
def test_the_clients_own_limit_ends_it(limits: bytes, budgets: list[int]) -> None:
    raw = BODY.replace(b'"max_tokens":5', limits) % b""
    made = played(raw, *[chat_reply("x", tokens=budget) for budget in budgets])
    asked = [json.loads(leg.content or b"") for leg in made.legs]
    assert (
        [body["max_tokens"] for body in asked] == [body["max_completion_tokens"] for body in asked] == budgets
    )
    assert whole(made)["usage"]["completion_tokens"] == sum(budgets)


def test_without_a_limit_it_goes_on_until_the_engine_ends_it() -> None:
    replies = [chat_reply("x") for _ in range(20)]
    made = played(BODY.replace(b',"max_tokens":5', b"") % b"", *replies, chat_reply("", "stop", 0))
    assert whole(made)["choices"][0]["message"]["content"] == "x" * 20


def test_an_engine_that_does_not_count_has_used_up_each_budget() -> None:
    replies = [chat_reply("x", usage=None), chat_reply("y", usage={}), chat_reply("z", usage={})]
    made = played(BODY % b"", *replies)
    assert whole(made)["usage"] == {"prompt_tokens": 0, "total_tokens": 5, "completion_tokens": 5}


@pytest.mark.parametrize("raw", [BODY % b"", STREAMING])
def test_an_engine_that_counts_nothing_of_what_it_cuts_has_used_up_each_budget(raw: bytes) -> None:
    made = played(raw, *[chat_reply(text, tokens=0) for text in "xyz"])
    usage = stream_of(b"".join(events(made)))[-1]["usage"] if raw is STREAMING else whole(made)["usage"]
    assert usage == {"prompt_tokens": 9, "total_tokens": 14, "completion_tokens": 5}


FULL = b'{"error":{"message":"This model\'s maximum context length is 16 tokens. However, you ..."}}'


NO_ROOM = b'{"error":{"message":"max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"}}'


@pytest.mark.parametrize("said", [FULL, NO_ROOM])
@pytest.mark.parametrize("raw", [BODY % b"", STREAMING])
def test_a_full_context_ends_it_as_it_ends_one_decode(raw: bytes, said: bytes) -> None:
    full = Reply(400, b"Bad Request", (), said, Body({}))
    made = played(raw, chat_reply("a"), full)
    if raw is STREAMING:
        *_, last, usage = stream_of(b"".join(events(made)))
        assert last["choices"][0] == {**event({"content": ""}, "length")["choices"][0]}
    else:
        usage = whole(made)
        assert usage["choices"] == chat("a")["choices"]
    assert usage["usage"] == {"prompt_tokens": 9, "total_tokens": 11, "completion_tokens": 2}


@pytest.mark.parametrize(("status", "content"), [(400, b'{"message":"no"}'), (500, FULL), (429, b"")])
def test_any_other_refusal_is_raised(status: int, content: bytes) -> None:
    refusal = Reply(status, b"No", (), content, Body({}))
    with pytest.raises(LegRefused) as raised:
        played(BODY % b"", chat_reply("a"), refusal)
    assert (raised.value.reply, raised.value.leg.chunk) == (refusal, Chunk(1, 2))


@pytest.mark.parametrize(
    "answer", [{}, {"choices": []}, {"choices": [{}, {}]}, {"choices": [7]}, {"choices": [{"message": None}]}]
)
def test_an_answer_without_its_one_message_cannot_be_used(answer: Any) -> None:
    with pytest.raises(UnusableAnswer, match="the decode engine's answer has not one choice"):
        played(BODY % b"", reply_of(json.dumps(answer).encode()))


UNDIVIDED = [
    *(b'"n":2', b'"best_of":2', b'"logprobs":true', b'"top_logprobs":3', b'"prompt_logprobs":0'),
    *(b'"tools":[{"type":"function"}]', b'"functions":[{}]', b'"response_format":{"type":"json_object"}'),
    *(b'"structured_outputs":{"regex":"a"}', b'"guided_json":{}', b'"stop":"."', b'"stop":["."]'),
    *(b'"min_tokens":3', b'"echo":true', b'"continue_final_message":true', b'"add_generation_prompt":false'),
    *(b'"use_beam_search":true', b'"presence_penalty":0.5', b'"return_token_ids":true', b'"stream":"yes"'),
    *(b'"max_completion_tokens":0', b'"max_completion_tokens":"9"', b'"max_completion_tokens":-1'),
    *(b'"max_completion_tokens":2', b'"max_completion_tokens":1', b'"messages":[]', b'"messages":"hi"'),
    *(b'"messages":[ ]', b'"messages":null', b'"truncate_prompt_tokens":5', b'"max_completion_tokens":true'),
]


@pytest.mark.parametrize("field", UNDIVIDED)
def test_what_a_cut_would_change_is_decoded_in_one_byte_for_byte(field: bytes) -> None:
    raw = BODY.replace(b'"max_tokens":5', b'"max_tokens":5,' + field) % b""
    made = played(raw)
    expected = Body.parse(raw).encode()
    assert (made.steps, made.end) == ([], Deliver(Leg(Role.DECODE, DECODER, b"POST", CHAT, (), expected)))


HARMLESS = (
    b',"n":1,"logprobs":false,"tools":[],"stop":null,"min_tokens":0,"presence_penalty":0.0,"seed":4,'
    b'"response_format":{"type":"text"},"stream":false,"top_p":0.9,"tool_choice":null'
)


def test_fields_that_ask_for_nothing_do_not_keep_it_whole() -> None:
    assert divisible(Body.parse(BODY % HARMLESS), 2)
    assert not divisible(Body.parse(BODY % HARMLESS), 5)


@pytest.mark.parametrize("api", ["completions", "responses", "messages", "vllm_generate", "sglang_generate"])
def test_only_chats_are_cut(api: str) -> None:
    call = call_of(b'{"input":"x","messages":[{}]}', api)
    made = play(Planner(CONNECTORS["nixlv2"], OPTIONS, chunk_tokens=2).plan(call, Route(DECODER)))
    assert isinstance(made.end, Deliver)


@pytest.mark.parametrize(
    "more",
    [
        {"reasoning": "hm"},
        {"reasoning_content": "hm"},
        {"tool_calls": [{}]},
        {"content": " \n"},
        {"content": [{"type": "text", "text": "x"}]},
    ],
)
def test_more_or_less_than_a_text_cannot_be_continued_and_is_decoded_anew_in_one(
    more: dict[str, Any],
) -> None:
    answer = chat(None)
    answer["choices"][0]["message"] |= more
    route = Route(DECODER, source=SOURCE)
    made = played(STREAMING, reply_of(json.dumps(answer).encode()), route=route)
    assert made.legs[0].pull is not None
    assert events(made) == []
    assert made.end == Deliver(Leg(Role.DECODE, DECODER, b"POST", CHAT, (), STREAMING))


def test_only_the_first_chunk_pulls_or_takes_what_was_handed_over() -> None:
    raw = BODY % b',"vllm_xargs":{"kv_transfer_params":{"client":1},"a":1},"kv_transfer_params":{"client":1}'
    for route, replies in (
        (Route(DECODER, source=SOURCE), []),
        (Route(DECODER, prefiller=PREFILLER), [reply_of(KV)]),
        (Route(DECODER), []),
    ):
        made = played(raw, *replies, chat_reply("a"), chat_reply("b", "stop"), route=route)
        first, second = made.legs[-2:]
        assert b'"kv_transfer_params"' in (first.content or b"")
        assert b"kv_transfer_params" not in (second.content or b"")
        assert b'"vllm_xargs":{"a":1}' in (second.content or b"")
        assert (first.pull is not None, second.pull) == (route.source is not None, None)


@pytest.mark.parametrize("details", [None, {"cached_tokens": 7, "audio_tokens": 0}])
@pytest.mark.parametrize("chunks", [1, 2])
def test_after_a_handoff_the_usage_tells_the_prefillers_cached_tokens(details: Any, chunks: int) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11, "prompt_tokens_details": details}
    answers = [chat_reply("a", "length" if chunks == 2 else "stop", usage=usage), chat_reply("b", "stop")]
    route = Route(DECODER, prefiller=PREFILLER)
    expected = {**(details or {}), "cached_tokens": 96}
    made = played(BODY % b"", reply_of(KV), *answers[:chunks], route=route)
    assert whole(made)["usage"]["prompt_tokens_details"] == expected
    made = played(STREAMING, reply_of(KV), *answers[:chunks], route=route)
    assert stream_of(b"".join(events(made)))[-1]["usage"]["prompt_tokens_details"] == expected


def test_a_lost_handoff_is_told_by_every_step_that_decodes() -> None:
    made = played(
        BODY % b"", reply_of(b"{}"), chat_reply("a", "stop"), route=Route(DECODER, prefiller=PREFILLER)
    )
    asks = [step for step in made.steps if isinstance(step, Ask)]
    assert [ask.handoff_lost for ask in asks] == [None, "prefill_without_kv_transfer_params"]


_TEXTS = st.lists(STRINGS.filter(lambda text: text != '""'), min_size=1, max_size=5).filter(
    lambda texts: not json.loads(texts[0]).isspace()
)


@settings(max_examples=60, deadline=None)
@given(texts=_TEXTS)
def test_texts_are_joined_as_the_engine_wrote_them(texts: list[str]) -> None:
    answer = '{"id":"i","choices":[ {"message":{"content": %s},"finish_reason":"length"} ]}'
    replies = [reply_of((answer % text).encode()) for text in texts]
    stop = reply_of(b'{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}')
    made = played(BODY.replace(b',"max_tokens":5', b"") % b"", *replies, stop)
    expected = json.loads('"' + "".join(text[1:-1] for text in texts) + '"')
    assert whole(made)["choices"][0]["message"]["content"] == expected
    last = json.loads(made.legs[-1].content or b"")["messages"]
    assert last == [*json.loads(MESSAGES), {"role": "assistant", "content": expected}]


@settings(max_examples=60, deadline=None)
@given(made=json_objects({"messages": VALUES, "max_tokens": VALUES, "n": VALUES, "stream": VALUES}))
def test_any_chat_is_cut_or_goes_on_as_it_is(made: Any) -> None:
    cut = divisible(Body.parse(made.text), 2)
    played_out = played(made.text, *[chat_reply("x", "stop")] * cut)
    if cut:
        assert Body.parse(played_out.legs[0].content or b"")["max_tokens"] == b"2"
    else:
        assert played_out.deliver.leg.content == Body.parse(made.text).encode()


# On real sockets.

FLAG = "--decode-chunk-size=2"
ASKED = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":6%b}'
ASKED_STREAM = ASKED % b',"stream":true'
WORDS = ["Once ", "upon ", "a time"]


def said(got: Got) -> int:
    """How many chunks the conversation has in it."""
    last = got.json["messages"][-1]
    return WORDS.index(last["content"][-5:]) + 1 if last["role"] == "assistant" else 0


async def telling(got: Got, answer: Answer) -> None:
    """A decoder that tells WORDS, a word a chunk."""
    await answer.json(chat(WORDS[said(got)], tokens=got.json["max_tokens"]))


class Seen(Observer):
    """Keeps what is told of each leg when the exchange ends."""

    def __init__(self) -> None:
        self.chunks: list[Chunk | None] = []
        self.record: ExchangeRecord | None = None

    def exchange(self, record: ExchangeRecord) -> Watch:
        """See Observer.exchange."""
        self.record = record
        return super().exchange(record)

    def leg(self, record: Any) -> Watch:
        """See Observer.leg."""
        self.chunks.append(record.leg.chunk)
        return super().leg(record)


async def test_a_chat_is_told_in_chunks_as_one_document() -> None:
    seen = Seen()
    async with scripted(telling) as decoder, serving(decoder.port, FLAG, watchers=[seen]) as sidecar:
        answer = await sidecar.post(body=ASKED % b"")
        assert (answer.status, answer.whole, answer.all("content-type")) == (200, True, ["application/json"])
        assert answer.json["choices"][0]["message"]["content"] == "Once upon a time"
        assert answer.json["usage"] == {"prompt_tokens": 9, "total_tokens": 15, "completion_tokens": 6}
        assert len(decoder.requests) == 3
    assert seen.chunks == [Chunk(0, 2), Chunk(1, 2), Chunk(2, 2)]
    assert seen.record is not None
    assert (seen.record.completion_tokens, seen.record.streaming) == (6, False)


@pytest.mark.parametrize("body", [ASKED % b"", ASKED_STREAM], ids=["document", "stream"])
async def test_the_trace_of_a_chunked_decode_has_one_span_for_it(body: bytes) -> None:
    played = stage()
    async with (
        scripted(telling) as decoder,
        serving(decoder.port, FLAG, watchers=[played.tracing]) as sidecar,
    ):
        await sidecar.post(body=body)
    [server] = played.trees()
    [span] = server.inside
    assert (span.name, span.kind, span.status) == ("chunked_decode", "INTERNAL", ("UNSET", None))
    assert [(node.name, node.kind) for node in span.inside] == [("HTTP POST", "CLIENT")] * 3
    prefix = "llm_d.pd_proxy.chunked_decode."
    told = {key.removeprefix(prefix): value for key, value in span.attributes.items() if prefix in key}
    assert told.pop("duration_ms") > 0
    assert told == {"chunk_size": 2, "streaming": body is ASKED_STREAM, "chunks": 3, "total_tokens": 6}


async def test_each_chunk_of_a_stream_reaches_the_client_before_the_next_is_decoded() -> None:
    go = asyncio.Event()

    async def waiting(got: Got, answer: Answer) -> None:
        if said(got):
            await go.wait()
        await telling(got, answer)

    async with scripted(waiting) as decoder, serving(decoder.port, FLAG) as sidecar:
        async with sidecar.connected() as (reader, writer), asyncio.timeout(5):
            writer.write(post(body=ASKED_STREAM))
            head = await read_head(reader)
            assert (head.status, head.all("content-type")) == (200, ["text/event-stream"])
            first = await reader.readuntil(b"\n\n")
            came_s = monotonic()
            assert b'"content":"Once "' in first
            go.set()
            rest = await reader.readuntil(b"0\r\n\r\n")
        assert rest.count(b"data: ") == 4
        answered_s = decoder.requests[1].answered_s
        assert answered_s is not None
        assert came_s < answered_s


async def test_p_d_hands_over_to_the_first_chunk_and_tells_the_prefillers_count() -> None:
    async with (
        scripted(telling) as decoder,
        scripted(prefilled) as prefiller,
        serving(decoder.port, FLAG) as sidecar,
    ):
        answer = await sidecar.post(body=ASKED_STREAM, headers=[(PREFILLER_HEADER, prefiller.netloc)])
        told = stream_of(answer.body)
        assert told[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
        handed = [got.json.get("kv_transfer_params", {}).get("remote_engine_id") for got in decoder.requests]
        assert handed == ["engine-p", None, None]
        assert len({got.all("x-request-id")[0] for got in (*prefiller.requests, *decoder.requests)}) == 1


async def test_only_the_first_chunk_pulls() -> None:
    flags = (FLAG, "--kv-connector=offloading", "--source-guard=off")
    async with scripted(telling) as decoder, serving(decoder.port, *flags) as sidecar:
        await sidecar.post(body=ASKED % b"", headers=[(SOURCE_HEADER, "127.9.8.7:8000")])
        assert ["kv_transfer_params" in got.json for got in decoder.requests] == [True, False, False]


def failing_at(chunk: int, status: int = 429) -> Callable[[Got, Answer], Any]:
    async def script(got: Got, answer: Answer) -> None:
        if said(got) == chunk:
            await answer.json({"no": chunk}, status, [("x-why", "full")])
        else:
            await telling(got, answer)

    return script


@pytest.mark.parametrize("status", [400, 429, 500, 503])
@pytest.mark.parametrize(("body", "chunk"), [(ASKED % b"", 0), (ASKED % b"", 2), (ASKED_STREAM, 0)])
async def test_a_chunk_that_fails_before_the_first_byte_is_relayed(
    body: bytes, chunk: int, status: int
) -> None:
    async with scripted(failing_at(chunk, status)) as decoder, serving(decoder.port, FLAG) as sidecar:
        answer = await sidecar.post(body=body)
        assert (answer.status, answer.json, answer.all("x-why")) == (status, {"no": chunk}, ["full"])
        assert len(decoder.requests) == chunk + 1


async def test_a_chunk_that_fails_after_it_cuts_the_stream() -> None:
    async with scripted(failing_at(1)) as decoder, serving(decoder.port, FLAG) as sidecar:
        answer = await sidecar.post(body=ASKED_STREAM)
        assert (answer.status, answer.whole) == (200, False)
        first, _, error = answer.body.partition(b"\n\n")
        assert b'"content":"Once "' in first
        message = "the decode engine answered 429"
        inner = {"message": message, "type": "RateLimitError", "param": None, "code": 429}
        assert json.loads(error.strip().removeprefix(b"data: ")) == {"error": inner}


async def test_a_context_that_is_full_in_the_middle_of_a_stream_is_a_clean_end() -> None:
    async def full(got: Got, answer: Answer) -> None:
        if said(got):
            await answer.json(FULL, 400)
        else:
            await telling(got, answer)

    async with scripted(full) as decoder, serving(decoder.port, FLAG) as sidecar:
        answer = await sidecar.post(body=ASKED_STREAM)
        assert answer.whole
        assert [one["choices"][0]["finish_reason"] for one in stream_of(answer.body)[:-1]] == [None, "length"]


async def test_a_client_that_goes_away_ends_the_chunk_that_is_being_decoded() -> None:
    async def never(got: Got, answer: Answer) -> None:
        if said(got):
            await asyncio.sleep(30)
        await telling(got, answer)

    async with scripted(never) as decoder, serving(decoder.port, FLAG) as sidecar:
        async with sidecar.connected() as (_, writer):
            writer.write(post(body=ASKED_STREAM))
            await decoder.came(2)
        async with asyncio.timeout(1):
            await decoder.last.closed.wait()
        assert len(decoder.requests) == 2


async def test_two_chats_on_one_connection_are_told_one_after_the_other() -> None:
    async with (
        scripted(telling) as decoder,
        serving(decoder.port, FLAG) as sidecar,
        sidecar.connected() as (reader, writer),
        asyncio.timeout(5),
    ):
        for _ in range(2):
            writer.write(post(body=ASKED_STREAM))
            assert len(stream_of((await read_answer(reader)).body)) == 4


def concurrent(call: Call, route: Route, options: Options) -> Plan:
    """Prefill beside decode, with a decode without it standing in."""
    assert route.prefiller is not None
    yield Start(call.prefill(route.prefiller, {"n": 1}, None))
    alone = Deliver(call.uncapped(Role.DECODE, route.decoder, {"alone": b"true"}), handoff_lost="gone")
    decode = call.uncapped(Role.DECODE, route.decoder, {"beside": b"true"})
    return Deliver(decode, after_started=True, otherwise=alone)


async def test_the_first_chunk_is_held_until_a_started_prefill_has_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(CONNECTORS, "nixlv2", Connector(concurrent, pulls=False))
    go = asyncio.Event()

    async def late(got: Got, answer: Answer) -> None:
        await go.wait()
        await prefilled(got, answer)

    async with (
        scripted(telling) as decoder,
        scripted(late) as prefiller,
        serving(decoder.port, FLAG) as sidecar,
        sidecar.connected() as (reader, writer),
        asyncio.timeout(5),
    ):
        writer.write(post(body=ASKED_STREAM, headers=[(PREFILLER_HEADER, prefiller.netloc)]))
        await decoder.came()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        assert len(decoder.requests) == 1
        go.set()
        assert len(stream_of((await read_answer(reader)).body)) == 4


@pytest.mark.parametrize(("status", "expected"), [(503, 200), (500, 500)])
async def test_what_stands_in_for_a_started_prefill_is_decoded_in_chunks_too(
    monkeypatch: pytest.MonkeyPatch, status: int, expected: int
) -> None:
    monkeypatch.setitem(CONNECTORS, "nixlv2", Connector(concurrent, pulls=False))

    async def decode(got: Got, answer: Answer) -> None:
        if "beside" in got.json:
            await asyncio.sleep(30)
        await telling(got, answer)

    async def refusing(got: Got, answer: Answer) -> None:
        await decoder.came()
        await answer.json({}, status)

    async with (
        scripted(decode) as decoder,
        scripted(refusing) as prefiller,
        serving(decoder.port, FLAG) as sidecar,
    ):
        answer = await sidecar.post(body=ASKED % b"", headers=[(PREFILLER_HEADER, prefiller.netloc)])
        assert answer.status == expected
        async with asyncio.timeout(1):
            await decoder.requests[0].closed.wait()
        assert [got.json.get("alone") for got in decoder.requests[1:]] == (
            [True] * 3 if expected == 200 else []
        )
