"""How a pull is asked for, and what the answer and the sidecar in front of an engine say of it themselves.

Rule: pure; what the engines counted is measured elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sidecar.debug.reasons import NO_PULL
from sidecar.doctor.pulls import Pull
from sidecar.doctor.told import Peer, Told
from sidecar.headers import DEBUG, TOLD_PULL
from sidecar.remote.prompts import Answered, Directive, by_body, by_header
from sidecar.remote.texts import shown

_SOURCE = re.compile(r'source="([^"]*)"')
_REASON = re.compile(r"reason=([a-z_]+)")


def directive(source: Peer, consumer: Told, kv_request_id: str) -> Directive:
    """As the endpoint picker would name the source to a sidecar, or as a sidecar would to its engine."""
    if not consumer.facts.through_sidecar:
        return by_body(source.p2p, kv_request_id)
    header = by_header(source.p2p.with_port(source.place.endpoint.port))
    return Directive(header.fields, {**header.headers, DEBUG.decode(): "1"})


def said(answered: Answered, consumer: Told, sent: int, *, as_text: bool) -> Pull:
    """What the answer says itself. sent: token ids, or words; an engine counts ids as they are."""
    tokens = answered.prompt_tokens if as_text else sent
    usage = None
    if answered.prompt_tokens != tokens or tokens < 1:
        usage = f"its usage tells of {answered.prompt_tokens:,} prompt tokens, {sent:,} were sent"
    block = consumer.facts.block_tokens or 1
    told = answered.headers.get(TOLD_PULL.decode(), "")
    source = _SOURCE.search(told) if told.startswith("directed") else None
    reason = _REASON.search(told) if told.startswith("skipped") else None
    return Pull(
        max(0, tokens - 1) // block * block,
        cached_tokens=answered.cached_tokens,
        usage=usage,
        directed=shown(source[1]) if source else None,
        skipped=_in_words(reason[1]) if reason else None,
        ttft_ms=answered.ttft_ms,
    )


def more(before: Mapping[str, float], after: Mapping[str, float]) -> str | None:
    """The reason for which a sidecar has left out a pull more, in words; None where it has not."""
    return next((_in_words(name) for name, value in after.items() if value > before.get(name, 0.0)), None)


def _in_words(reason: str) -> str:
    known = {str(one): words for one, words in NO_PULL.items()}
    return f"{reason}: {known[reason]}" if reason in known else shown(reason)
