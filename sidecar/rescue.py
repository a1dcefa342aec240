"""Rescues requests whose pull hangs, and gives an engine's P2P plane time where that has happened.

Rule: acts. Seen on vLLM 0.32: after one contact with a dead peer every pull of an engine hangs until the
client gives up, while requests without a pull go on. So a leg that carries a pull and has no byte of an
answer after a while is cancelled and sent again without the directive; the engine's pulls are then suspended,
and tried again one at a time, after pauses that grow.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from time import monotonic
from types import TracebackType

from sidecar import engine_counters
from sidecar.body import BadBody, Body
from sidecar.counters import Counters, Event
from sidecar.endpoint import Endpoint
from sidecar.kvparams import without_source
from sidecar.observers import LegRecord
from sidecar.pauses import Pauses
from sidecar.plan import Leg, Role

logger = logging.getLogger("sidecar.pulls")

Scrape = Callable[[Role, Endpoint], Awaitable[bytes]]

# The first pause after a rescue, and the longest, in seconds: healthy peers drop a wedged engine after 10 s
# (seen on vLLM 0.32), and a restart takes minutes.
FIRST_PAUSE_S = 30.0
LONGEST_PAUSE_S = 600.0


class Stalled(Exception):
    """A leg that pulls had no byte of an answer in time, and was cancelled."""


class Rescuer:
    """`--pull-rescue-after`; enter it for as long as the sidecar serves.

    after_s: how long a leg that pulls may be without a byte of its answer. scrape: gets an engine's /metrics.
    pauses: the engines whose pulls are suspended.
    """

    def __init__(self, after_s: float, scrape: Scrape, counters: Counters) -> None:
        self.after_s = after_s
        self.pauses = Pauses(after_s, first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)
        self._scrape = scrape
        self._counters = counters
        self._group = asyncio.TaskGroup()
        self._stack = AsyncExitStack()
        self._considering: set[asyncio.Task[None]] = set()
        # All wait equally long: the first is due first, and one timer is enough.
        self._waiting: dict[Watched, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Rescuer:
        await self._stack.enter_async_context(self._group)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._considering:
            task.cancel()
        await self._stack.aclose()

    def watch(self, record: LegRecord, task: asyncio.Task[None] | None) -> Watched:
        """Watch one leg that pulls, sent by this task, as a context manager. Its exit raises Stalled."""
        return Watched(self, record, task)

    def await_byte(self, watched: Watched) -> None:
        """Look at it in `after_s`; `watched.due_s` says when that is."""
        self._waiting[watched] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.after_s, self._look)

    def leave(self, watched: Watched) -> None:
        """It needs no more looking at."""
        self._waiting.pop(watched, None)

    def _look(self) -> None:
        """Consider those whose time is over."""
        self._timer, now_s = None, monotonic()
        while self._waiting:
            first = next(iter(self._waiting))
            if first.due_s > now_s:
                left_s = first.due_s - now_s
                self._timer = asyncio.get_running_loop().call_later(left_s, self._look)
                return
            del self._waiting[first]
            if _refused_since(first.record, now_s - self.after_s):
                first.again()  # the attempt that waits now has not waited that long
            elif first.record.first_byte_s is None:
                self._consider(first)

    def _consider(self, watched: Watched) -> None:
        """Its time is over: look at the engine, then decide."""
        task = self._group.create_task(self._judge(watched))
        self._considering.add(task)
        task.add_done_callback(self._considering.discard)

    async def _judge(self, watched: Watched) -> None:
        leg = watched.record.leg
        try:
            waits = engine_counters.read(await self._scrape(leg.role, leg.target)).waits_for_kv
        except OSError:
            waits = None
        # Engines that tell how many requests wait for KV prove a wait, or that it is none; where they do not
        # tell, an answer of one piece may be long in the making, and only others are late.
        if waits is False or (waits is None and not must_have_begun(watched.record)):
            watched.again()
        else:
            watched.interrupt()

    def pause(self, record: LegRecord) -> None:
        """This leg's pull hung: leave its engine's pulls out for a while."""
        self._counters.add(Event.PULL_RESCUED)
        if self.pauses.begin(record):
            logger.warning(
                "a pull of %s hung for %g s and was left out: its P2P plane does not answer and needs a "
                "restart of the engine; until then its pulls are suspended, and one is tried now and then",
                record.leg.target.netloc,
                self.after_s,
            )


class Watched:
    """One leg under watch. Works as asyncio.timeout does: the task is cancelled, and that becomes Stalled.

    due_s: when it is looked at, on the monotonic clock.
    """

    __slots__ = ("_cancelling", "_interrupted", "_over", "_rescuer", "_task", "due_s", "record")

    def __init__(self, rescuer: Rescuer, record: LegRecord, task: asyncio.Task[None] | None) -> None:
        self._rescuer = rescuer
        self.record = record
        self._task = task or asyncio.current_task()
        self._interrupted = self._over = False
        self.due_s = record.started_s + rescuer.after_s

    def __enter__(self) -> None:
        assert self._task is not None
        self._cancelling = self._task.cancelling()
        self._rescuer.await_byte(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._over = True
        self._rescuer.leave(self)
        mine = self._interrupted and self._task.uncancel() <= self._cancelling
        if mine and isinstance(error, asyncio.CancelledError):
            self._rescuer.pause(self.record)
            raise Stalled from None
        self._rescuer.pauses.ended(self.record)

    def again(self) -> None:
        """Look once more, after as long a time."""
        if not self._over:
            self.due_s = monotonic() + self._rescuer.after_s
            self._rescuer.await_byte(self)

    def interrupt(self) -> None:
        """Cancel the leg, if it still waits."""
        if not (self._over or self._interrupted) and self.record.first_byte_s is None:
            assert self._task is not None
            self._interrupted = self.record.rescued = True
            self._task.cancel()


def unpulled(leg: Leg) -> Leg:
    """The same leg without its directive to pull."""
    assert leg.content is not None
    return replace(leg, content=without_source(leg.content), pull=None)


def _refused_since(record: LegRecord, since_s: float) -> bool:
    """Whether an earlier attempt at the leg was answered after that moment."""
    return record.attempts > 1 and record.head_s is not None and record.head_s > since_s


def must_have_begun(record: LegRecord) -> bool:
    """Whether such a leg's answer would have begun: a prefill's one token, or the first event of a stream."""
    if record.leg.role is Role.PREFILL:
        return True
    try:
        return Body.parse(record.leg.content or b"").get("stream") == b"true"
    except BadBody:
        return False
