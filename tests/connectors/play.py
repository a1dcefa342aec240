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
from sidecar.endpoint import Endpoint
from sidecar.errors import LegFailed
from sidecar.plan import Ask, Deliver, Leg, Peer, Plan, Reply
from sidecar.routing import Route

DECODER = Endpoint("localhost", 8200)
PREFILLER = Peer(Endpoint("10.0.0.3", 8000), 7777)
SOURCE = Peer(Endpoint("10.0.0.2", 8001), 7778)
BY_NAME = {api.name: api for api in APIS}


@dataclass(frozen=True, slots=True)
class Played:
    """What a plan did: the steps it yielded, and how it ended."""

    steps: list[Ask]
    deliver: Deliver

    @property
    def legs(self) -> list[Leg]:
        """Every leg in the order sent, the delivered one last."""
        return [leg for step in self.steps for leg in step.legs] + [self.deliver.leg]


def play(plan: Plan, *replies: Reply | LegFailed) -> Played:
    """Run a plan to its end: each leg gets the next reply; a failure is thrown in where it would be."""
    left, steps = list(replies), []
    try:
        step = next(plan)
        while True:
            steps.append(step)
            answers = [left.pop(0) for _ in step.legs]
            failures = [answer for answer in answers if isinstance(answer, LegFailed)]
            sent = [answer for answer in answers if isinstance(answer, Reply)]
            step = plan.throw(failures[0]) if failures else plan.send(sent)
    except StopIteration as end:
        assert not left, "the plan asked for fewer legs than there are replies"
        return Played(steps, end.value)


_serial = count(1)


def fresh_ids() -> Ids:
    """Ids as the sidecar makes them for each request: three of a kind, never seen before."""
    return Ids(*[f"{next(_serial):08x}-0000-4000-8000-000000000000" for _ in range(3)])


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
