"""Runs the server: uvicorn's sockets, lifespan and shutdown around our protocol.

Rule: nothing of a request is decided here.
"""

import asyncio
import contextlib
import errno
import math
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import uvicorn

from sidecar.server.protocol import ClientProtocol

# At least 300 s (contract section 9), and a little more: it must not be we who close a connection on which a
# gateway with such a time-out is about to send.
_CLIENT_KEEP_ALIVE_S = 305


class Server(uvicorn.Server):
    """uvicorn's server, which exits 0 when it was asked to stop and did (contract section 9)."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal asks to finish; the next one ends what is still running."""
        if self.should_exit:
            self._loop.call_soon_threadsafe(self._cut)
        self.should_exit = True

    def _cut(self) -> None:
        for task in self.server_state.tasks:
            task.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install the handlers while we serve; uvicorn would raise the signal once more at the end."""
        self._loop = asyncio.get_running_loop()
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for sig, previous in before.items():
                signal.signal(sig, previous)


def server(app: Callable[..., Any], tls: ssl.SSLContext | None, grace_s: float) -> Server:
    """uvicorn around our protocol and `app` (ASGI), to be given its listening sockets.

    tls: None serves plain HTTP. grace_s: how long requests in flight may go on once it is asked to stop.
    """
    config = uvicorn.Config(
        app,
        http=ClientProtocol,
        ws="none",
        loop="uvloop",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=_CLIENT_KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(grace_s),
    )
    config.load()
    config.ssl = tls
    return Server(config)


def listen(host: str, port: int) -> socket.socket:
    """The listening socket; no host means every address, IPv4 and IPv6 where the machine has it.

    Raises OSError when the address cannot be had.
    """
    if not host:
        try:
            return _bound(socket.AF_INET6, "", port)
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
    return _bound(socket.AF_INET6 if ":" in host else socket.AF_INET, host, port)


def _bound(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    dual = family == socket.AF_INET6 and not host
    listener = socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=dual)
    listener.setblocking(False)
    return listener
