"""Makes the plan of one request: the connector's, inside the plans that wrap every connector's.

Rule: pure. What wraps plans stands here in the order in which it applies; no connector knows of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.alone import Alone, why_alone, why_no_pull
from sidecar.call import Call
from sidecar.connectors import Connector, Options
from sidecar.plan import Deliver, Plan
from sidecar.routing import Route


@dataclass(frozen=True, slots=True)
class Planner:
    """What the settings say about plans. connector: the row of `--kv-connector`."""

    connector: Connector
    options: Options

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
        return self.connector.plan(call, route, self.options)


def decode_only(call: Call, route: Route) -> Plan:
    """The local engine answers alone, pulling from the source when there is one that is not itself."""
    yield from ()  # asks nothing; every plan is a generator
    return Deliver(call.decode(route.decoder, route.local_source))


def decode_alone(call: Call, route: Route, why: Alone) -> Plan:
    """The local engine answers alone, for this is no request that a prefiller could hand over."""
    yield from ()
    return Deliver(call.decode_alone(route.decoder, route.local_source), alone=why)
