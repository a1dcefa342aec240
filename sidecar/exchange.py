"""Runs the plan of one client request and is its response.

Rule: acts, and decides nothing: the plan says what happens. One task per exchange; when the client goes away
the server cancels it, and leaving the `async with` of a leg closes that leg's connection at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from sidecar import api as apis
from sidecar import headers as names
from sidecar import problem, routing
from sidecar.connectors import Connector, plan_for
from sidecar.counters import UNCOUNTED, Counters
from sidecar.errors import (
    LegFailed,
    LegRefused,
    ShuttingDown,
    SidecarError,
)
from sidecar.guard import SourceGuard
from sidecar.intake import Limits, read_call, screened
from sidecar.observers import ExchangeRecord, LegRecord, Observers
from sidecar.plan import Ask, Deliver, Leg, Plan, Reply, Role
from sidecar.relay import Relay
from sidecar.routing import NoPull, Route
from sidecar.upstream import Upload, Upstream
from sidecar.websocket import Tunnels

if TYPE_CHECKING:
    from sidecar.server.client import Client

logger = logging.getLogger("sidecar.exchange")


@dataclass(frozen=True, slots=True)
class Services:
    """What every exchange needs, built once (sidecar/app.py). guard: None with `--source-guard=off`.

    choose(n): picks one of n prefillers. counters: of what happens beside the records of exchanges.
    """

    rules: routing.Rules
    connector: Connector
    limits: Limits
    upstream: Upstream
    observers: Observers
    tunnels: Tunnels
    guard: SourceGuard | None
    choose: Callable[[int], int]
    counters: Counters = UNCOUNTED


class Exchange:
    """One client request and its answer: `await Exchange(services, client).run()`."""

    __slots__ = ("_client", "_record", "_relay", "_services")

    def __init__(self, services: Services, client: Client) -> None:
        path, _, _ = client.target.partition(b"?")
        self._services = services
        self._client = client
        self._relay: Relay | None = None
        self._record = ExchangeRecord(
            method=client.method.decode("latin-1"),
            path=path.decode("latin-1"),
            request_headers=tuple(client.headers),
            api=apis.find(client.method, path),
            started_s=client.received_at_s,
            request_id=(names.first(client.headers, names.REQUEST_ID) or b"").decode("latin-1"),
        )

    async def run(self) -> None:
        """Answer the client, whatever happens; only cancellation (the client is gone) comes out."""
        record = self._record
        try:
            await self._run_observed(record)
        finally:
            # Records of an exchange and its legs refer to each other, and legs hold bodies: without this they
            # would all wait for the cyclic collector.
            record.legs.clear()

    async def _run_observed(self, record: ExchangeRecord) -> None:
        with self._services.observers.exchange(record):
            try:
                await self._answer()
            except SidecarError as error:
                self._fail(error)
            except asyncio.CancelledError:
                self._cancelled()
                raise
            except Exception:
                logger.exception("a fault of the sidecar ended an exchange")
                self._fail(SidecarError())
            finally:
                record.ended_s = monotonic()

    async def _answer(self) -> None:
        if self._client.tunnel_requested:
            await self._tunnel()
            return
        if self._record.api is None:
            await self._pass_through()
            return
        deliver = await self._settle(await self._plan(self._record.api))
        self._record.handoff_lost = deliver.handoff_lost
        await self._deliver(deliver)

    async def _plan(self, api: apis.Api) -> Plan:
        services, client = self._services, self._client
        route = routing.read(client.headers, services.rules, services.choose)
        call = await read_call(client, api, services.limits)
        if route.source and services.guard and not await services.guard.admits(route.source.p2p):
            route = route.without_source(NoPull.UNREACHABLE)
        self._record.route = route
        self._record.request_id = self._record.request_id or call.ids.request
        return plan_for(services.connector, screened(call, route, services.limits.client_params), route)

    async def _settle(self, plan: Plan) -> Deliver:
        """Run the plan's steps until it says which leg answers the client."""
        try:
            step = next(plan)
            while True:
                try:
                    replies = await self._ask(step)
                except LegFailed as failed:
                    step = plan.throw(failed)
                else:
                    step = plan.send(replies)
        except StopIteration as end:
            deliver: Deliver = end.value
            return deliver

    async def _ask(self, step: Ask) -> list[Reply]:
        """All legs at once; the first that fails ends the others."""
        upstream = self._services.upstream
        if len(step.legs) == 1:
            return [await upstream.ask(self._leg_record(step.legs[0]))]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(upstream.ask(self._leg_record(leg))) for leg in step.legs]
        except* LegFailed as failed:
            raise _first(failed) from None
        return [task.result() for task in tasks]

    async def _deliver(self, deliver: Deliver, upload: Upload | None = None) -> None:
        """Send the leg that answers the client and relay its answer."""
        record = self._leg_record(deliver.leg)
        plain = deliver.cached_tokens is not None
        with self._services.observers.leg(record):
            try:
                async with self._services.upstream.send(record, upload=upload, plain=plain) as response:
                    self._relay = Relay(self._client, record)
                    await self._relay.run(response, deliver.cached_tokens)
            finally:
                record.ended_s = monotonic()

    async def _pass_through(self) -> None:
        """A path that is not routed: the decoder gets it unread."""
        client, rules = self._client, self._services.rules
        self._record.route = Route(rules.decoder)
        headers = names.forwarded(client.headers)
        content, upload = await _passed_body(client)
        leg = Leg(Role.DECODE, rules.decoder, client.method, client.target, headers, content)
        await self._deliver(Deliver(leg), upload)

    async def _tunnel(self) -> None:
        """A WebSocket: the decoder gets the handshake, and then bytes go both ways."""
        client, decoder = self._client, self._services.rules.decoder
        self._record.route = Route(decoder)
        headers = names.tunnelled(client.headers)
        leg = Leg(Role.DECODE, decoder, client.method, client.target, headers, content=b"")
        await self._services.tunnels.run(client, self._leg_record(leg))

    def _leg_record(self, leg: Leg) -> LegRecord:
        record = LegRecord(exchange=self._record, leg=leg, started_s=monotonic())
        self._record.legs.append(record)
        return record

    def _cancelled(self) -> None:
        """The client is gone; or it is there, and the server cuts what its grace did not suffice for."""
        self._record.error = "client_gone"
        if not self._client.ended:
            self._fail(ShuttingDown("the sidecar is shutting down"))

    def _fail(self, error: SidecarError) -> None:
        """Tell the client: a whole error answer before the first byte, a cut stream after it."""
        record, client = self._record, self._client
        record.error = error.label if isinstance(error, LegFailed) else error.type
        record.detail = error.message
        anthropic = record.api is not None and record.api.anthropic
        if client.started:
            self._cut(error, anthropic=anthropic)
        elif isinstance(error, LegRefused):
            Relay(client, record.legs[-1]).reply(error.reply)
        else:
            content = problem.body(error.status, error.message, anthropic=anthropic)
            record.status = error.status
            client.start(error.status, problem.headers(error.status, content), body_length=len(content))
            client.write(content)
            client.finish()

    def _cut(self, error: SidecarError, *, anthropic: bool) -> None:
        """Never a clean end: an SSE stream gets one error event, then every client sees a cut connection."""
        if self._relay and self._relay.appendable:
            self._client.write(problem.sse_event(error.status, error.message, anthropic=anthropic))
        self._client.drop()


# A small body is sent whole, so that it can be sent again when an idle connection turns out to be dead.
_WHOLE_BODY_BYTES = 256 * 1024


async def _passed_body(client: Client) -> tuple[bytes, Upload | None]:
    """The body of a request that is passed through: whole when it is small and here, else as it comes."""
    if not client.has_body:
        return b"", None
    length = names.first(client.headers, names.CONTENT_LENGTH)
    waits = names.first(client.headers, names.EXPECT) is not None
    if client.received and length is not None and int(length) <= _WHOLE_BODY_BYTES and not waits:
        return await client.read_body(_WHOLE_BODY_BYTES), None
    framing = (names.TRANSFER_ENCODING, b"chunked") if length is None else (names.CONTENT_LENGTH, length)
    return b"", Upload(client.stream_body(), framing)


def _first(group: BaseExceptionGroup[LegFailed]) -> LegFailed:
    """`except*` gives groups, nested ones too: the first failure is the one that ended the others."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, LegFailed)
    return error
