"""Speaks ASGI 3 over a Client, for applications that know no Client.

Rule: the scope carries the Client in `extensions["sidecar.client"]`; whatever is sent here goes through it.
An application that has `direct` is asked first whether it serves the Client as it is.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, MutableMapping
from typing import Any
from urllib.parse import unquote

from sidecar.server.admission import Headers
from sidecar.server.client import Client, ClientGone

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Application = Callable[
    [Scope, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]

Serving = Coroutine[Any, Any, None]

EXTENSION = "sidecar.client"
"""Key of `scope["extensions"]` under which an application finds its Client."""

# ASGI 2.4 (HTTP & WebSocket message format): `send` raises an OSError once the client is gone. One object for
# all scopes: nobody has a reason to change it.
_VERSIONS = {"version": "3.0", "spec_version": "2.4"}


def direct_of(app: Application) -> Callable[[Client], Serving | None]:
    """The way past ASGI that an application may have, for what it does most: its method `direct`.

    It takes the client and serves it, or says None: then the client is to be served by ASGI.
    """
    return getattr(app, "direct", _takes_nobody)


def _takes_nobody(client: Client) -> None:
    """The `direct` of applications that have none."""


async def run(app: Application, client: Client, common: Scope, state: dict[str, Any]) -> None:
    """Serve one request by ASGI; `common` and `state` as in `scope_of`."""
    channel = Channel(client)
    await app(scope_of(client, common, state), channel.receive, channel.send)


def common_of(transport: asyncio.BaseTransport, peer: tuple[str, int] | None) -> Scope:
    """What the scopes of all requests of one connection have in common. peer: the client's address."""
    local = transport.get_extra_info("sockname")
    return {
        "type": "http",
        "scheme": "http" if transport.get_extra_info("sslcontext") is None else "https",
        "root_path": "",
        "client": peer,
        "server": local[:2] if isinstance(local, tuple) else None,
    }


class LowerCased:
    """A request's fields with lower-case names, made only when they are looked at: the relay never does."""

    __slots__ = ("_headers",)

    def __init__(self, headers: Headers) -> None:
        self._headers = headers

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return ((name.lower(), value) for name, value in self._headers)

    def __len__(self) -> int:
        return len(self._headers)


def scope_of(client: Client, common: Scope, state: dict[str, Any]) -> Scope:
    """The scope of one request; `common` is the same for all of its connection, `state` the lifespan's."""
    raw_path, _, query = client.target.partition(b"?")
    path = raw_path.decode("ascii")  # llhttp lets no other byte into a target
    return {
        **common,
        "asgi": _VERSIONS,
        "http_version": client.http_version,
        "method": client.method.decode("ascii"),
        "path": unquote(path) if "%" in path else path,
        "raw_path": raw_path,
        "query_string": query,
        "headers": LowerCased(client.headers),  # any iterable (ASGI HTTP spec, Connection Scope)
        "state": state.copy(),
        "extensions": {EXTENSION: client},
    }


class Channel:
    """`receive` and `send` of one request.

    The head of the answer waits for the first message of its body, which often is the last one too.
    """

    __slots__ = ("_client", "_requested", "_start")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._requested = False
        self._start: Message | None = None

    async def receive(self) -> Message:
        """The request's body piece by piece, then `http.disconnect` when the exchange is over."""
        client = self._client
        if not self._requested:
            try:
                piece = await client.next_piece()
            except ClientGone:
                return {"type": "http.disconnect"}
            self._requested = client.received
            return {"type": "http.request", "body": piece, "more_body": not client.received}
        await client.wait_ended()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Pass on a piece of the answer, waiting for a slow client. Raises ClientGone, RuntimeError."""
        client = self._client
        if client.ended:
            raise ClientGone("the exchange is over")
        await client.drain()
        match message["type"]:
            case "http.response.start" if self._start is None:
                self._start = message
            case "http.response.body" if self._start is not None:
                self._send_body(self._start, message)
            case unexpected:
                raise RuntimeError(f"unexpected ASGI message {unexpected!r}")

    def _send_body(self, start: Message, message: Message) -> None:
        client = self._client
        piece = bytes(message.get("body", b""))
        more = message.get("more_body", False)
        if not client.started:
            # Chunks are the server's to make, asked for or not (ASGI HTTP spec, Response Start).
            headers = [
                field for field in start.get("headers", ()) if field[0].lower() != b"transfer-encoding"
            ]
            lengths = [int(value) for name, value in headers if name.lower() == b"content-length"]
            length = lengths[0] if lengths else None if more else len(piece)
            client.start(start["status"], headers, body_length=length)
        client.write(piece)
        if not more:
            client.finish()
