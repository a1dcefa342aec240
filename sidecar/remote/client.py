"""Talks to one engine, or to a sidecar in front of it: facts, counters, timed completions.

Rule: acts; bounded in time and size. What goes wrong is a RemoteError whose message is for a terminal.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import httpx

from sidecar import bounded
from sidecar.engine_counters import Counters, read
from sidecar.remote import facts, prompts
from sidecar.remote.errors import NoAnswer, Refused
from sidecar.remote.facts import Facts
from sidecar.remote.place import Place
from sidecar.remote.prompts import NO_PULL, Answered, Directive, Prompt
from sidecar.scraping import MAX_BYTES

# Questions about itself an engine answers at once, unless a step of its model holds it up.
QUESTION_S = 15.0
CONNECT_S = 5.0
# Engines close an idle connection after 5 s (uvicorn's default); ours is gone before that.
_KEEPALIVE_S = 2.0
# The largest answer to a question, an engine's whole configuration, is some 100 KB; so much is read.
_MOST_BYTES = 16 * 1024 * 1024
# A stream of one event per token, each of some 300 bytes: 200,000 tokens.
_MOST_STREAMED_BYTES = 64 * 1024 * 1024
# Of an error's text so much is shown.
_SHOWN_CHARACTERS = 300
# Answers that the sidecar makes itself carry it (contract section 9).
_SIDECAR_ERROR = "x-sidecar-error"


@dataclass(frozen=True, slots=True)
class Trust:
    """Whose certificates are accepted: those of `ca_file` or of the system's authorities, or any.

    headers: sent with every request, for gateways that want a credential.
    """

    ca_file: Path | None = None
    insecure: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)

    def verify(self) -> ssl.SSLContext | bool:
        """As httpx takes it. Raises OSError for a file that holds no certificates."""
        if self.insecure:
            return False
        return ssl.create_default_context(cafile=self.ca_file) if self.ca_file else True


@asynccontextmanager
async def connected(place: Place, trust: Trust, *, timeout_s: float) -> AsyncIterator[Remote]:
    """A Remote whose completions take at most `timeout_s`."""
    async with httpx.AsyncClient(
        verify=trust.verify() if place.scheme == "https" else False,
        headers={**bounded.IDENTITY, **trust.headers},
        timeout=httpx.Timeout(timeout_s, connect=CONNECT_S),
        limits=httpx.Limits(max_connections=None, keepalive_expiry=_KEEPALIVE_S),
        trust_env=False,
    ) as client:
        yield Remote(place, client, timeout_s)


class Remote:
    """One engine, or a sidecar in front of one."""

    def __init__(self, place: Place, client: httpx.AsyncClient, timeout_s: float) -> None:
        self.place = place
        self._client, self._timeout_s = client, timeout_s

    async def facts(self) -> Facts:
        """What it says of itself; what it does not say is None. Raises NoAnswer when it is not there."""
        model, root, limit = facts.of_models(await self._json("/v1/models"))
        return Facts(
            model=model,
            root=root,
            max_model_tokens=limit,
            version=facts.of_version(await self._json("/version")),
            through_sidecar=await self.is_sidecar(),
            cache=facts.cache_labels(await self.metrics()),
        )

    async def is_sidecar(self) -> bool:
        """Whether our sidecar answers: it refuses a body that is no object itself, and says who it is."""
        answer = await self._asked("POST", prompts.PATH, b"[]")
        return _SIDECAR_ERROR in answer.headers

    async def healthy(self) -> bool:
        """Whether `/health` says so. Raises NoAnswer."""
        return (await self._asked("GET", "/health")).is_success

    async def get(self, path: str) -> httpx.Response:
        """Any answer to a GET of a path. Raises NoAnswer."""
        return await self._asked("GET", path)

    async def post(self, path: str, content: bytes, headers: Mapping[str, str]) -> httpx.Response:
        """A whole answer to JSON. Raises Refused for any status but 200, or NoAnswer."""
        headers = {"content-type": "application/json", **headers}
        response = await self._whole("POST", path, self._timeout_s, content=content, headers=headers)
        if response.status_code != 200:
            raise self._refusal(response.status_code, response.content)
        return response

    async def metrics(self) -> bytes:
        """The text of `/metrics`; empty where there is none. Raises NoAnswer."""
        answer = await self._whole("GET", "/metrics", QUESTION_S, most_bytes=MAX_BYTES)
        return answer.content if answer.status_code == 200 else b""

    async def counters(self) -> Counters:
        """The counters that prove a pull. Raises NoAnswer."""
        return read(await self.metrics())

    async def complete(
        self, model: str, prompt: Prompt, directive: Directive = NO_PULL, *, max_tokens: int = 1
    ) -> Answered:
        """A streamed completion, timed from its sending. Raises Refused or NoAnswer."""
        content = prompts.body(model, prompt, directive, max_tokens)
        headers = {"content-type": "application/json", **directive.headers}
        with self._named(self._timeout_s):
            async with asyncio.timeout(self._timeout_s):
                began_s = monotonic()
                async with self._client.stream(
                    "POST", f"{self.place.url}{prompts.PATH}", content=content, headers=headers
                ) as response:
                    if response.status_code != 200:
                        content = await bounded.whole(response, _MOST_BYTES)
                        raise self._refusal(response.status_code, content)
                    return await self._streamed(response, began_s)

    async def _streamed(self, response: httpx.Response, began_s: float) -> Answered:
        """Reads the events: one `data:` line each, as engines write them."""
        ttft_s: float | None = None
        usage: tuple[int, int, int | None] | None = None
        async for line in _lines(response):
            if not line.startswith(b"data:"):
                continue
            event = line[5:].strip()
            if prompts.error_of(event):
                raise self._refusal(200, event)
            if ttft_s is None and prompts.has_token(event):
                ttft_s = monotonic() - began_s
            usage = prompts.usage_of(event) or usage
        if ttft_s is None or usage is None:
            raise NoAnswer(f"{self.place.url}: the stream ended without a token or without its usage")
        total_ms = (monotonic() - began_s) * 1000
        return Answered(ttft_s * 1000, total_ms, *usage, headers=dict(response.headers))

    async def _json(self, path: str) -> Any:
        """The decoded answer to a GET; None when it is no JSON or not found."""
        answer = await self._asked("GET", path)
        try:
            return answer.json() if answer.is_success else None
        except ValueError:
            return None

    async def _asked(self, method: str, path: str, content: bytes | None = None) -> httpx.Response:
        headers = {"content-type": "application/json"} if content is not None else {}
        return await self._whole(method, path, QUESTION_S, content=content, headers=headers)

    async def _whole(
        self, method: str, path: str, within_s: float, *, most_bytes: int | None = None, **asked: Any
    ) -> httpx.Response:
        """An answer that has been read. asked: content and headers, as httpx takes them. Raises NoAnswer."""
        asked["timeout"] = httpx.Timeout(within_s, connect=CONNECT_S)
        with self._named(within_s):
            async with (
                asyncio.timeout(within_s),
                self._client.stream(method, f"{self.place.url}{path}", **asked) as response,
            ):
                content = await bounded.whole(response, most_bytes or _MOST_BYTES)
        return httpx.Response(response.status_code, headers=response.headers, content=content)

    def _refusal(self, status: int, content: bytes) -> Refused:
        said = prompts.error_of(content) or content.decode("utf-8", "replace")
        if status == 200:
            status = prompts.code_of(content) or status
        return Refused(f"{self.place.url}: answered {status}: {said[:_SHOWN_CHARACTERS]}", status)

    @contextmanager
    def _named(self, timeout_s: float) -> Iterator[None]:
        """Failures inside, in words, with the URL."""
        try:
            yield
        except httpx.ConnectTimeout:
            raise NoAnswer(f"{self.place.url}: no connection within {CONNECT_S:g} s") from None
        except (httpx.TimeoutException, TimeoutError):
            raise NoAnswer(f"{self.place.url}: no whole answer within {timeout_s:g} s") from None
        except (httpx.HTTPError, OSError) as error:
            raise NoAnswer(f"{self.place.url}: {str(error) or type(error).__name__}") from None


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """The lines of an answer, at LF alone.

    httpx's own also end at U+0085 and U+2028, which a model may say and JSON may hold as they are.
    """
    rest = b""
    async for piece in bounded.pieces(response, _MOST_STREAMED_BYTES):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
    yield rest
