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
from sidecar.engine_counters import Counters, read, spoiled
from sidecar.masking import credentials, masked
from sidecar.remote import facts, prompts
from sidecar.remote.errors import NoAnswer, Refused, TooLate, Uncounted
from sidecar.remote.facts import QUESTION_S, Facts
from sidecar.remote.place import Place
from sidecar.remote.prompts import NO_PULL, Answered, Directive, Prompt
from sidecar.remote.telling import kind_of, told, why
from sidecar.remote.texts import Unreadable, decoded, shown
from sidecar.scraping import MAX_BYTES

CONNECT_S = 5.0
# Engines close an idle connection after 5 s (uvicorn's default); ours is gone before that.
_KEEPALIVE_S = 2.0
# The largest answer to a question, an engine's whole configuration, is some 100 KB; so much is read.
_MOST_BYTES = 16 * 1024 * 1024
# A stream of one event per token, each of some 300 bytes: 200,000 tokens.
_MOST_STREAMED_BYTES = 64 * 1024 * 1024
# In every name of vLLM's metrics.
_COUNTED = b"vllm:"
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
    """A Remote whose completions take at most `timeout_s`, and questions QUESTION_S of it."""
    async with httpx.AsyncClient(
        verify=trust.verify() if place.scheme == "https" else False,
        headers={**bounded.IDENTITY, **trust.headers},
        timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
        limits=httpx.Limits(max_connections=None, keepalive_expiry=_KEEPALIVE_S),
        trust_env=False,
    ) as client:
        yield Remote(place, client, timeout_s, credentials(trust.headers))


class Remote:
    """One engine, or a sidecar in front of one. secrets: what its answers may not show, see `masking`."""

    def __init__(
        self, place: Place, client: httpx.AsyncClient, timeout_s: float, secrets: tuple[bytes, ...] = ()
    ) -> None:
        self.place = place
        self._client, self._timeout_s, self._secrets = client, timeout_s, secrets
        self._question_s = min(QUESTION_S, timeout_s)

    async def facts(self) -> Facts:
        """What it says of itself; what it does not say is None. Raises NoAnswer when it is not there."""
        listed, unlisted = await self._json("/v1/models")
        model, root, limit = facts.of_models(listed)
        if model is None and unlisted is None:
            unlisted = "names no model that can be printed at /v1/models"
        version, _ = await self._json("/version")
        return Facts(
            model=model,
            root=root,
            max_model_tokens=limit,
            version=facts.of_version(version),
            through_sidecar=await self.is_sidecar(),
            cache=facts.cache_labels(masked(await self.metrics(), self._secrets)),
            unlisted=unlisted,
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
            raise self._refusal(response)
        return response

    async def metrics(self) -> bytes:
        """The text of `/metrics`; empty where there is none. Raises NoAnswer."""
        answer = await self._whole("GET", "/metrics", self._question_s, most_bytes=MAX_BYTES)
        return answer.content if answer.status_code == 200 else b""

    async def counters(self) -> Counters:
        """The counters that prove a pull. Raises NoAnswer, or Uncounted where they are no counters."""
        metrics = await self.metrics()
        if wrong := spoiled(metrics):
            raise Uncounted(f"{self.place.url}: no counter is {shown(wrong)}")
        if _COUNTED not in metrics:
            raise Uncounted(f"{self.place.url}: serves no metrics of vLLM's at /metrics")
        return read(metrics)

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
                        raise self._refusal(await self._read(response, _MOST_BYTES))
                    return await self._streamed(response, began_s)

    async def _streamed(self, response: httpx.Response, began_s: float) -> Answered:
        """Reads the events: one `data:` line each, as engines write them."""
        ttft_s: float | None = None
        usage: tuple[int, int, int | None] | None = None
        async for line in _lines(response):
            if not line.startswith(b"data:"):
                continue
            event = line[5:].strip()
            if said := prompts.error_of(masked(event, self._secrets)):
                status = prompts.code_of(event) or response.status_code
                raise Refused(f"{self.place.url}: answered {status}: {said}", status)
            if ttft_s is None and prompts.has_token(event):
                ttft_s = monotonic() - began_s
            usage = prompts.usage_of(event) or usage
        if ttft_s is None or usage is None:
            kind = kind_of(response)
            raise NoAnswer(f"{self.place.url}: answered 200 ({kind}) without a token or without its usage")
        total_ms = (monotonic() - began_s) * 1000
        return Answered(ttft_s * 1000, total_ms, *usage, headers=dict(response.headers))

    async def _json(self, path: str) -> tuple[Any, str | None]:
        """The decoded answer to a GET, or None and why it is none, in words."""
        answer = await self._asked("GET", path)
        if not answer.is_success:
            return None, f"answered {told(answer)} at {path}"
        try:
            return decoded(masked(answer.content, self._secrets)), None
        except Unreadable as unreadable:
            return None, f"answered {told(answer)} at {path}: {unreadable}"

    async def _asked(self, method: str, path: str, content: bytes | None = None) -> httpx.Response:
        headers = {"content-type": "application/json"} if content is not None else {}
        return await self._whole(method, path, self._question_s, content=content, headers=headers)

    async def _whole(
        self, method: str, path: str, within_s: float, *, most_bytes: int | None = None, **asked: Any
    ) -> httpx.Response:
        """An answer that has been read. asked: content and headers, as httpx takes them. Raises NoAnswer."""
        asked["timeout"] = httpx.Timeout(within_s, connect=min(CONNECT_S, within_s))
        with self._named(within_s):
            async with (
                asyncio.timeout(within_s),
                self._client.stream(method, f"{self.place.url}{path}", **asked) as response,
            ):
                return await self._read(response, most_bytes or _MOST_BYTES)

    async def _read(self, response: httpx.Response, most_bytes: int) -> httpx.Response:
        """The whole of it; the words of an error without our credentials. Raises as `bounded.whole`."""
        content = await bounded.whole(response, most_bytes)
        if not response.is_success:
            content = masked(content, self._secrets)
        return httpx.Response(response.status_code, headers=response.headers, content=content)

    def _refusal(self, answer: httpx.Response) -> Refused:
        """In its own words where they are an error's; of any other body nothing is repeated."""
        said = prompts.error_of(answer.content)
        answered = f"{answer.status_code}: {said}" if said else told(answer)
        return Refused(f"{self.place.url}: answered {answered}", answer.status_code)

    @contextmanager
    def _named(self, timeout_s: float) -> Iterator[None]:
        """Failures inside, in words, with the URL."""
        try:
            yield
        except httpx.ConnectTimeout:
            within_s = min(CONNECT_S, timeout_s)
            raise NoAnswer(f"{self.place.url}: no connection within {within_s:g} s") from None
        except (httpx.TimeoutException, TimeoutError):
            raise TooLate(f"{self.place.url}: no whole answer within {timeout_s:g} s") from None
        except (
            httpx.InvalidURL,
            UnicodeError,
        ):  # RFC 5891: a label of xn-- and no name
            raise NoAnswer(f"{self.place.url}: no name service knows such a host") from None
        except (httpx.HTTPError, OSError) as error:  # httpx's repeat lines of a peer that are no HTTP
            raise NoAnswer(f"{self.place.url}: {why(error)}") from None


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
