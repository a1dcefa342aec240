"""Keeps the gauges of one process: what it has open and knows now, and how late its event loop is.

Rule: acts, beside the exchanges, only where there is a metrics port. A scrape answers for all processes, so
that each puts its own figures on the board itself, four times a second.
"""

from __future__ import annotations

import asyncio
from time import monotonic

from sidecar.observers.board import Row
from sidecar.observers.families import CONNECTIONS, GUARD_SOURCES, LOOP_LAG, SILENT_SOURCES, WORKERS
from sidecar.services import Services

# Seconds. Often enough that every loop that is held up for longer than this is seen, and seldom enough that
# it costs an idle process 0.07 % of a core (measured; all that an idle process does is 0.2 %).
PERIOD_S = 0.25


async def keep(row: Row, services: Services) -> None:
    """Write to `row`, which is this process's own, until cancelled."""
    row[WORKERS.first] = 1.0
    try:
        while True:
            show(row, services)
            due_s = monotonic() + PERIOD_S
            await asyncio.sleep(PERIOD_S)
            _late(row, max(0.0, monotonic() - due_s))
    finally:
        row[WORKERS.first] = 0.0


def show(row: Row, services: Services) -> None:
    """Write what there is now."""
    good, bad = services.guard.standing if services.guard else (0, 0)
    busy, idle = services.upstream.standing
    row[_GOOD], row[_BAD], row[_BUSY], row[_IDLE] = good, bad, busy, idle
    row[SILENT_SOURCES.first] = services.yields.silent


_late = LOOP_LAG.sampler()
_GOOD, _BAD = GUARD_SOURCES.cell("good"), GUARD_SOURCES.cell("bad")
_BUSY, _IDLE = CONNECTIONS.cell("busy"), CONNECTIONS.cell("idle")
