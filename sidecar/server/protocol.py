"""One client connection: uvicorn's `http=` class, serving HTTP/1.1 requests one at a time.

Rule: bytes are parsed only as far as the request being answered; what is sent ahead waits here, bounded.
"""

import asyncio
import contextvars
import logging
from collections import deque
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from sidecar.endpoint import Endpoint
from sidecar.server.admission import Head, Refusal
from sidecar.server.asgi import Application, Scope, common_of, direct_of, run
from sidecar.server.client import Client
from sidecar.server.framing import refusal_answer
from sidecar.server.inbound import RequestBody
from sidecar.server.limits import DEFAULT_LIMITS, ClientLimits
from sidecar.server.reader import RequestReader
from sidecar.server.wire import Wire

SENT_AHEAD_BYTES = 65536
"""Bytes kept of what a client sends while its request is answered; beyond it the socket is not read."""

logger = logging.getLogger("sidecar.server")


class ClientProtocol(Wire):
    """Serves one client; its duties towards the server are those of uvicorn 0.54's `HttpToolsProtocol`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        limits: ClientLimits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(_loop or asyncio.get_running_loop())
        if not config.loaded:
            config.load()
        self.peer: tuple[str, int] | None = None
        self._app: Application = config.loaded_app
        self._direct = direct_of(config.loaded_app)
        self._keep_alive_s: float = config.timeout_keep_alive
        self._server_state, self._app_state = server_state, app_state
        self._common: Scope = {}
        # Every request's task starts from here, and not from the task whose answer let it begin.
        self._context = contextvars.copy_context()
        self._header_timeout_s, self.body_timeout_s = limits.header_timeout_s, limits.body_timeout_s
        self._reader = RequestReader(self, limits.header_bytes)
        self._current: Client | None = None
        self._queue = deque[Client]()
        self._refusal: Refusal | None = None
        self._ahead, self._ahead_bytes = list[bytes](), 0
        self._head_timed = self._stopping = False

    # What the event loop and the server call.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        super().connection_made(transport)
        self._server_state.connections.add(self)  # type: ignore[arg-type] # uvicorn names its own classes only
        peer = transport.get_extra_info("peername")
        self.peer = peer[:2] if isinstance(peer, tuple) else None
        self._common = common_of(transport, self.peer)
        self.set_deadline(self._keep_alive_s)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        current = self._current
        if self.deaf:
            self.discard(data)
        elif current is None or not (current.received or self._queue):
            self._parse(data)
        else:
            self._keep(data)

    def eof_received(self) -> None:
        """The client has ended its side: with a request running it counts as gone (as in Go and uvicorn)."""
        current, self._current = self._current, None
        if current is not None:
            current.lose()
            if current.ends_by_close:
                self.reset()
            else:
                self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, whichever way."""
        current, self._current = self._current, None
        if current is not None:
            current.lose()
        super().connection_lost(exc)
        self._server_state.connections.discard(self)
        self._queue.clear()
        self._reader.close()

    def pause_writing(self) -> None:
        """The client is slow: stop what the answer comes from."""
        super().pause_writing()
        if self._current is not None and self._current.source is not None:
            self._current.source.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        super().resume_writing()
        if self._current is not None and self._current.source is not None:
            self._current.source.resume()

    def shutdown(self) -> None:
        """The server stops: close now if idle, else after the answer under way."""
        self._stopping = True
        if self._current is not None:
            self._current.keep_alive = False
        elif not self.deaf:
            self.transport.close()

    def deadline_passed(self) -> None:
        """Nothing came in time: whoever has begun a request is told so (RFC 9110 15.5.9)."""
        if self._head_timed and self._current is None and not self.deaf:
            self._refuse(Refusal(408, f"no whole request head within {self._header_timeout_s:g} s"))
        else:
            super().deadline_passed()

    # What the reader and the client call.

    def request_arrived(self, head: Head, *, keep_alive: bool) -> RequestBody | None:
        """A request's head is complete: serve it, or queue it behind the one being answered."""
        client = Client(self, head, keep_alive=keep_alive)
        if self._current is None:
            self._serve(client)
        else:
            self._queue.append(client)
        return client.body

    def answered(self, client: Client) -> None:
        """The answer is complete: the next request's turn, or the connection's end."""
        self._server_state.total_requests += 1
        self._current = None
        if not (client.keep_alive and client.received) or self._stopping:
            self.close(unread=not client.received or bool(self._queue or self._ahead or self._refusal))
        elif self._queue:
            following = self._queue.popleft()
            self._serve(following)
            if not (following.received or self._queue):
                self._parse_ahead()
        elif self._refusal is not None:
            self._answer_refusal(self._refusal)
        else:
            self.set_deadline(self._keep_alive_s)
            self._parse_ahead()

    def cut(self, client: Client) -> None:
        """End the connection in the middle of an answer."""
        self._current = None
        self.deaf = True
        if client.ends_by_close:
            # Only the connection's end tells where this body ends: a FIN would pass for a complete one.
            self.reset()
        else:
            # A missing last chunk, or missing bytes, tell it by themselves (RFC 9112 8).
            self.transport.close()

    def hand_over(self) -> bytes:
        """Let go of the transport for a tunnel; the bytes that followed the request's head."""
        self._current = None
        self.deaf = True
        self._server_state.connections.discard(self)
        self.forget_deadline()
        self.resume_reading()
        self._reader.close()
        return b"".join(self._ahead)

    # One request after the other.

    def _serve(self, client: Client) -> None:
        self._current = client
        self._head_timed = False
        self.set_deadline(None)
        # No TaskGroup: protocol callbacks are not tasks. The server's set keeps this one and waits for it,
        # losing the client cancels it, and _run lets no exception out.
        task = self.loop.create_task(self._run(client), context=self._context.copy())
        client.task = task
        tasks = self._server_state.tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _run(self, client: Client) -> None:
        try:
            await (self._direct(client) or run(self._app, client, self._common, self._app_state))
            if not client.ended:
                logger.error("application left its answer unfinished: %r %r", client.method, client.path)
        except Exception:
            logger.exception("application failed: %r %r", client.method, client.path)
        finally:
            client.fail()

    def _parse(self, data: bytes) -> None:
        try:
            rest = self._reader.feed(data)
        except Refusal as refusal:
            self._refuse(refusal)
            return
        if rest:
            self._keep(rest)
        if self._reader.in_head and self._current is None and not self._head_timed:
            self._head_timed = True
            self.set_deadline(self._header_timeout_s)

    def _keep(self, data: bytes) -> None:
        self._ahead.append(data)
        self._ahead_bytes += len(data)
        if self._ahead_bytes > SENT_AHEAD_BYTES:
            self.pause_reading()

    def _parse_ahead(self) -> None:
        """Parse what was sent ahead: its turn has come."""
        self.resume_reading()
        if self._ahead or self._reader.in_head:
            ahead, self._ahead, self._ahead_bytes = b"".join(self._ahead), [], 0
            self._parse(ahead)

    def _refuse(self, refusal: Refusal) -> None:
        """Answer a request that cannot be served, after those before it; nothing behind it is read."""
        client = Endpoint(*self.peer).netloc if self.peer else None
        fields = {"status": refusal.status, "reason": refusal.message, "client": client}
        logger.info("refused", extra={"fields": fields})
        self.deaf = True
        current = self._current
        if self._queue and not self._queue[-1].received:
            self._queue.pop()
        if current is not None and current.received:
            self._refusal = refusal
            return
        self._current = None
        if current is not None:
            current.lose()  # the body of the request being served turned out malformed
        if current is not None and current.started:
            self.cut(current)
        else:
            self._answer_refusal(refusal)

    def _answer_refusal(self, refusal: Refusal) -> None:
        self.transport.write(refusal_answer(refusal))
        self.close(unread=True)
