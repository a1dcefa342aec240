"""What signals do to commands: before one has begun Ctrl-C ends the program, later they end what runs.

Rule: acts, and prints nothing. Before, an exception would meet whatever is being imported, some of which
catches or prints it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it: 128 and the number of SIGINT."""


@contextmanager
def quiet() -> Iterator[None]:
    """Within the block Ctrl-C ends the program; where nobody but Python has arranged for it."""
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


def cancelling(task: asyncio.Task[Any], numbers: Iterable[signal.Signals]) -> None:
    """Let these signals cancel a task of the running loop, where they would end the process.

    Not those that are ignored, as nohup has it; none outside the main thread, which alone gets them.
    """
    if threading.current_thread() is threading.main_thread():
        for number in _heeded(numbers):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)


def stopping() -> list[signal.Signals]:
    """What asks a service to stop: SIGTERM, Ctrl-C, a terminal that closes (unless nohup has it ignored)."""
    return [signal.SIGTERM, signal.SIGINT, *_heeded([signal.SIGHUP])]


def _heeded(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
