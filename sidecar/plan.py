"""The vocabulary in which a connector says what has to happen: legs, replies and the steps of a plan.

Rule: pure; nothing here sends, waits, reads a clock or makes an id.

A plan is a generator, after the precedent of `httpx.Auth.auth_flow`: it yields a step, is sent the replies
of that step's legs, and at last returns which leg answers the client. A leg that fails is thrown into the
plan at its `yield` as `errors.LegFailed`; a plan that does not catch it ends the exchange with that failure.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from sidecar import usage
from sidecar.body import Body
from sidecar.endpoint import Endpoint
from sidecar.headers import Headers
from sidecar.turns import Keep


class Role(StrEnum):
    """What a leg is for; names its span, its figures and its error rules."""

    PREFILL = "prefill"
    DECODE = "decode"
    ENCODE = "encode"
    # A question to a prefiller's bootstrap server: no engine computes for it.
    LOOKUP = "lookup"
    # A question to the decoder: what are a text's tokens. Nothing is computed for it either.
    TOKENIZE = "tokenize"


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
class Chunk:
    """This leg is number `index`, from 0, of a chunked decode in pieces of `size_tokens`.

    All such legs of an exchange, and they alone, are one decode to whoever counts or traces.
    """

    index: int
    size_tokens: int


@dataclass(frozen=True, slots=True)
class Leg:
    """One upstream request made for one client request.

    `content` None means the client's own body, streamed through unread. timeout_s: longest wait for the whole
    answer, retries included, in seconds; None where only the client's presence bounds it. room: the number
    under which it meets its other leg, for protocols that have one; its spans tell it. reads: id of the
    engine whose blocks it is told to read and thereby to free: once an engine has had such a leg, it is not
    sent again.
    """

    role: Role
    target: Endpoint
    method: bytes
    path: bytes
    headers: Headers
    content: bytes | None
    pull: Pull | None = None
    timeout_s: float | None = None
    room: int | None = None
    chunk: Chunk | None = None
    reads: str | None = None

    def reading(self, engine_id: str) -> Leg:
        """The same leg, told to read blocks of that engine."""
        return replace(self, reads=engine_id)

    def with_header(self, name: bytes, value: bytes) -> Leg:
        """The same leg with this header, in place of any that the client sent of that (lower case) name."""
        kept = tuple(pair for pair in self.headers if pair[0].lower() != name)
        return replace(self, headers=(*kept, (name, value)))


@dataclass(frozen=True, slots=True)
class Reply:
    """A leg's whole answer. `body` is its JSON object, and empty when the status is not 2xx."""

    status: int
    reason: bytes
    headers: Headers
    content: bytes
    body: Body

    @property
    def succeeded(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    @property
    def cached_tokens(self) -> int:
        """How many prompt tokens the engine says it had in its cache."""
        return usage.cached_tokens(self.body)


@dataclass(frozen=True, slots=True)
class Ask:
    """Send the legs together and wait for every whole answer: `[reply] = yield Ask((leg,))`.

    cache_s: how long, in seconds, such an answer may be used again for the same target and path; it is
    forgotten as soon as a leg of an exchange that used it fails, or its plan does.
    refusable: a refusal is an answer, also when the client has a byte; the plan may raise it. For one leg.
    handoff_lost, after_started: as in Deliver, for a leg that decodes.
    """

    legs: tuple[Leg, ...]
    cache_s: float = 0.0
    refusable: bool = False
    handoff_lost: str | None = None
    after_started: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """Send the leg and go on at once: `yield Start(leg)`.

    Its failure ends the exchange with that failure (`Deliver.otherwise` may stand in before the first byte);
    an answer of the exchange's that is over before it does not end it.
    """

    leg: Leg


@dataclass(frozen=True, slots=True)
class Offer:
    """Stream this leg's answer to the client, unless its beginning says that it is none.

    refused: given the JSON of the whole answer or of each of the first `events` SSE events, whether it is a
    refusal. A plan that goes on after the `yield` was refused, and nothing of that answer reached the client.
    """

    leg: Leg
    refused: Callable[[Body], bool]
    events: int = 2


@dataclass(frozen=True, slots=True)
class Emit:
    """Give the client a piece of an answer that the plan composes: the first one starts it, with 200."""

    headers: Headers
    content: bytes


@dataclass(frozen=True, slots=True)
class Deliver:
    """Stream this leg's answer to the client; the plan ends with it.

    cached_tokens: the prefiller's count, put into the answer's usage; None leaves the bytes alone.
    handoff_lost: why this leg decodes without the blocks that a prefiller was asked for, if it does.
    alone: why no prefiller was asked although the route names one, if so.
    after_started: hold the answer back until every started leg has a 2xx answer.
    otherwise: what answers when a started leg fails in a way that `LegFailed.retryable` names, as long as
    the client has no byte.
    keep: what to remember of this turn when its answer says where its blocks are.
    """

    leg: Leg
    cached_tokens: int | None = None
    handoff_lost: str | None = None
    alone: str | None = None
    after_started: bool = False
    otherwise: Deliver | None = None
    keep: Keep | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """The answer that the plan has composed ends: with this whole one, or after what was emitted if None.

    completion_tokens: how many tokens it holds, where the plan has counted them.
    """

    reply: Reply | None = None
    completion_tokens: int | None = None


Step = Ask | Start | Offer | Emit
End = Deliver | Finish
Plan = Generator[Step, list[Reply], End]
