"""Reads the few counters that prove a pull out of an engine's `/metrics`.

Rule: pure. Engines' versions differ and labelled series appear at first use: what is absent is None, and what
is renamed is known by both names. The names are vLLM's (0.32, vllm/v1/metrics/loggers.py and
vllm/v1/kv_offload/tiering/base.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums over an engine's series; None for what it has not, yet or at all.

    queries: chunks that were looked up at peers; where it is, a sum of pulls that is not is zero.
    pulled_bytes and pulled_tokens: fetched from peers over P2P, and nothing else (local CPU restores are not
    in them). failures: jobs of that tier that failed. local_tokens: prompt tokens that were in the engine's
    own cache. computed_tokens and prefill_s: prompt tokens that it computed, and the time of all its
    prefills. served_bytes: KV that the engine gave to peers, which only the embedded engine counts apart.
    written_bytes: what vLLM counts as written to that tier: blocks given to peers, and every block that
    the engine stores itself. stored_bytes: these alone, put into its host memory, whence peers can pull them.
    found_chunks: chunks that were looked up there and found, by its own requests and by peers. fetching:
    requests in a stage of a KV fetch. deferred: requests that wait for something else than room in the batch.
    """

    queries: float | None = None
    pulled_bytes: float | None = None
    pulled_tokens: float | None = None
    failures: float | None = None
    local_tokens: float | None = None
    computed_tokens: float | None = None
    prefill_s: float | None = None
    served_bytes: float | None = None
    written_bytes: float | None = None
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


Series = tuple[tuple[bytes, bytes], ...]
"""Names, each with what the labels of its samples must contain."""

# Field of Counters -> the series that are summed up for it: name, and what its labels must contain.
_P2P = b'p2p"'
_HOST = b'primary"'
_SERIES: dict[str, Series] = {
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
    "served_bytes": ((b"lab:p2p_served_bytes_total", b""),),
    "written_bytes": ((b"vllm:kv_offload_tiering_write_bytes_total", _P2P),),
    "stored_bytes": ((b"vllm:kv_offload_store_bytes_total", b""),),
    "found_chunks": (
        (b"vllm:kv_offload_tiering_chunk_hits_total", _HOST),
        (b"vllm:kv_offload_tiering_block_hits_total", _HOST),
    ),
    "deferred": ((b"vllm:num_requests_waiting_by_reason", b'reason="deferred"'),),
    "fetching": ((b"vllm:num_requests_kv_fetch_by_stage", b""),),
}

# Fields that are zero where an engine announces a series of theirs (`# TYPE`) and has no number for it yet.
_DECLARED = frozenset(("pulled_bytes", "written_bytes", "stored_bytes"))


def read(text: bytes) -> Counters:
    """The counters in a text of the Prometheus exposition format, whatever else is in it."""
    text = b"\n" + text
    return Counters(
        **{field: _sum(text, series, declared=field in _DECLARED) for field, series in _SERIES.items()}
    )


def series_of(field: str) -> Series:
    """The series that are summed up for a field of Counters: the name in vLLM 0.32 first."""
    return _SERIES[field]


def total(text: bytes, series: Series) -> float | None:
    """The sum of these series; None where there is no sample of theirs."""
    return _sum(b"\n" + text, series, declared=False)


def spoiled(text: bytes, read: Iterable[Series] = tuple(_SERIES.values())) -> str | None:
    """The first of these series with a value that no counter has, and the value as it stands there.

    read: those that are looked at; all of Counters by default.
    """
    text = b"\n" + text
    for series in read:
        for name, label in series:
            for sample in _samples(text, b"\n" + name, label):
                if _number(sample) is None:
                    return (name + sample).decode("utf-8", "replace")
    return None


def _sum(text: bytes, series: Series, *, declared: bool) -> float | None:
    samples = [sample for name, label in series for sample in _samples(text, b"\n" + name, label)]
    values = [value for sample in samples if (value := _number(sample)) is not None]
    if values:
        return sum(values)
    return 0.0 if declared and any(b"\n# TYPE " + name + b" " in text for name, _ in series) else None


def _samples(text: bytes, start: bytes, label: bytes) -> Iterator[bytes]:
    """What stands behind one name and its labels; found without looking at the thousands of other lines."""
    at = text.find(start)
    while at >= 0:
        end = text.find(b"\n", at + 1)
        rest = text[at + len(start) : end if end >= 0 else len(text)]
        labels, brace, sample = rest.rpartition(b"}")
        if labels.startswith(b"{") == bool(brace) and label in labels and sample[:1].isspace():
            yield sample
        at = text.find(start, at + 1)


# A counter of 64 bits; what is larger, and an infinity, no engine has counted.
_MOST = 2.0**63


def _number(sample: bytes) -> float | None:
    """The value behind a sample's name and labels (a timestamp may follow it)."""
    parts = sample.split()
    if not parts:
        return None
    try:
        value = float(parts[0])
    except ValueError:
        return None
    return value if 0 <= value < _MOST else None  # nor is NaN: no counter says so
