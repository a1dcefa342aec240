"""Says what the span of a pull tells.

Rule: pure, from records alone. The span lasts from the sending of the leg that carries the pull to the first
byte of its answer: what the engine waited, pulled and computed lies in it, and cannot be told apart from
here.
"""

from __future__ import annotations

from sidecar.evidence import Outcome
from sidecar.observers.records import PullRecord
from sidecar.observers.spans import Attributes

# What an operator can be told of each field that may be unknown.
_FIGURES = ("moved_bytes", "moved_tokens", "prompt_tokens", "cached_tokens")


def attributes(record: PullRecord, *, guarded: bool) -> Attributes:
    """What is known once a pull is settled. Figures that cannot be attributed are left out, never zero.

    guarded: whether the source guard was asked. It admitted this source, or there would be no pull.
    """
    told: Attributes = {
        "sidecar.pull.source": record.source.host,
        "sidecar.pull.p2p_port": record.source.port,
        "sidecar.pull.guard": "admitted" if guarded else "off",
        "sidecar.pull.kv_request_id": record.kv_request_id,
        "sidecar.pull.engine": record.engine.netloc,
        "sidecar.pull.outcome": str(record.outcome),
        "sidecar.pull.local": record.local,
    }
    told |= {
        f"sidecar.pull.{name}": value for name in _FIGURES if (value := getattr(record, name)) is not None
    }
    if record.source_says is not None:  # in time; else it is told by `/debug/pulls` and the metrics
        told["sidecar.pull.source_says"] = str(record.source_says)
    if record.first_byte_s is not None:
        told["sidecar.pull.ttft_ms"] = round((record.first_byte_s - record.started_s) * 1000, 3)
    if record.saved_s is not None:
        told["sidecar.pull.avoided_prefill_estimate_ms"] = round(record.saved_s * 1000, 3)
    return told


def failure(record: PullRecord) -> str | None:
    """Why the span's status is ERROR: blocks were asked for, and none came though there was need."""
    if record.outcome is Outcome.NOTHING and not record.local:
        return "no blocks moved"
    return None
