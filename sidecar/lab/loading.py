"""Where the KV of a prompt comes from before anything is computed: the GPU cache, host memory, a peer, a
prefiller.

Rule: returns what was found and counts it, where vLLM counts it (hits of a NIXL read before it can fail).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.lab.blocks import BlockPool
from sidecar.lab.clock import Clock
from sidecar.lab.config import EngineConfig
from sidecar.lab.faults import KvLoadFailed
from sidecar.lab.jobs import Job
from sidecar.lab.kvparams import RemoteBlocks
from sidecar.lab.latency import PROFILES
from sidecar.lab.metrics import Metrics
from sidecar.lab.nixl import Nixl, ReadFailed
from sidecar.lab.offload import Offloading
from sidecar.lab.stages import FetchStage

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class External:
    """KV for tokens from `start` on that did not come from the GPU cache, in tokens by origin."""

    start: int = 0
    kv: bytes = b""
    from_host: int = 0
    from_peer: int = 0

    @property
    def tokens(self) -> int:
        """Tokens that `kv` is for."""
        return self.from_host + self.from_peer


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One request's need: its hashes, and how many tokens of it the GPU cache has."""

    job: Job
    hashes: Sequence[bytes]
    device_tokens: int
    stage: FetchStage

    @property
    def prompt_tokens(self) -> int:
        return len(self.job.prompt)


@dataclass(frozen=True, slots=True)
class Loader:
    """The connectors of one engine, asked in MultiConnector's order: NIXL first."""

    config: EngineConfig
    clock: Clock
    metrics: Metrics
    pool: BlockPool
    offloading: Offloading | None
    nixl: Nixl | None

    async def load(self, job: Job, hashes: Sequence[bytes], stage: FetchStage) -> External:
        """KV beyond what the GPU cache has; raises KvLoadFailed. `hashes` are of the prompt's full blocks."""
        cacheable = hashes[: (len(job.prompt) - 1) // self.config.block_size]
        wanted = _Wanted(job, hashes, self.pool.match(cacheable) * self.config.block_size, stage)
        if self.nixl and job.kv.remote:
            if self.offloading and job.kv.source:
                # Both connectors are asked and both transfer; NIXL's claim wins (seen: the transfer doubles).
                await self._offloaded(self.offloading, wanted)
            return await self._handed_over(self.nixl, job.kv.remote, wanted)
        external = await self._offloaded(self.offloading, wanted) if self.offloading else External()
        self._count(wanted, external)
        return external

    async def _offloaded(self, offloading: Offloading, wanted: _Wanted) -> External:
        chunk_tokens = self.config.chunk_tokens
        blocks_per_chunk = chunk_tokens // self.config.block_size
        first = wanted.device_tokens // chunk_tokens
        end = (wanted.prompt_tokens - 1) // chunk_tokens  # at least the last token is always computed
        hashes = wanted.hashes[blocks_per_chunk - 1 :: blocks_per_chunk][first:end]
        chunks = await offloading.find(hashes, wanted.job.kv, wanted.stage)
        if not chunks.kv:
            return External()
        overlap = wanted.device_tokens - first * chunk_tokens  # what the GPU has of the first chunk
        from_host = max(0, chunks.from_host * chunk_tokens - overlap)
        return External(
            start=wanted.device_tokens,
            kv=b"".join(chunks.kv)[overlap * self.config.kv_bytes_per_token :],
            from_host=from_host,
            from_peer=len(chunks.kv) * chunk_tokens - overlap - from_host,
        )

    async def _handed_over(self, nixl: Nixl, remote: RemoteBlocks, wanted: _Wanted) -> External:
        start = wanted.device_tokens
        tokens = wanted.prompt_tokens - start
        self._count(wanted, External(start=start, from_peer=tokens))
        wanted.stage.move("in_progress")
        try:
            kv = await nixl.read(remote, start // self.config.block_size, tokens)
        except ReadFailed as error:
            logger.warning("NIXL: read failed: %s", error)
            if self.config.kv_load_failure_policy == "fail":
                raise KvLoadFailed from error
            return External()
        await self.clock.sleep(PROFILES[self.config.profile].transfer_stage_ms(tokens) / 1000)
        return External(start=start, kv=kv, from_peer=tokens)

    def _count(self, wanted: _Wanted, external: External) -> None:
        add, device_tokens = self.metrics.add, wanted.device_tokens
        add("vllm:prefix_cache_queries_total", wanted.prompt_tokens)
        add("vllm:prefix_cache_hits_total", device_tokens)
        if self.offloading or self.nixl:
            add("vllm:external_prefix_cache_queries_total", wanted.prompt_tokens - device_tokens)
            add("vllm:external_prefix_cache_hits_total", external.tokens)
        by_source = {"device": device_tokens, "host": external.from_host, "p2p": external.from_peer}
        for source, tokens in by_source.items():
            add("vllm:prompt_tokens_cached_by_source_total", tokens, source=source)
