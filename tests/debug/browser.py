"""Drives a headless Chromium over its DevTools pipe, with nothing but the standard library."""

from __future__ import annotations

import asyncio
import base64
import fcntl
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

# Debian's name, and that of other systems' packages.
BINARY = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # containers run as root
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--hide-scrollbars",
    "--no-first-run",
)
# A cold start on two busy cores; an answer of a page.
_START_S = 40.0
_ANSWER_S = 15.0
_KEYS = {"Enter": (13, "\r"), "Tab": (9, "")}


@dataclass
class Page:
    """One tab. complaints: exceptions, errors and refused resources. asked: the URLs that it requested."""

    browser: Browser
    session: str
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    async def do(self, method: str, **params: Any) -> Any:
        """One DevTools command."""
        return await self.browser.do(method, self.session, **params)

    async def value(self, expression: str) -> Any:
        """What a JavaScript expression is, as JSON."""
        answer = await self.do(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Wait until an expression is truthy; its value."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                while not (value := await self.value(expression)):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"never true: {expression}; {self.complaints}") from None
        return value

    async def look(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        """Take that size and colour scheme."""
        await self.do(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.do("Emulation.setEmulatedMedia", features=[scheme])

    async def press(self, key: str) -> None:
        """Press and release a key."""
        code, text = _KEYS.get(key) or (ord(key.upper()), key)
        common: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code}
        await self.do("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        await self.do("Input.dispatchKeyEvent", type="keyUp", **common)

    async def shot(self) -> bytes:
        """A PNG of the whole page."""
        answer = await self.do("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(answer["data"])


class Browser:
    """A running Chromium."""

    def __init__(self, reader: asyncio.StreamReader, writer: int) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._pages: dict[str, Page] = {}

    async def do(self, method: str, session: str | None = None, **params: Any) -> Any:
        """One command; its result."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": params}
        os.write(
            self._writer, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0"
        )
        async with asyncio.timeout(_START_S):
            return await answer

    async def open(self, url: str) -> Page:
        """A new tab at that address."""
        target = await self.do("Target.createTarget", url="about:blank")
        attached = await self.do("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = self._pages[attached["sessionId"]] = Page(self, attached["sessionId"])
        for domain in ("Runtime", "Log", "Network", "Page"):
            await page.do(f"{domain}.enable")
        await page.do("Page.navigate", url=url)
        return page

    async def read(self) -> None:
        """Take what it says, until it ends."""
        while True:
            try:
                message = json.loads((await self._reader.readuntil(b"\0"))[:-1])
            except asyncio.IncompleteReadError:
                return
            if "id" not in message:
                self._heard(message)
            elif "error" in message:
                self._waiting.pop(message["id"]).set_exception(RuntimeError(message["error"]["message"]))
            else:
                self._waiting.pop(message["id"]).set_result(message["result"])

    def _heard(self, message: dict[str, Any]) -> None:
        page, params = self._pages.get(message.get("sessionId", "")), message.get("params", {})
        match message["method"]:
            case _ if page is None:
                return
            case "Runtime.exceptionThrown":
                page.complaints.append(str(params["exceptionDetails"]))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                page.complaints.append(params["entry"]["text"])
            case "Network.requestWillBeSent":
                page.asked.append(params["request"]["url"])


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Run it for as long as the block lasts. It reads commands on descriptor 3 and writes on 4."""
    assert BINARY is not None
    its_input, our_output = os.pipe()
    our_input, its_output = os.pipe()
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (its_input, its_output)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", f'exec "$@" 3<&{high[0]} 4>&{high[1]}', "bash"),
            *(BINARY, *_FLAGS, f"--user-data-dir={profile}"),
            pass_fds=high,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        for fd in (its_input, its_output, *high):
            os.close(fd)
        reader = asyncio.StreamReader(limit=1 << 26)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(our_input, "rb", buffering=0)
        )
        running = Browser(reader, our_output)
        reading = asyncio.ensure_future(running.read())
        try:
            yield running
        finally:
            reading.cancel()
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            await asyncio.gather(reading, return_exceptions=True)
            transport.close()
            os.close(our_output)
