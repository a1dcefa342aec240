"""Runs several serving processes and keeps them running.

Rule: acts. The parent serves nothing and has neither a loop nor a thread, so that it can fork at any moment
(fork(2): only the thread that forks goes on in the child). It takes its signals one at a time: SIGCHLD to
start again who ended by itself, SIGTERM and its like to let all finish, a second one to let all be cut.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import NoReturn

from sidecar import interrupts

logger = logging.getLogger("sidecar.processes")

# Seconds before one that ended is started again: doubled each time, from first to most, and from the first
# again after one that lasted. A process takes half a second to start, and one crash must not cost a second.
_FIRST_DELAY_S = 0.1
_MOST_DELAY_S = 10.0
_LASTED_S = 30.0
# What a process may need past its grace: cut requests and the last spans (observers/tracing.py, SHUTDOWN_S).
_END_S = 10.0
# Bounds each wait; nothing depends on it.
_LONGEST_WAIT_S = 3600.0
# A Python fault in a child, as sysexits.h calls it (EX_SOFTWARE).
_FAULT = 70
# prctl(2): the signal that a process gets when its parent dies.
_PR_SET_PDEATHSIG = 1

CUT = signal.SIGUSR1
"""Tells a serving process to cut what still runs. A second SIGTERM is none: who stops a service may signal
all of its processes (systemd.kill(5), KillMode=control-group), and the parent does it besides."""


@dataclass(frozen=True, slots=True)
class Job:
    """What one process does. run: serves until it is told to stop, and returns the exit code."""

    name: str
    run: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Calls:
    """What the parent calls. stopping: when it is told to stop. restarted: for each process started again.

    ended: for each that has ended, with the number of its job.
    """

    stopping: Callable[[], None]
    restarted: Callable[[], None]
    ended: Callable[[int], None] = lambda number: None


@dataclass(frozen=True, slots=True)
class Signals:
    """stop: those that stop all. before: the mask of a process that is started."""

    stop: Sequence[signal.Signals]
    before: Iterable[int]


@dataclass(slots=True)
class _Seat:
    """The place of one process. pid: 0 while none is there. due_s: when the next is to be started."""

    job: Job
    pid: int = 0
    started_s: float = 0.0
    due_s: float = 0.0
    delay_s: float = field(default=_FIRST_DELAY_S)


def supervise(jobs: Sequence[Job], calls: Calls, grace_s: float) -> int:
    """Run the jobs, each in a process of its own, until a signal stops them; the exit code.

    grace_s: how long the jobs themselves take to stop at most. 0 when all ended by themselves then, 1 when
    one had to be killed.
    """
    gc.freeze()  # what is loaded by now stays in shared pages (Python documentation, gc.freeze)
    stop = interrupts.stopping()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*stop, signal.SIGCHLD))
    try:
        return _Parent(jobs, calls, grace_s, Signals(stop, before)).run()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def tried(check: Callable[[], int]) -> int:
    """What `check` returns, run in a process of its own, which takes its threads with it."""
    pid = _forked(check, signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class _Parent:
    def __init__(self, jobs: Sequence[Job], calls: Calls, grace_s: float, signals: Signals) -> None:
        self._seats = [_Seat(job) for job in jobs]
        self._calls = calls
        self._grace_s = grace_s
        self._stopping = signals.stop
        self._awaited = (*signals.stop, signal.SIGCHLD)
        self._mask = signals.before
        self._kill_at_s: float | None = None
        self._killed = False

    def run(self) -> int:
        for seat in self._seats:
            self._start(seat)
        while self._kill_at_s is None or any(seat.pid for seat in self._seats):
            arrived = signal.sigtimedwait(self._awaited, self._wait_s())
            if arrived is not None and arrived.si_signo in self._stopping:
                self._stop(arrived.si_signo)
            self._reap()
            self._start_due()
        return int(self._killed)

    def _wait_s(self) -> float:
        due_s = [seat.due_s for seat in self._seats if not seat.pid and self._kill_at_s is None]
        if self._kill_at_s is not None and not self._killed:
            due_s.append(self._kill_at_s)
        return max(0.0, min([_LONGEST_WAIT_S, *(moment_s - monotonic() for moment_s in due_s)]))

    def _start(self, seat: _Seat) -> None:
        seat.started_s = monotonic()
        seat.pid = _forked(seat.job.run, self._mask)

    def _start_due(self) -> None:
        now_s = monotonic()
        if self._kill_at_s is None:
            for seat in self._seats:
                if not seat.pid and seat.due_s <= now_s:
                    self._start(seat)
                    self._calls.restarted()
        elif now_s >= self._kill_at_s and not self._killed:
            self._killed = True
            logger.error("a serving process did not end in time and is killed")
            self._signal(signal.SIGKILL)

    def _stop(self, number: int) -> None:
        if self._kill_at_s is not None:
            if number != signal.SIGHUP:  # of which a terminal that closes may send two
                self._signal(CUT)
            return
        self._kill_at_s = monotonic() + self._grace_s + _END_S
        self._calls.stopping()
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        for seat in self._seats:
            if seat.pid:
                os.kill(seat.pid, number)  # not reaped yet, so that the number is still its own

    def _reap(self) -> None:
        """Every process that has ended; as process 1 of a container also those of others (waitpid(2))."""
        while any(seat.pid for seat in self._seats):
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            for number, seat in enumerate(self._seats):
                if seat.pid == pid:
                    self._calls.ended(number)
                    self._ended(seat, os.waitstatus_to_exitcode(status))

    def _ended(self, seat: _Seat, code: int) -> None:
        """A code below zero is the signal that ended it."""
        now_s, pid, seat.pid = monotonic(), seat.pid, 0
        if self._kill_at_s is not None:
            return
        if now_s - seat.started_s >= _LASTED_S:
            seat.delay_s = _FIRST_DELAY_S
        seat.due_s = now_s + seat.delay_s
        fields = {"process": seat.job.name, "pid": pid, "exit_code": code, "restart_in_s": seat.delay_s}
        logger.error("a serving process ended by itself and is started again", extra={"fields": fields})
        seat.delay_s = min(2 * seat.delay_s, _MOST_DELAY_S)


def _forked(run: Callable[[], int], mask: Iterable[int]) -> int:
    """Run it in a new process with that signal mask; the process's number."""
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    return os.fork() or _become(run, parent, mask)


def _become(run: Callable[[], int], parent: int, mask: Iterable[int]) -> NoReturn:
    """The child: never returns into the parent's frames, and ends when the parent does."""
    code = _FAULT
    try:
        # A group of its own: Ctrl-C reaches the parent only, which tells each child once.
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if os.getppid() == parent:  # else it died before the line above
            code = run()
    except BaseException:
        logger.exception("a fault ended a serving process")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        logging.shutdown()
        os._exit(code)
