"""Sends the legs of one exchange whose whole answers a plan asks for, and those that run beside it.

Rule: acts. The first of several that fails ends the others; one that hangs in its pull is sent again without
it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from sidecar.errors import LegFailed
from sidecar.observers import ExchangeRecord, LegRecord
from sidecar.plan import Leg, Reply
from sidecar.replies import Key, key_of
from sidecar.rescue import Rescuer, Stalled, unpulled
from sidecar.routing import NoPull
from sidecar.services import Services
from sidecar.started import StartedLeg

if TYPE_CHECKING:
    from sidecar.server.client import Client


class Legs:
    """The legs of one exchange. asked: the questions whose answers may have been remembered ones."""

    __slots__ = ("_client", "_record", "_services", "asked")

    def __init__(self, services: Services, client: Client, record: ExchangeRecord) -> None:
        self._services = services
        self._client = client
        self._record = record
        self.asked: list[Key] = []

    def record_of(self, leg: Leg) -> LegRecord:
        """A new record of a leg that is about to be sent."""
        record = LegRecord(exchange=self._record, leg=leg, started_s=monotonic())
        self._record.legs.append(record)
        return record

    def admits(self, leg: Leg, rescuer: Rescuer) -> bool:
        """Whether a leg that pulls may do so now, as it is sent: its engine's pulls may be suspended.

        Mostly that was settled before. But the engine may have been paused since, by this very exchange, or
        the leg goes to another one than the route said, as where the local engine stands in for a prefiller.
        """
        if rescuer.pauses.admits(leg.target, self._record):
            return True
        route = self._record.route
        if route is not None and all(sent.leg.pull is None for sent in self._record.legs):
            self._record.route = route.without_source(NoPull.SUSPENDED)
        return False

    async def ask(self, legs: tuple[Leg, ...]) -> list[Reply]:
        """All legs at once; the first that fails ends the others."""
        upstream = self._services.upstream
        if len(legs) == 1:
            return [await self._one(legs[0])]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(upstream.ask(self.record_of(leg))) for leg in legs]
        except* LegFailed as failed:
            raise _first(failed) from None
        return [task.result() for task in tasks]

    async def _one(self, leg: Leg) -> Reply:
        """One leg; again without its pull, if that hangs."""
        upstream, rescuer = self._services.upstream, self._services.rescuer
        if leg.pull is None or rescuer is None:
            return await upstream.ask(self.record_of(leg))
        if self.admits(leg, rescuer):
            record = self.record_of(leg)
            with suppress(Stalled), rescuer.watch(record, self._client.task):
                return await upstream.ask(record)
        return await self._one(unpulled(leg))

    def start(self, leg: Leg) -> StartedLeg:
        """Send a leg that runs beside the exchange."""
        started, rescuer = self._services.started, self._services.rescuer
        if leg.pull is None or rescuer is None:
            return started.start(leg, self._services.upstream.complete(self._record_beside(leg)))
        if self.admits(leg, rescuer):
            return started.start(leg, self._beside(self._record_beside(leg), rescuer))
        return self.start(unpulled(leg))

    def _record_beside(self, leg: Leg) -> LegRecord:
        record = self.record_of(leg)
        record.started = True
        return record

    async def _beside(self, record: LegRecord, rescuer: Rescuer) -> Reply:
        """A started leg that pulls; again without that, in what is left of its time, if it hangs."""
        leg, upstream = record.leg, self._services.upstream
        with suppress(Stalled), rescuer.watch(record, asyncio.current_task()):
            return await upstream.complete(record)
        if self._record.ended_s is not None:  # nobody is left whom another answer could help
            raise LegFailed(leg, f"the {leg.role} engine hung in its pull, and its exchange is over")
        again = self._record_beside(unpulled(leg))
        return await upstream.complete(again, spent_s=again.started_s - record.started_s)

    async def remembered(self, leg: Leg, cache_s: float) -> Reply:
        """An answer from the cache, or a fresh one that goes there."""
        replies = self._services.replies
        self.asked.append(key_of(leg))
        reply = replies.get(leg)
        if reply is None:
            [reply] = await self.ask((leg,))
            replies.keep(leg, reply, cache_s)
        return reply


def _first(group: BaseExceptionGroup[LegFailed]) -> LegFailed:
    """`except*` gives groups, nested ones too: the first failure is the one that ended the others."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, LegFailed)
    return error
