"""Which headers a leg and an answer carry (contract sections 1, 5 and 9)."""

from __future__ import annotations

import pytest

from sidecar import headers as names

ROUTING = [
    b"x-prefiller-host-port",
    b"x-llm-d-prefiller-host-port",
    b"x-encoder-hosts-ports",
    b"x-llm-d-encoder-hosts-ports",
    b"x-kv-cache-source-host-port",
    b"x-llm-d-kv-cache-source-host-port",
    b"x-data-parallel-host-port",
]
# RFC 9110 section 7.6.1 and RFC 9112 section 6.1.
HOP_BY_HOP = [
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
]

TRACEPARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("name", ROUTING)
def test_no_routing_header_is_forwarded_however_it_is_spelled(name: bytes) -> None:
    headers = [(b"A", b"1"), (name, b"x:1"), (name.upper(), b""), (name.title(), b"y:2"), (b"B", b"2")]
    assert names.forwarded(headers) == ((b"A", b"1"), (b"B", b"2"))


@pytest.mark.parametrize("name", HOP_BY_HOP)
def test_no_hop_by_hop_header_goes_on_in_either_direction(name: bytes) -> None:
    headers = [(b"A", b"1"), (name, b"x"), (name.title(), b"y"), (b"B", b"2")]
    assert names.forwarded(headers) == ((b"A", b"1"), (b"B", b"2"))
    assert names.relayed(headers) == ((b"A", b"1"), (b"B", b"2"))


def test_host_and_length_of_the_client_are_not_those_of_a_leg() -> None:
    assert names.forwarded([(b"Host", b"h"), (b"Content-Length", b"5"), (b"Accept", b"*/*")]) == (
        (b"Accept", b"*/*"),
    )


def test_everything_else_is_forwarded_in_order_with_its_case_duplicates_and_bytes() -> None:
    headers = (
        (b"X-a", b"1"),
        (b"Authorization", b"Bearer k"),
        (b"x-A", b"\xe9 \xff"),
        (b"X-a", b"1"),
        (b"Cookie", b"a=1"),
        (b"Traceparent", TRACEPARENT),
        (b"tracestate", b"a=1"),
        (b"Accept-Encoding", b"gzip"),
        (b"Content-Type", b"application/json"),
        (b"x-empty", b""),
    )
    assert names.forwarded(headers) == headers
    assert names.forwarded(iter(headers)) == headers


@pytest.mark.parametrize(
    "traceparents",
    [
        [b"00-x"],
        [b""],
        [TRACEPARENT.upper()],
        [TRACEPARENT, TRACEPARENT],
        [TRACEPARENT, b"00-x"],
        [b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01"],
    ],
)
def test_a_bad_traceparent_or_several_stay_behind_with_their_tracestate(traceparents: list[bytes]) -> None:
    headers = [
        (b"A", b"1"),
        *[(b"TraceParent", value) for value in traceparents],
        (b"Tracestate", b"a=1"),
        (b"B", b"2"),
        (b"baggage", b"c=3"),
    ]
    left = ((b"A", b"1"), (b"B", b"2"), (b"baggage", b"c=3"))
    assert names.forwarded(headers) == left
    assert names.forwarded([*headers, (b"Connection", b"baggage")]) == left[:2]
    assert names.tunnelled(headers) == left


def test_the_one_good_traceparent_goes_on_untouched_in_its_place() -> None:
    headers = (
        (b"A", b"1"),
        (b"TraceParent", b" " + TRACEPARENT),
        (b"Tracestate", b"no grammar"),
        (b"B", b"2"),
    )
    assert names.forwarded(headers) == headers
    assert names.tunnelled(headers) == headers


def test_an_engines_own_trace_headers_are_the_clients_to_read() -> None:
    headers = ((b"traceparent", b"00-x"), (b"traceparent", b"00-y"))
    assert names.relayed(headers) == headers


@pytest.mark.parametrize(
    "connection",
    [
        [(b"Connection", b"X-Private")],
        [(b"Connection", b"close, x-private")],
        [(b"connection", b"keep-alive ,\tX-PRIVATE , ")],
        [(b"Connection", b"close"), (b"Connection", b"x-private")],
    ],
)
def test_a_header_that_connection_names_stays_behind(connection: list[tuple[bytes, bytes]]) -> None:
    for headers in (
        [(b"x-private", b"1"), *connection, (b"A", b"1")],
        [*connection, (b"X-Private", b"1"), (b"A", b"1")],
    ):
        assert names.forwarded(headers) == ((b"A", b"1"),)
        assert names.relayed(headers) == ((b"A", b"1"),)


def test_an_answer_keeps_its_header_list_and_its_length() -> None:
    headers = (
        (b"Set-Cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
        (b"Content-Length", b"0"),
        (b"content-type", b"application/json"),
        (b"X-Y", b"\xe9"),
        (b"date", b"now"),
    )
    assert names.relayed([*headers, (b"Keep-Alive", b"timeout=5"), (b"connection", b"keep-alive")]) == headers


def test_a_header_is_found_by_its_lower_case_name_and_the_first_of_several_counts() -> None:
    headers = [(b"B", b"0"), (b"X-Request-ID", b"1"), (b"x-request-id", b"2")]
    assert names.first(headers, b"x-request-id") == b"1"
    assert names.first(headers, b"absent") is None


def test_legs_carry_the_first_of_several_request_ids_and_what_passes_through_all() -> None:
    headers = ((b"A", b"1"), (b"X-Request-ID", b"1"), (b"B", b"2"), (b"x-request-id", b"2"), (b"A", b"1"))
    assert names.on_legs(headers) == (*headers[:3], headers[4])
    assert names.on_legs(headers[:3]) == headers[:3]
    assert names.forwarded(headers) == headers


def test_headers_are_taken_out_in_all_their_spellings() -> None:
    headers = [(b"A", b"1"), (b"Accept-Encoding", b"gzip"), (b"accept-encoding", b"br"), (b"B", b"2")]
    assert names.without(headers, b"accept-encoding", b"b") == ((b"A", b"1"),)
    assert names.without(headers, b"absent") == tuple(headers)
