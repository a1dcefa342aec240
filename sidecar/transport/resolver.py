"""Finds the addresses of host names, and connects to the first that answers.

Rule: a name that hangs holds up nobody but those who asked for it. Event loops look names up in a pool of a
few threads (four in uvloop, for the whole process), where as many hanging names stop every other look-up and
the process's exit; here each name has a daemon thread of its own.
"""

import asyncio
import contextlib
import errno
import functools
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

# RFC 6761 6.3: "localhost" is the loopback address, and name servers are not to be asked for it.
_LOOPBACK = ("127.0.0.1", "::1")
# Threads at most: clients choose names, and a hanging one keeps its thread until the system gives up (glibc:
# 5 s, twice per name server). Engines are few and mostly named by address.
_MAX_LOOKUPS = 32

# The engine is not to blame: this process or its machine has no descriptor or no memory left (socket(2)).
OWN_FAULTS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

P = TypeVar("P", bound=asyncio.BaseProtocol)


def _system_lookup(host: str) -> list[str]:
    """Ask the system, which blocks. Raises OSError, or UnicodeError for a name that IDNA refuses."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]


class TLS(NamedTuple):
    """What secures a connection. server_name: what its certificate is for, sent as SNI; None: the host."""

    context: ssl.SSLContext
    server_name: str | None = None


class Resolver:
    """Name look-ups of one event loop; one is meant for a whole process.

    lookup  asks for a name's addresses, in a thread of its own; it may block
    """

    def __init__(self, lookup: Callable[[str], list[str]] = _system_lookup) -> None:
        self._lookup = lookup
        self._running: dict[str, asyncio.Future[list[str]]] = {}

    async def addresses(self, host: str) -> list[str]:
        """The addresses of host, best first; only what is neither an address nor localhost is looked up.

        Who asks for a name that is being looked up waits for that look-up; its outcome is not remembered.
        Raises OSError (at once if too many look-ups are running), and UnicodeError for impossible names.
        """
        if _is_address(host):
            return [host]
        name = host.lower().removesuffix(".")
        if name == "localhost":
            return list(_LOOPBACK)
        running = self._running.get(name) or self._begin(name)
        await asyncio.wait((running,))  # unlike await running: a caller that is cancelled leaves it alone
        return list(running.result())

    async def connect(
        self, make_protocol: Callable[[], P], host: str, port: int, *, tls: TLS | None = None
    ) -> tuple[asyncio.Transport, P]:
        """Connect to the first address of host that accepts, over TLS if it is given.

        Raises OSError, and UnicodeError for impossible names. There is no timeout: callers cancel.
        """
        loop = asyncio.get_running_loop()
        context, name = (tls.context, tls.server_name or host) if tls else (None, None)
        failures: dict[str, OSError] = {}
        for address in await self.addresses(host):
            try:
                return await loop.create_connection(
                    make_protocol, address, port, ssl=context, server_hostname=name
                )
            except ssl.SSLError:
                raise  # it accepts and is not to be trusted: no other address makes up for that
            except OSError as error:
                if error.errno in OWN_FAULTS:
                    raise  # no other address makes up for that either
                failures[address] = error
        if len(failures) == 1:
            raise failures.popitem()[1]
        reasons = [f"{address}: {error}" for address, error in failures.items()]
        raise OSError("; ".join(reasons) or f"{host} has no address")

    def _begin(self, name: str) -> asyncio.Future[list[str]]:
        if len(self._running) >= _MAX_LOOKUPS:
            raise OSError("too many name look-ups")
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[list[str]] = loop.create_future()
        thread = threading.Thread(
            target=self._look_up, args=(name, loop, outcome), name=f"lookup {name}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the system has no thread left
            raise OSError(str(error)) from error
        self._running[name] = outcome
        return outcome

    def _look_up(
        self, name: str, loop: asyncio.AbstractEventLoop, outcome: asyncio.Future[list[str]]
    ) -> None:
        """The thread of one look-up."""
        end: Callable[[], None]
        try:
            end = functools.partial(outcome.set_result, self._lookup(name))
        except Exception as error:
            end = functools.partial(_set_failure, outcome, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._land, name, end)

    def _land(self, name: str, end: Callable[[], None]) -> None:
        del self._running[name]
        end()


def _set_failure(outcome: asyncio.Future[list[str]], error: Exception) -> None:
    outcome.set_exception(error)
    outcome.exception()  # seen, even if everybody who asked has been cancelled


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
