"""Makes the plan of one request: the connector's, inside the plans that wrap every connector's.

Rule: pure. What wraps plans stands here in the order in which it applies; no connector knows of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.call import Call
from sidecar.connectors import Connector, Options
from sidecar.plan import Deliver, Plan
from sidecar.routing import Route


@dataclass(frozen=True, slots=True)
class Planner:
    """What the settings say about plans. connector: the row of `--kv-connector`."""

    connector: Connector
    options: Options

    def plan(self, call: Call, route: Route) -> Plan:
        """The plan of one request."""
        if route.prefiller is None:
            return decode_only(call, route)
        return self.connector.plan(call, route, self.options)


def decode_only(call: Call, route: Route) -> Plan:
    """The local engine answers alone, pulling from the source when there is one that is not itself."""
    yield from ()  # asks nothing; every plan is a generator
    return Deliver(call.decode(route.decoder, route.local_source))
