"""The serving side of an engine's P2P tier: a listener from which peers look up and read chunks of KV.

Rule: serves the CPU tier only; a peer must agree on everything that makes KV and hashes comparable, or is
refused.

Per connection: one `hello` with the peer's fingerprint, then any number of `lookup` (hashes; answers how many
leading ones are here, and pins them), `read` (the bytes of the pinned ones) and `fetch` (the same for a
request handed over under an id, waiting for it).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from sidecar.lab.blocks import HostTier
from sidecar.lab.clock import Clock
from sidecar.lab.config import EngineConfig
from sidecar.lab.metrics import Metrics
from sidecar.lab.sequence import HASH_BYTES
from sidecar.lab.series import P2P_TIER, PRIMARY_TIER
from sidecar.lab.wire import Head, Listener, WireError, frame, read_frame

logger = logging.getLogger(__name__)

PROTOCOL_VERSION = 1

UNFETCHED_PIN_S = 60.0
"""Blocks are kept so long for a decoder that never asks (p2p/manager.py, _UNBOUND_STORE_TIMEOUT_S)."""

FETCH_WAIT_S = 30.0
"""A fetch waits so long for an id that was not prefilled yet (p2p/session/client.py, _LOAD_TIMEOUT_S)."""

EXPIRED_IDS_KEPT = 1024
"""Ids whose blocks were given up are refused at once; so many of the last ones are remembered."""


def fingerprint(config: EngineConfig) -> Head:
    """What two peers must agree on (vLLM: block length, hash seed, hash of the model configuration)."""
    return {
        "protocol": PROTOCOL_VERSION,
        "model": config.model,
        "dtype": config.dtype,
        "tensor_parallel_size": config.tensor_parallel_size,
        "chunk_tokens": config.chunk_tokens,
        "block_tokens": config.block_size,
        "kv_bytes_per_token": config.kv_bytes_per_token,
        "hash_seed": config.hash_seed,
    }


class Handovers:
    """Chunks that a prefiller keeps for one decoder, by request id."""

    def __init__(self, tier: HostTier, clock: Clock) -> None:
        self._tier, self._clock = tier, clock
        self._held: dict[str, tuple[list[bytes], asyncio.TimerHandle]] = {}
        self._arrivals: dict[str, asyncio.Event] = {}
        self._expired: deque[str] = deque(maxlen=EXPIRED_IDS_KEPT)
        self._dropped = False

    def hold(self, kv_request_id: str, hashes: Sequence[bytes]) -> None:
        """Pins the chunks of a prefilled prompt until they are claimed or the time is over."""
        self._release(kv_request_id)
        timer = self._clock.call_later(UNFETCHED_PIN_S, lambda: self._expire(kv_request_id))
        self._held[kv_request_id] = (self._tier.pin(hashes), timer)
        if arrival := self._arrivals.pop(kv_request_id, None):
            arrival.set()

    async def claim(self, kv_request_id: str) -> bool:
        """Waits for an id and ends its pins; False when it expired or does not come in time."""
        try:
            async with self._clock.timeout(FETCH_WAIT_S):
                while kv_request_id not in self._held:
                    if self._dropped or kv_request_id in self._expired:
                        return False
                    await self._arrivals.setdefault(kv_request_id, asyncio.Event()).wait()
        except TimeoutError:
            self._arrivals.pop(kv_request_id, None)
            return False
        self._release(kv_request_id)
        return True

    def drop(self) -> None:
        """Ends every pin, timer and wait."""
        self._dropped = True
        for kv_request_id in list(self._held):
            self._release(kv_request_id)
        for arrival in self._arrivals.values():
            arrival.set()

    def _expire(self, kv_request_id: str) -> None:
        logger.warning(
            "P2P: %s was not fetched within %.0f s, its blocks are freed", kv_request_id, UNFETCHED_PIN_S
        )
        self._expired.append(kv_request_id)
        self._release(kv_request_id)

    def _release(self, kv_request_id: str) -> None:
        if held := self._held.pop(kv_request_id, None):
            hashes, timer = held
            timer.cancel()
            self._tier.unpin(hashes)


class P2PServer:
    """The P2P listener of one engine."""

    def __init__(self, config: EngineConfig, tier: HostTier, clock: Clock, metrics: Metrics) -> None:
        self._fingerprint = fingerprint(config)
        self._tier, self._metrics = tier, metrics
        self.handovers = Handovers(tier, clock)
        self.listener = Listener(self._converse)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello, _ = await read_frame(reader)
        differing = [name for name, value in self._fingerprint.items() if hello.get(name) != value]
        if differing:
            logger.warning("P2P: peer refused, it differs in %s", ", ".join(differing))
            writer.write(frame({"refused": differing}))
            return await writer.drain()
        writer.write(frame({"welcome": True}))
        pinned: list[bytes] = []
        try:
            while True:
                head, tail = await read_frame(reader)
                writer.write(await self._answer(head, _split_hashes(tail), pinned))
                await writer.drain()
        finally:
            self._tier.unpin(pinned)

    async def _answer(self, head: Head, hashes: Sequence[bytes], pinned: list[bytes]) -> bytes:
        """Answers one message; `pinned` is what this connection's last lookup protects."""
        match head.get("op"):
            case "lookup":
                self._unpin(pinned)
                pinned += self._tier.pin(hashes)
                self._count_lookup(len(pinned), len(hashes))
                return frame({"hits": len(pinned)})
            case "read":
                kv = self._bytes_of(hashes)
                self._unpin(pinned)
                # As vLLM 0.32 counts it, together with what the engine stores itself (seen).
                self._metrics.add("vllm:kv_offload_tiering_write_bytes_total", len(kv), tier=P2P_TIER)
                return frame({}, kv)
            case "fetch":
                claimed = await self.handovers.claim(str(head.get("kv_request_id")))
                return frame({"claimed": claimed}, self._bytes_of(hashes) if claimed else b"")
            case other:
                raise WireError(f"unknown operation {other!r}")

    def _unpin(self, pinned: list[bytes]) -> None:
        self._tier.unpin(pinned)
        pinned.clear()

    def _bytes_of(self, hashes: Sequence[bytes]) -> bytes:
        kv = bytearray()
        for chunk_hash in hashes:
            chunk = self._tier.get(chunk_hash)
            if chunk is None:
                break
            kv += chunk
        self._metrics.add("lab:p2p_served_bytes_total", len(kv))
        return bytes(kv)

    def _count_lookup(self, hits: int, asked: int) -> None:
        """A peer's lookups count as the primary tier's, up to the first miss (seen in vLLM's counters)."""
        queries = hits + (1 if hits < asked else 0)
        self._metrics.add("vllm:kv_offload_tiering_chunk_queries_total", queries, tier=PRIMARY_TIER)
        if hits:
            self._metrics.add("vllm:kv_offload_tiering_chunk_hits_total", hits, tier=PRIMARY_TIER)


def _split_hashes(joined: bytes) -> list[bytes]:
    return [joined[i : i + HASH_BYTES] for i in range(0, len(joined), HASH_BYTES)]
