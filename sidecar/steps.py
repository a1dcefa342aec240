"""Runs one plan: sends the legs of its steps and gives the client the answer that it ends with.

Rule: acts, and decides nothing. Failures of legs are thrown into the plan at its `yield`, until the client
has a byte; what the plan lets through ends the exchange.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

import httpx

from sidecar.errors import EngineDied, LegFailed, LegRefused, SidecarError
from sidecar.legs import Legs
from sidecar.observers import ExchangeRecord, LegRecord
from sidecar.offer import is_refused
from sidecar.plan import Ask, Deliver, Emit, End, Finish, Offer, Plan, Reply, Start, Step
from sidecar.recall import Listening
from sidecar.relay import Relay
from sidecar.rescue import Stalled, unpulled
from sidecar.services import Services
from sidecar.started import Beside, StartedLeg, all_answered
from sidecar.transport import BodyStream
from sidecar.upstream import Upload

if TYPE_CHECKING:
    from sidecar.server.client import Client


class Steps:
    """The steps of one exchange: `await Steps(…).play(plan)`, or `deliver` alone where there is no plan.

    legs: sends those whose whole answers a plan asks for.
    """

    __slots__ = ("_client", "_record", "_relay", "_services", "_started", "legs")

    def __init__(self, services: Services, client: Client, record: ExchangeRecord, relay: Relay) -> None:
        self._services = services
        self._client = client
        self._record = record
        self._relay = relay
        self._started: list[StartedLeg] = []
        self.legs = Legs(services, client, record)

    async def play(self, plan: Plan) -> None:
        """Run the plan to its end. Raises the failure that the plan let through."""
        try:
            match await self._settle(plan):
                case Deliver() as deliver:
                    await self._deliver_beside(deliver)
                case Finish(reply, completion_tokens):
                    self._record.completion_tokens = completion_tokens
                    self._relay.finish(reply)
                case None:  # the offered answer was taken
                    pass
        except asyncio.CancelledError:
            for leg in self._started:
                leg.task.cancel()
            raise
        except SidecarError:
            self._services.replies.forget(self.legs.asked)  # the plan itself may have found them of no use
            raise
        finally:
            self._let_go()

    async def deliver(self, deliver: Deliver, upload: Upload | None = None) -> None:
        """Send the leg that answers the client, without its pull if that hangs, and relay its answer."""
        leg, rescuer = deliver.leg, self._services.rescuer
        if leg.pull is None or rescuer is None:
            await self._deliver(deliver, self.legs.record_of(leg), upload)
            return
        if self.legs.admits(leg, rescuer):
            record = self.legs.record_of(leg)
            with suppress(Stalled), rescuer.watch(record, self._client.task):
                await self._deliver(deliver, record, upload)
                return
        await self.deliver(replace(deliver, leg=unpulled(leg)))

    async def _deliver(self, deliver: Deliver, record: LegRecord, upload: Upload | None) -> None:
        self._record.handoff_lost = deliver.handoff_lost
        self._record.held, self._record.alone = deliver.after_started, deliver.alone
        plain = deliver.cached_tokens is not None
        with self._services.observers.leg(record):
            try:
                async with self._services.upstream.send(record, upload=upload, plain=plain) as response:
                    if deliver.after_started:
                        await all_answered(self._started)
                        if isinstance(response.stream, BodyStream) and response.stream.fault:
                            raise EngineDied(deliver.leg)
                    if deliver.leg.pull is not None and self._services.rescuer is not None:
                        await _begun(response)
                    heard = self._listening(deliver, response)
                    await self._relay.run(
                        response, record, deliver.cached_tokens, heard.feed if heard else None
                    )
                    if heard:
                        self._record.turn = heard.end()
            except EngineDied as died:
                if not deliver.after_started or self._client.started:
                    raise
                raise EngineDied(died.leg, "decode aborted before sending a response") from died
            finally:
                record.ended_s = monotonic()

    def _listening(self, deliver: Deliver, response: httpx.Response) -> Listening | None:
        turns = self._services.turns
        return turns.listen(deliver.keep) if turns and deliver.keep and response.is_success else None

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
                    self._started = [leg for leg in self._started if leg.failure is not failed]
                    step = plan.throw(failed)
                    # The plan goes on without the started legs whose failure it was told.
                    self._started = [leg for leg in self._started if leg.failure is None]
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
            case Ask():
                return await self._answers(step)
            case Start(leg):
                self._started.append(self.legs.start(leg))
                return []
            case Offer():
                return await self._offer(step)
            case Emit(headers, content):
                self._relay.emit(headers, content)
                await self._client.drain()
                return []

    async def _answers(self, ask: Ask) -> list[Reply]:
        self._record.handoff_lost = ask.handoff_lost
        if ask.cache_s:
            return [await self.legs.remembered(leg, ask.cache_s) for leg in ask.legs]
        try:
            replies = await self.legs.ask(ask.legs)
        except LegRefused as refused:
            if not ask.refusable:
                raise
            replies = [refused.reply]
        if ask.after_started:
            await all_answered(self._started)
        return replies

    async def _offer(self, offer: Offer) -> list[Reply] | None:
        record = self.legs.record_of(offer.leg)
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
            # By its failure: a leg that was sent again is another one.
            started = any(leg.failure is failed for leg in self._started)
            if not (started and failed.retryable and deliver.otherwise) or self._client.started:
                raise
            self._started = [leg for leg in self._started if leg.failure is None]
            await self._deliver_beside(deliver.otherwise)

    def _let_go(self) -> None:
        """The exchange ends: what it relied on is forgotten if a leg failed, or fails later."""
        asked, replies = self.legs.asked, self._services.replies
        if asked and any(_failed(record) for record in self._record.legs):
            replies.forget(asked)
        for leg in self._started:
            leg.let_go(lambda: replies.forget(asked))
        if self._services.turns:
            for record in self._record.legs:
                if record.leg.reads and _failed(record):
                    self._services.turns.forget(record.leg.reads)


async def _begun(response: httpx.Response) -> None:
    """Hold a head back until its body begins: a stream's head comes before the pull that may hang."""
    stream = response.stream
    if isinstance(stream, BodyStream) and not stream.arrived:
        await stream.more()


def _failed(record: LegRecord) -> bool:
    refused = record.status is not None and record.status >= 300
    return refused or record.error not in (None, "cancelled")
