"""The prefiller's count of cached tokens in the answers that clients get (contract section 5)."""

from __future__ import annotations

import json
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.api import APIS
from sidecar.body import Body
from sidecar.usage import SseUsage, cached_tokens, reported, rewritten
from tests.json_texts import json_objects, members_of

BY_NAME = {api.name: api for api in APIS}
CHAT, COMPLETIONS = BY_NAME["chat_completions"], BY_NAME["completions"]
RESPONSES, MESSAGES = BY_NAME["responses"], BY_NAME["messages"]

# What a prefiller said


@pytest.mark.parametrize(
    ("usage", "count"),
    [
        (
            '{"prompt_tokens":161,"prompt_tokens_details":{"cached_tokens":96,"created_cache_tokens":null}}',
            96,
        ),
        ('{"prompt_tokens_details":{"cached_tokens":0}}', 0),
        ('{"prompt_tokens_details":{"cached_tokens":null}}', 0),
        ('{"prompt_tokens_details":{}}', 0),
        ('{"prompt_tokens_details":null}', 0),
        ('{"prompt_tokens":161}', 0),
        ('{"input_tokens":68,"input_tokens_details":{"cached_tokens":64}}', 64),
        ("null", 0),
        ("{}", 0),
        ("[]", 0),
        ('"x"', 0),
        ("7", 0),
        ('{"prompt_tokens_details":[7]}', 0),
        ('{"prompt_tokens_details":{"cached_tokens":"7"}}', 0),
        ('{"prompt_tokens_details":{"cached_tokens":true}}', 0),
        ('{"prompt_tokens_details":{"cached_tokens":[7]}}', 0),
    ],
)
def test_the_prefillers_count_is_read_and_null_or_absent_is_none_cached(usage: str, count: int) -> None:
    assert cached_tokens(Body.parse(f'{{"id":"x","usage":{usage}}}'.encode())) == count


def test_an_answer_without_usage_cached_nothing() -> None:
    assert cached_tokens(Body.parse(b'{"id":"x","kv_transfer_params":null}')) == 0


@pytest.mark.parametrize(
    "usage", ["9" * 5000, '{"prompt_tokens_details":{"cached_tokens":%s}}' % ("9" * 5000)]
)
def test_a_senseless_usage_of_a_prefiller_ends_no_request(usage: str) -> None:
    count = cached_tokens(Body.parse(f'{{"usage":{usage}}}'.encode()))
    assert isinstance(count, int)


# JSON answers

COMPLETION = (
    b'{ "id" :"cmpl-1","created":1796007693.0,"choices":[ {"text":"\\u00e9\\ud83d","usage":{"a":1}} ],'
    b'"usage":{"prompt_tokens":161, "total_tokens" : 1.69e2,"completion_tokens":8,"prompt_tokens_details":%s,'
    b'"completion_tokens_details":null},"kv_transfer_params":{"usage":{"cached_tokens":5}}}'
)


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        (
            b'{"cached_tokens":0,"created_cache_tokens":null, "multimodal_tokens" : 1.0}',
            b'{"cached_tokens":64,"created_cache_tokens":null,"multimodal_tokens":1.0}',
        ),
        (b'{"x":1,"cached_tokens":160}', b'{"x":1,"cached_tokens":64}'),
        (b'{"cached_tokens":null}', b'{"cached_tokens":64}'),
        (b"{}", b'{"cached_tokens":64}'),
        (b"null", b'{"cached_tokens":64}'),
    ],
)
def test_the_count_in_an_answer_is_the_prefillers_and_no_other_value_changes(
    details: bytes, expected: bytes
) -> None:
    assert rewritten(COMPLETION % details, COMPLETIONS, 64) == (
        b'{"id":"cmpl-1","created":1796007693.0,"choices":[ {"text":"\\u00e9\\ud83d","usage":{"a":1}} ],'
        b'"usage":{"prompt_tokens":161,"total_tokens":1.69e2,"completion_tokens":8,"prompt_tokens_details":'
        + expected
        + b',"completion_tokens_details":null},"kv_transfer_params":{"usage":{"cached_tokens":5}}}'
    )


