"""Looks the MoRI-IO hosts up again and again, so that engines are told where a pod is now.

Rule: acts, beside the exchanges: no request waits for a look-up. A name that cannot be looked up keeps the
last address that it had; one that never had any is passed on as it is, and engines look it up themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType

from sidecar.call import Call
from sidecar.connectors import Connector, Options
from sidecar.counters import UNCOUNTED, Counters, Event
from sidecar.plan import Plan
from sidecar.routing import Route
from sidecar.transport import Resolver

# How soon a name that could not be looked up is tried again, in seconds, where the TTL is longer: pods of one
# set start together, and their names appear in DNS one by one.
_RETRY_S = 5.0
# Look-ups at a time: the resolver has threads for 32, and the names of requests need some of them.
_AT_ONCE = 8

logger = logging.getLogger("sidecar")


@dataclass(frozen=True, slots=True)
class LookupTimes:
    """ttl_s: how long an address holds (`MORIIO_DNS_RESOLVE_TTL_SECONDS`). timeout_s: of one look-up."""

    ttl_s: float
    timeout_s: float


class MoRIIOHosts:
    """Use as an asynchronous context manager: look-ups run from its entry, which waits for the first of each.

    options: as they are now, with addresses for the names of those that it was made with; replaced when an
    address changes. counters: of look-ups and changes.
    """

    def __init__(
        self, options: Options, times: LookupTimes, resolver: Resolver, counters: Counters = UNCOUNTED
    ) -> None:
        self.options = options
        self._spelled = options.moriio
        self._times = times
        self._resolver = resolver
        self._counters = counters
        named = (options.moriio.local_pod_ip, *options.moriio.remote_hosts, *options.moriio.decode_hosts)
        self._names = [host for host in dict.fromkeys(named) if host and not _is_address(host)]
        self._addresses: dict[str, str] = {}
        self._failing: set[str] = set()
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> MoRIIOHosts:
        await self._group.__aenter__()
        if self._names:
            first = self._group.create_task(self._look_up_all())
            self._tasks = [first, self._group.create_task(self._keep_up(first))]
            await asyncio.wait((first,), timeout=self._times.timeout_s)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await self._group.__aexit__(kind, error, trace)

    def keeping(self, connector: Connector) -> Connector:
        """The connector as its plans see it with the options of the moment."""

        def plan(call: Call, route: Route, options: Options) -> Plan:
            return connector.plan(call, route, self.options)

        return replace(connector, plan=plan) if self._names else connector

    async def _keep_up(self, first: asyncio.Task[None]) -> None:
        await asyncio.wait((first,))
        while True:
            await asyncio.sleep(min(self._times.ttl_s, _RETRY_S) if self._failing else self._times.ttl_s)
            await self._look_up_all()

    async def _look_up_all(self) -> None:
        turns = asyncio.Semaphore(_AT_ONCE)
        async with asyncio.TaskGroup() as lookups:
            for name in self._names:
                lookups.create_task(self._look_up(name, turns))

    async def _look_up(self, name: str, turns: asyncio.Semaphore) -> None:
        try:
            async with turns, asyncio.timeout(self._times.timeout_s):
                found = await self._resolver.addresses(name)
            self._keep(name, _chosen(found, self._addresses.get(name)))
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that IDNA refuses
            self._counters.add(Event.DNS_LOOKUP_FAILED)
            if name not in self._failing:
                used = self._addresses.get(name, "the name itself")
                logger.warning("MoRI-IO host %s cannot be looked up (%s): using %s", name, _said(error), used)
            self._failing.add(name)

    def _keep(self, name: str, address: str) -> None:
        self._counters.add(Event.DNS_RERESOLVED)
        self._failing.discard(name)
        before = self._addresses.get(name)
        if address == before:
            return
        if before is not None:
            self._counters.add(Event.DNS_IP_CHANGED)
            logger.info("MoRI-IO host %s has moved from %s to %s", name, before, address)
        self._addresses[name] = address
        self._publish()

    def _publish(self) -> None:
        spelled = self._spelled
        pods = replace(
            spelled,
            local_pod_ip=spelled.local_pod_ip and self._address(spelled.local_pod_ip),
            remote_hosts=tuple(map(self._address, spelled.remote_hosts)),
            decode_hosts=tuple(map(self._address, spelled.decode_hosts)),
        )
        self.options = replace(self.options, moriio=pods)

    def _address(self, host: str) -> str:
        return self._addresses.get(host, host)


def _chosen(found: Sequence[str], now: str | None) -> str:
    """The address of a host: the one that it has while it is among those found, else the first of IPv4.

    Raises OSError when none was found.
    """
    if not found:
        raise OSError("no address")
    if now in found:  # name servers rotate what they answer: that is no move
        return str(now)
    return next((address for address in found if ":" not in address), found[0])


def _said(error: Exception) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error)


def _is_address(host: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False
