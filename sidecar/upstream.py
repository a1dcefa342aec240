"""Sends legs and turns whatever goes wrong into the error tree; the only place that talks to engines.

Rule: acts. Third-party exceptions are mapped here, once (`naming`). A `Sending` is entered around a leg's
request and left when its answer has been read; leaving early closes the engine's connection.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from time import monotonic
from types import TracebackType

import httpx

from sidecar import headers as names
from sidecar.endpoint import Endpoint
from sidecar.errors import EngineUnreachable, LegFailed
from sidecar.naming import mapped, silent
from sidecar.observers import Attempt, LegRecord, Observers
from sidecar.plan import Leg, Reply, Role
from sidecar.replying import Reading, parsed, unread
from sidecar.transport import BodyStream, Place, RawRequest, Transport

# Engines are few and the routed paths are a handful; passed-through paths with their queries take the rest.
_URL_CACHE_ENTRIES = 1024


class Upload(httpx.AsyncByteStream):
    """The client's own body on its way through, unread. framing: the header that tells its length."""

    def __init__(self, pieces: AsyncIterator[bytes], framing: tuple[bytes, bytes]) -> None:
        self._pieces = pieces
        self.framing = framing

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces


@dataclass(frozen=True, slots=True)
class Stage:
    """How the engines of one role are reached: the URL scheme and the transport with its TLS."""

    scheme: str
    transport: httpx.AsyncBaseTransport


@dataclass(frozen=True, slots=True)
class Retries:
    """`--prefill-max-retries` and `--prefill-retry-backoff` (seconds between attempts)."""

    most: int = 0
    backoff_s: float = 0.2


class Upstream:
    """The way to the engines."""

    def __init__(self, stages: Mapping[Role, Stage], observers: Observers, retries: Retries) -> None:
        self._stages = stages
        self._observers = observers
        self._retries = retries

    def send(self, record: LegRecord, *, upload: Upload | None = None, plain: bool = False) -> Sending:
        """One attempt at a leg; enter it to get the answer's head.

        plain: the answer will be read or rewritten, so no compression is offered to the engine.
        """
        return Sending(self._stages[record.leg.role], self._observers, record, upload, plain=plain)

    @property
    def standing(self) -> tuple[int, int]:
        """How many connections to engines carry a request and how many wait for one."""
        transports = [stage.transport for stage in self._stages.values()]
        counts = [transport.standing for transport in transports if isinstance(transport, Transport)]
        return sum(busy for busy, _ in counts), sum(idle for _, idle in counts)

    async def aclose(self) -> None:
        """Close every connection to the engines."""
        for stage in self._stages.values():
            await stage.transport.aclose()

    async def ask(self, record: LegRecord) -> Reply:
        """Send a leg until it has a usable JSON answer or its retries are used up.

        Raises LegRefused, EngineUnreachable, EngineSilent, EngineDied or UnusableAnswer.
        """
        return await self._until_answered(record, parsed, 0.0)

    async def complete(self, record: LegRecord, *, spent_s: float = 0.0) -> Reply:
        """The same for a leg whose 2xx answer nobody reads, of whatever kind: it has no content.

        spent_s: how many seconds of the leg's time are over, where it was sent before.
        """
        return await self._until_answered(record, unread, spent_s)

    async def _until_answered(self, record: LegRecord, read: Reading, spent_s: float) -> Reply:
        with self._observers.leg(record):
            try:
                return await self._retried(record, read, spent_s)
            finally:
                record.ended_s = monotonic()

    async def _retried(self, record: LegRecord, read: Reading, spent_s: float) -> Reply:
        timeout_s = record.leg.timeout_s
        try:
            async with asyncio.timeout(None if timeout_s is None else timeout_s - spent_s):
                return await self._attempts(record, read)
        except TimeoutError:
            failed = silent(record.leg)
            record.error = failed.label
            raise failed from None

    async def _attempts(self, record: LegRecord, read: Reading) -> Reply:
        most = self._retries.most if record.leg.role is Role.PREFILL else 0
        while True:
            try:
                async with self.send(record, plain=read is parsed) as response:
                    return await read(record, response)
            except LegFailed as failed:
                # Whoever got as far as an answer may have read, and freed, what the leg says to read.
                spent = record.leg.reads is not None and not isinstance(failed, EngineUnreachable)
                if spent or not failed.retryable or record.attempts > most:
                    raise
                record.first_byte_s = None  # it was the refusal's
            await asyncio.sleep(self._retries.backoff_s)


