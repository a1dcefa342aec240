"""Runs Prometheus and its promtool (Debian: package `prometheus`) for tests that need the real ones."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.test_answers import closed_port

# As often as Prometheus can be asked to look without keeping the sidecar busy.
SCRAPE_INTERVAL = "200ms"


def program(name: str) -> str:
    """Where `prometheus` or `promtool` is: in the directory PROMETHEUS_BIN, or on the PATH.

    The test is skipped without it, or with PROMETHEUS_REQUIRED=1 (as in .ci/run) fails.
    """
    path = os.pathsep.join((os.environ.get("PROMETHEUS_BIN", ""), os.environ["PATH"]))
    found = shutil.which(name, path=path)
    if found is None:
        reason = f"{name} is neither in PROMETHEUS_BIN nor on the PATH (Debian: apt-get install prometheus)"
        if os.environ.get("PROMETHEUS_REQUIRED"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


async def promtool(*args: str, text: bytes = b"") -> tuple[int, str]:
    """Its exit code and what it said."""
    pipe, joined = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    process = await asyncio.create_subprocess_exec(
        program("promtool"), *args, stdin=pipe, stdout=pipe, stderr=joined
    )
    async with asyncio.timeout(30):
        said, _ = await process.communicate(text)
    assert process.returncode is not None
    return process.returncode, said.decode()


@dataclass
class Prometheus:
    """A running one, with its HTTP API."""

    client: httpx.AsyncClient

    async def ask(self, query: str) -> list[dict[str, Any]]:
        """The vector that a query gives now."""
        answer = await self.client.get("/api/v1/query", params={"query": query})
        assert answer.status_code == 200, f"{query}: {answer.text}"
        vector: list[dict[str, Any]] = answer.json()["data"]["result"]
        return vector

    async def number(self, query: str) -> float | None:
        """The one number that a query gives; None when there is none."""
        vector = await self.ask(query)
        return float(vector[0]["value"][1]) if vector else None

    async def sees(self, query: str, wanted: float) -> None:
        """Wait until the query gives this number."""
        found = None
        try:
            async with asyncio.timeout(15):
                while (found := await self.number(query)) != wanted:
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"{query} is {found}, not {wanted}") from None


@asynccontextmanager
async def prometheus(directory: Path, target_port: int) -> AsyncIterator[Prometheus]:
    """Scrape what listens at that port, as job `sidecar`, for as long as the block lasts."""
    port = closed_port()
    config = directory / "prometheus.yml"
    config.write_text(
        f"global: {{scrape_interval: {SCRAPE_INTERVAL}, scrape_timeout: {SCRAPE_INTERVAL}}}\n"
        "scrape_configs: [{job_name: sidecar, static_configs: "
        f"[{{targets: ['127.0.0.1:{target_port}']}}]}}]\n"
    )
    log = directory / "prometheus.log"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(program("prometheus"), f"--config.file={config}", f"--web.listen-address=127.0.0.1:{port}"),
            *(f"--storage.tsdb.path={directory / 'tsdb'}", "--log.level=warn"),
            stderr=stderr,
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            async with asyncio.timeout(30):
                while not await _ready(client):
                    assert process.returncode is None, log.read_text()
                    await asyncio.sleep(0.1)
            yield Prometheus(client)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/-/ready")).status_code == 200
    except httpx.TransportError:
        return False
