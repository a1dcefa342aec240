"""Ctrl-C before a command has begun: ends the program at once, and prints nothing.

Rule: acts. An exception would meet whatever is being imported, some of which catches or prints it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

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
