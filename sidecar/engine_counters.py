"""Reads the few counters that prove a pull out of an engine's `/metrics`.

Rule: pure. Engines' versions differ and labelled series appear at first use: what is absent is None, and what
is renamed is known by both names. The names are vLLM's (0.32, vllm/v1/metrics/loggers.py and
vllm/v1/kv_offload/tiering/base.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums over an engine's series; None for what it has not, yet or at all.

    queries: chunks that were looked up at peers; where it is, a sum of pulls that is not is zero.
    pulled_bytes and pulled_tokens: fetched from peers over P2P, and nothing else (local CPU restores are not
    in them). failures: jobs of that tier that failed. local_tokens: prompt tokens that were in the engine's
    own cache. computed_tokens and prefill_s: prompt tokens that it computed, and the time of all its
    prefills. given_bytes: KV that the engine gave to peers; of vLLM 0.32 what it offered them by storing it.
    stored_bytes: KV that it has put into its host memory, whence peers can pull it. found_chunks: chunks that
    were looked up there and found, by its own requests and by peers. fetching: requests in a
    stage of a KV fetch. deferred: requests that wait for something else than room in the batch.
    """

    queries: float | None = None
    pulled_bytes: float | None = None
    pulled_tokens: float | None = None
    failures: float | None = None
    local_tokens: float | None = None
    computed_tokens: float | None = None
    prefill_s: float | None = None
    given_bytes: float | None = None
    stored_bytes: float | None = None
    found_chunks: float | None = None
    fetching: float | None = None
    deferred: float | None = None

    @property
    def waits_for_kv(self) -> bool | None:
        """Whether any request waits for blocks from elsewhere; None where the engine does not tell.

        Seen on vLLM 0.32: a pull that hangs stands among the deferred, and in no stage of a fetch.
        """
        if self.fetching or self.deferred:
            return True
        return None if self.fetching is None or self.deferred is None else False


# Field of Counters -> the series that are summed up for it: name, and what its labels must contain.
_P2P = b'p2p"'
_HOST = b'primary"'
_SERIES: dict[str, tuple[tuple[bytes, bytes], ...]] = {
    "queries": (
        (b"vllm:kv_offload_tiering_chunk_queries_total", _P2P),
        (b"vllm:kv_offload_tiering_block_queries_total", _P2P),
    ),
    "pulled_bytes": ((b"vllm:kv_offload_tiering_read_bytes_total", _P2P),),
    "pulled_tokens": ((b"vllm:prompt_tokens_cached_by_source_total", b'source="p2p"'),),
    "failures": ((b"vllm:kv_offload_tiering_promotion_job_failures_total", _P2P),),
    "local_tokens": ((b"vllm:prompt_tokens_by_source_total", b'source="local_cache_hit"'),),
    "computed_tokens": ((b"vllm:prompt_tokens_by_source_total", b'source="local_compute"'),),
    "prefill_s": ((b"vllm:request_prefill_time_seconds_sum", b""),),
    "given_bytes": (
        (b"vllm:kv_offload_tiering_write_bytes_total", _P2P),
        (b"lab:p2p_served_bytes_total", b""),
    ),
    "stored_bytes": ((b"vllm:kv_offload_store_bytes_total", b""),),
    "found_chunks": (
        (b"vllm:kv_offload_tiering_chunk_hits_total", _HOST),
        (b"vllm:kv_offload_tiering_block_hits_total", _HOST),
    ),
    "deferred": ((b"vllm:num_requests_waiting_by_reason", b'reason="deferred"'),),
    "fetching": ((b"vllm:num_requests_kv_fetch_by_stage", b""),),
}


def read(text: bytes) -> Counters:
    """The counters in a text of the Prometheus exposition format, whatever else is in it."""
    text = b"\n" + text
    return Counters(**{field: _sum(text, series) for field, series in _SERIES.items()})


def _sum(text: bytes, series: tuple[tuple[bytes, bytes], ...]) -> float | None:
    values = [value for name, label in series for value in _values(text, b"\n" + name, label)]
    return sum(values) if values else None


def _values(text: bytes, start: bytes, label: bytes) -> Iterator[float]:
    """The values of one name's samples; found without looking at the thousands of other lines."""
    at = text.find(start)
    while at >= 0:
        end = text.find(b"\n", at + 1)
        rest = text[at + len(start) : end if end >= 0 else len(text)]
        labels, brace, sample = rest.rpartition(b"}")
        if labels.startswith(b"{") == bool(brace) and label in labels:
            value = _number(sample)
            if value is not None:
                yield value
        at = text.find(start, at + 1)


def _number(sample: bytes) -> float | None:
    """The value behind a sample's name and labels (a timestamp may follow it)."""
    parts = sample.split()
    if not sample[:1].isspace() or not parts:
        return None
    try:
        value = float(parts[0])
    except ValueError:
        return None
    return value if value >= 0 else None  # negative and NaN: no counter says so
