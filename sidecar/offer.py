"""Looks at the beginning of an answer that is offered to the client, without taking anything from it.

Rule: acts only in waiting for that beginning; whether it is a refusal the plan says.
"""

from __future__ import annotations

import httpx

from sidecar import headers as names
from sidecar.body import BadBody, Body
from sidecar.plan import Offer
from sidecar.sse import complete_events
from sidecar.transport import BodyStream, raw_headers


async def is_refused(response: httpx.Response, offer: Offer) -> bool:
    """Whether a 2xx answer is a refusal: its JSON document, or one of its first events, says so.

    Waits for the whole document or the first events. What is longer than the transport keeps unread (64 KiB)
    is an answer. Raises what cut the body short.
    """
    if not response.is_success:
        return False
    stream = response.stream
    if not isinstance(stream, BodyStream):  # any other httpx transport
        content = await response.aread()
        response.stream = httpx.ByteStream(content)
        return _verdict(response, content, offer) is True
    while (verdict := _verdict(response, stream.kept, offer)) is None and await stream.more():
        pass
    return bool(verdict)


def _verdict(response: httpx.Response, content: bytes, offer: Offer) -> bool | None:
    """What the bytes so far say; None while they say nothing yet."""
    if not names.is_kind(names.SSE, raw_headers(response)):
        return _says(offer, content) or None
    events = complete_events(content)[: offer.events]
    if any(_says(offer, event) for event in events):
        return True
    return False if len(events) == offer.events else None


def _says(offer: Offer, text: bytes) -> bool:
    try:
        return offer.refused(Body.parse(text))
    except BadBody:
        return False
