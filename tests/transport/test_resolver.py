"""Name look-ups: which need none, what hanging ones hold up, and addresses tried in turn."""

import asyncio
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from time import monotonic

import httpx
import pytest
import uvloop

from sidecar.transport import Resolver, Transport
from tests.transport.hostile import Hostile, body_of, serve_ok, turns


class Names:
    """A lookup function: counts the calls, and blocks until released, at most 10 s."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.release = threading.Event()
        self.failure: Exception | None = None

    def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        assert self.release.wait(10)
        if self.failure:
            raise self.failure
        return ["127.0.0.1"]


@pytest.fixture
def names() -> Iterator[Names]:
    names = Names()
    yield names
    names.release.set()


def _answers(*addresses: str) -> Callable[[str], list[str]]:
    return lambda host: list(addresses)


async def _asking(resolver: Resolver, count: int) -> list[asyncio.Task[list[str]]]:
    """So many names being looked up."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(resolver.addresses(f"hangs-{number}.example")) for number in range(count)]
    await turns(3)
    return tasks


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1", "0.0.0.0"])
async def test_an_address_is_not_looked_up(names: Names, host: str) -> None:
    assert await Resolver(names).addresses(host) == [host]
    assert not names.asked


@pytest.mark.parametrize("host", ["localhost", "LocalHost", "localhost."])
async def test_localhost_is_the_loopback_without_a_look_up(names: Names, host: str) -> None:
    assert await Resolver(names).addresses(host) == ["127.0.0.1", "::1"]
    assert not names.asked


async def test_names_are_looked_up_by_the_system() -> None:
    # What the machine calls itself is in /etc/hosts; so is this name where it is not, the test says nothing.
    try:
        expected = {entry[4][0] for entry in socket.getaddrinfo(socket.gethostname(), None)}
    except OSError:
        pytest.skip("this machine does not know its own name")
    assert set(await Resolver().addresses(socket.gethostname())) == expected


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "a..example"])
async def test_a_name_that_the_system_does_not_know_is_an_error_each_time(host: str) -> None:
    resolver = Resolver()
    for _ in range(2):
        with pytest.raises((OSError, UnicodeError)):
            await resolver.addresses(host)


async def test_callers_who_ask_for_the_same_name_share_one_look_up_which_is_not_remembered(
    names: Names,
) -> None:
    resolver = Resolver(names)
    loop = asyncio.get_running_loop()
    spellings = ["engine.example", "Engine.example", "engine.example."]
    tasks = [loop.create_task(resolver.addresses(host)) for host in spellings * 20]
    await turns(3)
    names.release.set()
    assert await asyncio.gather(*tasks) == [["127.0.0.1"]] * 60
    assert names.asked == ["engine.example"]
    assert await resolver.addresses("engine.example") == ["127.0.0.1"]
    assert len(names.asked) == 2


async def test_a_failure_reaches_all_who_asked(names: Names) -> None:
    names.failure = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    resolver = Resolver(names)
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(resolver.addresses("engine.example")) for _ in range(3)]
    await turns(3)
    names.release.set()
    assert await asyncio.gather(*tasks, return_exceptions=True) == [names.failure] * 3


async def test_a_caller_who_is_cancelled_harms_no_other(names: Names) -> None:
    resolver = Resolver(names)
    loop = asyncio.get_running_loop()
    first, second = (loop.create_task(resolver.addresses("engine.example")) for _ in range(2))
    await turns(3)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    third = loop.create_task(resolver.addresses("engine.example"))
    await turns(3)
    names.release.set()
    assert await second == await third == ["127.0.0.1"]
    assert len(names.asked) == 1


async def test_a_failure_that_nobody_waits_for_any_more_is_quiet(names: Names) -> None:
    complaints: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: complaints.append(context))
    names.failure = OSError("unknown")
    resolver = Resolver(names)
    (task,) = await _asking(resolver, 1)
    task.cancel()
    await asyncio.wait((task,))
    names.release.set()
    while resolver._running:
        await asyncio.sleep(0.001)
    assert not complaints


