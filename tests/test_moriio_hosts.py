"""Names of MoRI-IO's hosts become addresses, and new ones when they move; no name server is asked."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from time import monotonic

import pytest

from sidecar.connectors import CONNECTORS, Options
from sidecar.connectors.options import MoRIIO
from sidecar.counters import Event
from sidecar.moriio_hosts import LookupTimes, MoRIIOHosts
from sidecar.transport import Resolver
from tests.connectors.play import call_of, legs_of, route_of

# A look-up here takes as long as a new thread needs to run: on a busy machine, seconds.
TIMES = LookupTimes(ttl_s=0.02, timeout_s=30)
ONCE = replace(TIMES, ttl_s=60)
PODS = MoRIIO(
    local_pod_ip="d0.svc", remote_hosts=("p0.svc", "10.0.0.4"), decode_hosts=("d0.svc", "d1.svc", "fd00::4")
)


class Zone:
    """What a name server would say, name by name; a name that it does not have fails."""

    def __init__(self, **records: list[str]) -> None:
        self.records = {f"{name}.svc": found for name, found in records.items()}
        self.asked: Counter[str] = Counter()
        self.hanging: set[str] = set()
        self.release = threading.Event()

    def __call__(self, name: str) -> list[str]:
        self.asked[name] += 1
        if name in self.hanging:
            self.release.wait(30)
        if name not in self.records:
            raise OSError("name not known")
        return self.records[name]


@pytest.fixture
def zone() -> Iterator[Zone]:
    zone = Zone(p0=["10.0.0.3"], d0=["10.0.0.1"], d1=["10.0.0.2"])
    yield zone
    zone.release.set()


@asynccontextmanager
async def looking_up(
    zone: Zone, times: LookupTimes = TIMES, pods: MoRIIO = PODS
) -> AsyncIterator[tuple[MoRIIOHosts, Counter[Event]]]:
    counted: Counter[Event] = Counter()

    class Counting:
        def add(self, event: Event) -> None:
            counted[event] += 1

    async with MoRIIOHosts(Options(moriio=pods), times, Resolver(zone), Counting()) as hosts:
        yield hosts, counted


async def rounds(zone: Zone, count: int = 2) -> None:
    """Wait until every name has been asked for so many times more, and the answers are in."""
    until = {name: asked + count for name, asked in zone.asked.items()}
    async with asyncio.timeout(30):
        while any(zone.asked[name] < least for name, least in until.items()):
            await asyncio.sleep(0.005)


async def test_the_first_addresses_are_there_when_the_sidecar_serves(zone: Zone) -> None:
    async with looking_up(zone, ONCE) as (hosts, counted):
        assert hosts.options == Options(
            moriio=replace(
                PODS,
                local_pod_ip="10.0.0.1",
                remote_hosts=("10.0.0.3", "10.0.0.4"),
                decode_hosts=("10.0.0.1", "10.0.0.2", "fd00::4"),
            )
        )
        assert zone.asked == {"p0.svc": 1, "d0.svc": 1, "d1.svc": 1}
        assert counted == {Event.DNS_RERESOLVED: 3}


async def test_a_pod_that_moved_is_named_by_its_new_address(
    zone: Zone, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="sidecar")
    async with looking_up(zone) as (hosts, counted):
        zone.records["d0.svc"] = ["10.0.0.99"]
        await rounds(zone)
        assert hosts.options.moriio == replace(
            PODS,
            local_pod_ip="10.0.0.99",
            remote_hosts=("10.0.0.3", "10.0.0.4"),
            decode_hosts=("10.0.0.99", "10.0.0.2", "fd00::4"),
        )
        assert (counted[Event.DNS_IP_CHANGED], counted[Event.DNS_LOOKUP_FAILED]) == (1, 0)
    assert caplog.messages == ["MoRI-IO host d0.svc has moved from 10.0.0.1 to 10.0.0.99"]


async def test_a_look_up_that_fails_keeps_the_last_good_address_and_is_said_once(
    zone: Zone, caplog: pytest.LogCaptureFixture
) -> None:
    async with looking_up(zone) as (hosts, counted):
        before = hosts.options
        del zone.records["p0.svc"]
        await rounds(zone, 3)
        assert hosts.options == before
        assert counted[Event.DNS_LOOKUP_FAILED] >= 2
        zone.records["p0.svc"] = ["10.0.0.33"]
        await rounds(zone)
        assert hosts.options.moriio.remote_hosts == ("10.0.0.33", "10.0.0.4")
        assert counted[Event.DNS_IP_CHANGED] == 1
    assert caplog.messages == ["MoRI-IO host p0.svc cannot be looked up (name not known): using 10.0.0.3"]


async def test_a_name_that_was_never_found_is_passed_on_until_it_is(
    zone: Zone, caplog: pytest.LogCaptureFixture
) -> None:
    del zone.records["d1.svc"]
    async with looking_up(zone) as (hosts, counted):
        assert hosts.options.moriio.decode_hosts == ("10.0.0.1", "d1.svc", "fd00::4")
        zone.records["d1.svc"] = ["10.0.0.2"]
        await rounds(zone)
        assert hosts.options.moriio.decode_hosts == ("10.0.0.1", "10.0.0.2", "fd00::4")
        assert counted[Event.DNS_IP_CHANGED] == 0  # its first address is no move
    assert caplog.messages == [
        "MoRI-IO host d1.svc cannot be looked up (name not known): using the name itself"
    ]


async def test_a_name_that_hangs_holds_up_neither_the_start_for_long_nor_the_others(zone: Zone) -> None:
    zone.hanging.add("p0.svc")
    begun_s = monotonic()
    async with looking_up(zone, replace(TIMES, timeout_s=1)) as (hosts, counted):
        assert 0.9 < monotonic() - begun_s < 8
        assert hosts.options.moriio.remote_hosts == ("p0.svc", "10.0.0.4")
        assert hosts.options.moriio.decode_hosts == ("10.0.0.1", "10.0.0.2", "fd00::4")
        async with asyncio.timeout(30):
            while not counted[Event.DNS_LOOKUP_FAILED]:
                await asyncio.sleep(0.005)
            zone.release.set()
            while hosts.options.moriio.remote_hosts[0] == "p0.svc":
                await asyncio.sleep(0.005)
        assert hosts.options.moriio.remote_hosts == ("10.0.0.3", "10.0.0.4")


async def test_many_names_that_hang_hold_the_start_up_no_longer_than_one(zone: Zone) -> None:
    zone.hanging = {f"p{n}.svc" for n in range(64)}
    pods = MoRIIO(local_pod_ip="10.0.0.1", remote_hosts=tuple(zone.hanging))
    begun_s = monotonic()
    async with looking_up(zone, LookupTimes(ttl_s=60, timeout_s=1), pods) as (hosts, _):
        assert 0.9 < monotonic() - begun_s < 6  # eight at a time would take eight seconds
        assert hosts.options.moriio == pods


async def test_leaving_ends_the_look_ups(zone: Zone) -> None:
    async with looking_up(zone):
        zone.hanging.add("p0.svc")
        await asyncio.sleep(0.05)
        begun_s = monotonic()
    assert monotonic() - begun_s < 8
    asked = zone.asked.copy()
    await asyncio.sleep(0.1)
    assert zone.asked == asked


@pytest.mark.parametrize(
    ("found", "address"),
    [
        (["fd00::1", "10.0.0.1", "10.0.0.2"], "10.0.0.1"),
        (["fd00::1", "fd00::2"], "fd00::1"),
        ([], "d0.svc"),
    ],
)
async def test_ipv4_is_preferred_and_no_address_is_a_failure(
    zone: Zone, found: list[str], address: str
) -> None:
    zone.records["d0.svc"] = found
    async with looking_up(zone, ONCE, MoRIIO(local_pod_ip="d0.svc")) as (hosts, counted):
        assert hosts.options.moriio.local_pod_ip == address
        assert counted == ({Event.DNS_RERESOLVED: 1} if found else {Event.DNS_LOOKUP_FAILED: 1})


async def test_an_answer_that_rotates_is_no_move(zone: Zone) -> None:
    zone.records["d0.svc"] = ["10.0.0.1", "10.0.0.7"]
    async with looking_up(zone, pods=MoRIIO(local_pod_ip="d0.svc")) as (hosts, counted):
        zone.records["d0.svc"] = ["10.0.0.7", "10.0.0.1"]
        await rounds(zone)
        assert (hosts.options.moriio.local_pod_ip, counted[Event.DNS_IP_CHANGED]) == ("10.0.0.1", 0)
        zone.records["d0.svc"] = ["10.0.0.7"]
        await rounds(zone)
        assert (hosts.options.moriio.local_pod_ip, counted[Event.DNS_IP_CHANGED]) == ("10.0.0.7", 1)


async def test_addresses_are_not_looked_up_and_leave_plans_as_they_are(zone: Zone) -> None:
    pods = MoRIIO(local_pod_ip="10.0.0.1", remote_hosts=("fd00::3",), decode_hosts=("10.0.0.1",))
    async with looking_up(zone, pods=pods) as (hosts, counted):
        await asyncio.sleep(0.05)
        assert (zone.asked, counted, hosts.options.moriio) == ({}, {}, pods)
        assert hosts.keeping(CONNECTORS["moriio"]) is CONNECTORS["moriio"]


async def test_many_names_leave_threads_for_the_names_of_requests(zone: Zone) -> None:
    zone.records = {f"p{n}.svc": [f"10.0.1.{n}"] for n in range(64)}
    pods = MoRIIO(local_pod_ip="10.0.0.1", remote_hosts=tuple(zone.records))
    async with looking_up(zone, ONCE, pods) as (hosts, counted):
        assert hosts.options.moriio.remote_hosts == tuple(f"10.0.1.{n}" for n in range(64))
        assert counted == {Event.DNS_RERESOLVED: 64}


async def test_the_next_plan_names_the_new_address(zone: Zone) -> None:
    async with looking_up(zone) as (hosts, _):
        connector = hosts.keeping(CONNECTORS["moriio"])
        spelled = Options(moriio=PODS)

        def named() -> list[str]:
            plan = connector.plan(call_of(b'{"prompt":"hi"}'), route_of(), spelled)
            params = json.loads(legs_of(next(plan))[0].content or b"")["kv_transfer_params"]
            plan.close()
            return [params["remote_host"], *params["remote_hosts"]]

        assert named() == ["10.0.0.1", "10.0.0.1", "10.0.0.2", "fd00::4"]
        zone.records["d0.svc"] = ["10.0.0.99"]
        await rounds(zone)
        assert named() == ["10.0.0.99", "10.0.0.99", "10.0.0.2", "fd00::4"]