@pytest.mark.parametrize("api", [CHAT, COMPLETIONS, BY_NAME["vllm_generate"]], ids=lambda api: api.name)
def test_a_usage_without_details_gets_them(api: Any) -> None:
    expected = b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":0}}}'
    assert rewritten(b'{"usage":{"prompt_tokens":9}}', api, 0) == expected


def test_the_responses_api_counts_in_its_own_field() -> None:
    answer = (
        b'{"id":"resp_1","usage":{"input_tokens":68,"input_tokens_details":{"cached_tokens":64,'
        b'"cache_write_tokens":0},'
        b'"output_tokens":4,"output_tokens_details":{"reasoning_tokens":0}}}'
    )
    assert rewritten(answer, RESPONSES, 7) == answer.replace(b'"cached_tokens":64', b'"cached_tokens":7')


def test_the_messages_api_has_no_such_count_and_gets_none() -> None:
    answer = b'{"id":"m", "type":"message","usage":{"input_tokens":68,"output_tokens":4}}'
    assert rewritten(answer, MESSAGES, 7) == answer


@pytest.mark.parametrize(
    "answer",
    [
        b'{ "id" : "x" }',
        b'{"id":"x", "usage":null}',
        b'{"id":"x", "usage":"usage"}',
        b'{"id":"x", "usage":[1]}',
        b'{"id":"x", "usage":5}',
        b'{"choices":[{"usage":{"prompt_tokens":1}}]}',
        b'{"message": {"usage":{"prompt_tokens":1}}}',
        b'[{"usage":{"prompt_tokens":1}}]',
        b'"usage"',
        b"null",
        b"",
        b"<html>usage</html>",
        b'{"usage":{"prompt_tokens":1}',
        b'{"usage":{"prompt_tokens":NaN}}',
        b'{"usage":\xff}',
    ],
)
def test_an_answer_without_a_usage_object_keeps_its_bytes(answer: bytes) -> None:
    assert rewritten(answer, CHAT, 64) == answer


# SSE


def fed(api: Any, *pieces: bytes) -> bytes:
    """What a stream becomes that comes in these pieces."""
    usage = SseUsage(api, 7)
    return b"".join([usage.feed(piece) for piece in pieces]) + usage.rest()


DELTA = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":'
    b'{"content":"say \\"usage\\" \\ud83d"},"finish_reason":null}],"usage":null}\n\n'
)
FINAL = (
    b'data: {"id":"chatcmpl-1","choices":[],"usage":{"prompt_tokens":99,"total_tokens":103,'
    b'"completion_tokens":4,'
    b'"prompt_tokens_details":{"cached_tokens":96,"created_cache_tokens":0}},'
    b'"system_fingerprint":"vllm-0.32.0"}\n\n'
)
DONE = b"data: [DONE]\n\n"
STREAM = DELTA + b": keep-alive\n\n" + DELTA + FINAL + DONE
EXPECTED = STREAM.replace(b'"cached_tokens":96', b'"cached_tokens":7')


def test_a_stream_is_rewritten_in_its_usage_event_only() -> None:
    assert fed(CHAT, STREAM) == EXPECTED


def test_a_stream_is_the_same_split_at_any_byte() -> None:
    assert {fed(CHAT, STREAM[:at], STREAM[at:]) for at in range(len(STREAM) + 1)} == {EXPECTED}


def test_a_stream_is_the_same_byte_by_byte() -> None:
    assert fed(CHAT, *[STREAM[at : at + 1] for at in range(len(STREAM))]) == EXPECTED


def test_every_event_that_has_usage_is_rewritten() -> None:
    # vLLM's stream_options.continuous_usage_stats puts it into every chunk.
    event = b'data: {"choices":[],"usage":{"prompt_tokens":9}}\n\n'
    expected = (
        b'data: {"choices":[],"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":7}}}\n\n'
    )
    assert fed(CHAT, event * 3) == expected * 3


