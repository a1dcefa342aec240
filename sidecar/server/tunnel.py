"""Relays a WebSocket's bytes between a client and an engine once the engine has answered.

Rule: nothing the client sends reaches the engine before its 101, and a refusal ends the connection: otherwise
a client could go on sending requests that no routing has seen. Before the answer the client is left as it is.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import httptools

from sidecar.server.client import Client

ANSWER_HEAD_BYTES = 65536
"""Bytes of an engine's answer held until its head is whole, interim answers included: as much as our own
requests' heads may have; over it, the engine is not one."""

CLOSE_S = 5.0
"""Seconds that one side gets to take what is left for it once the other is gone."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where a tunnel leads: host without brackets, port, TLS context or None, seconds allowed to connect.

    server_name: the name that its certificate must have, None for the host's own.
    """

    host: str
    port: int
    ssl_context: ssl.SSLContext | None = None
    connect_timeout_s: float = 5.0
    server_name: str | None = None


class EngineGone(ConnectionError):
    """The engine took the connection, and then ended it or sent what is no HTTP instead of an answer."""


async def tunnel(client: Client, upstream: Upstream, head: bytes, answered: Callable[[int], None]) -> None:
    """Send `head`, a whole request head, to the engine, and relay both ways until a side closes.

    answered: called with the status of the engine's answer when the client is about to get it.
    Raises OSError (TimeoutError and ssl.SSLError are such) when the engine cannot be reached, EngineGone when
    it is lost before its answer's head has come: the client is then still there to be answered. Cancelled,
    both sides are aborted.
    """
    loop = asyncio.get_running_loop()
    engine = EngineSide(loop)
    browser = ClientSide(loop)
    engine.other, browser.other = browser, engine
    try:
        async with asyncio.timeout(upstream.connect_timeout_s):
            tls = upstream.ssl_context
            name = upstream.server_name if tls else None
            await loop.create_connection(
                lambda: engine, upstream.host, upstream.port, ssl=tls, server_hostname=name
            )
        engine.transport.write(head)
        if not await engine.answered:
            raise EngineGone("the engine ended the connection before it had answered")
        answered(engine.status)
        transport, early = client.take_over()
        transport.set_protocol(browser)
        browser.connection_made(transport)
        engine.relay(early)
        await asyncio.wait((engine.lost, browser.lost), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((engine.lost, browser.lost), timeout=CLOSE_S)
    finally:
        engine.abort()
        browser.abort()


class Side(asyncio.Protocol):
    """One end of a tunnel: what it receives, the other end sends; `lost` is done when it is closed."""

    other: "Side"
    transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.lost: asyncio.Future[None] = loop.create_future()
        self.open = False
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """This side is connected."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance
        self.open = True

    def data_received(self, data: bytes) -> None:
        """Bytes for the other side."""
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        """This side is slow: stop reading the other."""
        if self.other.open:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """This side has caught up."""
        if self.other.open:
            self.other.transport.resume_reading()

    def eof_received(self) -> bool:
        """This side sends no more; it may still receive, where transports can be half closed (not TLS)."""
        self.ended = True
        if not self.other.open:
            return False
        if self.other.ended or not self.other.transport.can_write_eof():
            self.other.close()
            return False
        self.other.transport.write_eof()
        return self.transport.can_write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        """This side is gone: the other follows, after what is left for it unless this was a failure."""
        self.open = False
        if not self.lost.done():
            self.lost.set_result(None)
        if exc is None:
            self.other.close()
        else:
            self.other.abort()

    def close(self) -> None:
        """Close once everything written is sent."""
        if self.open:
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self.open:
            self.transport.abort()


class ClientSide(Side):
    """The client's end. What it sends reaches the engine when that has `agreed`, and is dropped otherwise."""

    agreed = False

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self.agreed:
            super().data_received(data)

    def eof_received(self) -> bool:
        """The client has ended its side; while it is being refused, it is gone."""
        if not self.agreed:
            self.other.abort()
            return False
        return super().eof_received()


class EngineSide(Side):
    """The engine's end; its answer is relayed raw and read along, to know whether it is a 101.

    `status` is the answer's, 0 before its head. `answered` is done when the answer's head has come (True), or
    never will (False); what came is held, and the engine not read, until `relay`.
    """

    other: ClientSide

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.answered: asyncio.Future[bool] = loop.create_future()
        self._held: bytearray | None = bytearray()
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self.status = 0
        self._refusal_complete = False

    def data_received(self, data: bytes) -> None:
        """Bytes from the engine."""
        if self._parser is not None and not self._read_along(self._parser, data):
            self._settle(answered=False)
            self.abort()
            self.other.abort()
        elif self._held is None:
            self._pass_on(data)
        else:
            self._held += data
            if self.status == 101 or self.status >= 200:
                self.transport.pause_reading()
                self._settle(answered=True)
            elif len(self._held) > ANSWER_HEAD_BYTES:
                self._settle(answered=False)
                self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The engine is gone."""
        self._settle(answered=False)
        super().connection_lost(exc)

    def relay(self, early: bytes) -> None:
        """The client is ours: pass on what is held, and to an engine that has agreed the client's `early`."""
        held, self._held = self._held, None
        self.other.agreed = self.status == 101
        if self.open:
            self.transport.resume_reading()
            self.other.data_received(early)
        # After the resume: a client that is slow pauses the engine again.
        self._pass_on(bytes(held or b""))
        if not self.open:
            self.other.close()

    def on_headers_complete(self) -> None:
        """The head of an answer; the last one that is not interim decides."""
        if self._parser is not None:
            self.status = self._parser.get_status_code()

    def on_message_complete(self) -> None:
        """An answer is complete; after a refusal there is nothing to wait for."""
        self._refusal_complete = self.status >= 200

    def _pass_on(self, data: bytes) -> None:
        super().data_received(data)
        if self._refusal_complete:
            self.close()
            self.other.close()

    def _settle(self, *, answered: bool) -> None:
        if not self.answered.done():
            self.answered.set_result(answered)

    def _read_along(self, parser: httptools.HttpResponseParser, data: bytes) -> bool:
        """Look for the 101; False when this is no HTTP answer."""
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError:
            if self.status != 101:
                return False
        if self.status == 101:
            self._parser = None
        return True
