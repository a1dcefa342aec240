"""Getting an engine's metrics: bounded, and every failure an OSError."""

from __future__ import annotations

import asyncio

import pytest

from sidecar import scraping
from sidecar.endpoint import Endpoint
from sidecar.engine_tls import EngineTLS, Trust
from sidecar.plan import Role
from sidecar.scraping import Scraper
from tests.bombs import packed
from tests.engines import Answer, Got, Script, scripted


async def refusing(got: Got, answer: Answer) -> None:
    await answer.json({}, 503)


async def endless(got: Got, answer: Answer) -> None:
    await answer.head()
    while True:
        await answer.chunk(b"x" * 1024)


async def silent(got: Got, answer: Answer) -> None:
    await asyncio.sleep(30)


async def garbage(got: Got, answer: Answer) -> None:
    await answer.raw(b"hello\r\n\r\n")


async def test_the_text_is_what_the_engine_answered() -> None:
    async def metrics(got: Got, answer: Answer) -> None:
        assert (got.method, got.target) == ("GET", "/metrics")
        await answer.head()
        await answer.chunk(b"a 1\n")
        await answer.chunk(b"b 2\n")
        await answer.end()

    async with scripted(metrics) as engine, Scraper(EngineTLS(Trust())) as scrape:
        assert await scrape(Role.DECODE, Endpoint(engine.host, engine.port)) == b"a 1\nb 2\n"


@pytest.mark.parametrize(("host", "reason"), [("999.1.1.1", "Invalid IPv4"), ("xn--a", "not allowed")])
async def test_a_host_that_no_url_can_have_is_an_oserror(host: str, reason: str) -> None:
    async with Scraper(EngineTLS(Trust())) as scrape:
        with pytest.raises(OSError, match=reason):
            await scrape(Role.PREFILL, Endpoint(host, 8000))


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (refusing, "status 503"),
        (endless, "over 4096 bytes"),
        (silent, "no answer within 0.5 s"),
        (garbage, "illegal"),
        (None, "All connection attempts failed"),
    ],
)
async def test_whatever_goes_wrong_is_an_oserror(
    monkeypatch: pytest.MonkeyPatch, script: Script | None, reason: str
) -> None:
    if script is silent:
        monkeypatch.setattr(scraping, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(scraping, "MAX_BYTES", 4096)
    async with scripted(script or refusing) as engine, Scraper(EngineTLS(Trust())) as scrape:
        port = engine.port if script else 9
        with pytest.raises(OSError, match=reason):
            await scrape(Role.DECODE, Endpoint(engine.host, port))


@pytest.mark.parametrize("coding", ["gzip", "gzip, gzip", "deflate", "identity, gzip", "x-unknown"])
async def test_a_packed_text_is_not_asked_for_and_not_read(coding: str) -> None:
    async with scripted(packed(coding)) as engine, Scraper(EngineTLS(Trust())) as scrape:
        with pytest.raises(OSError, match=f"content-encoding '{coding}', where identity was asked for"):
            await scrape(Role.PREFILL, Endpoint(engine.host, engine.port))
    assert engine.last.all("accept-encoding") == ["identity"]


async def test_identity_by_its_name_is_a_text_like_any() -> None:
    async def named(got: Got, answer: Answer) -> None:
        await answer.json(b"a 1\n", headers=[("content-encoding", "Identity")])

    async with scripted(named) as engine, Scraper(EngineTLS(Trust())) as scrape:
        assert await scrape(Role.DECODE, Endpoint(engine.host, engine.port)) == b"a 1\n"
