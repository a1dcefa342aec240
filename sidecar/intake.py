"""Turns one routed request into a `Call`: reads its body, screens it, and settles what may go on.

Rule: acts only in reading the body; everything else is decided by the pure modules that it calls.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sidecar import headers as names
from sidecar.alone import has_several_prompts
from sidecar.api import Api
from sidecar.body import BadBody, Body
from sidecar.call import Call, Ids
from sidecar.errors import BadRequest, RequestTooLarge, UnsupportedEncoding
from sidecar.kvparams import Policy, cleared, refuse_shared, screen
from sidecar.routing import Route
from sidecar.server.client import BodyTooLarge

if TYPE_CHECKING:
    from sidecar.server.client import Client


@dataclass(frozen=True, slots=True)
class Limits:
    """`--max-request-bytes`, for bodies as sent and as decoded, and `--client-kv-transfer-params`."""

    max_request_bytes: int
    client_params: Policy


async def read_call(client: Client, api: Api, limits: Limits) -> Call:
    """Read the request's body and make the call of it.

    Raises RequestTooLarge, UnsupportedEncoding or BadRequest, naming the flag, header or field.
    """
    too_large = f"the body is over the limit of {limits.max_request_bytes} bytes (--max-request-bytes)"
    try:
        raw = await client.read_body(limits.max_request_bytes)
    except BodyTooLarge:
        raise RequestTooLarge(too_large) from None
    headers = names.without(
        names.forwarded(client.headers), names.EXPECT
    )  # the body is here: nothing to wait for
    encoding = b",".join(value for name, value in headers if name.lower() == names.CONTENT_ENCODING).strip()
    if encoding:
        raw = _decoded(raw, encoding, limits.max_request_bytes, too_large)
    headers = names.without(headers, names.CONTENT_ENCODING)
    try:
        body = Body.parse(raw)
    except BadBody as error:
        raise BadRequest(str(error)) from None
    _, question, query = client.target.partition(b"?")
    return Call(api, api.path + question + query, headers, body, _fresh_ids())


def _fresh_ids() -> Ids:
    """Three random UUIDs (RFC 9562 section 5.4), at a fifth of the price of `uuid.uuid4`, and a number."""
    text = os.urandom(56).hex()
    request, handoff, pull = (_uuid4(text[start : start + 32]) for start in (0, 32, 64))
    return Ids(request, handoff, pull, int(text[96:], 16) >> 1)


def _uuid4(text: str) -> str:
    """32 random hexadecimal digits as a UUID of version 4 and variant 10."""
    variant = "89ab"[int(text[16], 16) & 3]
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"


def screened(call: Call, route: Route, policy: Policy) -> Call:
    """The call with the client's `kv_transfer_params` settled.

    Where the sidecar sets the field itself the client's is dropped when a leg is made; it is screened where
    it would go on, and refused everywhere when the policy is to refuse.
    """
    replaced = route.prefiller is not None or route.source is not None
    if replaced and policy is not Policy.REJECT:
        return call
    edits = screen(call.body, policy)
    if policy is Policy.VALIDATE and cleared(call.body) and has_several_prompts(call.api, call.body):
        refuse_shared(call.body)
    return replace(call, body=call.body.edited(edits)) if edits else call


# RFC 9110 section 8.4.1: "x-gzip" is gzip, and "deflate" is the zlib format; some clients send raw deflate.
_GZIP_BITS = 31
_WINDOW_BITS = {b"gzip": (_GZIP_BITS,), b"x-gzip": (_GZIP_BITS,), b"deflate": (15, -15)}


def _decoded(raw: bytes, encoding: bytes, limit_bytes: int, too_large: str) -> bytes:
    """The identity form of a body; at most `limit_bytes` are ever inflated."""
    name = encoding.strip().lower()
    if name == b"identity":
        return raw
    if name not in _WINDOW_BITS:
        raise UnsupportedEncoding(
            "header content-encoding: only gzip, deflate and identity can be read on this path"
        )
    for bits in _WINDOW_BITS[name]:
        try:
            content = _inflated(raw, bits, limit_bytes)
        except zlib.error:
            continue
        if len(content) > limit_bytes:
            raise RequestTooLarge(too_large)
        return content
    raise BadRequest(f"the body is not valid {name.decode()} (header content-encoding)")


# Writers make one member, or one per file or block; a body of thousands of empty ones is an attack.
_MOST_MEMBERS = 16


def _inflated(raw: bytes, bits: int, limit_bytes: int) -> bytes:
    """At most one byte more than the limit of what is packed; gzip may have several members (RFC 1952 2.2).

    Raises zlib.error when the whole of `raw` is not that.
    """
    pieces: list[bytes] = []
    left = limit_bytes + 1
    for _ in range(_MOST_MEMBERS):
        inflater = zlib.decompressobj(bits)
        pieces.append(inflater.decompress(raw, left))
        left -= len(pieces[-1])
        raw = inflater.unused_data
        if not left or (inflater.eof and not raw):
            return b"".join(pieces)
        if not inflater.eof:
            raise zlib.error("cut short")
        if bits != _GZIP_BITS:
            raise zlib.error("more than one stream")
    raise zlib.error(f"more than {_MOST_MEMBERS} members")
