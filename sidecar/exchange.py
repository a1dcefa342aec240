"""Runs the plan of one client request and is its response.

Rule: acts, and decides nothing: the plan says what happens. One task per exchange; when the client goes away
the server cancels it, and leaving the `async with` of a leg closes that leg's connection at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from sidecar import api as apis
from sidecar import headers as names
from sidecar import routing
from sidecar.errors import (
    LegRefused,
    OutOfMemory,
    RequestTimeout,
    ShuttingDown,
    SidecarError,
    TargetDenied,
)
from sidecar.intake import read_call, screened
from sidecar.observers import ExchangeRecord
from sidecar.observers.debug_headers import debug_headers
from sidecar.plan import Deliver, Leg, Peer, Plan, Role
from sidecar.relay import Relay
from sidecar.routing import NoPull, Route
from sidecar.server.client import BodyStalled
from sidecar.services import Services
from sidecar.steps import Steps
from sidecar.upstream import Upload

if TYPE_CHECKING:
    from sidecar.server.client import Client

logger = logging.getLogger("sidecar.exchange")


class Exchange:
    """One client request and its answer: `await Exchange(services, client).run()`."""

    __slots__ = ("_client", "_record", "_relay", "_services", "_steps")

    def __init__(self, services: Services, client: Client) -> None:
        path, _, _ = client.target.partition(b"?")
        self._services = services
        self._client = client
        self._record = record = ExchangeRecord(
            method=client.method.decode("latin-1"),
            path=path.decode("latin-1"),
            request_headers=tuple(client.headers),
            api=apis.find(client.method, path),
            started_s=client.received_at_s,
            request_id=(names.first(client.headers, names.REQUEST_ID) or b"").decode("latin-1"),
        )
        if services.debug and (wanted := names.first(client.headers, names.DEBUG)) is not None:
            client.headers = list(names.without(client.headers, names.DEBUG))
            client.also = partial(debug_headers, record, monotonic) if wanted == b"1" else None
        self._relay = Relay(client, record)
        self._steps = Steps(services, client, record, self._relay)

    async def run(self) -> None:
        """Answer the client, whatever happens; only cancellation (the client is gone) comes out."""
        record = self._record
        try:
            with self._services.observers.exchange(record):
                try:
                    with self._services.concurrency:
                        await self._answer()
                except SidecarError as error:
                    self._fail(error)
                except asyncio.CancelledError:
                    self._cancelled()
                    raise
                except MemoryError:
                    self._fail(OutOfMemory("the sidecar has no memory for this request"))
                except Exception:
                    logger.exception("a fault of the sidecar ended an exchange")
                    self._fail(SidecarError())
                finally:
                    record.ended_s = monotonic()
        finally:
            # Records of an exchange and its legs refer to each other, and legs hold bodies: without this they
            # would all wait for the cyclic collector.
            record.legs.clear()

    async def _answer(self) -> None:
        if self._client.tunnel_requested:
            await self._tunnel()
            return
        if self._record.api is None:
            await self._pass_through()
            return
        plan = await self._plan(self._record.api)
        if isinstance(plan, Deliver):
            await self._steps.deliver(plan)
        else:
            await self._steps.play(plan)

    async def _plan(self, api: apis.Api) -> Plan | Deliver:
        services, client = self._services, self._client
        allowlist = services.protection.allowlist
        named = routing.read(client.headers, services.rules, services.choose)
        named = routing.permitted(named, allowlist)
        call = await read_call(client, api, services.limits)
        self._record.request_bytes = client.body_bytes
        self._record.model = call.body.get("model")
        route = services.planner.settled(call, named)
        if route.source and (refusal := await self._refusal(route.source, route)):
            route = route.without_source(refusal)
        if services.turns:
            call = services.turns.looked_up(call, route)
        self._record.route = route
        self._record.request_id = self._record.request_id or call.ids.request
        replaced = services.planner.sets_params(route)
        call = screened(call, services.limits.client_params, allowlist, replaced=replaced)
        return services.planner.end(call, route) or services.planner.plan(call, route)

    async def _refusal(self, source: Peer, route: Route) -> NoPull | None:
        """Why a source is not to be pulled from now."""
        services, p2p = self._services, source.p2p
        engine = route.prefiller.endpoint if route.prefiller else route.decoder
        if services.guard and not await services.guard.admits(p2p):
            return NoPull.UNREACHABLE
        if services.yields.suspended(p2p):
            return NoPull.SILENT
        rescuer = services.rescuer
        return NoPull.SUSPENDED if rescuer and rescuer.pauses.suspended(engine) else None

    async def _pass_through(self) -> None:
        """A path that is not routed: the decoder gets it unread."""
        client = self._client
        route = self._record.route = routing.unrouted(client.headers, self._services.rules)
        headers = names.forwarded(client.headers)
        content, upload = await _passed_body(client)
        leg = Leg(Role.DECODE, route.decoder, client.method, client.target, headers, content)
        await self._steps.deliver(Deliver(leg), upload)

    async def _tunnel(self) -> None:
        """A WebSocket: the decoder gets the handshake, and then bytes go both ways."""
        client = self._client
        route = self._record.route = routing.unrouted(client.headers, self._services.rules)
        headers = names.tunnelled(client.headers)
        leg = Leg(Role.DECODE, route.decoder, client.method, client.target, headers, content=b"")
        await self._services.tunnels.run(client, self._steps.legs.record_of(leg))

    def _cancelled(self) -> None:
        """The client is gone; or it is there, and the server cuts what its grace did not suffice for."""
        record, cut = self._record, ShuttingDown("the sidecar is shutting down")
        if not self._client.ended:
            self._fail(cut)
        elif record.status == _SWITCHED:  # the end of a tunnel's client is no cancellation
            record.error, record.detail = cut.label, cut.message
        else:
            record.error = "client_gone"

    def _fail(self, error: SidecarError) -> None:
        """Tell the client: a whole error answer before the first byte, a cut stream after it.

        An engine whose answer turns out bad in the read that brought its head has given no byte either.
        """
        record, client = self._record, self._client
        record.error, record.detail = error.label, error.message
        if isinstance(error, TargetDenied):
            record.denied_target = error.target.netloc
        anthropic = record.api is not None and record.api.anthropic
        if client.started and not client.retract():
            self._cut(error, anthropic=anthropic)
        elif isinstance(error, LegRefused):
            self._relay.reply(error.reply)
        else:
            headers, content = error.answer(anthropic=anthropic)
            record.status = error.status
            client.keep_alive = (
                client.keep_alive and client.received
            )  # the rest of an upload is not waited for
            client.start(error.status, headers, body_length=len(content))
            client.write(content)
            client.finish()

    def _cut(self, error: SidecarError, *, anthropic: bool) -> None:
        """Never a clean end: an SSE stream gets one error event, then every client sees a cut connection."""
        if self._relay.appendable:
            self._client.write(error.event(anthropic=anthropic))
        self._client.drop()


# A WebSocket's bytes go both ways (RFC 9110 section 15.2.2).
_SWITCHED = 101

# A small body is sent whole, so that it can be sent again when an idle connection turns out to be dead.
_WHOLE_BODY_BYTES = 256 * 1024


async def _passed_body(client: Client) -> tuple[bytes, Upload | None]:
    """The body of a request that is passed through: whole when it is small and here, else as it comes."""
    if not client.has_body:
        return b"", None
    length = names.first(client.headers, names.CONTENT_LENGTH)
    waits = names.first(client.headers, names.EXPECT) is not None
    if client.received and length is not None and int(length) <= _WHOLE_BODY_BYTES and not waits:
        return bytes(await client.read_body(_WHOLE_BODY_BYTES)), None
    framing = (names.TRANSFER_ENCODING, b"chunked") if length is None else (names.CONTENT_LENGTH, length)
    return b"", Upload(_pieces(client), framing)


async def _pieces(client: Client) -> AsyncIterator[bytes]:
    """The body as it comes. Raises RequestTimeout when it stands still."""
    try:
        while piece := await client.next_piece():
            yield piece
    except BodyStalled as stalled:
        raise RequestTimeout(str(stalled)) from None
