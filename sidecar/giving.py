"""Decides what a source's own counters say of the pulls from it, as far as they can.

Rule: pure. Others pull from the same source, and vLLM counts what an engine gives to peers together with what
it stores itself: what these two leave open is `unknown`, never guessed.
"""

from __future__ import annotations

from enum import StrEnum

from sidecar.engine_counters import Counters
from sidecar.evidence import Range


class Says(StrEnum):
    """What a source says of a pull.

    confirmed: it gave at least what our pulls moved. contradicted: it gave less than they moved, so that what
    moved came from another engine than the one that the header names. nothing: nothing left it. gave: our
    pull moved nothing, and others were given something. unknown: anything else.
    """

    CONFIRMED = "confirmed"
    CONTRADICTED = "contradicted"
    NOTHING = "nothing"
    GAVE = "gave"
    UNKNOWN = "unknown"


# Only counters that have risen say so for good; the others may be about to (`source_counters`).
RISEN = frozenset((Says.CONFIRMED, Says.GAVE))


def given(before: Counters | None, after: Counters) -> Range | None:
    """How many bytes left a source for its peers between two looks; None where that is not known.

    Without `before` the engine's start is meant. vLLM 0.32 adds what it gives to
    `kv_offload_tiering_write_bytes_total`, tier p2p, and so it does with each block that it stores in its own
    host memory (tiering/manager.py, complete_store): all that was written is the most that can have left, and
    what was not stored at the same time the least. (But for two things: written is counted a step after
    stored, and with the padding to whole pages of blocks that are none: cpu/shared_offload_region.py.)
    """
    if before is None:
        most = after.served_bytes if after.served_bytes is not None else after.written_bytes
        return None if most is None else Range(0.0, most)
    served = _rise(before.served_bytes, after.served_bytes)
    if served is not None:
        return Range(served, served)
    written = _rise(before.written_bytes, after.written_bytes)
    if written is None:
        return None
    stored = _rise(before.stored_bytes, after.stored_bytes)
    least = 0.0 if stored is None else max(0.0, written - stored)
    return Range(least, written)


def says(gave: Range | None, own_bytes: int | None, ended_bytes: int, begun_bytes: int) -> Says:
    """What is said of one pull. own_bytes: what it moved, None where that is not certain.

    ended_bytes: what it and others of ours surely moved within this window. begun_bytes: the same with those
    that may have ended after it.
    """
    if gave is None:
        return Says.UNKNOWN
    if not own_bytes:
        if not gave.most:
            return Says.NOTHING
        return Says.GAVE if own_bytes == 0 and gave.least > begun_bytes else Says.UNKNOWN
    if ended_bytes > gave.most:
        return Says.CONTRADICTED
    return Says.CONFIRMED if begun_bytes <= gave.least else Says.UNKNOWN


def _rise(before: float | None, after: float | None) -> float | None:
    """None where one is not known, or the counter went back (the engine was started again)."""
    return after - before if before is not None and after is not None and after >= before else None
