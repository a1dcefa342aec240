"""Plays a connector's plan against replies that a test has written, and makes what a plan needs.

Rule: no part of the sidecar is replaced; a plan is a generator, and the test is the one who drives it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from sidecar import headers as names
from sidecar.api import APIS, Api
from sidecar.body import Body
from sidecar.call import Call, Ids
from sidecar.connectors import Options
from sidecar.endpoint import Endpoint
from sidecar.errors import LegFailed
from sidecar.plan import Ask, Deliver, Finish, Leg, Offer, Peer, Plan, Reply, Start, Step
from sidecar.routing import Route

DECODER = Endpoint("localhost", 8200)
PREFILLER = Peer(Endpoint("10.0.0.3", 8000), 7777)
SOURCE = Peer(Endpoint("10.0.0.2", 8001), 7778)
OPTIONS = Options()
BY_NAME = {api.name: api for api in APIS}


@dataclass(frozen=True, slots=True)
class Played:
    """What a plan did: the steps it yielded, and how it ended; None when an offer answered the client."""

    steps: list[Step]
    end: Deliver | Finish | None

    @property
    def deliver(self) -> Deliver:
        """The end of a plan that delivers a leg's answer."""
        assert isinstance(self.end, Deliver)
        return self.end

    @property
    def legs(self) -> list[Leg]:
        """Every leg in the order sent, the delivered one last."""
        legs = [leg for step in self.steps for leg in legs_of(step)]
        return [*legs, self.end.leg] if isinstance(self.end, Deliver) else legs


def legs_of(step: Step) -> tuple[Leg, ...]:
    """The legs that a step sends."""
    match step:
        case Ask(legs):
            return legs
        case Start(leg) | Offer(leg):
            return (leg,)
        case _:
            return ()


def play(plan: Plan, *replies: Reply | LegFailed) -> Played:
    """Run a plan to its end: each asked or offered leg gets the next reply.

    A failure is thrown in where it would be; a reply to an offer is what the client would get, unless the
    offer's `refused` says no to its body.
    """
    left, steps = list(replies), []
    try:
        step = next(plan)
        while True:
            steps.append(step)
            match step:
                case Ask(legs):
                    answers = [left.pop(0) for _ in legs]
                case Offer():
                    answers = [left.pop(0)]
                case _:
                    answers = []
            failures = [answer for answer in answers if isinstance(answer, LegFailed)]
            sent = [answer for answer in answers if isinstance(answer, Reply)]
            if isinstance(step, Offer) and not failures:
                if not step.refused(sent[0].body):
                    plan.close()
                    return Played(steps, None)
                sent = []
            step = plan.throw(failures[0]) if failures else plan.send(sent)
    except StopIteration as end:
        assert not left, "the plan asked for fewer legs than there are replies"
        return Played(steps, end.value)


_serial = count(1)


def fresh_ids() -> Ids:
    """Ids as the sidecar makes them for each request, never seen before."""
    request, handoff, pull = [f"{next(_serial):08x}-0000-4000-8000-000000000000" for _ in range(3)]
    return Ids(request, handoff, pull, next(_serial) << 32)


def call_of(
    raw: bytes, api: str | Api = "completions", headers: names.Headers = (), ids: Ids | None = None
) -> Call:
    """A client's request as a call: its headers as they come, its body as it is."""
    row = BY_NAME[api] if isinstance(api, str) else api
    return Call(row, row.path, names.forwarded(headers), Body.parse(raw), ids or fresh_ids())


def route_of(*, source: Peer | None = None, prefiller: Peer | None = PREFILLER) -> Route:
    """A route through the prefiller, pulling from the source when there is one."""
    return Route(DECODER, prefiller=prefiller, source=source)


def reply_of(content: bytes) -> Reply:
    """A prefiller's 200."""
    return Reply(200, b"OK", ((b"content-type", b"application/json"),), content, Body.parse(content))
