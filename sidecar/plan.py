"""The vocabulary in which a connector says what has to happen: legs, replies and the steps of a plan.

Rule: pure; nothing here sends, waits, reads a clock or makes an id.

A plan is a generator, after the precedent of `httpx.Auth.auth_flow`: it yields a step, is sent the replies
of that step's legs, and at last returns which leg answers the client. A leg that fails is thrown into the
plan at its `yield` as `errors.LegFailed`; a plan that does not catch it ends the exchange with that failure.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sidecar import usage
from sidecar.body import Body
from sidecar.endpoint import Endpoint
from sidecar.headers import Headers


class Role(StrEnum):
    """What a leg is for; names its span, its figures and its error rules."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine as the endpoint picker names it, with the port of its P2P listener."""

    endpoint: Endpoint
    p2p_port: int

    @property
    def p2p(self) -> Endpoint:
        """Where the peer's P2P listener accepts connections."""
        return self.endpoint.with_port(self.p2p_port)


@dataclass(frozen=True, slots=True)
class Pull:
    """This leg makes its engine fetch KV blocks from `source` (vLLM's `remote_kv_source`)."""

    source: Peer
    kv_request_id: str

    @property
    def remote_kv_source(self) -> dict[str, Any]:
        """The directive as vLLM's P2P tier reads it: all three fields must be truthy."""
        return {
            "kv_request_id": self.kv_request_id,
            "remote_host": self.source.endpoint.host,
            "remote_port": self.source.p2p_port,
        }


@dataclass(frozen=True, slots=True)
class Leg:
    """One upstream request made for one client request.

    `content` None means the client's own body, streamed through unread.
    """

    role: Role
    target: Endpoint
    method: bytes
    path: bytes
    headers: Headers
    content: bytes | None
    pull: Pull | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A leg's whole answer. `body` is its JSON object, and empty when the status is not 2xx."""

    status: int
    reason: bytes
    headers: Headers
    content: bytes
    body: Body

    @property
    def cached_tokens(self) -> int:
        """How many prompt tokens the engine says it had in its cache."""
        return usage.cached_tokens(self.body)


@dataclass(frozen=True, slots=True)
class Ask:
    """Send the legs together and wait for every whole answer: `[reply] = yield Ask((leg,))`."""

    legs: tuple[Leg, ...]


@dataclass(frozen=True, slots=True)
class Deliver:
    """Stream this leg's answer to the client; the plan ends with it.

    `cached_tokens`: the prefiller's count, put into the answer's usage; None leaves the bytes alone.
    `handoff_lost`: why this leg decodes without the blocks that were prefilled for it, if it does.
    """

    leg: Leg
    cached_tokens: int | None = None
    handoff_lost: str | None = None


Plan = Generator[Ask, list[Reply], Deliver]
