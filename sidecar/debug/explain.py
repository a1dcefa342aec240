"""Explains one request: the legs that it would make, and why, without sending anything.

Rule: acts only in reading the request; the plan is the one that the exchange would run, and what is known of
sources is only looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from sidecar import __version__, routing
from sidecar import api as apis
from sidecar import headers as names
from sidecar.api import Api
from sidecar.debug.elision import shown_body, shown_headers
from sidecar.debug.playing import Played, Sent, played
from sidecar.debug.reasons import SourceState, reasons
from sidecar.debug.told import pretty
from sidecar.endpoint import Endpoint
from sidecar.errors import SidecarError
from sidecar.intake import Asking, Limits, read_call, screened
from sidecar.plan import Leg, Role
from sidecar.planning import Planner
from sidecar.routing import NoPull, Route, Rules

_SENT = "nothing was sent; ids are fresh for each request, so those shown are examples"
_ANSWERED = "that engines answer is taken for granted; values in <…> stand for what they would answer"
_MORE = "the decode is chunked: while a chunk ends for its budget, another leg with the text so far follows"


@dataclass(frozen=True, slots=True)
class Deciding:
    """All that decides about a request. connector: what users call it. schemes: of each role's engines.

    source: what is known of a source by its P2P endpoint.
    """

    rules: Rules
    planner: Planner
    limits: Limits
    choose: Callable[[int], int]
    connector: str
    schemes: Mapping[Role, str]
    source: Callable[[Endpoint], SourceState]


async def explained(asked: Asking, deciding: Deciding, *, prompts: bool = False) -> bytes:
    """The explanation of a POST as JSON. prompts: show bodies whole."""
    path = asked.target.partition(b"?")[0]
    told: dict[str, Any] = {
        "sidecar": __version__,
        "request": {"method": "POST", "path": path.decode("latin-1"), "api": None},
        "connector": deciding.connector,
    }
    api = apis.find(b"POST", path)
    try:
        if api is None:
            told |= _passed_through(asked, deciding)
        else:
            told["request"]["api"] = api.name
            told |= await _routed(asked, api, deciding, prompts=prompts)
    except SidecarError as error:
        refusal = {"status": error.status, "type": error.type, "message": error.message}
        told |= {"answer": "refused", "refusal": refusal, "why": [error.message], "legs": []}
    return pretty(msgspec.json.encode(told))


async def _routed(asked: Asking, api: Api, deciding: Deciding, *, prompts: bool) -> dict[str, Any]:
    """As `Exchange` does it, but for the look at the source, which must not contact it."""
    planner, limits = deciding.planner, deciding.limits
    named = routing.read(asked.headers, deciding.rules, deciding.choose)
    call = await read_call(asked, api, limits)
    route = planner.settled(call, named)
    state = deciding.source(route.source.p2p) if route.source else None
    if state and (refusal := _refusal(state)):
        route = route.without_source(refusal)
    call = screened(call, limits.client_params, replaced=planner.sets_params(route))
    story = played(planner.plan(call, route))
    return {
        "answer": "legs",
        "route": _route(route, state),
        "why": list(reasons(route, story.alone, state)),
        "legs": [_leg(sent, deciding, prompts=prompts) for sent in story.legs],
        "notes": [_SENT, *_notes(story)],
    }


def _refusal(state: SourceState) -> NoPull | None:
    if state.guard == "refuses":
        return NoPull.UNREACHABLE
    return NoPull.SILENT if state.resting else None


def _notes(story: Played) -> Iterator[str]:
    if story.answered:
        yield _ANSWERED
    if story.chunked:
        yield _MORE


def _passed_through(asked: Asking, deciding: Deciding) -> dict[str, Any]:
    """A path that is not routed."""
    decoder = deciding.rules.decoder
    leg = Leg(Role.DECODE, decoder, b"POST", asked.target, names.forwarded(asked.headers), None)
    sent = Sent(leg, "sent with the client's body unread, and its answer given to the client")
    return {
        "answer": "passed through",
        "route": _route(Route(decoder), None),
        "why": ["the path is not routed: the local engine answers, whatever the headers name"],
        "legs": [_leg(sent, deciding, prompts=False)],
        "notes": [_SENT],
    }


def _route(route: Route, state: SourceState | None) -> dict[str, Any]:
    return {
        "decoder": route.decoder.netloc,
        "prefiller": route.prefiller.endpoint.netloc if route.prefiller else None,
        "prefill_candidates": route.prefill_candidates,
        "source": route.named_source.netloc if route.named_source else None,
        "pulls": route.source is not None,
        "no_pull": route.no_pull,
        "guard": state.guard if state else None,
        "encoders": [encoder.netloc for encoder in route.encoders],
        "encoder_candidates": route.encoder_candidates,
        "own": route.own.netloc if route.own else None,
    }


def _leg(sent: Sent, deciding: Deciding, *, prompts: bool) -> dict[str, Any]:
    leg = sent.leg
    url = f"{deciding.schemes[leg.role]}://{leg.target.netloc}{leg.path.decode('latin-1')}"
    pull = leg.pull and {"source": leg.pull.source.p2p.netloc, "kv_request_id": leg.pull.kv_request_id}
    return {
        "role": leg.role,
        "how": sent.how,
        "when": sent.when,
        "method": leg.method.decode("latin-1"),
        "url": url,
        "headers": shown_headers(leg.headers),
        "pull": pull,
        "body_bytes": None if leg.content is None else len(leg.content),
        "body": _body(leg, prompts=prompts),
    }


def _body(leg: Leg, *, prompts: bool) -> dict[str, msgspec.Raw] | None:
    """Values as they are on the wire: Raw keeps the spelling of numbers and escapes."""
    body = shown_body(leg.content, prompts=prompts) if leg.content else None
    return {key: msgspec.Raw(raw) for key, raw in body.items()} if body is not None else None