def test_a_whole_event_leaves_with_the_piece_that_completes_it() -> None:
    usage = SseUsage(CHAT, 7)
    assert usage.feed(DELTA) == DELTA
    assert usage.feed(FINAL[:200]) == b""
    assert usage.feed(FINAL[200:] + DELTA[:10]) == FINAL.replace(b'"cached_tokens":96', b'"cached_tokens":7')
    assert usage.feed(DELTA[10:-2]) == b""
    assert usage.feed(DELTA[-2:-1]) == DELTA[:-1]
    assert usage.feed(DELTA[-1:]) == b"\n"
    assert usage.rest() == b""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            b'data:{"usage":{"prompt_tokens_details":{"cached_tokens":5}}}\n',
            b'data:{"usage":{"prompt_tokens_details":{"cached_tokens":7}}}\n',
        ),
        (
            b'data:   {"usage":{"prompt_tokens_details":{"cached_tokens":5}}} \r\n\r\n',
            b'data:   {"usage":{"prompt_tokens_details":{"cached_tokens":7}}} \r\n\r\n',
        ),
        (
            b'event: x\nid: 1\ndata: {"usage":{"prompt_tokens_details":{"cached_tokens":5}}}\nretry: 3\n\n',
            b'event: x\nid: 1\ndata: {"usage":{"prompt_tokens_details":{"cached_tokens":7}}}\nretry: 3\n\n',
        ),
        (
            b'data: {"usage":{"prompt_tokens_details":{"cached_tokens":5}}}',
            b'data: {"usage":{"prompt_tokens_details":{"cached_tokens":7}}}',
        ),
    ],
)
def test_an_event_is_recognised_in_any_framing_of_sse(line: bytes, expected: bytes) -> None:
    assert fed(CHAT, line) == expected
    assert fed(CHAT, *[line[at : at + 1] for at in range(len(line))]) == expected


def test_the_responses_api_has_its_usage_in_the_response_of_its_last_event() -> None:
    created = (
        b'event: response.created\ndata: {"type":"response.created","response":{"id":"r","usage":null}}\n\n'
    )
    completed = (
        b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"r","output":[ ],'
        b'"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":8}}},"sequence_number":9}\n\n'
    )
    expected = (
        b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"r","output":[ ],'
        b'"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":7}}},"sequence_number":9}\n\n'
    )
    assert fed(RESPONSES, created + completed) == created + expected


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b"\n",
        DONE,
        DELTA,
        b'data: {"choices":[{"usage":{"prompt_tokens":9}}]}\n\n',
        b'data: {"usage":{"prompt_tokens":9}\n\n',
        b'data: "usage"\n\n',
        b': {"usage":{"prompt_tokens":9}}\n\n',
        b'{"usage":{"prompt_tokens":9}}\n\n',
        b' data: {"usage":{"prompt_tokens":9}}\n\n',
        b'event: {"usage":{}}\ndata:\n\n',
        b'data: {"error":{"message":"no \xff \\"usage\\""},"usage":null}\n\n',
        b'data: {"type":"message_start","message":{"usage":{"input_tokens":9}}}\n\n',
    ],
)
def test_whatever_has_no_usage_keeps_its_bytes(stream: bytes) -> None:
    assert fed(CHAT, stream) == stream
    assert fed(CHAT, *[stream[at : at + 1] for at in range(len(stream))]) == stream


def test_a_line_of_absurd_length_is_not_held_back_for_ever() -> None:
    usage = SseUsage(CHAT, 7)
    mebibyte = b"x" * 1024 * 1024
    held = [usage.feed(mebibyte) for _ in range(10)]
    assert sum(map(len, held)) > 0
    assert b"".join(held) + usage.rest() == mebibyte * 10


def test_a_very_long_event_in_the_pieces_of_a_network_costs_in_proportion_to_its_length() -> None:
    # The Responses API's last event repeats the whole answer; an Ethernet segment brings 1,448 bytes of it.
    event = (
        b'data: {"type":"response.completed","response":{"output":"%b","usage":{"input_tokens":9,'
        b'"input_tokens_details":{"cached_tokens":96}}}}\n\n' % (b"x" * 8_000_000)
    )
    began_s = process_time()
    out = fed(RESPONSES, *(event[at : at + 1448] for at in range(0, len(event), 1448)))

    assert out == event.replace(b'"cached_tokens":96', b'"cached_tokens":7')
    # A tenth of a second; joining what came before with every piece took four, in which nobody was served.
    assert process_time() - began_s < 2


# Any stream at all

_USAGES = ('{"prompt_tokens":9}', '{"prompt_tokens_details":{"x":1.0,"cached_tokens":5}}', "null", "[]", "{}")


def _one_line(text: bytes) -> bytes:
    return text.replace(b"\n", b" ").replace(b"\r", b"\t")


