"""What an engine's counters say of one request, by how much they rose while it ran.

Rule: pure. A labelled series appears at first use, so an absent one is zero where its connector is there.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from sidecar.doctor.reading import total
from sidecar.engine_counters import read

# What engines with that connector need not count.
_SELDOM = "served_bytes"
_LOOKED_UP = ("vllm:kv_offload_tiering_chunk_queries_total", "vllm:kv_offload_tiering_block_queries_total")


@dataclass(frozen=True, slots=True)
class Counted:
    """Sums over an engine's series. looked_up: chunks that its own tier was asked for, by itself and peers.

    stored_bytes: that its tier took in. written_bytes: these, and what it gave to peers; served_bytes: what
    it gave alone, where it counts that. local_tokens: prompt tokens of its own cache.
    """

    pulled_bytes: float | None = None
    pulled_tokens: float | None = None
    served_bytes: float | None = None
    written_bytes: float | None = None
    stored_bytes: float | None = None
    looked_up: float | None = None
    local_tokens: float | None = None

    @property
    def given_bytes(self) -> float | None:
        """At least so much went to peers, of the rise of these sums (`giving.given` says why)."""
        if self.served_bytes is not None or self.written_bytes is None:
            return self.served_bytes
        return max(0.0, self.written_bytes - (self.stored_bytes or 0.0))


def counted(metrics: bytes) -> Counted:
    """Of an engine's text of metrics."""
    text, told = metrics.decode("utf-8", "replace"), read(metrics)
    stored = told.stored_bytes
    if not stored:
        stored = total(text, "vllm:kv_offload_total_bytes_total", 'transfer_type="GPU_to_CPU"')
    looked_up = [total(text, name, 'primary"') for name in _LOOKED_UP]
    return Counted(
        told.pulled_bytes,
        told.pulled_tokens,
        told.served_bytes,
        told.written_bytes,
        stored,
        next((value for value in looked_up if value is not None), None),
        told.local_tokens,
    )


def rise(before: Counted, after: Counted, *, tiering: bool) -> Counted:
    """By how much each has risen. tiering: the engine has the connector that counts."""
    return Counted(
        **{
            field.name: _risen(
                getattr(before, field.name),
                getattr(after, field.name),
                0.0 if tiering and field.name != _SELDOM else None,
            )
            for field in fields(Counted)
        }
    )


def _risen(before: float | None, after: float | None, absent: float | None) -> float | None:
    if after is None:
        return absent
    return max(0.0, after - (before or 0.0))
