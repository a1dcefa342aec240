"""Connectors x engines x faults on real sockets: the right answer or an honest error, and nothing is left."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.faults.broken import FAULTS, Fault, Seen
from tests.faults.judging import is_honest, is_own_error, meant
from tests.faults.ways import (
    BOOTSTRAP,
    DECODE,
    HEADERS,
    PREFILL,
    WAYS,
    Pod,
    has_right_answer,
    never,
    pod,
)
from tests.serving import Said, post, read_answer, serving

CASES = [(name, role) for name, way in WAYS.items() for role in (DECODE, *way.roles)]
every_engine_of_every_way = pytest.mark.parametrize(("name", "role"), CASES)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@every_engine_of_every_way
async def test_an_engine_that_fails_gives_an_honest_end_in_time(name: str, role: str, stream: bool) -> None:
    async with pod(name) as served:
        for what, fault in faults_but(Seen.SILENT):
            seen = meant(served.way, role, fault)
            served.script(role, fault.script(role))
            if role == PREFILL and served.way.beside and seen is not Seen.RIGHT:
                served.engines[DECODE].script = never  # its decoder waits for blocks that never come
            said = await answer_of(served, stream=stream)
            assert is_honest(said, seen, begun=role == DECODE), (
                what,
                said.status,
                said.whole,
                said.body[:300],
            )
            await served.idle()
        served.script(role, FAULTS["early hints"].script(role))
        assert has_right_answer((await answer_of(served, stream=stream)).body)  # and it goes on


@every_engine_of_every_way
async def test_a_client_that_leaves_an_engine_that_hangs_ends_every_leg(name: str, role: str) -> None:
    async with pod(name) as served:
        for what, fault in FAULTS.items():
            if fault.seen is not Seen.SILENT:
                continue
            served.script(role, fault.script(role))
            if role == PREFILL and served.way.beside:
                served.engines[
                    DECODE
                ].script = never  # once it had answered, its prefiller would be let go on
            hanging, before = served.engines[role], len(served.engines[role].requests)
            async with served.sidecar.connected() as (_, writer):
                writer.write(post(body=served.way.body(stream=True), headers=served.headers))
                got = await hanging.came(before + 1)
                await asyncio.sleep(0.02)
            async with asyncio.timeout(2):
                await got.closed.wait()
            await served.idle()
            assert hanging.open == 0, what


@every_engine_of_every_way
async def test_an_engine_that_refuses_connections_is_named_at_once(name: str, role: str) -> None:
    async with pod(name) as served:
        with refusing() as port:
            headers = [
                (key, f"127.0.0.1:{port}" if key == HEADERS.get(role) else at) for key, at in served.headers
            ]
            flags = [flag for flag in served.way.flags if not flag.startswith("--shutdown")]
            decoder = port if role == DECODE else served.engines[DECODE].port
            bootstrap = {PREFILL: BOOTSTRAP, BOOTSTRAP: ""}.get(role, BOOTSTRAP)
            at = served.engines[bootstrap].port if bootstrap in served.engines else port
            served.script(DECODE, never if served.way.beside else served.engines[DECODE].script)
            async with serving(decoder, *flags, environ={"MOONCAKE_BOOTSTRAP_PORT": str(at)}) as sidecar:
                said = await sidecar.post(body=served.way.body(stream=False), headers=headers)
        assert is_own_error(said, 503 if role == DECODE else 502), (said.status, said.body)
        assert {BOOTSTRAP: "lookup"}.get(role, role) in said.json["message"]


def faults_but(seen: Seen) -> Iterator[tuple[str, Fault]]:
    """The faults by name, less those that are seen so."""
    return ((what, fault) for what, fault in FAULTS.items() if fault.seen is not seen)


async def answer_of(pod: Pod, *, stream: bool) -> Said:
    """Ask as the way's client does."""
    async with asyncio.timeout(15), pod.sidecar.connected() as (reader, writer):
        writer.write(post(body=pod.way.body(stream=stream), headers=pod.headers))
        return await read_answer(reader)


@contextmanager
def refusing() -> Iterator[int]:
    """A port on which connections are refused for as long as the block lasts: bound, and not listening."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])
