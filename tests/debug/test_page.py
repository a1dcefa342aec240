"""The debug page in a real browser: what it shows, how it keeps up, and that it needs nothing but itself.

With `SIDECAR_SHOTS=directory` the screenshots are kept, to be looked at.
"""

from __future__ import annotations

import asyncio
import os
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.debug.browser import BINARY, Browser, Page, browser
from tests.debug.serving import DEBUG, Debugged, debugging
from tests.engines import Answer, Got, prefilled, scripted
from tests.serving import PREFILLER, SOURCE

pytestmark = pytest.mark.skipif(
    BINARY is None, reason="there is no Chromium (Debian: apt-get install chromium)"
)

ROWS = "document.querySelectorAll('details.call').length"


async def _script(got: Got, answer: Answer) -> None:
    await asyncio.sleep(0.03)
    await answer.events(*[b'data: {"choices":[]}\n\n'] * 4, gap_s=0.02)


@asynccontextmanager
async def watched() -> AsyncIterator[tuple[Debugged, Browser]]:
    """A sidecar that has answered a few requests of every kind, and a browser."""
    async with AsyncExitStack() as stack:
        decoder = await stack.enter_async_context(scripted(_script))
        prefiller = await stack.enter_async_context(scripted(prefilled))
        p2p = await stack.enter_async_context(scripted())
        flags = (DEBUG, "--enable-p2p-pull", f"--p2p-connector-port={p2p.port}")
        sidecar = await stack.enter_async_context(debugging(decoder.port, *flags))
        for headers in (
            [],
            [(SOURCE, "127.0.0.1:9")],
            [(SOURCE, "127.0.0.7:9")],
            [(PREFILLER, prefiller.netloc), (SOURCE, "127.0.0.1:9")],
            [(PREFILLER, "127.0.0.1:1")],
        ):
            await sidecar.data.post(headers=headers)
        yield sidecar, await stack.enter_async_context(browser())


async def test_the_page_shows_exchanges_sources_and_configuration_and_keeps_up() -> None:
    async with watched() as (sidecar, chromium):
        url = f"http://127.0.0.1:{sidecar.debug.port}/debug/"
        page = await chromium.open(url)
        await page.look(1280, 900)
        await page.until(f"{ROWS} === 5")
        chips = "[...document.querySelectorAll('details.call .chip')].map((chip) => chip.textContent)"
        assert await page.value(chips) == ["none", "unknown", "skipped", "unknown", "none"]
        assert await page.value("document.querySelectorAll('#chart rect').length") > 0
        assert await page.value("document.querySelectorAll('#sources tbody tr').length") == 2
        shown = await page.value("document.querySelector('#config tbody').innerText")
        assert "--enable-p2p-pull" in shown
        assert "--workers" not in shown
        bars = "[...document.querySelectorAll('details.call')][1].querySelectorAll('.lane').length"
        assert await page.value(bars) == 2

        await sidecar.data.post()
        await page.until(f"{ROWS} === 6")
        assert await page.value("document.getElementById('live-text').textContent") == "live"
        assert (page.complaints, page.asked) == ([], [url, f"{url}events"])
        await _keep(page, "light")


async def test_it_is_used_with_the_keyboard() -> None:
    async with watched() as (sidecar, chromium):
        page = await chromium.open(f"http://127.0.0.1:{sidecar.debug.port}/debug/")
        await page.look(1280, 900, dark=True)
        await page.until(f"{ROWS} === 5")
        for _ in range(2):
            await page.press("j")
        await page.press("Enter")
        opened = "document.querySelector('details.call[open] .body')?.innerText"
        text = await page.until(opened)
        assert "kv_request_id" in text
        assert "prefill" in text
        await _keep(page, "dark")
        await sidecar.data.post()
        await page.until(f"{ROWS} === 6")
        assert await page.value(opened) == text, "what is open stays open"

        await page.press("p")
        assert await page.value("document.getElementById('live-text').textContent") == "paused"
        await sidecar.data.post()
        await page.until("document.getElementById('live-text').textContent === 'paused, 1 new'")
        assert await page.value(ROWS) == 6
        await page.press("p")
        await page.until(f"{ROWS} === 7")
        assert page.complaints == []


async def test_outcomes_can_be_filtered() -> None:
    async with watched() as (sidecar, chromium):
        page = await chromium.open(f"http://127.0.0.1:{sidecar.debug.port}/debug/")
        await page.until(f"{ROWS} === 5")
        await page.value("document.querySelector('#filters [data-outcome=none]').click()")
        assert await page.value(ROWS) == 3
        pressed = "document.querySelector('#filters [data-outcome=none]').getAttribute('aria-pressed')"
        assert await page.value(pressed) == "false"


async def test_it_fits_a_phone_and_is_dark_where_that_is_wanted() -> None:
    async with watched() as (sidecar, chromium):
        page = await chromium.open(f"http://127.0.0.1:{sidecar.debug.port}/debug/")
        await page.look(360, 740, phone=True)
        await page.until(f"{ROWS} === 5")
        assert await page.value("document.documentElement.scrollWidth") == 360
        small = (
            "[...document.querySelectorAll('button:not([hidden])')].filter((b) => b.offsetHeight < 32).length"
        )
        assert await page.value(small) == 0
        await page.value("document.getElementById('all-config').click()")
        assert await page.value("document.querySelectorAll('#config tbody tr').length") > 60
        assert await page.value("document.documentElement.scrollWidth") == 360
        await page.value("document.getElementById('all-config').click()")
        light = await _keep(page, "phone")
        await page.look(360, 740, dark=True, phone=True)
        dark = await _keep(page, "phone-dark")
        assert sum(_corner(light)) > 3 * 200 > 3 * 60 > sum(_corner(dark))


async def test_it_says_when_the_connection_is_lost() -> None:
    async with watched() as (sidecar, chromium):
        page = await chromium.open(f"http://127.0.0.1:{sidecar.debug.port}/debug/")
        await page.until(f"{ROWS} === 5")
        await sidecar.data.stop()
        await page.until("document.getElementById('live').dataset.state === 'lost'")


async def _keep(page: Page, name: str) -> bytes:
    png = await page.shot()
    if directory := os.environ.get("SIDECAR_SHOTS"):
        await asyncio.to_thread(Path(directory, f"{name}.png").write_bytes, png)
    return png


def _corner(png: bytes) -> tuple[int, int, int]:
    """The colour of a PNG's lower left pixel (RFC 2083), whose filter is undone for the last line only."""
    width, height, _, colour = struct.unpack(">IIBB", png[16:26])
    size = {2: 3, 6: 4}[colour]
    packed, at = b"", 8
    while at < len(png):
        length = int.from_bytes(png[at : at + 4])
        packed += png[at + 8 : at + 8 + length] if png[at + 4 : at + 8] == b"IDAT" else b""
        at += length + 12
    lines, stride, above = zlib.decompress(packed), width * size + 1, bytes(3)
    for row in range(height):
        kind, *pixel = lines[row * stride : row * stride + 4]
        # Left of the first pixel all is 0: "up" and "Paeth" add the one above, "average" half of it.
        part = {0: 0, 1: 0, 2: 1, 3: 0.5, 4: 1}[kind]
        above = bytes((value + int(up * part)) % 256 for value, up in zip(pixel, above, strict=True))
    return above[0], above[1], above[2]
