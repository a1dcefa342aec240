"""Runs one leg: the source computes a fresh prompt, then the consumer is asked for it and timed.

Rule: acts; both engines' counters are read before and after the second request, once they have settled.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from sidecar.calibrate.plan import QUIET_S, STORE_LAG_S, STORED_WITHIN_S, TAIL_TOKENS, Kind, Leg
from sidecar.calibrate.tokens import Prompts
from sidecar.calibrate.verdicts import Measured, Rise, Verdict, fallen, judged, risen
from sidecar.engine_counters import Counters
from sidecar.remote import Answered, Directive, NoAnswer, Remote, RemoteError
from sidecar.remote.prompts import NO_PULL
from sidecar.remote.settling import settled


@dataclass(slots=True)
class Couple:
    """A source and a consumer of one rank. directive: makes the consumer pull, given an id.

    alone: nothing else runs on them that we know of, so that tokens counted are those of the leg.
    bytes_per_token: of KV, known once a pull has moved.
    """

    source: Remote
    consumer: Remote
    model: str
    block_tokens: int
    prompts: Prompts
    directive: Callable[[str], Directive]
    alone: bool = True
    bytes_per_token: float | None = field(default=None)


async def run(couple: Couple, leg: Leg) -> Measured:
    """The leg, judged. Raises RemoteError when its first request fails: then nothing was measured."""
    prompt = couple.prompts.make(leg.number, leg.prefix_tokens + TAIL_TOKENS)
    stored_before = await couple.source.counters()
    seeded = await couple.source.complete(couple.model, prompt)
    prefix_tokens = (seeded.prompt_tokens - 1) // couple.block_tokens * couple.block_tokens
    if prefix_tokens <= 0:
        raise NoAnswer(
            f"{couple.source.place.url}: counts {seeded.prompt_tokens:,} prompt tokens, no whole block"
        )
    source_before = await _stored(couple, stored_before, prefix_tokens)
    before = await couple.consumer.counters()
    directive = couple.directive(str(uuid.uuid4())) if leg.kind is Kind.PULL else NO_PULL
    try:
        answered = await couple.consumer.complete(couple.model, prompt, directive)
    except RemoteError as error:
        return Measured(leg, Verdict.FAILED, str(error), prefix_tokens, None, seeded.ttft_ms, Rise())
    after, source_after = await _after(couple, leg.kind, (before, source_before), answered)
    rise = risen(before, after, (source_before, source_after))
    verdict, reason = judged(leg.kind, (prefix_tokens, couple.block_tokens), answered, rise)
    counted = ((couple.consumer, before, after), (couple.source, stored_before, source_after))
    for remote, first, last in counted:
        if fallen(first, last):
            verdict, reason = Verdict.UNUSABLE, f"{remote.place.url}: its counters fell meanwhile"
    if verdict is Verdict.MOVED and rise.pulled_bytes and couple.bytes_per_token is None:
        couple.bytes_per_token = rise.pulled_bytes / (rise.pulled_tokens or prefix_tokens)
    return Measured(leg, verdict, reason, prefix_tokens, answered.ttft_ms, seeded.ttft_ms, rise)


async def _stored(couple: Couple, before: Counters, prefix_tokens: int) -> Counters:
    """The source's counters once it has the prefix where peers can get it."""
    wanted_bytes = prefix_tokens * (couple.bytes_per_token or 0.0)

    def ready(now: Counters) -> bool:
        if now.stored_bytes is None:
            # The series appears with the first store; an engine that pulls were made from has none at all.
            return couple.bytes_per_token is not None
        stored_bytes = now.stored_bytes - (before.stored_bytes or 0.0)
        return stored_bytes > 0 and stored_bytes >= wanted_bytes

    if not couple.alone:
        await asyncio.sleep(STORE_LAG_S)
    within_s = STORED_WITHIN_S if couple.bytes_per_token else QUIET_S
    return await settled(couple.source.counters, ready, within_s=within_s)


async def _after(
    couple: Couple, kind: Kind, before: tuple[Counters, Counters], answered: Answered
) -> tuple[Counters, Counters]:
    """Both engines' counters, the consumer's first, once they have the leg. before: the same."""

    def told(now: Counters) -> bool:
        """The engine has published the prompt's tokens, and what a pull moved."""
        computed_tokens = _by(before[0], now, "computed_tokens")
        had_tokens = _by(before[0], now, "local_tokens") + _by(before[0], now, "pulled_tokens")
        if kind is Kind.PULL and not _by(before[0], now, "pulled_bytes"):
            # It computed the prompt: nothing was pulled, and there is nothing to wait for.
            return couple.alone and computed_tokens >= answered.prompt_tokens
        return computed_tokens + had_tokens >= answered.prompt_tokens

    after = await settled(couple.consumer.counters, told, within_s=QUIET_S)
    pulled = _by(before[0], after, "pulled_bytes") > 0
    source_after = await settled(
        couple.source.counters,
        lambda now: not pulled or _by(before[1], now, "found_chunks") > 0,
        within_s=QUIET_S,
    )
    return after, source_after


def _by(before: Counters, now: Counters, name: str) -> float:
    return (getattr(now, name) or 0.0) - (getattr(before, name) or 0.0)
