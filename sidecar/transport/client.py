"""The httpx transport: finds or opens a connection, sends the request, returns the response at its head.

Rule: a request is sent once; only an idle connection that turns out to be dead earns it one more try, on a
fresh one. A streamed body cannot be sent twice, so it never goes to an idle connection.
"""

import asyncio
import itertools
import ssl
from collections.abc import Callable

import httpx

from sidecar.transport.answer import Answer
from sidecar.transport.body import BodyStream
from sidecar.transport.connection import Connection
from sidecar.transport.messages import Key, Place, RawRequest, RawResponse
from sidecar.transport.pool import Pool
from sidecar.transport.request import serialise
from sidecar.transport.resolver import TLS, Resolver
from sidecar.transport.upload import Upload

_DEFAULT_PORTS = {"http": 80, "https": 443}
# Of a response head, its interim answers included, and of chunk framing and trailers: as much as the server
# takes of a request's head, and far over what engines send (under 1 KiB).
MAX_HEAD_BYTES = 65_536


class Transport(httpx.AsyncBaseTransport):
    """HTTP/1.1 over asyncio (uvloop or the standard loop), of one event loop.

    tls                for https, or what gives the TLS of the moment; default: the system's trust store
    connect_timeout_s  for name lookup, TCP and TLS together
    idle_expiry_s      how long a connection may be idle; under vLLM's 5 s (uvicorn timeout_keep_alive)
    max_idle_per_host  idle connections kept per scheme, host and port; open ones are not limited
    resolver           looks names up; to be shared by all of the loop

    max_head_bytes, which may be set, is of a response head, and of chunk framing and trailers.
    There is no read timeout, and httpx's "timeout" extension is not read: callers cancel. Cancelling, at any
    stage, closes the socket before CancelledError propagates.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | Callable[[], TLS] | None = None,
        connect_timeout_s: float = 5.0,
        idle_expiry_s: float = 4.0,
        max_idle_per_host: int = 1024,
        resolver: Resolver | None = None,
    ) -> None:
        self._given_tls = tls
        self._connect_timeout_s = connect_timeout_s
        self._resolver = resolver or Resolver()
        self.max_head_bytes = MAX_HEAD_BYTES
        self._pool = Pool(idle_expiry_s, max_idle_per_host)
        self._numbers = itertools.count(1)

    @property
    def standing(self) -> tuple[int, int]:
        """How many connections carry a request and how many wait for one."""
        return self._pool.standing

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send request and return its response, the body still to be read (a BodyStream).

        A RawRequest is answered with a RawResponse. Extensions of the response: reason_phrase, http_version
        (bytes), connection_id (int), reused (bool).
        Raises httpx.ConnectError, ConnectTimeout, ReadError, WriteError, RemoteProtocolError (the engine's
        fault), LocalProtocolError and UnsupportedProtocol (the caller's), and what the request's own stream
        raises.
        """
        raw = isinstance(request, RawRequest)
        key = request.key if isinstance(request, RawRequest) else Place.of(request.url).key
        outgoing = serialise(request)
        upload = None if outgoing.streamed is None else Upload(outgoing.streamed)
        connection = None if upload else self._pool.take(key)
        if connection is not None:
            answer, body = connection.begin(outgoing)
            try:
                await answer.waiter
            except BaseException:
                body.abandon()
                raise
            if answer.started or not answer.died:
                return _response(answer, body, connection.number, raw=raw, reused=True)
        connection = await self._connect(key)
        answer, body = connection.begin(outgoing)
        await _head(connection, answer, body, upload)
        return _response(answer, body, connection.number, raw=raw, reused=False)

    async def aclose(self) -> None:
        """Close idle connections and abort busy ones; later requests get httpx.ConnectError."""
        self._pool.close()
        # Sockets are closed in the loop's next turn.
        await asyncio.sleep(0)

    async def _connect(self, key: Key) -> Connection:
        scheme, raw_host, port = key
        if scheme not in _DEFAULT_PORTS:
            raise httpx.UnsupportedProtocol(f"the scheme {scheme!r} is not http or https")
        host = raw_host.decode("ascii")
        port = port or _DEFAULT_PORTS[scheme]
        where = f"{scheme}://{host}:{port}"
        tls = self._tls() if scheme == "https" else None
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await self._resolver.connect(self._new_connection, host, port, tls=tls)
        except TimeoutError as error:
            raise httpx.ConnectTimeout(
                f"no connection to {where} within {self._connect_timeout_s} s"
            ) from error
        except (OSError, UnicodeError) as error:
            # UnicodeError: a host name that IDNA refuses.
            raise httpx.ConnectError(f"cannot connect to {where}: {error}") from error
        if self._pool.closed:
            connection.abort()
            raise httpx.ConnectError("the transport was closed")
        if connection.usable:
            self._pool.add(connection, key)
        return connection

    def _new_connection(self) -> Connection:
        return Connection(next(self._numbers), self.max_head_bytes, self._pool.put, self._pool.lost)

    def _tls(self) -> TLS:
        # Loading the trust store takes milliseconds, so only once and only if there is an https leg.
        if self._given_tls is None:
            self._given_tls = ssl.create_default_context()
        given = self._given_tls
        return TLS(given) if isinstance(given, ssl.SSLContext) else given()


async def _head(connection: Connection, answer: Answer, body: BodyStream, upload: Upload | None) -> None:
    """Wait for the final head or the failure, uploading meanwhile."""
    try:
        if upload is None:
            await answer.waiter
        else:
            await _head_while_uploading(connection, answer, body, upload)
    except BaseException:
        body.abandon()
        raise


async def _head_while_uploading(
    connection: Connection, answer: Answer, body: BodyStream, upload: Upload
) -> None:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(upload.run(connection, answer))
        try:
            await answer.waiter
        except BaseException:
            body.abandon()  # before the group waits for the upload's end
            raise
        task.cancel()


def _response(
    answer: Answer, body: BodyStream, connection_id: int, *, raw: bool, reused: bool
) -> httpx.Response:
    if not answer.status:
        assert answer.fault is not None
        raise answer.fault
    extensions = {
        "reason_phrase": answer.reason,
        "http_version": answer.version,
        "connection_id": connection_id,
        "reused": reused,
    }
    if raw:
        return RawResponse(answer.status, answer.headers, body, extensions)
    return httpx.Response(answer.status, headers=answer.headers, stream=body, extensions=extensions)
