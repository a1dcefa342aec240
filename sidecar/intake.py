"""Turns one routed request into a `Call`: reads its body, screens it, and settles what may go on.

Rule: acts only in reading the body; everything else is decided by the pure modules that it calls.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sidecar import headers as names
from sidecar.allowlist import Allowlist
from sidecar.alone import has_several_prompts
from sidecar.api import Api
from sidecar.body import BadBody, Body
from sidecar.call import Call, Ids
from sidecar.errors import BadRequest, RequestTimeout, RequestTooLarge, UnsupportedEncoding
from sidecar.kvhosts import refuse_others
from sidecar.kvparams import Policy, may_hold, refuse_shared, screen
from sidecar.server.client import BodyStalled, BodyTooLarge


@dataclass(frozen=True, slots=True)
class Limits:
    """`--max-request-bytes`, for bodies as sent and as decoded, and `--client-kv-transfer-params`."""

    max_request_bytes: int
    client_params: Policy


class Asking(Protocol):
    """One request as far as a call is made of it; a `Client` is one."""

    @property
    def target(self) -> bytes:
        """Its path and query, as sent."""

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Its fields, as sent."""

    async def read_body(self, limit_bytes: int) -> bytes | bytearray:
        """Its whole body. Raises BodyTooLarge."""


async def read_call(client: Asking, api: Api, limits: Limits) -> Call:
    """Read the request's body and make the call of it.

    Raises RequestTooLarge, RequestTimeout, UnsupportedEncoding or BadRequest, naming the flag, header or
    field.
    """
    too_large = f"the body is over the limit of {limits.max_request_bytes} bytes (--max-request-bytes)"
    try:
        raw = await client.read_body(limits.max_request_bytes)
    except BodyTooLarge:
        raise RequestTooLarge(too_large) from None
    except BodyStalled as stalled:
        raise RequestTimeout(str(stalled)) from None
    headers = names.on_legs(client.headers)
    if names.about_body(headers):
        encoding = b",".join(
            value for name, value in headers if name.lower() == names.CONTENT_ENCODING
        ).strip()
        if encoding:
            raw = _decoded(raw, encoding, limits.max_request_bytes, too_large)
        headers = names.without(headers, names.EXPECT, names.CONTENT_ENCODING)
    try:
        body = Body.parse(raw)
    except BadBody as error:
        raise BadRequest(str(error)) from None
    _, question, query = client.target.partition(b"?")
    return Call(api, api.path + question + query, headers, body, _fresh_ids())


# Ids per block of the system's randomness, which costs a call to the kernel: one page of it.
_BLOCK_IDS = 256
# By its random digit, the one whose two high bits tell the variant 10.
_VARIANTS = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def _random_uuids() -> Iterator[str]:
    """UUIDs of version 4 (RFC 9562 section 5.4), at a tenth of the price of `uuid.uuid4`."""
    while True:
        digits = os.urandom(16 * _BLOCK_IDS).hex()
        for at in range(0, len(digits), 32):
            text = digits[at : at + 32]
            yield f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{_VARIANTS[text[16]]}{text[17:20]}-{text[20:]}"


# Made ahead, a block at a time: between requests the caches hold other things, and each costs three times
# as much.
_ready: list[Ids] = []
os.register_at_fork(after_in_child=_ready.clear)  # a fork must not go on in the block of its parent


def _fresh_ids() -> Ids:
    if not _ready:
        uuids = _random_uuids()
        _ready.extend(
            [
                Ids(next(uuids), next(uuids), next(uuids), random.getrandbits(63))
                for _ in range(_BLOCK_IDS // 3)
            ]
        )
    return _ready.pop()


_REJECT = Policy.REJECT  # for every request, see evidence.py


def screened(call: Call, policy: Policy, allowlist: Allowlist | None = None, *, replaced: bool) -> Call:
    """The call with the client's `kv_transfer_params` settled.

    replaced: whether the sidecar sets the field itself (`Planner.sets_params`): then the client's is dropped
    when a leg is made. It is screened where it would go on, and refused everywhere when the policy is to
    refuse. allowlist: of the hosts that it may name, None without SSRF protection. Raises BadRequest, naming
    the field.
    """
    if replaced and policy is not _REJECT:
        return call
    edits = screen(call.body, policy)
    if policy is Policy.VALIDATE and may_hold(call.body) and has_several_prompts(call.api, call.body):
        refuse_shared(call.body)
    call = replace(call, body=call.body.edited(edits)) if edits else call
    if allowlist is not None and policy is not Policy.PASS:
        refuse_others(call.body, allowlist)
    return call


# RFC 9110 section 8.4.1: "x-gzip" is gzip, and "deflate" is the zlib format; some clients send raw deflate.
_GZIP_BITS = 31
_WINDOW_BITS = {b"gzip": (_GZIP_BITS,), b"x-gzip": (_GZIP_BITS,), b"deflate": (15, -15)}


def _decoded(raw: bytes | bytearray, encoding: bytes, limit_bytes: int, too_large: str) -> bytes | bytearray:
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


def _inflated(raw: bytes | bytearray, bits: int, limit_bytes: int) -> bytes:
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
