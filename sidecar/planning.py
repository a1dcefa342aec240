"""Makes the plan of one request: the connector's, inside the plans that wrap every connector's.

Rule: pure. What wraps plans stands here in the order in which it applies; no connector knows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sidecar import chunks, encoders, responses
from sidecar.alone import Alone, why_alone, why_no_pull
from sidecar.body import Body
from sidecar.call import Call
from sidecar.connectors import Connector, Options
from sidecar.errors import EngineSilent, LegFailed
from sidecar.plan import Deliver, Plan, Role
from sidecar.routing import Route

# APIs by their names in the table: what is checked before any leg, and the one with items that encoders take.
_CHECKS: Mapping[str, Callable[[Body], None]] = {"responses": responses.check}
_CHAT = "chat_completions"


@dataclass(frozen=True, slots=True)
class Planner:
    """What the settings say about plans. connector: the row of `--kv-connector`.

    ec_connector: the name in `--ec-connector`, None without encoders. chunk_tokens: `--decode-chunk-size`.
    local_after_failure: `--prefill-failure-policy=local`.
    """

    connector: Connector
    options: Options
    ec_connector: str | None = None
    chunk_tokens: int = 0
    local_after_failure: bool = False

    def settled(self, call: Call, route: Route) -> Route:
        """The route as the plan will use it, now that the body is known."""
        if route.source is not None and (why := why_no_pull(call.api, call.body)) is not None:
            route = route.without_source(why)
        return encoders.settled(call, route) if call.api.name == _CHAT else route

    def sets_params(self, route: Route) -> bool:
        """Whether the legs have `kv_transfer_params` of the sidecar's, in place of the client's."""
        return route.source is not None or (route.prefiller is not None and self.connector.by_params)

    def plan(self, call: Call, route: Route) -> Plan:
        """The plan of one request, for a route that `settled` gave. Raises BadRequest where none may run."""
        if check := _CHECKS.get(call.api.name):
            check(call.body)
        return self._chat(call, route) if call.api.name == _CHAT else self._connected(call, route)

    def end(self, call: Call, route: Route) -> Deliver | None:
        """The end of a plan that has no step: most are, and then nothing has to be played.

        For a route that `settled` gave. Raises BadRequest where none may run.
        """
        if route.prefiller or route.encoders or self.chunk_tokens:
            return None
        if check := _CHECKS.get(call.api.name):
            check(call.body)
        return _decoded(call, route)

    def _chat(self, call: Call, route: Route) -> Plan:
        plan = encoders.encoded(call, route, self._connected, merge=self.ec_connector == "ec-nixl")
        if self.chunk_tokens and chunks.divisible(call.body, self.chunk_tokens):
            return chunks.chunked(plan, self.chunk_tokens)
        return plan

    def _connected(self, call: Call, route: Route) -> Plan:
        """The connector's plan where a prefiller is named."""
        if route.prefiller is None:
            return decode_only(call, route)
        if self.connector.by_params and (alone := why_alone(call.api, call.body)) is not None:
            return decode_alone(call, route, alone)
        plan = self.connector.plan(call, route, self.options)
        return or_decode_alone(plan, call, route) if self.local_after_failure else plan


def decode_only(call: Call, route: Route) -> Plan:
    """The local engine answers alone, pulling from the source when there is one that is not itself."""
    yield from ()  # asks nothing; every plan is a generator
    return _decoded(call, route)


def _decoded(call: Call, route: Route) -> Deliver:
    return Deliver(call.decode(route.decoder, route.local_source))


def decode_alone(call: Call, route: Route, why: Alone) -> Plan:
    """The local engine answers alone, for this is no request that a prefiller could hand over."""
    yield from ()
    return Deliver(call.decode_alone(route.decoder, route.local_source), alone=why)


def or_decode_alone(plan: Plan, call: Call, route: Route) -> Plan:
    """The plan; or, if no prefiller can be had for it, the local engine computes the prompt and answers.

    A decoder's failures and an encoder's stay what they are, and so does every failure once the client has a
    byte: none is thrown into a plan then, and `Deliver.otherwise` no longer applies.
    """
    local = Deliver(call.decode_alone(route.decoder, route.local_source), handoff_lost="prefill_failed")
    try:
        end = yield from plan
    except LegFailed as failed:
        if not _without_prefiller(failed):
            raise
        return local
    return replace(end, otherwise=local) if isinstance(end, Deliver) else end


def _without_prefiller(failed: LegFailed) -> bool:
    """Whether the leg surely computed nothing, so that another engine can do it in its place."""
    match failed.leg.role:
        case Role.PREFILL:
            return failed.retryable
        case Role.LOOKUP:
            return failed.retryable or isinstance(failed, EngineSilent)
        case Role.DECODE | Role.ENCODE | Role.TOKENIZE:
            return False