async def test_more_than_32_look_ups_at_once_are_refused_at_once(names: Names) -> None:
    resolver = Resolver(names)
    tasks = await _asking(resolver, 40)
    assert [task.done() for task in tasks] == [False] * 32 + [True] * 8
    assert {str(task.exception()) for task in tasks[32:]} == {"too many name look-ups"}
    joined = asyncio.get_running_loop().create_task(resolver.addresses("hangs-0.example"))
    names.release.set()
    assert await asyncio.gather(joined, *tasks[:32]) == [["127.0.0.1"]] * 33
    assert await resolver.addresses("one-more.example") == ["127.0.0.1"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_hanging_names_delay_no_other_connection(names: Names, host: str) -> None:
    resolver = Resolver(names)
    async with (
        Hostile(serve_ok) as engine,
        Transport(resolver=resolver, connect_timeout_s=0.3) as other,
        Transport(resolver=resolver, connect_timeout_s=0.3) as transport,
    ):
        loop = asyncio.get_running_loop()
        hanging = [
            loop.create_task(
                other.handle_async_request(httpx.Request("GET", f"http://hangs-{number}.example/"))
            )
            for number in range(40)
        ]
        await turns(3)
        start_s = monotonic()
        response = await transport.handle_async_request(httpx.Request("GET", f"http://{host}:{engine.port}/"))
        assert await body_of(response) == b"ok"
        assert monotonic() - start_s < 0.2
        failures = await asyncio.gather(*hanging, return_exceptions=True)
        assert [type(failure) for failure in failures] == (
            [httpx.ConnectTimeout] * 32 + [httpx.ConnectError] * 8
        )


@pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_a_loop_closes_while_names_hang_and_their_ends_are_quiet(
    names: Names, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def leave() -> None:
        await _asking(Resolver(names), 5)

    before = set(threading.enumerate())
    start_s = monotonic()
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(leave())
    assert monotonic() - start_s < 1
    names.release.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(5)  # an exception in it would be a warning, and warnings are errors


def test_a_process_exits_while_names_hang() -> None:
    program = """
import asyncio, threading
from sidecar.transport import Resolver

async def main():
    resolver = Resolver(lambda host: threading.Event().wait())
    async with asyncio.timeout(0.05):
        await resolver.addresses("hangs.example")

try:
    asyncio.run(main())
except TimeoutError:
    print("gave up")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=8, check=True
    )
    assert (ended.stdout, ended.stderr) == ("gave up\n", "")


# Addresses in turn.


async def test_every_address_of_a_name_is_tried() -> None:
    resolver = Resolver(_answers("127.0.0.4", "127.0.0.3", "127.0.0.1"))
    async with Hostile(serve_ok) as engine, Transport(resolver=resolver) as transport:
        request = httpx.Request("GET", f"http://several.example:{engine.port}/")
        assert await body_of(await transport.handle_async_request(request)) == b"ok"


@pytest.mark.parametrize(
    ("addresses", "said"),
    [
        (("127.0.0.4", "127.0.0.3"), r"127\.0\.0\.4: .*Errno 111.*; 127\.0\.0\.3: .*Errno 111"),
        (("127.0.0.4",), "Errno 111"),
        ((), "several.example has no address"),
    ],
)
async def test_a_name_none_of_whose_addresses_accepts_is_a_connect_error(
    addresses: tuple[str, ...], said: str
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        async with Transport(resolver=Resolver(_answers(*addresses))) as transport:
            with pytest.raises(httpx.ConnectError, match=f"cannot connect to http://several.*{said}"):
                await transport.handle_async_request(httpx.Request("GET", f"http://several.example:{port}/"))


async def test_an_engine_that_is_not_to_be_trusted_ends_the_search(engine_tls: ssl.SSLContext) -> None:
    resolver = Resolver(_answers("127.0.0.1", "127.0.0.4"))
    async with Hostile(serve_ok, tls=engine_tls) as engine, Transport(resolver=resolver) as transport:
        with pytest.raises(httpx.ConnectError, match=r"(?i)certificate verify failed"):
            await transport.handle_async_request(
                httpx.Request("GET", f"https://several.example:{engine.port}/")
            )


async def test_tls_is_verified_for_the_name_and_not_for_its_address(
    engine_tls: ssl.SSLContext, trusting_tls: ssl.SSLContext
) -> None:
    resolver = Resolver(_answers("127.0.0.1"))
    async with (
        Hostile(serve_ok, tls=engine_tls) as engine,
        Transport(resolver=resolver, tls=trusting_tls) as transport,
    ):
        with pytest.raises(httpx.ConnectError, match=r"(?i)mismatch.*several\.example"):
            await transport.handle_async_request(
                httpx.Request("GET", f"https://several.example:{engine.port}/")
            )
