"""Encoders first: each image, audio or video of a chat is encoded elsewhere before any other leg runs.

Rule: pure; a plan that wraps every connector's. Only what finds the items is decoded; what goes on keeps its
bytes. Content of another shape than the API's has no items: it is the engine's to refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sidecar.api import Edits
from sidecar.body import BadBody, Body, elements
from sidecar.call import EC_FIELD, Call
from sidecar.errors import BadRequest
from sidecar.plan import Ask, Plan, Reply
from sidecar.routing import NoPull, Route
from sidecar.sizes import MOST_VALUES, is_large

# Their data is fetched by whoever encodes; `input_audio` carries its own (contract section 7).
_KINDS = frozenset(("image_url", "audio_url", "video_url"))

# vLLM 0.32 takes 999 items of a kind (config/multimodal.py, limit_per_prompt). A request with more is the
# engine's to refuse, and starts no legs by the thousand.
MOST_ITEMS = 999

# What was encoded must be used: the prompt is computed, not decoded first (contract section 7).
_NO_DECODE_FIRST: Edits = {"cache_hit_threshold": b"0"}


def items(call: Call) -> tuple[bytes, ...]:
    """The multimodal items of the call, each url once, in their own bytes; none when there are too many.

    Raises BadRequest for messages that are too much to look through.
    """
    messages = call.body.get("messages", b"null")
    if b'_url"' not in messages and b"\\u" not in messages:  # no kind of item, nor one spelled with escapes
        return ()
    if is_large(messages):
        raise BadRequest(f'field "messages" holds more than {MOST_VALUES} values, one of them to be encoded')
    found: dict[str, bytes] = {}
    for part in _parts(messages):
        url = _url(part)
        if url is not None:
            found.setdefault(url, part)
            if len(found) > MOST_ITEMS:
                return ()
    return tuple(found.values())


def settled(call: Call, route: Route) -> Route:
    """The route as encoders leave it: none without items, and no source beside them (contract section 7)."""
    if route.source and route.encoders and items(call):
        return route.without_source(NoPull.ENCODERS)
    return route


def encoded(call: Call, route: Route, plan: Callable[[Call, Route], Plan], *, merge: bool) -> Plan:
    """Ask the route's encoders for all items at once, then run the plan with what came of it.

    route: one that `settled` gave. merge: `ec_transfer_params` of the answers go on (`ec-nixl`); a client's
    own never do then. Raises BadRequest when the body holds a field that cannot be capped.
    """
    wanted = items(call) if route.encoders else ()
    if wanted:
        # Item i goes to encoder i modulo n, from the first on: the endpoint picker named it first
        # (llm-d-router pkg/sidecar/proxy/connector_ec_common.go, October 2026).
        targets = [route.encoders[index % len(route.encoders)] for index in range(len(wanted))]
        legs = [call.encode(target, wanted[index], index) for index, target in enumerate(targets)]
        replies = yield Ask(tuple(legs))
        params: Edits = {EC_FIELD: _merged(replies)} if merge else {}
        call = call.identified().with_body(params | _NO_DECODE_FIRST)
    return (yield from plan(call, route))


def _merged(replies: list[Reply]) -> bytes | None:
    """One object of all that the encoders answered, keyed by item; None when there was nothing."""
    params: dict[str, bytes] = {}
    for reply in replies:
        try:
            params |= Body.parse(reply.body.get(EC_FIELD, b"null"))
        except BadBody:  # null, or no object: this item is encoded again where it is needed
            continue
    return Body(params).encode() if params else None


def _parts(messages: bytes) -> Iterator[bytes]:
    """Every element of every message's content."""
    try:
        each = elements(messages)
    except BadBody:
        return
    for message in each:
        try:
            yield from elements(Body.parse(message).get("content", b"null"))
        except BadBody:  # a text, mostly
            continue


def _url(part: bytes) -> str | None:
    """The url of a multimodal item; None for other parts."""
    if not part.startswith(b"{"):
        return None
    try:
        fields = Body.parse(part)
        kind = fields.value("type")
        if not isinstance(kind, str) or kind not in _KINDS:
            return None
        held = fields.get(kind, b"null")
        # vLLM takes a bare text for the url too (entrypoints, "simplified" content parts).
        url = Body.parse(held).value("url") if held.startswith(b"{") else fields.value(kind)
    except BadBody:
        return None
    return url if isinstance(url, str) and url else None
