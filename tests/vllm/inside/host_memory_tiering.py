"""Lets vLLM's OffloadingConnector run where the KV cache of the device is host memory already: on CPU.

Rule: runs inside an engine, which loads it by its own `spec_module_path`. vLLM 0.32 refuses CPU offloading on
a CPU (v1/kv_offload/cpu/spec.py: its worker copies with device streams). Here a worker copies with the
processor, between the cache and the same shared region that vLLM would use; the scheduler's side, the tiers
and the P2P protocol are vLLM's own. Idle loops rest, since several engines share two cores; a busy one runs
as it would.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch  # type: ignore[import-not-found]
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult  # type: ignore[import-not-found]
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion  # type: ignore[import-not-found]
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec  # type: ignore[import-not-found]

IDLE_TICK_S = 0.02
"""An engine with a P2P tier steps for ever, to hear its peers; without requests 50 times a second."""


class CopyingWorker(OffloadingWorker):  # type: ignore[misc]
    """Copies pages between the cache and the region, at once; a transfer is finished when it is submitted."""

    def __init__(self, caches: Any, blocks_per_chunk: int, region: SharedOffloadRegion) -> None:
        self._pages_of_group = caches.group_data_refs
        self._blocks_per_chunk = blocks_per_chunk
        self._region = region
        self._finished: list[TransferResult] = []
        self._cache: list[Any] = []
        self._store: list[Any] = []
        for tensor in caches.tensors:
            pages = tensor.tensor.view(torch.int8).view((-1, tensor.page_size_bytes))
            self._cache.append(pages)
            chunks = region.create_next_worker_view(tensor.page_size_bytes * blocks_per_chunk)
            self._store.append(chunks.unflatten(1, (blocks_per_chunk, tensor.page_size_bytes)))

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """From the cache into the region."""
        pairs = self._pairs(src_spec, dst_spec)
        return self._copy(job_id, ((cached, stored) for cached, stored in pairs))

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """From the region into the cache."""
        pairs = self._pairs(dst_spec, src_spec)
        return self._copy(job_id, ((stored, cached) for cached, stored in pairs))

    def _copy(self, job_id: int, pages: Iterator[tuple[Any, Any]]) -> bool:
        began_s = time.perf_counter()
        copied_bytes = 0
        for source, target in pages:
            target.copy_(source)
            copied_bytes += target.numel()
        took_s = time.perf_counter() - began_s
        self._finished.append(TransferResult(job_id, True, copied_bytes, took_s))
        return True

    def _pairs(self, cache_spec: Any, store_spec: Any) -> Iterator[tuple[Any, Any]]:
        """(page of the cache, page of the region), for every block of every group.

        The cache's ids are one per block, the region's one per chunk of blocks; a group may begin in the
        middle of its first chunk (GPULoadStoreSpec.block_indices).
        """
        blocks, chunks = iter(cache_spec.block_ids.tolist()), iter(store_spec.block_ids.tolist())
        groups = zip(cache_spec.group_sizes, cache_spec.block_indices, self._pages_of_group, strict=True)
        for size, first_index, references in groups:
            place = first_index % self._blocks_per_chunk
            chunk = -1
            for number in range(size):
                within = (place + number) % self._blocks_per_chunk
                if number == 0 or within == 0:
                    chunk = next(chunks)
                block = next(blocks)
                for page in references:
                    used = slice(page.page_size_bytes)
                    yield (
                        self._cache[page.tensor_idx][block, used],
                        self._store[page.tensor_idx][chunk, within, used],
                    )

    def get_finished(self) -> list[TransferResult]:
        """What was submitted since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is ever under way."""

    def shutdown(self) -> None:
        """Give the region back; views of it have to go first."""
        self._cache.clear()
        self._store.clear()
        self._region.cleanup()


class HostMemoryTieringSpec(TieringOffloadingSpec):  # type: ignore[misc]
    """vLLM's tiering spec with a worker that needs no device."""

    def create_worker(self, kv_caches: Any) -> CopyingWorker:
        """See CPUOffloadingSpec.create_worker; one worker, no canonical layout."""
        region = SharedOffloadRegion(
            engine_id=self._engine_id,
            num_chunks=self.num_chunks,
            rank=self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        return CopyingWorker(kv_caches, self.blocks_per_chunk, region)

    def get_worker(self, kv_caches: Any) -> CopyingWorker:
        """The worker, made once; vLLM's own asks here whether the platform has a device."""
        worker: CopyingWorker = self._worker or self.create_worker(kv_caches)  # type: ignore[has-type]
        self._worker = worker
        return worker

    def get_manager(self) -> Any:
        """vLLM's manager, resting between steps while no request is there."""
        fresh = not self._manager
        manager = super().get_manager()
        if fresh:
            end_of_step = manager.on_schedule_end

            def resting(context: Any) -> None:
                end_of_step(context)
                if not manager._req_state and not manager._transfer_jobs:
                    time.sleep(IDLE_TICK_S)

            manager.on_schedule_end = resting
        return manager
