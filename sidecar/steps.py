"""Runs one plan: sends the legs of its steps and gives the client the answer that it ends with.

Rule: acts, and decides nothing. Failures of legs are thrown into the plan at its `yield`, until the client
has a byte; what the plan lets through ends the exchange.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

import httpx

from sidecar.errors import EngineDied, LegFailed
from sidecar.observers import ExchangeRecord, LegRecord
from sidecar.offer import is_refused
from sidecar.plan import Ask, Deliver, Emit, End, Finish, Leg, Offer, Plan, Reply, Start, Step
from sidecar.recall import Listening
from sidecar.relay import Relay
from sidecar.replies import Key, key_of
from sidecar.services import Services
from sidecar.started import Beside, StartedLeg, all_answered
from sidecar.transport import BodyStream
from sidecar.upstream import Upload

if TYPE_CHECKING:
    from sidecar.server.client import Client


class Steps:
    """The steps of one exchange: `await Steps(…).play(plan)`, or `deliver` alone where there is no plan."""

    __slots__ = ("_asked", "_client", "_record", "_relay", "_services", "_started")

    def __init__(self, services: Services, client: Client, record: ExchangeRecord, relay: Relay) -> None:
        self._services = services
        self._client = client
        self._record = record
        self._relay = relay
        self._started: list[StartedLeg] = []
        self._asked: list[Key] = []

    async def play(self, plan: Plan) -> None:
        """Run the plan to its end. Raises the failure that the plan let through."""
        try:
            match await self._settle(plan):
                case Deliver() as deliver:
                    await self._deliver_beside(deliver)
                case Finish(reply):
                    self._relay.finish(reply)
                case None:  # the offered answer was taken
                    pass
        except asyncio.CancelledError:
            for leg in self._started:
                leg.task.cancel()
            raise
        finally:
            self._let_go()

    async def deliver(self, deliver: Deliver, upload: Upload | None = None) -> None:
        """Send the leg that answers the client and relay its answer."""
        record = self.leg_record(deliver.leg)
        self._record.handoff_lost = deliver.handoff_lost
        plain = deliver.cached_tokens is not None
        with self._services.observers.leg(record):
            try:
                async with self._services.upstream.send(record, upload=upload, plain=plain) as response:
                    if deliver.after_started:
                        await all_answered(self._started)
                        if isinstance(response.stream, BodyStream) and response.stream.fault:
                            raise EngineDied(deliver.leg, "decode aborted before sending a response")
                    heard = self._listening(deliver, response)
                    await self._relay.run(
                        response, record, deliver.cached_tokens, heard.feed if heard else None
                    )
                    if heard:
                        self._record.turn = heard.end()
            finally:
                record.ended_s = monotonic()

    def _listening(self, deliver: Deliver, response: httpx.Response) -> Listening | None:
        turns = self._services.turns
        return turns.listen(deliver.keep) if turns and deliver.keep and response.is_success else None

    def leg_record(self, leg: Leg) -> LegRecord:
        """A new record of a leg that is about to be sent."""
        record = LegRecord(exchange=self._record, leg=leg, started_s=monotonic())
        self._record.legs.append(record)
        return record

    async def _settle(self, plan: Plan) -> End | None:
        """Run the steps until one of them answered the client (None) or the plan says what does."""
        try:
            step = next(plan)
            while True:
                try:
                    async with Beside(self._started):
                        replies = await self._take(step)
                except LegFailed as failed:
                    if self._client.started:
                        raise
                    step = plan.throw(failed)
                else:
                    if replies is None:
                        plan.close()
                        return None
                    step = plan.send(replies)
        except StopIteration as end:
            ended: End = end.value
            return ended

    async def _take(self, step: Step) -> list[Reply] | None:
        """One step; None when it has answered the client."""
        match step:
            case Ask(legs, 0.0):
                return await self._ask(legs)
            case Ask(legs, cache_s):
                return [await self._remembered(leg, cache_s) for leg in legs]
            case Start(leg):
                sending = self._services.upstream.complete(self.leg_record(leg))
                self._started.append(self._services.started.start(leg, sending))
                return []
            case Offer():
                return await self._offer(step)
            case Emit(headers, content):
                self._relay.emit(headers, content)
                await self._client.drain()
                return []

    async def _ask(self, legs: tuple[Leg, ...]) -> list[Reply]:
        """All legs at once; the first that fails ends the others."""
        upstream = self._services.upstream
        if len(legs) == 1:
            return [await upstream.ask(self.leg_record(legs[0]))]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(upstream.ask(self.leg_record(leg))) for leg in legs]
        except* LegFailed as failed:
            raise _first(failed) from None
        return [task.result() for task in tasks]

    async def _remembered(self, leg: Leg, cache_s: float) -> Reply:
        """An answer from the cache, or a fresh one that goes there."""
        replies = self._services.replies
        self._asked.append(key_of(leg))
        reply = replies.get(leg)
        if reply is None:
            [reply] = await self._ask((leg,))
            replies.keep(leg, reply, cache_s)
        return reply

    async def _offer(self, offer: Offer) -> list[Reply] | None:
        record = self.leg_record(offer.leg)
        with self._services.observers.leg(record):
            try:
                async with self._services.upstream.send(record, plain=True) as response:
                    if await is_refused(response, offer):
                        record.refused = True
                        return []
                    await self._relay.run(response, record, None)
                    return None
            finally:
                record.ended_s = monotonic()

    async def _deliver_beside(self, deliver: Deliver) -> None:
        """Deliver while the started legs run; one of them that fails early may have a stand-in."""
        if not self._started:
            await self.deliver(deliver)
            return
        try:
            async with Beside(self._started):
                await self.deliver(deliver)
        except LegFailed as failed:
            started = any(leg.leg is failed.leg for leg in self._started)
            if not (started and failed.retryable and deliver.otherwise) or self._client.started:
                raise
            self._started = [leg for leg in self._started if leg.failure is None]
            await self._deliver_beside(deliver.otherwise)

    def _let_go(self) -> None:
        """The exchange ends: what it relied on is forgotten if a leg failed, or fails later."""
        asked, replies = self._asked, self._services.replies
        if asked and any(_failed(record) for record in self._record.legs):
            replies.forget(asked)
        for leg in self._started:
            leg.let_go(lambda: replies.forget(asked))
        if self._services.turns:
            for record in self._record.legs:
                if record.leg.reads and _failed(record):
                    self._services.turns.forget(record.leg.reads)


def _failed(record: LegRecord) -> bool:
    refused = record.status is not None and record.status >= 300
    return refused or record.error not in (None, "cancelled")


def _first(group: BaseExceptionGroup[LegFailed]) -> LegFailed:
    """`except*` gives groups, nested ones too: the first failure is the one that ended the others."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, LegFailed)
    return error
