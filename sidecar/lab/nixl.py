"""vLLM's NIXL connector: a prefiller keeps GPU blocks under a lease, a decoder reads them by id and frees
them.

Rule: reads are by block id and check nothing, as RDMA does: ids used again return what is in the blocks by
then.

The side channel answers `read` (engine id, block ids; the bytes of whole blocks) and `done` (request id; ends
the lease).
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence

from sidecar.lab.blocks import Block, BlockPool
from sidecar.lab.clock import Clock
from sidecar.lab.config import EngineConfig
from sidecar.lab.kvparams import RemoteBlocks
from sidecar.lab.metrics import Metrics
from sidecar.lab.wire import Head, Listener, Session, WireError, frame, read_frame

LEASE_S = 30.0
"""P keeps unread blocks for so long (vLLM 0.32; its decoders renew it by heartbeats while they queue)."""

PORT_REFUSES_S = 0.4
"""Time until a decode notices that its prefiller was killed: nothing listens there (seen on vLLM 0.32)."""

NO_READ_S = {"fail": 6.0, "recompute": 5.0}
"""The same by load failure policy when the port is open and no read succeeds (seen: 5 to 7 s, 5 s)."""


class ReadFailed(Exception):
    """No KV came from the prefiller."""


class Nixl:
    """The NIXL side of one engine: `pool` is what its side channel exposes."""

    def __init__(self, config: EngineConfig, clock: Clock, metrics: Metrics, pool: BlockPool) -> None:
        self._config, self._clock, self._metrics, self._pool = config, clock, metrics, pool
        self.engine_id = str(uuid.uuid4())
        self.port = 0
        self._listener = Listener(self._converse)
        self._leases: dict[str, tuple[list[Block], asyncio.TimerHandle]] = {}

    async def open(self, host: str, port: int) -> int:
        """Starts the side channel; returns its port."""
        self.port = await self._listener.open(host, port)
        return self.port

    def drop(self) -> None:
        """Ends every connection and lease, as the end of a process does."""
        self._listener.drop()
        for request_id in list(self._leases):
            self._end_lease(request_id)

    async def close(self) -> None:
        """Drops, and waits until nothing of it runs."""
        self.drop()
        await self._listener.close()

    def hand_over(self, request_id: str, blocks: Sequence[Block], tokens: int) -> dict[str, object]:
        """Keeps a request's blocks for a decoder; returns the engine's part of `kv_transfer_params`."""
        for block in blocks:
            self._pool.share(block)
        timer = self._clock.call_later(LEASE_S, lambda: self._expire(request_id))
        self._leases[request_id] = (list(blocks), timer)
        return {
            "remote_block_ids": [[block.id for block in blocks]],
            "remote_engine_id": self.engine_id,
            "remote_request_id": request_id,
            "remote_host": self._config.peer_host,
            "remote_port": self.port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
        }

    @property
    def lease_end_s(self) -> float:
        """When a lease that starts now ends, on the clock that vLLM's answers speak of (monotonic)."""
        return self._clock.now_s + LEASE_S

    async def read(self, remote: RemoteBlocks, skip_blocks: int, tokens: int) -> bytes:
        """KV of `tokens` tokens after the first `skip_blocks` blocks, which frees all of them at the
        prefiller.

        Ids beyond those that were given read as zeros (wrong KV, no error). Raises ReadFailed, after the time
        in which vLLM notices, when the prefiller is gone, is another engine by now, or has no such blocks.
        """
        wanted = remote.block_ids[skip_blocks : skip_blocks + -(-tokens // self._config.block_size)]
        started_s, notice_s = self._clock.now_s, NO_READ_S[self._config.kv_load_failure_policy]
        try:
            async with self._clock.timeout(notice_s):
                kv = await self._transfer(remote, wanted)
        except OSError as error:
            self._metrics.add("vllm:nixl_num_failed_transfers_total")
            if isinstance(error, ConnectionRefusedError):
                notice_s = PORT_REFUSES_S
            await self._clock.sleep(notice_s - (self._clock.now_s - started_s))
            raise ReadFailed(f"{remote.host}:{remote.port}: {error}") from error
        self._metrics.observe("vllm:nixl_bytes_transferred", len(kv))
        needed_bytes = tokens * self._config.kv_bytes_per_token
        return kv[:needed_bytes].ljust(needed_bytes, b"\0")

    async def _transfer(self, remote: RemoteBlocks, block_ids: Sequence[int]) -> bytes:
        session = await Session.connect(remote.host, remote.port)
        try:
            ask: Head = {"op": "read", "engine_id": remote.engine_id}
            answer, kv = await session.ask(ask, json.dumps(block_ids).encode())
            if not answer.get("found"):
                raise WireError("another engine, or no such blocks")
            await session.ask({"op": "done", "request_id": remote.request_id})
        finally:
            session.drop()
        return kv

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, tail = await read_frame(reader)
            writer.write(self._answer(head, tail))
            await writer.drain()

    def _answer(self, head: Head, tail: bytes) -> bytes:
        match head.get("op"):
            case "read" if head.get("engine_id") == self.engine_id:
                try:
                    return frame({"found": True}, self._pool.read(json.loads(tail)))
                except (IndexError, TypeError, ValueError):
                    return frame({"found": False})
            case "read":
                return frame({"found": False})
            case "done":
                self._end_lease(str(head.get("request_id")))
                return frame({})
            case other:
                raise WireError(f"unknown operation {other!r}")

    def _expire(self, request_id: str) -> None:
        self._metrics.add("vllm:nixl_num_kv_expired_reqs_total")
        self._end_lease(request_id)

    def _end_lease(self, request_id: str) -> None:
        if lease := self._leases.pop(request_id, None):
            blocks, timer = lease
            timer.cancel()
            self._pool.release(blocks)
