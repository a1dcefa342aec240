"""Makes the plan of one request: the connector's, inside the plans that wrap every connector's.

Rule: pure. What wraps plans stands here in the order in which it applies; no connector knows of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sidecar.alone import Alone, why_alone, why_no_pull
from sidecar.call import Call
from sidecar.connectors import Connector, Options
from sidecar.errors import EngineSilent, LegFailed
from sidecar.plan import Deliver, Plan, Role
from sidecar.routing import Route


@dataclass(frozen=True, slots=True)
class Planner:
    """What the settings say about plans.

    connector: the row of `--kv-connector`. local_after_failure: `--prefill-failure-policy=local`.
    """

    connector: Connector
    options: Options
    local_after_failure: bool = False

    def settled(self, call: Call, route: Route) -> Route:
        """The route without its source where the request is none that can be pulled for."""
        if route.source is None or (why := why_no_pull(call.api, call.body)) is None:
            return route
        return route.without_source(why)

    def plan(self, call: Call, route: Route) -> Plan:
        """The plan of one request."""
        if route.prefiller is None:
            return decode_only(call, route)
        alone = why_alone(call.api, call.body, self.connector.shares)
        if alone is not None:
            return decode_alone(call, route, alone)
        plan = self.connector.plan(call, route, self.options)
        return or_decode_alone(plan, call, route) if self.local_after_failure else plan


def decode_only(call: Call, route: Route) -> Plan:
    """The local engine answers alone, pulling from the source when there is one that is not itself."""
    yield from ()  # asks nothing; every plan is a generator
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
        case Role.DECODE | Role.ENCODE:
            return False
