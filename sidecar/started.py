"""Legs that run beside the exchange that sent them, and may outlive it.

Rule: acts. A prefiller that is still sending KV to its decoder is not cut because the decoder was quick; one
whose client has left is cut at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

from sidecar.errors import LegFailed, SidecarError
from sidecar.plan import Leg, Reply

logger = logging.getLogger("sidecar.exchange")

# How long such a leg may go on once its exchange has ended, in seconds: after that much the prefiller gives
# up on blocks that nobody fetched (vLLM 0.32, VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT).
LINGER_S = 480.0

_Outcome = Reply | SidecarError


class StartedLegs:
    """The group in which started legs run; enter it for as long as the sidecar serves.

    grace_s: how long legs may go on once it is left (`--shutdown-grace`).
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._group = asyncio.TaskGroup()
        self._running: set[asyncio.Task[_Outcome]] = set()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> StartedLegs:
        await self._stack.enter_async_context(self._group)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running:
            await asyncio.wait(self._running, timeout=self._grace_s)
        for task in self._running:
            task.cancel()
        await self._stack.aclose()

    def start(self, leg: Leg, sending: Coroutine[Any, Any, Reply]) -> StartedLeg:
        """Send a leg; `sending` is what does it."""
        started = StartedLeg(leg)
        started.task = self._group.create_task(started.run(sending))
        self._running.add(started.task)
        started.task.add_done_callback(self._running.discard)
        return started


class StartedLeg:
    """One leg on its way. failure: why it failed, None while it runs and when it did not."""

    __slots__ = ("_bound", "_deadline_s", "_let_go", "failure", "leg", "task")

    task: asyncio.Task[_Outcome]

    def __init__(self, leg: Leg) -> None:
        self.leg = leg
        self.failure: SidecarError | None = None
        self._bound: asyncio.Timeout | None = None
        self._deadline_s: float | None = None  # of the loop's clock
        self._let_go: Callable[[], None] | None = None

    async def run(self, sending: Coroutine[Any, Any, Reply]) -> _Outcome:
        """Send it; failures are outcomes here, since nobody may be there to catch them."""
        self._bound = asyncio.timeout_at(self._deadline_s)
        try:
            async with self._bound:
                return await sending
        except SidecarError as error:
            self.failure = error
        except TimeoutError:
            self.failure = LegFailed(self.leg, f"the {self.leg.role} engine did not answer in {LINGER_S:g} s")
        except Exception:
            logger.exception("a fault of the sidecar ended a started leg")
            self.failure = SidecarError()
        if self._let_go is not None:
            self._let_go()
            fields = {"role": str(self.leg.role), "target": self.leg.target.netloc}
            logger.warning("a leg failed after its answer had ended", extra={"fields": fields})
        return self.failure

    def let_go(self, failed: Callable[[], None]) -> None:
        """The exchange has ended and the leg goes on for a while; `failed` is called if it still fails."""
        if not self.task.done():
            self._let_go = failed
            self._deadline_s = asyncio.get_running_loop().time() + LINGER_S
            if self._bound is not None:
                self._bound.reschedule(self._deadline_s)


class Beside:
    """Runs a block beside started legs: the first of them that fails ends the block with its failure.

    Works as asyncio.timeout does: the block's task is cancelled, and the cancellation becomes the failure.
    """

    __slots__ = ("_cancelling", "_failure", "_legs", "_task")

    def __init__(self, legs: list[StartedLeg]) -> None:
        self._legs = legs
        self._failure: SidecarError | None = None
        self._cancelling = 0

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        for leg in self._legs:
            if leg.failure is not None:
                raise leg.failure
            leg.task.add_done_callback(self._ended)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for leg in self._legs:
            leg.task.remove_done_callback(self._ended)
        if self._failure is None:
            return
        if self._task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError):
            raise self._failure from None

    def _ended(self, task: asyncio.Task[_Outcome]) -> None:
        if not task.cancelled() and isinstance(outcome := task.result(), SidecarError) and not self._failure:
            self._failure = outcome
            self._task.cancel()


async def all_answered(legs: list[StartedLeg]) -> None:
    """Wait until every leg has its answer; inside `Beside`, so that a failure does not wait."""
    if pending := [leg.task for leg in legs if not leg.task.done()]:
        await asyncio.wait(pending)
