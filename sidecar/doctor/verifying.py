"""Tries the five gates on one pair: asks, asks again, pulls, and asks a control.

Rule: acts; what each figure means is decided in `gates`.
"""

from __future__ import annotations

from sidecar.doctor.asking import risen_since, standing
from sidecar.doctor.counted import counted
from sidecar.doctor.gates import Shown
from sidecar.doctor.operators import metrics_of
from sidecar.doctor.order import Fresh
from sidecar.doctor.pulling import Party, Pulling
from sidecar.doctor.reading import directed
from sidecar.remote.errors import RemoteError
from sidecar.remote.prompts import NO_PULL
from sidecar.remote.settling import settled

# A sidecar counts a pull once it has read its engine's counters: once a second at most, within 2 s.
_SETTLED_S = 5.0


async def shown_by(pulling: Pulling, source_name: str, consumer_name: str) -> Shown:
    """What was measured; with the reason where nothing could be."""
    source, consumer = pulling.parties[source_name], pulling.parties[consumer_name]
    pulling.tell(f"gates: {consumer_name} pulls from {source_name}")
    if in_the_way := await pulling.in_the_way(source, consumer):
        return Shown(source_name, consumer_name, why=in_the_way[1])
    try:
        return await _shown(pulling, source, consumer)
    except RemoteError as error:
        return Shown(source_name, consumer_name, why=str(error))


async def _shown(pulling: Pulling, source: Party, consumer: Party) -> Shown:
    prompt, control = Fresh.of(pulling.tokens), Fresh.of(pulling.tokens)
    await pulling.keep(source, prompt)
    kept_tokens = await _kept(pulling, source, prompt)
    if in_the_way := await pulling.in_the_way(source, consumer):  # as it is now
        return Shown(source.name, consumer.name, why=in_the_way[1])
    before = await _directed(pulling, consumer)
    pull = await pulling.pull(source, consumer, prompt)
    # Where the answer tells it, its metrics need not be waited for.
    counted_more = None if pull.directed or pull.skipped else await _counted(pulling, consumer, before)
    await pulling.keep(source, control)
    return Shown(
        source.name,
        consumer.name,
        prefix_tokens=pull.prefix_tokens,
        kept_tokens=kept_tokens,
        events=source.told.configuration.events if source.told.configuration else None,
        through_sidecar=consumer.told.facts.through_sidecar,
        counted=counted_more,
        pull=pull,
        control=await pulling.measured(source, consumer, control, NO_PULL),
    )


async def _kept(pulling: Pulling, source: Party, prompt: Fresh) -> float | None:
    """Tokens of the prompt that the source has at the second time, by its answer, else by its counters."""
    before = counted(await source.remote.metrics())
    again = await pulling.complete(source, prompt, NO_PULL)
    if again.cached_tokens is not None:
        return float(again.cached_tokens)
    risen = await risen_since(before, source.remote, source.told, standing("local_tokens"))
    return risen.local_tokens


async def _directed(pulling: Pulling, consumer: Party) -> float | None:
    """Pulls that the consumer's sidecar has counted; None where it does not tell."""
    place = consumer.told.peer.operators
    if consumer.told.sidecar is None or place is None:
        return None
    return directed(await metrics_of(place, pulling.order.trust, pulling.order.timeout_s))


async def _counted(pulling: Pulling, consumer: Party, before: float | None) -> float | None:
    """How many more they are once the pull is settled."""
    if before is None:
        return None

    async def more() -> float:
        return (await _directed(pulling, consumer) or 0.0) - before

    return await settled(more, lambda now: now > 0, within_s=_SETTLED_S)
