"""Asks a sidecar's metrics port: its own metrics, and its settings where it has debug endpoints.

Rule: acts; bounded in time and size.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from sidecar import bounded
from sidecar.doctor.reading import sidecar_told
from sidecar.doctor.told import SidecarTold
from sidecar.remote.client import Trust, connected
from sidecar.remote.errors import RemoteError
from sidecar.remote.place import Place
from sidecar.remote.texts import Unreadable, decoded

WITHIN_S = 5.0
"""It computes nothing for either answer."""
# The first event has the settings, and at most 200 sources.
_MOST_BYTES = 4 * 1024 * 1024


async def operators_of(
    place: Place, trust: Trust, within_s: float = WITHIN_S
) -> tuple[SidecarTold | None, str | None]:
    """What it tells, or why nothing. within_s: of one answer, WITHIN_S at most."""
    try:
        metrics = await metrics_of(place, trust, within_s)
    except RemoteError as error:
        return None, str(error)
    if not metrics:
        return None, f"{place.url}: has no /metrics"
    return sidecar_told(metrics, await _hello(place, trust, min(within_s, WITHIN_S))), None


async def metrics_of(place: Place, trust: Trust, within_s: float = WITHIN_S) -> str:
    """The text of its `/metrics`. Raises RemoteError."""
    async with connected(place, trust, timeout_s=min(within_s, WITHIN_S)) as remote:
        return (await remote.metrics()).decode("utf-8", "replace")


async def _hello(place: Place, trust: Trust, within_s: float) -> Any:
    """The first event of `/debug/events`; None without such endpoints."""
    verify = trust.verify() if place.scheme == "https" else False
    try:
        async with (
            asyncio.timeout(within_s),
            httpx.AsyncClient(
                verify=verify,
                headers={**bounded.IDENTITY, **trust.headers},
                timeout=None,
                trust_env=False,
            ) as client,
            client.stream("GET", f"{place.url}/debug/events") as response,
        ):
            return await _first(response) if response.status_code == 200 else None
    except (TimeoutError, httpx.HTTPError, OSError):
        return None


async def _first(response: httpx.Response) -> Any:
    got = b""
    async for piece in bounded.pieces(response, _MOST_BYTES):
        got += piece
        head, end, _ = got.partition(b"\n\n")
        if end:
            _, _, content = head.partition(b"\ndata:")
            try:
                return decoded(content)
            except Unreadable:
                return None
    return None
