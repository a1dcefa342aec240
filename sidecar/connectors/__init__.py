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

from sidecar.call import Call
from sidecar.connectors import mooncake, moriio, nixlv2, offloading, sglang, shared_storage
from sidecar.connectors.options import Options
from sidecar.plan import Plan
from sidecar.routing import Route

__all__ = ["CONNECTORS", "Connector", "Options"]


@dataclass(frozen=True, slots=True)
class Connector:
    """One row of the table.

    plan: the prefill/decode plan. pulls: whether its engines have a P2P tier to pull from; None when
    `--enable-p2p-pull` says so. by_params: whether `kv_transfer_params` tell the decoder where its blocks
    are: vLLM copies those to every prompt of a request (`alone`). Where not, the client's own are screened
    and stay.
    """

    plan: Callable[[Call, Route, Options], Plan]
    pulls: bool | None
    by_params: bool = True


# Keys are values of `--kv-connector`, but for "moriio", which is nixlv2 with `--moriio-write-mode`.
CONNECTORS: dict[str, Connector] = {
    "nixlv2": Connector(nixlv2.plan, pulls=None),
    "moriio": Connector(moriio.plan, pulls=None),
    "offloading": Connector(offloading.plan, pulls=True),
    "mooncake": Connector(mooncake.plan, pulls=False),
    "sglang": Connector(sglang.plan, pulls=False, by_params=False),
    "shared-storage": Connector(shared_storage.plan, pulls=False, by_params=False),
}
