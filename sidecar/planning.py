"""Makes the plan of one request: the connector's, inside the plans that wrap every connector's.

Rule: pure. What wraps plans stands here in the order in which it applies; no connector knows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sidecar import chunks, encoders, responses
from sidecar.body import Body
from sidecar.call import Call
from sidecar.connectors import Connector, Options
from sidecar.plan import Deliver, Plan
from sidecar.routing import Route

# APIs by their names in the table: what is checked before any leg, and the one with items that encoders take.
_CHECKS: Mapping[str, Callable[[Body], None]] = {"responses": responses.check}
_CHAT = "chat_completions"


@dataclass(frozen=True, slots=True)
class Planner:
    """What the settings say about plans. connector: the row of `--kv-connector`.

    ec_connector: the name in `--ec-connector`, None without encoders. chunk_tokens: `--decode-chunk-size`.
    """

    connector: Connector
    options: Options
    ec_connector: str | None = None
    chunk_tokens: int = 0

    def settled(self, call: Call, route: Route) -> Route:
        """The route as the plan will use it, now that the body is known."""
        return encoders.settled(call, route) if call.api.name == _CHAT else route

    def plan(self, call: Call, route: Route) -> Plan:
        """The plan of one request, for a route that `settled` gave. Raises BadRequest where none may run."""
        if check := _CHECKS.get(call.api.name):
            check(call.body)
        return self._chat(call, route) if call.api.name == _CHAT else self._connected(call, route)

    def _chat(self, call: Call, route: Route) -> Plan:
        plan = encoders.encoded(call, route, self._connected, merge=self.ec_connector == "ec-nixl")
        if self.chunk_tokens and chunks.divisible(call.body, self.chunk_tokens):
            return chunks.chunked(plan, self.chunk_tokens)
        return plan

    def _connected(self, call: Call, route: Route) -> Plan:
        """The connector's plan where a prefiller is named."""
        if route.prefiller is None:
            return decode_only(call, route)
        return self.connector.plan(call, route, self.options)


def decode_only(call: Call, route: Route) -> Plan:
    """The local engine answers alone, pulling from the source when there is one that is not itself."""
    yield from ()  # asks nothing; every plan is a generator
    return Deliver(call.decode(route.decoder, route.local_source))
