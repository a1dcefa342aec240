"""What an engine gets of malformed and odd requests through the whole sidecar: one request or none."""

from __future__ import annotations

import asyncio

import pytest

from tests.engines import scripted
from tests.server.corpus import OTHERWISE, REFUSED, SERVED
from tests.server.loopback import get
from tests.serving import read_head, serving

SMUGGLED = get("/smuggled")
FRAMING = {"content-length", "transfer-encoding"}


async def test_no_malformed_request_reaches_an_engine_nor_does_what_hides_behind_it() -> None:
    async with scripted() as engine, serving(engine.port) as sidecar:
        for what, wire in [*REFUSED.items(), *((what, wire) for what, (_, wire) in OTHERWISE.items())]:
            async with asyncio.timeout(10), sidecar.connected() as (reader, writer):
                writer.write(wire + SMUGGLED)
                said = await read_head(reader)
                assert said.status in (400, 417, 431), what
                assert said.all("x-sidecar-error") == [str(said.status)], what
        assert engine.requests == []


@pytest.mark.parametrize("what", SERVED)
async def test_an_odd_request_is_one_plain_request_to_the_engine(what: str) -> None:
    wire, body = SERVED[what]
    async with scripted() as engine, serving(engine.port) as sidecar:
        said = await sidecar.ask(wire)
        assert said.status == 200
        [got] = engine.requests
        assert (got.method, got.body) == ("POST", body)
        assert sum(name.lower() in FRAMING for name, _ in got.headers) == 1
        assert len(got.all("host")) == 1
        assert got.all("x-prefiller-host-port") == []
