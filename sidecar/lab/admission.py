"""Who may run: at most `max_num_seqs` requests, each with all the GPU blocks it can come to need set aside.

Rule: first come, first served; a request that waits holds nothing, so none can wait for another for ever.
(vLLM lets requests grow and preempts; setting the worst case aside is simpler and shows the same queue.)
"""

from __future__ import annotations

import asyncio
from collections import deque

from sidecar.lab.blocks import BlockPool


class Admission:
    """The queue in front of the block pool."""

    def __init__(self, pool: BlockPool, max_num_seqs: int) -> None:
        self._pool, self._free_seats = pool, max_num_seqs
        pool.freed = self.wake
        self._queue: deque[tuple[asyncio.Future[None], int]] = deque()

    async def enter(self, blocks: int) -> None:
        """Returns when the request may run, `blocks` reserved in the pool; cancelling leaves the queue."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((turn, blocks))
        self.wake()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self.wake()
            else:
                self.leave(blocks)
            raise

    def leave(self, unused_blocks: int) -> None:
        """Ends a request's run; what it reserved and did not take goes back."""
        self._free_seats += 1
        self._pool.unreserve(unused_blocks)
        self.wake()

    def wake(self) -> None:
        """Lets in whoever now fits."""
        while self._queue:
            turn, blocks = self._queue[0]
            if not turn.cancelled():
                if not self._free_seats or not self._pool.reserve(blocks):
                    return
                self._free_seats -= 1
                turn.set_result(None)
            self._queue.popleft()
