"""Reads an engine's whole answer into a `Reply`.

Rule: acts only in reading; whose refusal is relayed and what cannot be used is judged here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic

import httpx

from sidecar import headers as names
from sidecar import usage
from sidecar.body import BadBody, Body
from sidecar.errors import LegFailed, LegRefused, UnusableAnswer
from sidecar.headers import Headers
from sidecar.observers import LegRecord
from sidecar.plan import Reply, Role
from sidecar.transport import raw_headers

# A prefill answer is read whole. vLLM's largest, with the block ids of a full context, stays under 1 MiB.
MAX_REPLY_BYTES = 64 * 1024 * 1024

Reading = Callable[[LegRecord, httpx.Response], Awaitable[Reply]]


async def _read_whole(response: httpx.Response, record: LegRecord) -> bytes:
    pieces: list[bytes] = []
    total_bytes = 0
    async for piece in response.stream:  # type: ignore[union-attr]
        if not pieces:
            record.first_byte_s = monotonic()
        pieces.append(piece)
        total_bytes += len(piece)
        if total_bytes > MAX_REPLY_BYTES:
            raise UnusableAnswer(record.leg, f"the {record.leg.role} answer is over {MAX_REPLY_BYTES} bytes")
    return b"".join(pieces)


async def parsed(record: LegRecord, response: httpx.Response) -> Reply:
    """Read an answer that must be a JSON object. Raises LegRefused or UnusableAnswer."""
    content = await _read_whole(response, record)
    leg = record.leg
    if not response.is_success:
        raise _refused(record, response, content)
    if leg.pull is not None:
        record.prompt_tokens, record.cached_tokens = usage.reported(content)
    try:
        return Reply(*_head_of(response), content, Body.parse(content))
    except BadBody as error:
        record.error = UnusableAnswer.label
        raise UnusableAnswer(leg, f"the {leg.role} engine's answer cannot be read: {error}") from None


async def unread(record: LegRecord, response: httpx.Response) -> Reply:
    """Let an answer of whatever kind end; of a 2xx one nothing is kept. Raises LegRefused, UnusableAnswer."""
    if not response.is_success:
        raise _refused(record, response, await _read_whole(response, record))
    async for _ in response.stream:  # type: ignore[union-attr]
        if record.first_byte_s is None:
            record.first_byte_s = monotonic()
    return Reply(*_head_of(response), b"", Body({}))


def _head_of(response: httpx.Response) -> tuple[int, bytes, Headers]:
    reason = response.extensions.get("reason_phrase", b"")
    return response.status_code, reason, names.relayed(raw_headers(response))


# Whose refusal is the client's answer. An encoder's or a bootstrap server's says nothing about its request.
_RELAYED_ROLES = frozenset((Role.PREFILL, Role.DECODE))


def _refused(record: LegRecord, response: httpx.Response, content: bytes) -> LegFailed:
    leg = record.leg
    record.error = LegRefused.label
    if leg.role not in _RELAYED_ROLES:
        return UnusableAnswer(leg, f"the {leg.role} engine answered {response.status_code}")
    return LegRefused(leg, Reply(*_head_of(response), content, Body({})))
