"""Shows how far a run is, and how long it will still take.

Rule: watches. On a terminal one line that is written over, elsewhere a plain line now and then; always on
standard error, so that standard output is the report's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TextIO

from sidecar.calibrate.plan import Leg
from sidecar.calibrate.verdicts import Measured
from sidecar.calibrate.words import lasting, millis

_BAR = 24
# Without a terminal there is a line for each such share of the work.
_SHARE = 0.1
# What a leg costs beside its tokens, in tokens: requests, counters that settle.
_FIXED_TOKENS = 3000
# Of a terminal that does not tell, as through some serial lines.
_USUAL_COLUMNS = 80
_CLEAR_LINE = "\r\x1b[K"


@dataclass(slots=True)
class Progress:
    """Told of each leg that was run. legs: all that are to be run. columns: of a terminal, 0 for none."""

    legs: Sequence[Leg]
    stream: TextIO
    columns: int
    _began_s: float = field(default_factory=monotonic)
    _done: int = 0
    _done_tokens: int = 0
    _shown: float = 0.0

    def __call__(self, one: Measured) -> None:
        """One leg is over."""
        if one.leg.round < 0:
            self._say(f"warm pull: {one.verdict}{_time(one)}", last=False)
            self._began_s = monotonic()
            return
        self._done += 1
        self._done_tokens += one.leg.prefix_tokens + _FIXED_TOKENS
        share = self._done_tokens / sum(leg.prefix_tokens + _FIXED_TOKENS for leg in self.legs)
        if not self.columns and share < 1 and share - self._shown < _SHARE:
            return
        self._shown = share
        spent_s = monotonic() - self._began_s
        left = "" if share >= 1 else f", {lasting(spent_s / share - spent_s)} left"
        told = f"{one.leg.prefix_tokens:,} tokens {one.leg.kind}: {one.verdict}{_time(one)}"
        self._say(f"{self._bar(share)}{self._done}/{len(self.legs)} legs{left}  {told}", last=share >= 1)

    def end(self) -> None:
        """Leave the line; what is written next begins a new one."""
        if self.columns:
            print(_CLEAR_LINE, end="", file=self.stream, flush=True)

    def _bar(self, share: float) -> str:
        if not self.columns:
            return ""
        full = round(share * _BAR)
        return f"[{'█' * full}{'·' * (_BAR - full)}] {share:4.0%}  "

    def _say(self, line: str, *, last: bool) -> None:
        if self.columns and not last:
            # A line that is wrapped could not be written over.
            print(f"{_CLEAR_LINE}{line[: self.columns - 1]}", end="", file=self.stream, flush=True)
        elif self.columns:
            self.end()
        else:
            print(f"sidecar calibrate: {line}", file=self.stream, flush=True)


def columns(stream: TextIO) -> int:
    """Of a terminal that can write over its line; 0 for anything else."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return 0
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_COLUMNS
    except OSError:
        return _USUAL_COLUMNS


def _time(one: Measured) -> str:
    return "" if one.ttft_ms is None else f", {millis(one.ttft_ms)} ms"
