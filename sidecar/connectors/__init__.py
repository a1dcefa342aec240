"""The KV connectors: how a prompt computed by one engine reaches the engine that decodes it.

Rule: a connector is one file, one test file and one line in `CONNECTORS`. It turns a `Call`, a `Route` that
names a prefiller and its own `Options` into a `Plan`; it cannot reach the network, the clock, the environment
or another connector.
Its one function is a generator: `[reply] = yield Ask((leg,))` sends a leg and gets its answer, `yield
Start(leg)` sends one and goes on, and `return Deliver(leg)` says which leg answers the client. A leg that
fails is raised at the `yield`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sidecar.alone import Alone
from sidecar.call import Call
from sidecar.connectors import nixlv2, offloading
from sidecar.connectors.options import Options
from sidecar.plan import Plan
from sidecar.routing import Route

__all__ = ["CONNECTORS", "Connector", "Options"]


@dataclass(frozen=True, slots=True)
class Connector:
    """One row of the table.

    plan: the prefill/decode plan. pulls: whether its engines have a P2P tier to pull from; None when
    `--enable-p2p-pull` says so. shares: of the reasons to have no handoff, those that do not hold for it, as
    all prompts or all choices of a request can use one.
    """

    plan: Callable[[Call, Route, Options], Plan]
    pulls: bool | None
    shares: frozenset[Alone] = frozenset()


CONNECTORS: dict[str, Connector] = {
    "nixlv2": Connector(nixlv2.plan, pulls=None),
    # Seen on vLLM 0.32: 20 choices fetch the blocks of their prompt once. Of two prompts, those of one.
    "offloading": Connector(offloading.plan, pulls=True, shares=frozenset({Alone.SEVERAL_CHOICES})),
}
