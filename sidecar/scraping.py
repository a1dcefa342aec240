"""Gets the text of an engine's `/metrics`.

Rule: acts; bounded in time and size, and whatever goes wrong is an OSError: nobody waits for it, and no
request fails by it.
"""

from __future__ import annotations

import asyncio
import ssl
from types import TracebackType

import httpx

from sidecar import bounded
from sidecar.endpoint import Endpoint
from sidecar.engine_tls import EngineTLS
from sidecar.plan import Role

# An engine that is up answers in milliseconds; one that does not is asked again later.
TIMEOUT_S = 2.0
# vLLM's text is some 80 KB; with a hundred adapters and ranks it stays under this.
MAX_BYTES = 8 * 1024 * 1024

# A header's host that no URL can have: xn--a to IDNA.
_NO_NAME = (httpx.InvalidURL, UnicodeError)

# The engines that are asked, by their names in `--enable-tls`.
_STAGES = {Role.PREFILL: "prefiller", Role.DECODE: "decoder"}


class Scraper:
    """`await scraper(role, target)`, inside `async with`. tls: towards engines."""

    def __init__(self, tls: EngineTLS) -> None:
        self._tls = tls
        # With the context that each was made with.
        self._clients: dict[Role, tuple[ssl.SSLContext | None, httpx.AsyncClient]] = {}

    async def __aenter__(self) -> Scraper:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, client in self._clients.values():
            await client.aclose()

    async def __call__(self, role: Role, target: Endpoint) -> bytes:
        """The text. Raises OSError, with the reason as its message."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._text(await self._client(role), role, target)
        except TimeoutError:
            raise OSError(f"no answer within {TIMEOUT_S:g} s") from None
        except (httpx.HTTPError, *_NO_NAME) as error:
            raise OSError(str(error) or type(error).__name__) from None

    async def _client(self, role: Role) -> httpx.AsyncClient:
        context = self._tls.towards(_STAGES[role]).context if self._tls.secures(_STAGES[role]) else None
        known, client = self._clients.get(role, (None, None))
        if client is None or known is not context:
            if client is not None:
                await client.aclose()
            client = httpx.AsyncClient(
                verify=context or False, headers=bounded.IDENTITY, timeout=None, trust_env=False
            )
            self._clients[role] = context, client
        return client

    async def _text(self, client: httpx.AsyncClient, role: Role, target: Endpoint) -> bytes:
        secure = self._tls.secures(_STAGES[role])
        scheme = "https" if secure else "http"
        name = self._tls.towards(_STAGES[role]).server_name if secure else None
        extensions = {"sni_hostname": name} if name else {}
        async with client.stream(
            "GET", f"{scheme}://{target.netloc}/metrics", extensions=extensions
        ) as response:
            if response.status_code != 200:
                raise OSError(f"status {response.status_code}")
            return await bounded.whole(response, MAX_BYTES)
