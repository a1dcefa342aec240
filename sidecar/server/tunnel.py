"""Relays a WebSocket's bytes between a client and an engine once the engine has agreed to it.

Rule: nothing the client sends reaches the engine before its 101, and a refusal ends the connection: otherwise
a client could go on sending requests that no routing has seen.
"""

import asyncio
import ssl
from dataclasses import dataclass
from typing import cast

import httptools

from sidecar.server.client import Client

EARLY_BYTES = 65536
"""Bytes kept of what a client sends before the engine has agreed; beyond it the client is not read. Clients
have to wait for the 101 (RFC 6455 4.1)."""

CLOSE_S = 5.0
"""Seconds that one side gets to take what is left for it once the other is gone."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where a tunnel leads: host without brackets, port, TLS context or None, seconds allowed to connect."""

    host: str
    port: int
    ssl_context: ssl.SSLContext | None = None
    connect_timeout_s: float = 5.0


async def tunnel(client: Client, upstream: Upstream, head: bytes) -> None:
    """Send `head`, a whole request head, to the engine, and relay both ways until a side closes.

    Raises OSError (TimeoutError and ssl.SSLError are such) when the engine cannot be reached: the client is
    then still there to be answered. Cancelled, both sides are aborted.
    """
    loop = asyncio.get_running_loop()
    engine = EngineSide(loop)
    browser = ClientSide(loop)
    engine.other, browser.other = browser, engine
    try:
        async with asyncio.timeout(upstream.connect_timeout_s):
            await loop.create_connection(
                lambda: engine, upstream.host, upstream.port, ssl=upstream.ssl_context
            )
        transport, early = client.take_over()
        transport.set_protocol(browser)
        browser.connection_made(transport)
        engine.transport.write(head)
        if early:
            browser.data_received(early)
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
    """The client's end; holds back what it sends until `agree`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._early: bytearray | None = bytearray()

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._early is None:
            super().data_received(data)
            return
        self._early += data
        if len(self._early) > EARLY_BYTES:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        """The client has ended its side; before the engine has agreed, it is gone."""
        if self._early is not None:
            self.other.abort()
            return False
        return super().eof_received()

    def agree(self) -> None:
        """The engine has switched protocols: the client's bytes may go to it."""
        early, self._early = self._early, None
        if self.open:
            self.transport.resume_reading()
        if early:
            super().data_received(bytes(early))


class EngineSide(Side):
    """The engine's end; its answer is relayed raw and read along, to know whether it is a 101."""

    other: ClientSide

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._status = 0
        self._refusal_complete = False

    def data_received(self, data: bytes) -> None:
        """Bytes from the engine."""
        if self._parser is not None and not self._read_along(self._parser, data):
            self.abort()
            self.other.abort()
            return
        super().data_received(data)
        if self._refusal_complete:
            self.close()
            self.other.close()

    def on_headers_complete(self) -> None:
        """The head of an answer; the last one that is not interim decides."""
        if self._parser is not None:
            self._status = self._parser.get_status_code()

    def on_message_complete(self) -> None:
        """An answer is complete; after a refusal there is nothing to wait for."""
        self._refusal_complete = self._status >= 200

    def _read_along(self, parser: httptools.HttpResponseParser, data: bytes) -> bool:
        """Look for the 101; False when this is no HTTP answer."""
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError:
            if self._status != 101:
                return False
        if self._status == 101:
            self._parser = None
            self.other.agree()
        return True
