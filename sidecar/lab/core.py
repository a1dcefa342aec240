"""The core of an engine: its caches, its connectors and its queue, from which every request is run.

Rule: no HTTP here; a request is a `Job`, its life is a `Run`.
"""

from __future__ import annotations

from collections.abc import Callable

from sidecar.lab.admission import Admission
from sidecar.lab.blocks import BlockPool
from sidecar.lab.clock import Clock
from sidecar.lab.config import EngineConfig
from sidecar.lab.latency import PROFILES
from sidecar.lab.loading import Loader
from sidecar.lab.metrics import Metrics
from sidecar.lab.nixl import Nixl
from sidecar.lab.offload import Offloading
from sidecar.lab.series import engine_metrics
from sidecar.lab.weights import Weights


class Core:
    """Everything that requests of one engine share; `die` is called when one of them ends the process."""

    def __init__(self, config: EngineConfig, clock: Clock, die: Callable[[str], None]) -> None:
        self.config, self.clock, self.die = config, clock, die
        self.profile = PROFILES[config.profile]
        self.metrics: Metrics = engine_metrics(config)
        self.weights = Weights(f"{config.model}\0{config.model_seed}", config.kv_bytes_per_token)
        self.pool = BlockPool(config.num_gpu_blocks, config.block_bytes)
        self.admission = Admission(self.pool, config.max_num_seqs)
        self.offloading = Offloading(config, clock, self.metrics) if config.offloads else None
        self.nixl = Nixl(config, clock, self.metrics, self.pool) if config.has_nixl else None
        self.loader = Loader(config, clock, self.metrics, self.pool, self.offloading, self.nixl)

    def drop(self) -> None:
        """Ends every connection to other engines at once."""
        for connector in (self.offloading, self.nixl):
            if connector:
                connector.drop()

    async def close(self) -> None:
        """Drops, and waits until nothing of it runs."""
        for connector in (self.offloading, self.nixl):
            if connector:
                await connector.close()

    def forget(self, *, offloaded_too: bool) -> None:
        """Empties the GPU cache, and host memory with it if asked (vLLM's /reset_prefix_cache)."""
        self.pool.forget()
        if offloaded_too and self.offloading:
            self.offloading.forget()

    def metrics_text(self) -> str:
        """The text of /metrics, with the gauges that are computed when somebody looks."""
        self.metrics.put("vllm:kv_cache_usage_perc", self.pool.usage)
        if self.offloading:
            self.offloading.refresh_gauges()
        return self.metrics.text()
