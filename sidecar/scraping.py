"""Gets the text of an engine's `/metrics`.

Rule: acts; bounded in time and size, and whatever goes wrong is an OSError: nobody waits for it, and no
request fails by it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import TracebackType

import httpx

from sidecar.endpoint import Endpoint
from sidecar.plan import Role

# An engine that is up answers in milliseconds; one that does not is asked again later.
TIMEOUT_S = 2.0
# vLLM's text is some 80 KB; with a hundred adapters and ranks it stays under this.
MAX_BYTES = 8 * 1024 * 1024


class Scraper:
    """`await scraper(role, target)`, inside `async with`. tls: of each role that is spoken to over TLS."""

    def __init__(self, tls: Mapping[Role, ssl.SSLContext]) -> None:
        self._tls = tls
        self._clients: dict[Role, httpx.AsyncClient] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Scraper:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def __call__(self, role: Role, target: Endpoint) -> bytes:
        """The text. Raises OSError, with the reason as its message."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._text(await self._client(role), role, target)
        except TimeoutError:
            raise OSError(f"no answer within {TIMEOUT_S:g} s") from None
        except httpx.HTTPError as error:
            raise OSError(str(error) or type(error).__name__) from None

    async def _client(self, role: Role) -> httpx.AsyncClient:
        if role not in self._clients:
            verify: ssl.SSLContext | bool = self._tls.get(role, False)
            client = httpx.AsyncClient(verify=verify, timeout=None, trust_env=False)
            self._clients[role] = await self._stack.enter_async_context(client)
        return self._clients[role]

    async def _text(self, client: httpx.AsyncClient, role: Role, target: Endpoint) -> bytes:
        scheme = "https" if role in self._tls else "http"
        pieces, total_bytes = list[bytes](), 0
        async with client.stream("GET", f"{scheme}://{target.netloc}/metrics") as response:
            if response.status_code != 200:
                raise OSError(f"status {response.status_code}")
            async for piece in response.aiter_bytes():
                total_bytes += len(piece)
                if total_bytes > MAX_BYTES:
                    raise OSError(f"over {MAX_BYTES} bytes")
                pieces.append(piece)
        return b"".join(pieces)
