"""Runs the server: uvicorn's sockets, lifespan and shutdown around our protocol.

Rule: nothing of a request is decided here.
"""

import asyncio
import contextlib
import errno
import logging
import math
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any, Literal, cast

import uvicorn

from sidecar import interrupts
from sidecar.server.limits import DEFAULT_LIMITS, ClientLimits
from sidecar.server.protocol import ClientProtocol

# Connections that may wait to be accepted: a burst of a gateway's, and uvicorn's own default. The kernel
# allows 4096 (net.core.somaxconn since Linux 5.4).
_BACKLOG = 2048
# A scrape takes a millisecond; nobody waits longer for the end of one.
_SIDE_GRACE_S = 1.0


class Server(uvicorn.Server):
    """uvicorn's server, which exits 0 when it was asked to stop and did (contract section 9).

    cut_by: the signal that ends what is still running, where a parent sends it; without, a second one does.
    """

    cut_by: signal.Signals | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Asked to finish, or to end what is still running.

        A terminal that closes may send SIGHUP twice, by its shell and by the kernel: that is one request.
        """
        again = self.should_exit and self.cut_by is None and sig != signal.SIGHUP
        if sig == self.cut_by or again:
            self._loop.call_soon_threadsafe(self._cut)
        self.should_exit = True

    def _cut(self) -> None:
        for task in self.server_state.tasks:
            task.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install the handlers while we serve; uvicorn would raise the signal once more at the end."""
        self._loop = asyncio.get_running_loop()
        caught = [*interrupts.stopping(), *([self.cut_by] if self.cut_by else [])]
        before = {sig: signal.signal(sig, self.handle_exit) for sig in caught}
        try:
            yield
        finally:
            for sig, previous in before.items():
                signal.signal(sig, previous)


def server(
    app: Callable[..., Any], tls: ssl.SSLContext | None, grace_s: float, limits: ClientLimits
) -> Server:
    """uvicorn around our protocol and `app` (ASGI), to be given its listening sockets.

    tls: None serves plain HTTP. grace_s: how long requests in flight may go on once it is asked to stop.
    """
    logging.getLogger("uvicorn.error").addFilter(_cut_as_told)
    return Server(_config(app, tls, grace_s, limits))


def _cut_as_told(record: logging.LogRecord) -> bool:
    """That the grace is over is what its flag says, and no error; of nothing that was cut nothing is said."""
    if not record.msg.startswith("Cancel %s running task(s)"):  # uvicorn 0.54 server.py
        return True
    record.levelno, record.levelname = logging.WARNING, "WARNING"
    record.msg = "requests that are cut, since the grace of --shutdown-grace is over: %s"
    return record.args != (0,)


@contextlib.asynccontextmanager
async def beside(
    app: Callable[..., Any], tls: ssl.SSLContext | None, listener: socket.socket
) -> AsyncIterator[None]:
    """Serve `app` on one more listening socket, in the running loop, for as long as the block lasts.

    No signal is caught and no lifespan is run; what is being answered at the end has a moment to finish.
    """
    side = uvicorn.Server(_config(app, tls, _SIDE_GRACE_S, DEFAULT_LIMITS, lifespan="off"))
    side.lifespan = side.config.lifespan_class(side.config)
    await side.startup(sockets=[listener])
    try:
        yield
    finally:
        await side.shutdown(sockets=[listener])


def _config(
    app: Callable[..., Any],
    tls: ssl.SSLContext | None,
    grace_s: float,
    limits: ClientLimits,
    lifespan: Literal["on", "off"] = "on",
) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=cast(type[asyncio.Protocol], partial(ClientProtocol, limits=limits)),
        ws="none",
        loop="uvloop",
        lifespan=lifespan,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=cast(int, limits.idle_s),
        timeout_graceful_shutdown=math.ceil(grace_s),
    )
    config.load()
    config.ssl = tls
    return config


def listen(host: str, port: int) -> socket.socket:
    """The listening socket; no host means every address, IPv4 and IPv6 where the machine has it.

    Raises OSError when the address cannot be had.
    """
    return begin(hold(host, port))


def hold(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket at that address which gets no connections before `begin`, or with shared `begin_beside`.

    Raises OSError when the address cannot be had: for a shared one also when it is taken in such a way that
    it could be shared, by another sidecar for one.
    """
    sock = _bound(host, port)
    if shared:
        sock.close()
        sock = _bound(host, port, reuse_port=True)
    return sock


def begin(held: socket.socket) -> socket.socket:
    """Let it get connections. Raises OSError when somebody else was quicker."""
    held.listen(_BACKLOG)
    held.setblocking(False)
    return held


def begin_beside(held: socket.socket) -> socket.socket:
    """One more socket at a shared address that gets its part of the connections (SO_REUSEPORT)."""
    host, port = held.getsockname()[:2]
    return begin(_family_bound(held.family, host, port, dual=_is_dual(held), reuse_port=True))


def _bound(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    if not host:
        try:
            return _family_bound(socket.AF_INET6, "::", port, dual=True, reuse_port=reuse_port)
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return _family_bound(family, host, port, dual=False, reuse_port=reuse_port)


def _family_bound(
    family: socket.AddressFamily | int, host: str, port: int, *, dual: bool, reuse_port: bool
) -> socket.socket:
    sock = socket.socket(family)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual else 1)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


def _is_dual(sock: socket.socket) -> bool:
    if sock.family != socket.AF_INET6:
        return False
    return not sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
