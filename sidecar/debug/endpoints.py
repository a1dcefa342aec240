"""The debug endpoints of one serving process, on the port for operators.

Rule: acts in answering; what it shows is made by others. Nothing changes by a request to it, and nothing is
sent to an engine or a source.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from sidecar import __version__
from sidecar import headers as names
from sidecar.debug.explain import Deciding, explained
from sidecar.debug.sources import state_of, table
from sidecar.debug.told import pretty
from sidecar.observers.ring import OUTCOMES, Ring
from sidecar.plan import Role
from sidecar.server.asgi import EXTENSION
from sidecar.services import Services

if TYPE_CHECKING:
    from sidecar.server.client import Client

# How often a viewer is told what is new, in seconds: live to the eye, and next to nothing to do.
TICK_S = 0.25
# A line at least so often, in seconds, so that what stands between sees a live connection (most proxies wait
# for 60), and we see a viewer that is gone.
QUIET_S = 15.0
# Pages open at a time.
MAX_VIEWERS = 16

_JSON = "application/json"
_SAFE = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


@dataclass(frozen=True, slots=True)
class Facts:
    """What does not change while the process runs. connector: as users call it. config: see `config_of`."""

    connector: str
    schemes: Mapping[Role, str]
    config: Sequence[Mapping[str, Any]]
    rank: int
    processes: int


class Debug:
    """Everything that the endpoints show. `stopping` ends the streams."""

    def __init__(self, services: Services, ring: Ring, facts: Facts) -> None:
        self._services = services
        self._ring = ring
        self._facts = facts
        self._viewers = 0
        self.stopping = asyncio.Event()

    def router(self) -> APIRouter:
        """The endpoints."""
        router = APIRouter(prefix="/debug")
        page, policy = _page()

        @router.get("/")
        async def show() -> Response:
            return Response(page, headers={**_SAFE, **policy}, media_type="text/html; charset=utf-8")

        router.add_api_route("/explain", self.explain, methods=["POST"], response_model=None)
        router.add_api_route("/pulls", self.pulls, methods=["GET"], response_model=None)
        router.add_api_route("/events", self.events, methods=["GET"], response_model=None)
        return router

    async def explain(self, request: Request) -> Response:
        """What this request would do at `?path=`, with bodies whole for `?prompts=1`."""
        services, query = self._services, request.query_params
        client: Client = request.scope["extensions"][EXTENSION]
        deciding = Deciding(
            services.rules,
            services.planner,
            services.limits,
            services.choose,
            self._facts.connector,
            self._facts.schemes,
            lambda p2p: state_of(p2p, services.guard, services.yields),
        )
        path = query.get("path", "/v1/chat/completions").encode()
        asked = Posed(path, names.without(client.headers, names.DEBUG), client)
        return _json(await explained(asked, deciding, prompts=query.get("prompts") == "1"))

    async def pulls(self, request: Request) -> Response:
        """The last exchanges, the newest first; `?outcome=` names those to show, `?limit=` how many."""
        query = request.query_params
        outcomes = [one for text in query.getlist("outcome") for one in text.split(",") if one] or OUTCOMES
        limit = query.get("limit", str(_EVERY))
        if unknown := next((one for one in outcomes if one not in OUTCOMES), None):
            return _wrong(f"outcome: {unknown!r} is none of {', '.join(OUTCOMES)}")
        if not limit.isascii() or not limit.isdecimal():
            return _wrong(f"limit: {limit!r} is no whole number")
        exchanges = self._ring.of(outcomes)[: int(limit[:9])]
        return _json(msgspec.json.encode({"worker": self._worker(), "exchanges": exchanges}))

    async def events(self) -> Response:
        """What the page shows, and what changes, as server-sent events."""
        if self._viewers >= MAX_VIEWERS:
            return _wrong(f"{MAX_VIEWERS} viewers are here already", status=503)
        return StreamingResponse(self._stream(), headers=_SAFE, media_type="text/event-stream")

    async def _stream(self) -> AsyncIterator[bytes]:
        self._viewers += 1
        try:
            seen, sources, said_s = self._ring.version, self._sources(), monotonic()
            yield _event("hello", {**self._hello(), "exchanges": self._ring.since(), "sources": sources})
            while not await self._stopped():
                told = [_event("exchanges", new)] if (new := self._ring.since(seen)) else []
                seen, before, sources = self._ring.version, sources, self._sources()
                told += [_event("sources", sources)] if sources != before else []
                if told or monotonic() - said_s > QUIET_S:
                    said_s = monotonic()
                    yield b"".join(told) or b": nothing new\n\n"
        finally:
            self._viewers -= 1

    async def _stopped(self) -> bool:
        """Whether it is over, after the next tick at most."""
        try:
            async with asyncio.timeout(TICK_S):
                return await self.stopping.wait()
        except TimeoutError:
            return False

    def _sources(self) -> list[dict[str, Any]]:
        return table(self._services.guard, self._services.yields)

    def _worker(self) -> dict[str, Any]:
        """Which process answers, of how many that each answer for themselves."""
        return {"pid": os.getpid(), "rank": self._facts.rank, "of_processes": self._facts.processes}

    def _hello(self) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {
            "sidecar": __version__,
            "now": now,
            "worker": self._worker(),
            "config": self._facts.config,
        }


_EVERY = 999_999_999


class Posed:
    """A request to be explained: what the client of the debug port sent, at another path."""

    def __init__(self, target: bytes, headers: names.Headers, client: Client) -> None:
        self.target = target
        self.headers = headers
        self.read_body = client.read_body


def _json(content: bytes, status: int = 200) -> Response:
    return Response(pretty(content) + b"\n", status, headers=_SAFE, media_type=_JSON)


def _wrong(message: str, status: int = 400) -> Response:
    return _json(msgspec.json.encode({"error": message}), status)


def _event(name: str, told: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(told))


def _page() -> tuple[bytes, dict[str, str]]:
    """The page, and the policy that lets a browser run its script and style, and nothing else."""
    page = (files("sidecar.debug") / "page.html").read_bytes()
    allowed = {tag: _hash_of(page, tag) for tag in ("script", "style")}
    policy = (
        f"default-src 'none'; script-src {allowed['script']}; style-src {allowed['style']}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, {"content-security-policy": policy, "referrer-policy": "no-referrer"}


def _hash_of(page: bytes, tag: str) -> str:
    """The source expression of an inline element (CSP 3 section 2.3.1)."""
    [content] = re.findall(rb"<%b>(.*?)</%b>" % (tag.encode(), tag.encode()), page, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"
