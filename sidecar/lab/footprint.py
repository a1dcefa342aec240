"""What one running request holds: its tokens with their KV, and the GPU blocks that these fill.

Rule: blocks are set aside when the request enters and come one by one as it grows; full ones become findable
by others at once, full chunks are offloaded at once.
"""

from __future__ import annotations

import asyncio

from sidecar.lab.admission import Admission
from sidecar.lab.blocks import Block, BlockPool
from sidecar.lab.config import EngineConfig
from sidecar.lab.jobs import Job
from sidecar.lab.loading import External
from sidecar.lab.offload import Offloading
from sidecar.lab.sequence import Sequence, block_hashes, root_hash
from sidecar.lab.weights import Weights

COMPUTE_SLICE_TOKENS = 2048
"""Tokens computed in one go; between slices other requests get the event loop (about 2 ms)."""


class Footprint:
    """One request's KV; `hashes` are those of its full blocks, the prompt's from the start."""

    def __init__(self, config: EngineConfig, weights: Weights, job: Job) -> None:
        self._config, self._prompt = config, job.prompt
        self._root = root_hash(config.hash_seed, job.salt)
        self.hashes = block_hashes(self._root, job.prompt, config.block_size)
        self.sequence = Sequence(weights)
        self._blocks: list[Block] = []
        self._reserved = 0
        self._committed = 0
        self._stored_chunks = 0

    async def enter(self, admission: Admission, most_tokens: int) -> None:
        """Waits for a seat and for room for the prompt and an answer of `most_tokens`."""
        needed = -(-(len(self._prompt) + most_tokens) // self._config.block_size)
        await admission.enter(needed)
        self._reserved = needed

    def leave(self, admission: Admission, pool: BlockPool) -> None:
        """Gives back everything; cached blocks stay findable until they are evicted."""
        pool.release(self._blocks)
        admission.leave(self._reserved)

    async def fill(self, pool: BlockPool, external: External) -> tuple[int, int]:
        """Holds KV for the whole prompt: what the GPU cache has now, then what was loaded, the rest computed.

        Returns tokens from the GPU cache, and tokens computed.
        """
        cacheable_blocks = (len(self._prompt) - 1) // self._config.block_size
        self._blocks = pool.acquire(self.hashes[:cacheable_blocks])
        self._committed = len(self._blocks)
        self._reserved -= self._committed
        pool.unreserve(self._committed)
        device_tokens = self._committed * self._config.block_size
        self.sequence.load(self._prompt[:device_tokens], b"".join(block.kv for block in self._blocks))
        computed = 0
        loaded_to = external.start + external.tokens
        if external.kv and loaded_to > device_tokens:
            computed = await self._compute(
                external.start
            )  # blocks that were evicted while the request waited
            held = len(self.sequence.tokens)
            kv = external.kv[(held - external.start) * self._config.kv_bytes_per_token :]
            self.sequence.load(self._prompt[held:loaded_to], kv)
        return device_tokens, computed + await self._compute(len(self._prompt))

    def grow(self, pool: BlockPool, offloading: Offloading | None) -> None:
        """Takes blocks for every token held, publishes and offloads the full ones."""
        size, held = self._config.block_size, len(self.sequence.tokens)
        while len(self._blocks) * size < held:
            self._blocks.append(pool.take())
            self._reserved -= 1
        for i in range(self._committed, held // size):
            if i == len(self.hashes):
                parent = self.hashes[-1] if self.hashes else self._root
                self.hashes += block_hashes(parent, self.sequence.tokens[i * size : (i + 1) * size], size)
            self._blocks[i].kv = self.sequence.kv_of(i * size, (i + 1) * size)
            pool.commit(self._blocks[i], self.hashes[i])
        self._committed = held // size
        if offloading:
            kept = min(held, len(self._prompt)) if self._config.offload_prompt_only else held
            self._offload(offloading, kept // self._config.chunk_tokens)

    def chunk_hashes(self) -> list[bytes]:
        """Hashes of the full chunks, as other engines ask for them."""
        blocks_per_chunk = self._config.chunk_tokens // self._config.block_size
        return self.hashes[blocks_per_chunk - 1 :: blocks_per_chunk]

    def whole_blocks(self) -> list[Block]:
        """All blocks, the bytes of the last one written even if it is not full."""
        if len(self._blocks) > self._committed:
            start = self._committed * self._config.block_size
            self._blocks[-1].kv = self.sequence.kv_of(start, len(self.sequence.tokens))
        return self._blocks

    async def _compute(self, end: int) -> int:
        start = len(self.sequence.tokens)
        for at in range(start, end, COMPUTE_SLICE_TOKENS):
            self.sequence.compute(self._prompt[at : min(end, at + COMPUTE_SLICE_TOKENS)])
            await asyncio.sleep(0)
        return max(0, end - start)

    def _offload(self, offloading: Offloading, full_chunks: int) -> None:
        size = self._config.chunk_tokens
        hashes = self.chunk_hashes()
        for i in range(self._stored_chunks, full_chunks):
            offloading.store(hashes[i], self.sequence.kv_of(i * size, (i + 1) * size))
        self._stored_chunks = full_chunks
