"""What must hold for any bytes, at each seam where bytes of others are read.

Rule: a check takes bytes and raises when a promise is broken; hypothesis runs it in the suite, `make fuzz`
guided by coverage. Whatever a module documents that it raises is an answer, not a fault.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from sidecar import headers as names
from sidecar import responses, routing
from sidecar.alone import has_several_prompts
from sidecar.api import APIS, Api
from sidecar.body import BadBody, Body, elements
from sidecar.call import Call, Ids
from sidecar.encoders import items
from sidecar.endpoint import Endpoint
from sidecar.errors import SidecarError
from sidecar.kvparams import Policy, complete_handoff, screen
from sidecar.plan import Peer
from sidecar.routing import Rules
from sidecar.sse import complete_events
from sidecar.usage import SseUsage, cached_tokens, reported
from tests.fuzz.requests import check_requests
from tests.fuzz.responses import check_responses

DECODER = Endpoint("localhost", 8200)
PREFILLER = Peer(Endpoint("10.0.0.3", 8000), 7777)
IDS = Ids("request", "handoff", "pull", 1)
_PARAMS = b'{"remote_host":"h"}'


def check_bodies(raw: bytes) -> None:
    """An object is read as json.loads reads it, and an edit changes what it names and not one byte else."""
    try:
        body = Body.parse(raw)
    except BadBody:
        return
    # Numbers and their spelling are not compared as values: 1e999 is legal and no float.
    whole = json.loads(raw.decode(), parse_int=str, parse_float=str, parse_constant=_refuse)
    assert isinstance(whole, dict)
    assert list(body) == list(whole)
    for key in body:
        assert json.loads(body[key], parse_int=str, parse_float=str) == whole[key]
    same = json.loads(body.encode(), parse_int=str, parse_float=str)
    assert same == whole
    edited = Body.parse(body.edited({"kv_transfer_params": _PARAMS, "stream": None}).encode())
    assert edited["kv_transfer_params"] == _PARAMS
    assert "stream" not in edited
    untouched = [key for key in body if key not in ("kv_transfer_params", "stream")]
    assert [edited[key] for key in untouched] == [body[key] for key in untouched]
    _check_call(_api_of(raw), body)


def _api_of(raw: bytes) -> Api:
    """One API per input keeps runs short, and the input decides which."""
    return APIS[sum(raw[:16]) % len(APIS)]


def _check_call(api: Api, body: Body) -> None:
    """Every reader of a body gives an answer or a refusal, and legs carry JSON objects that can be read."""
    call = Call(api, api.path, (), body, IDS)
    for policy in Policy:
        _refused_or_done(partial(screen, body, policy))
    _refused_or_done(lambda: responses.check(body))
    _refused_or_done(lambda: items(call))
    _refused_or_done(lambda: has_several_prompts(api, body))
    cached_tokens(body)
    try:
        prefill = call.prefill(PREFILLER, {"do_remote_decode": True}, None)
        decode = call.decode_after_prefill(DECODER, _PARAMS)
    except (SidecarError, BadBody):
        return
    for leg in (prefill, decode):
        assert leg.content is not None
        Body.parse(leg.content)
    complete_handoff(body.get("kv_transfer_params", b"null"))


def _refused_or_done(look: Callable[[], Any]) -> None:
    try:
        look()
    except (SidecarError, BadBody):
        return


def check_values(raw: bytes) -> None:
    """The elements of an array in a body, which is UTF-8, are the client's own bytes, in order."""
    try:
        text = raw.decode()
        found = elements(raw)
    except (UnicodeDecodeError, BadBody):
        return
    whole = json.loads(text, parse_int=str, parse_float=str)
    assert [json.loads(each, parse_int=str, parse_float=str) for each in found] == whole


def check_headers(raw: bytes) -> None:
    """Lines of a head become a route or a refusal, and no routing or hop-by-hop field goes on."""
    headers = [
        (name.strip(), value.strip())
        for name, _, value in (line.partition(b":") for line in raw.splitlines())
    ]
    onward = {name.lower() for name, _ in names.forwarded(headers)}
    assert onward.isdisjoint(names.ROUTING | names.HOP_BY_HOP | {names.HOST, names.CONTENT_LENGTH})
    assert {name.lower() for name, _ in names.tunnelled(headers)}.isdisjoint(names.ROUTING)
    rules = Rules(DECODER, Endpoint("10.0.0.1", 8000), 8000, 7777, ranks=2, pulls=True, encode=True)
    try:
        route = routing.read(headers, rules, lambda count: count - 1)
    except SidecarError:
        return
    for endpoint in (route.decoder, *route.encoders, *([route.named_source] if route.named_source else [])):
        assert 0 < endpoint.port < 65536
        assert Endpoint.parse(endpoint.netloc) == endpoint


def check_streams(raw: bytes) -> None:
    """A stream of events is rewritten in the same way however it is split, and only where it tells usage."""
    # The first bytes say where the stream is split.
    cuts, stream = raw[:2], raw[2:]
    api = _api_of(stream)
    whole = SseUsage(api, 7)
    at_once = whole.feed(stream) + whole.rest()
    split = SseUsage(api, 7)
    out, at = b"", 0
    for cut in cuts:
        out += split.feed(stream[at : at + cut])
        at += cut
    out += split.feed(stream[at:]) + split.rest()
    assert out == at_once
    if b'"usage"' not in stream:
        assert at_once == stream
    kept = [line for line in stream.split(b"\n") if b'"usage"' not in line]
    assert [line for line in at_once.split(b"\n") if b'"usage"' not in line] == kept
    for event in complete_events(stream):
        assert event in stream or b"\n" in event
    reported(stream)


def _refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} was read as JSON")


def _both(first: Callable[[bytes], None], second: Callable[[bytes], None]) -> Callable[[bytes], None]:
    def check(raw: bytes) -> None:
        first(raw)
        second(raw)

    return check


SEAMS: dict[str, Callable[[bytes], None]] = {
    "bodies": _both(check_bodies, check_values),
    "requests": _both(check_requests, check_headers),
    "streams": check_streams,
    "responses": check_responses,
}