class Sending:
    """One request on the wire, as an asynchronous context manager around its answer."""

    __slots__ = ("_attempt", "_plain", "_response", "_stage", "_upload", "_watch")

    def __init__(
        self, stage: Stage, observers: Observers, record: LegRecord, upload: Upload | None, *, plain: bool
    ) -> None:
        self._stage = stage
        self._upload = upload
        self._plain = plain
        self._attempt = Attempt(leg=record, headers=[], started_s=monotonic())
        self._watch = observers.attempt(self._attempt)
        self._response: httpx.Response | None = None

    async def __aenter__(self) -> httpx.Response:
        attempt, record = self._attempt, self._attempt.leg
        attempt.headers.extend(self._headers(record.leg))
        record.attempts += 1
        record.error = None
        self._watch.__enter__()
        try:
            response = await self._stage.transport.handle_async_request(self._request(record.leg))
        except BaseException as error:
            self._leave(error)
            raise  # not reached for errors that are mapped
        record.head_s = monotonic()
        attempt.status = record.status = response.status_code
        self._response = response
        return response

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._response is not None
        stream = self._response.stream
        if isinstance(stream, BodyStream):
            stream.leave()
        else:
            await stream.aclose()  # type: ignore[union-attr]  # AsyncBaseTransport gives async streams
        if error is None:
            self._watch.__exit__(None, None, None)
        else:
            self._leave(error)

    def _leave(self, error: BaseException) -> None:
        """Leave the watchers with the error as the tree names it, and raise it so."""
        leg = self._attempt.leg
        failed = mapped(error, leg.leg)
        label = failed.label if isinstance(failed, LegFailed) else type(failed).__name__
        self._attempt.error = leg.error = "cancelled" if isinstance(error, asyncio.CancelledError) else label
        self._watch.__exit__(type(failed), failed, failed.__traceback__)
        if failed is not error:
            raise failed from error

    def _headers(self, leg: Leg) -> list[tuple[bytes, bytes]]:
        headers = [_host(leg.target.host, leg.target.port)]
        headers += names.without(leg.headers, names.ACCEPT_ENCODING) if self._plain else leg.headers
        if self._upload:
            headers.append(self._upload.framing)
        elif leg.content is not None and (leg.content or leg.method not in _BODYLESS):
            headers.append((b"Content-Length", b"%d" % len(leg.content)))
        return headers

    def _request(self, leg: Leg) -> httpx.Request:
        body = self._upload or leg.content or b""
        place = _place(self._stage.scheme, leg.target.host, leg.target.port, leg.path)
        return RawRequest(leg.method.decode("latin-1"), place, self._attempt.headers, body, leg.path)


_BODYLESS = frozenset((b"GET", b"HEAD", b"OPTIONS", b"DELETE", b"TRACE"))


@functools.lru_cache(_URL_CACHE_ENTRIES)
def _place(scheme: str, host: str, port: int, path: bytes) -> Place:
    """Where a leg goes. On the wire is the leg's own path, byte for byte (extension "target")."""
    base = httpx.URL(f"{scheme}://{Endpoint(host, port).netloc}/")
    try:
        return Place.of(base.copy_with(raw_path=path))
    except httpx.InvalidURL:
        return Place.of(base)


@functools.lru_cache(_URL_CACHE_ENTRIES)
def _host(host: str, port: int) -> tuple[bytes, bytes]:
    return b"Host", Endpoint(host, port).netloc.encode()
