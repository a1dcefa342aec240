"""Header names the program knows, and the lists of headers that may or may not go on.

Rule: pure; header names are written here and nowhere else, lower case, as bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sidecar import trace_context

Headers = tuple[tuple[bytes, bytes], ...]

PREFILLER = (b"x-prefiller-host-port", b"x-llm-d-prefiller-host-port")
ENCODER = (b"x-encoder-hosts-ports", b"x-llm-d-encoder-hosts-ports")
KV_SOURCE = (b"x-kv-cache-source-host-port", b"x-llm-d-kv-cache-source-host-port")
DATA_PARALLEL = b"x-data-parallel-host-port"
# vLLM's own header: the data-parallel rank that shall run a request.
DATA_PARALLEL_RANK = b"x-data-parallel-rank"
REQUEST_ID = b"x-request-id"
TRACEPARENT = b"traceparent"
TRACESTATE = b"tracestate"
ACCEPT_ENCODING = b"accept-encoding"
CONTENT_ENCODING = b"content-encoding"
CONTENT_LENGTH = b"content-length"
CONTENT_TYPE = b"content-type"
TRANSFER_ENCODING = b"transfer-encoding"
CONNECTION = b"connection"
EXPECT = b"expect"
HOST = b"host"

# Ours: asks for an answer that tells what was done for it, where `--debug-endpoints` is on.
DEBUG = b"x-sidecar-debug"
# What the answer tells then; the first is the W3C's (Server Timing).
SERVER_TIMING = b"server-timing"
TOLD_ROUTE = b"x-sidecar-route"
TOLD_PULL = b"x-sidecar-pull"
# Credentials: shown to nobody.
SECRETS = frozenset(
    (b"authorization", b"proxy-authorization", b"cookie", b"set-cookie", b"x-api-key", b"api-key")
)

SSE = b"text/event-stream"
JSON = b"application/json"

# Contract section 1: both spellings leave on every path, so that no client can route behind our back.
ROUTING = frozenset((*PREFILLER, *ENCODER, *KV_SOURCE, DATA_PARALLEL))
_ROUTING_LENGTHS = frozenset(map(len, ROUTING))

# What a leg whose body was read leaves behind: there is nothing to wait for and nothing to decode.
_ABOUT_BODY = frozenset((EXPECT, CONTENT_ENCODING))
_ABOUT_BODY_LENGTHS = frozenset(map(len, _ABOUT_BODY))

# RFC 9110 section 7.6.1, with the names that older proxies and clients still send.
HOP_BY_HOP = frozenset(
    (
        CONNECTION,
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        TRANSFER_ENCODING,
        b"upgrade",
    )
)

# A leg states its own target and length, and carries one traceparent or none.
_NOT_FORWARDED = HOP_BY_HOP | ROUTING | {HOST, CONTENT_LENGTH}
_LOOKED_AT = _NOT_FORWARDED | {TRACEPARENT}
_LOOKED_AT_ON_LEGS = _LOOKED_AT | {REQUEST_ID}


def first(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """The value of the first header of that (lower case) name."""
    size = len(name)  # few names are compared in lower case
    for key, value in headers:
        if len(key) == size and key.lower() == name:
            return value
    return None


def is_kind(kind: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether `content-type` names this media type, with whatever parameters."""
    return media_type(first(headers, CONTENT_TYPE) or b"") == kind


def media_type(value: bytes) -> bytes:
    """The lower-case media type in a `content-type`, without its parameters (RFC 9110 section 8.3.1)."""
    return value.partition(b";")[0].strip().lower()


def by_name(headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The value of the first header of each name, by lower-case name: one pass for many questions."""
    return {key.lower(): value for key, value in reversed(headers)}


def without(headers: Iterable[tuple[bytes, bytes]], *names: bytes) -> Headers:
    """The list less the headers of these (lower case) names."""
    return tuple([pair for pair in headers if pair[0].lower() not in names])


def routing(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The routing headers that are there, names in lower case."""
    return tuple(
        [
            (name, value)
            for key, value in headers
            if len(key) in _ROUTING_LENGTHS and (name := key.lower()) in ROUTING
        ]
    )


def about_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether any header says how the body is to be read: Expect, Content-Encoding."""
    return any([key.lower() in _ABOUT_BODY for key, _ in headers if len(key) in _ABOUT_BODY_LENGTHS])


def replaced(headers: Iterable[tuple[bytes, bytes]], name: bytes, value: bytes) -> Headers:
    """The list with another value for the headers of this (lower case) name, each in its place."""
    return tuple([(key, value if key.lower() == name else old) for key, old in headers])


def forwarded(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The client's headers as they are passed through: order, case, duplicates and bytes kept.

    Less hop-by-hop ones, those that `Connection` names, routing ones, Host and Content-Length. A bad
    traceparent, or several, stay behind with their tracestate, so that the next one starts a new trace.
    """
    return _less(headers, _LOOKED_AT)


def on_legs(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The client's headers as legs of a routed request carry them: as `forwarded`, with one `x-request-id`.

    Of several the first stays, which is the one in use (`first`).
    """
    return _less(headers, _LOOKED_AT_ON_LEGS)


def tunnelled(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers of a WebSocket handshake: the client's, hop-by-hop ones too, less routing ones and Host.

    Of traceparents as in `forwarded`.
    """
    kept = without(headers, *ROUTING, HOST)
    return _of_one_trace(kept, [value for key, value in kept if key.lower() == TRACEPARENT])


def relayed(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """An engine's answer headers as the client gets them: less hop-by-hop ones and those Connection names."""
    return _less(headers, HOP_BY_HOP)


def _less(headers: Iterable[tuple[bytes, bytes]], drop: frozenset[bytes]) -> Headers:
    """The list less those; of them stay the first request id, and a traceparent if it is one and good."""
    kept: list[tuple[bytes, bytes]] = []
    traces: list[bytes] = []
    named, identified = b"", False
    for pair in headers:
        name = pair[0].lower()
        if name not in drop:
            kept.append(pair)
        elif name == CONNECTION:
            named += b"," + pair[1]
        elif name == TRACEPARENT:
            kept.append(pair)
            traces.append(pair[1])
        elif name == REQUEST_ID and not identified:
            kept.append(pair)
            identified = True
    left = _of_one_trace(kept, traces) if traces else kept
    return _less_named(left, named) if named else tuple(left)


def _of_one_trace(headers: Iterable[tuple[bytes, bytes]], traceparents: list[bytes]) -> Headers:
    """The list with its trace context, or without: a bad traceparent takes its tracestate along."""
    if not traceparents or (len(traceparents) == 1 and trace_context.parse(traceparents[0])):
        return tuple(headers)
    return without(headers, TRACEPARENT, TRACESTATE)


def _less_named(headers: Iterable[tuple[bytes, bytes]], connection: bytes) -> Headers:
    named = {token.strip().lower() for token in connection.split(b",")}
    if named <= _COMMON_OPTIONS:
        return tuple(headers)
    return tuple([pair for pair in headers if pair[0].lower() not in named])


_COMMON_OPTIONS = frozenset((b"close", b"keep-alive", b""))