_EVENTS = st.one_of(
    st.sampled_from(
        (b": keep-alive", b"event: message", b"data: [DONE]", b"data:", b"", b"junk \xff", b"data: {")
    ),
    json_objects({"usage": st.sampled_from(_USAGES)}).map(lambda made: b"data: " + _one_line(made.text)),
)
_LINE_ENDS = st.sampled_from((b"\n", b"\n\n", b"\r\n", b"\r\n\r\n"))
_STREAMS = st.tuples(
    st.lists(st.tuples(_EVENTS, _LINE_ENDS).map(b"".join), max_size=5).map(b"".join),
    st.sampled_from((b"", b"data: {", b'data: {"usage":{"prompt_tokens":9}}')),
).map(b"".join)


@settings(max_examples=80, deadline=None)
@given(stream=_STREAMS, cuts=st.lists(st.integers(0, 400), max_size=6))
def test_any_split_of_any_stream_gives_the_bytes_of_the_whole_and_holds_no_whole_line(
    stream: bytes, cuts: list[int]
) -> None:
    whole = fed(CHAT, stream)
    usage = SseUsage(CHAT, 7)
    ends = [*sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    out, start = b"", 0
    for end in ends:
        out += usage.feed(stream[start:end])
        start = end
        assert out.count(b"\n") == stream[:end].count(b"\n")
    assert out + usage.rest() == whole


@settings(max_examples=80, deadline=None)
@given(stream=_STREAMS)
def test_any_stream_changes_only_in_the_count_of_its_usage_objects(stream: bytes) -> None:
    before, after = stream.split(b"\n"), fed(CHAT, stream).split(b"\n")
    assert len(before) == len(after)
    for old, new in zip(before, after, strict=True):
        if old == new:
            assert not _has_usage(old)
            continue
        assert old[:6] == new[:6] == b"data: "
        was, now = dict(members_of(old[6:])), dict(members_of(new[6:]))
        assert json.loads(now["usage"])["prompt_tokens_details"]["cached_tokens"] == 7
        assert list(was) == list(now)
        assert {key: value for key, value in was.items() if key != "usage"} == {
            key: value for key, value in now.items() if key != "usage"
        }


def _has_usage(line: bytes) -> bool:
    """Whether the line is a data event with a usage object whose count is not the prefiller's yet."""
    try:
        event = json.loads(line.removeprefix(b"data: ")) if line.startswith(b"data: ") else None
    except ValueError:
        return False
    usage = event.get("usage") if isinstance(event, dict) else None
    return isinstance(usage, dict) and b'"usage"' in line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"usage":{"prompt_tokens":70,"prompt_tokens_details":{"cached_tokens":64}}}', (70, 64)),
        (b'{"usage":{"input_tokens":70,"input_tokens_details":{"cached_tokens":64}}}', (70, 64)),
        (b'{"usage":{"prompt_tokens":70,"prompt_tokens_details":null}}', (70, None)),
        (b'{"usage":{"input_tokens":6,"cache_read_input_tokens":64}}', (70, 64)),
        (
            b'{"usage":{"input_tokens":2,"cache_read_input_tokens":64,"cache_creation_input_tokens":4}}',
            (70, 64),
        ),
        (b'{"usage":{"input_tokens":70,"cache_read_input_tokens":null}}', (70, None)),
        (b'{"content":"\\"usage\\":{\\"prompt_tokens\\":9}"}', (None, None)),
    ],
)
def test_what_an_answer_reports_counts_cached_tokens_among_the_prompts(
    text: bytes, expected: tuple[int | None, int | None]
) -> None:
    assert reported(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        b'{"usage":{"prompt_tokens":16',
        b'{"usage":{"prompt_tokens":16, "prompt_tokens_details":{"cached_tokens":6',
        b'{"usage":{"prompt_tokens":16,"prompt_tokens_details":{"cached_tokens":',
    ],
)
def test_a_number_that_may_go_on_is_none(text: bytes) -> None:
    assert reported(text) == (16 if b"16," in text else None, None)


def test_a_number_that_may_go_on_does_not_hide_one_before_it() -> None:
    text = b'data: {"usage":{"prompt_tokens":70}}\n\ndata: {"usage":{"prompt_tokens":7'
    assert reported(text) == (70, None)
