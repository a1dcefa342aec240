"""Runs one diagnosis: asks every peer, lets pairs pull, tries the gates, and hands over what was found.

Rule: acts; peers are asked side by side, pulls are made one after another, so that counters tell them apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

from sidecar.doctor.asking import answers_of, facts_of
from sidecar.doctor.diagnosis import Diagnosis, Measured, diagnosed
from sidecar.doctor.order import Fresh, Order, fitting
from sidecar.doctor.pulling import Party, Pulling
from sidecar.doctor.pulls import Pair, Verdict, chosen
from sidecar.doctor.told import Told
from sidecar.doctor.verifying import shown_by
from sidecar.remote.client import Remote, connected


async def diagnose(order: Order, tell: Callable[[str], None]) -> Diagnosis:
    """Everything once. tell: is told what is being done. Raises OSError for a CA file that cannot be read."""
    async with AsyncExitStack() as stack:
        remotes = {
            peer.name: await stack.enter_async_context(
                connected(peer.place, order.trust, timeout_s=order.timeout_s)
            )
            for peer in order.peers
        }
        tell("asking the peers")
        told = await _facts(order, remotes)
        tokens = fitting(
            order.wanted_tokens,
            [one.facts.block_tokens for one in told],
            [one.facts.max_model_tokens for one in told],
        )
        parties = await _parties(told, remotes, Fresh.of(tokens))
        pulling = Pulling(order, parties, tokens, tell)
        measured = await (_verified if order.verify else _paired)(pulling)
        return diagnosed([party.told for party in parties.values()], measured)


async def _facts(order: Order, remotes: Mapping[str, Remote]) -> tuple[Told, ...]:
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(facts_of(peer, remotes[peer.name], order)) for peer in order.peers]
    return tuple(task.result() for task in asking)


async def _parties(
    all_told: tuple[Told, ...], remotes: Mapping[str, Remote], prompt: Fresh
) -> dict[str, Party]:
    """Each peer after both of its answers, by name."""
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(answers_of(told, remotes[told.name], prompt)) for told in all_told]
    answered = [task.result() for task in asking]
    return {told.name: Party(told, remotes[told.name], as_text) for told, as_text in answered}


async def _paired(pulling: Pulling) -> Measured:
    """The pairs, as many as may be tried."""
    pairs, left_out = chosen(list(pulling.parties), pulling.order.most_pairs)
    tried = [await pulling.pair(source, consumer) for source, consumer in pairs]
    return Measured(tuple(tried), left_out, pulling.tokens)


async def _verified(pulling: Pulling) -> Measured:
    """The gates, by the first two peers: the second pulls from the first."""
    source, consumer, *_ = pulling.parties
    shown = await shown_by(pulling, source, consumer)
    unreached = Verdict.UNREACHABLE if shown.why else None
    pair = Pair(source, consumer, shown.why, unreached, shown.pull)
    return Measured((pair,), 0, pulling.tokens, shown)
