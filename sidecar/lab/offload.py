"""vLLM's offloading connector with a P2P tier: GPU blocks are kept in host memory, and come back from there
or a peer.

Rule: tiers are asked in order, primary (host) then peer, each up to its first miss; what a peer gave is kept
in the primary tier, from which it is loaded, and from which other peers may pull it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.lab.blocks import HostTier
from sidecar.lab.clock import Clock
from sidecar.lab.config import EngineConfig
from sidecar.lab.kvparams import Directive
from sidecar.lab.metrics import Metrics
from sidecar.lab.p2p import P2PServer
from sidecar.lab.peers import Peers
from sidecar.lab.series import P2P_TIER, PRIMARY_TIER
from sidecar.lab.stages import FetchStage


@dataclass(frozen=True, slots=True)
class Chunks:
    """Leading chunks found: the first `from_host` of them in host memory, the rest pulled from a peer."""

    kv: tuple[bytes, ...] = ()
    from_host: int = 0


class Offloading:
    """The CPU tier and the P2P plane of one engine."""

    def __init__(self, config: EngineConfig, clock: Clock, metrics: Metrics) -> None:
        self._config, self._metrics = config, metrics
        self._tier = HostTier(config.cpu_blocks * config.block_size // config.chunk_tokens)
        self._server = P2PServer(config, self._tier, clock, metrics)
        self.peers = Peers(config, clock, metrics)

    async def open(self, host: str, port: int) -> int:
        """Starts the P2P listener; returns its port."""
        return await self._server.listener.open(host, port)

    def drop(self) -> None:
        """Ends every connection and timer, as the end of a process does."""
        self._server.listener.drop()
        self._server.handovers.drop()
        self.peers.drop()

    async def close(self) -> None:
        """Drops, and waits until nothing of it runs."""
        self.drop()
        await self._server.listener.close()

    async def find(self, hashes: Sequence[bytes], directive: Directive, stage: FetchStage) -> Chunks:
        """Leading chunks of these hashes from host memory, then from the peer that the directive names."""
        if not hashes:
            return Chunks()
        found = self._find_in_host(hashes)
        missing = hashes[len(found) :]
        pulled = await self._find_at_peer(missing, directive, stage) if missing else []
        self._count_lookup(len(found), len(pulled), len(hashes))
        for chunk_hash, kv in zip(missing, pulled, strict=False):
            self._tier.put(chunk_hash, kv)
        if pulled:
            self._metrics.add("vllm:kv_offload_tiering_read_bytes_total", _size(pulled), tier=P2P_TIER)
        if found or pulled:
            loaded_bytes = _size(found) + _size(pulled)
            self._metrics.add("vllm:kv_offload_load_bytes_total", loaded_bytes)
            self._metrics.add("vllm:kv_offload_total_bytes_total", loaded_bytes, transfer_type="CPU_to_GPU")
        return Chunks((*found, *pulled), len(found))

    def store(self, chunk_hash: bytes, kv: bytes) -> None:
        """Offloads a full chunk that was just computed; one that is there already costs nothing."""
        if chunk_hash in self._tier:
            self._tier.get(chunk_hash)
        elif self._tier.put(chunk_hash, kv):
            self._metrics.add("vllm:kv_offload_store_bytes_total", len(kv))
            self._metrics.add("vllm:kv_offload_total_bytes_total", len(kv), transfer_type="GPU_to_CPU")
            # Every store cascades to the secondary tier; for P2P that moves nothing but counts (seen).
            self._metrics.add("vllm:kv_offload_tiering_write_bytes_total", len(kv), tier=P2P_TIER)

    def hold(self, kv_request_id: str, hashes: Sequence[bytes]) -> None:
        """Keeps a prefilled prompt for the decoder that will ask under this id."""
        self._server.handovers.hold(kv_request_id, hashes)

    def forget(self) -> None:
        """Empties host memory, but for pinned chunks."""
        self._tier.forget()

    def refresh_gauges(self) -> None:
        """Sets the gauges that are computed when somebody looks."""
        self._metrics.put("vllm:kv_offload_cpu_cache_usage_perc", self._tier.pinned_fraction)

    def _find_in_host(self, hashes: Sequence[bytes]) -> list[bytes]:
        found: list[bytes] = []
        for chunk_hash in hashes:
            kv = self._tier.get(chunk_hash)
            if kv is None:
                break
            found.append(kv)
        return found

    def _count_lookup(self, found: int, pulled: int, asked: int) -> None:
        """Each chunk is looked up in host memory first, also those that a peer then has."""
        queries = found + pulled + (1 if found + pulled < asked else 0)
        self._metrics.add("vllm:kv_offload_tiering_chunk_queries_total", queries, tier=PRIMARY_TIER)
        if found:
            self._metrics.add("vllm:kv_offload_tiering_chunk_hits_total", found, tier=PRIMARY_TIER)

    async def _find_at_peer(
        self, hashes: Sequence[bytes], directive: Directive, stage: FetchStage
    ) -> list[bytes]:
        if directive.prefiller:
            return await self.peers.fetch(directive.prefiller, hashes, stage)
        if directive.source:
            return await self.peers.pull(directive.source, hashes, stage)
        self._metrics.add("vllm:kv_offload_tiering_chunk_queries_total", 1, tier=P2P_TIER)
        return []


def _size(chunks: Sequence[bytes]) -> int:
    return sum(map(len, chunks))
