"""Reads an engine's counters and gauges from its `/metrics`.

Rule: a series that is not there counts as 0: labelled ones appear at first use.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx

from tests.vllm.processes import eventually

P2P_READ_BYTES = 'kv_offload_tiering_read_bytes_total{tier="1:p2p"}'
"""Bytes that an engine fetched from peers: the trustworthy count of a pull."""
P2P_WRITTEN_BYTES = 'kv_offload_tiering_write_bytes_total{tier="1:p2p"}'
"""Bytes that an engine gave to peers, and those of every block that it put into its CPU tier."""
STORED_BYTES = "kv_offload_store_bytes_total"
"""Bytes that an engine has put into its CPU tier, whence peers can fetch them."""
COMPUTED_TOKENS = 'prompt_tokens_by_source_total{source="local_compute"}'
TRANSFERRED_TOKENS = 'prompt_tokens_by_source_total{source="external_kv_transfer"}'
EXTERNAL_HIT_TOKENS = "external_prefix_cache_hits_total"
PEER_TOKENS = 'prompt_tokens_cached_by_source_total{source="p2p"}'
NIXL_BYTES = "nixl_bytes_transferred_sum"
NIXL_READS = "nixl_bytes_transferred_count"
RUNNING = "num_requests_running"
WAITING = "num_requests_waiting"

# Labels that every series has and that tell engines apart which are asked one by one here.
_COMMON = re.compile(r'(?:engine|model_name)="[^"]*",?')
# An engine publishes what a step did with its next step; idle ones look every few tens of milliseconds.
SETTLE_S = 10.0
# Long enough for a transfer that must not happen to show, were it to happen.
QUIET_S = 1.5

Counters = dict[str, float]


def read(engine_url: str) -> Counters:
    """All series of vLLM's, without the prefix `vllm:` and the common labels."""
    counters: Counters = {}
    for line in httpx.get(f"{engine_url}/metrics", timeout=30).text.splitlines():
        if line.startswith("vllm:"):
            series, _, value = line.removeprefix("vllm:").rpartition(" ")
            counters[_COMMON.sub("", series).replace(",}", "}").removesuffix("{}")] = float(value)
    return counters


class Risen:
    """How much an engine's counters have risen since this was made."""

    def __init__(self, engine_url: str) -> None:
        self._url = engine_url
        self._before = read(engine_url)

    def by(self, series: str) -> int:
        """The rise of one series until now."""
        return int(read(self._url).get(series, 0) - self._before.get(series, 0))

    def settled(self, series: str, expected: int) -> int:
        """The rise of one series once it has reached what is expected, or after SETTLE_S."""
        eventually(lambda: self.by(series) >= expected, SETTLE_S)
        return self.by(series)

    def all(self) -> dict[str, int]:
        """Every series of transfers and tokens that has risen, for the table of figures."""
        now = read(self._url)
        rises = {name: int(value - self._before.get(name, 0)) for name, value in now.items()}
        return {name: rise for name, rise in rises.items() if rise and _TELLING.match(name)}


_TELLING = re.compile(
    r"(kv_offload_tiering_read_bytes|kv_offload_load_bytes|prompt_tokens_by_source|prompt_tokens_cached_by_source)"
    r"_total|nixl_bytes_transferred_(sum|count)"
)


def busy(engine_url: str) -> int:
    """Requests that an engine runs or keeps waiting."""
    counters = read(engine_url)
    return int(counters.get(RUNNING, 0) + counters.get(WAITING, 0))


def idle_within(engine_url: str, seconds: float) -> bool:
    """Whether an engine comes to have nothing to do."""
    idle: Callable[[], bool] = lambda: busy(engine_url) == 0  # noqa: E731 - named for the reader
    return eventually(idle, seconds)
