"""Which metrics a vLLM 0.32 engine has: names, helps, buckets and label values, in the order of its
`/metrics`.

Rule: a table. Helps (first sentences) and buckets are vLLM's; offloading series appear at first use (as
seen), the others are there from the start. Series named `lab:` are the embedded engine's own.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sidecar.lab.config import EngineConfig
from sidecar.lab.metrics import Family, Labels, Metrics

PRIMARY_TIER = "0:primary"
P2P_TIER = "1:p2p"

_FIRST_TOKEN_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
)
_TTFT_S = (*_FIRST_TOKEN_S, 640, 2560)
_BETWEEN_TOKENS_S = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
)
_REQUEST_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
_NIXL_BYTES = tuple(2048.0 * 4**i for i in range(12))


def _each(label: str, *values: str) -> tuple[Labels, ...]:
    return tuple(((label, value),) for value in values)


_ONCE: tuple[Labels, ...] = ((),)


def _counter(name: str, text: str, initial: tuple[Labels, ...] = _ONCE) -> Family:
    return Family(name, "counter", text, initial=initial)


def _gauge(name: str, text: str, initial: tuple[Labels, ...] = _ONCE) -> Family:
    return Family(name, "gauge", text, initial=initial)


def _histogram(name: str, text: str, buckets: tuple[float, ...]) -> Family:
    return Family(name, "histogram", text, buckets, _ONCE)


_NIXL = (
    _histogram(
        "vllm:nixl_bytes_transferred",
        "Histogram of bytes transferred per NIXL KV Cache transfers.",
        _NIXL_BYTES,
    ),
    _counter(
        "vllm:nixl_num_failed_transfers_total",
        "Number of failed NIXL KV Cache transfers, including handshake and notification failures.",
    ),
    _counter("vllm:nixl_num_kv_expired_reqs_total", "Number of requests that had their KV expire."),
)

_OFFLOADING = (
    _counter("vllm:kv_offload_total_bytes_total", "Number of bytes offloaded by KV connector", ()),
    _gauge(
        "vllm:kv_offload_cpu_cache_usage_perc",
        "Fraction of CPU KV-cache space currently pinned by active transfers (0.0 = idle, 1.0 = saturated).",
        (),
    ),
    _counter(
        "vllm:kv_offload_tiering_read_bytes_total",
        "Total bytes read from secondary tiers into the primary tier, labeled by tier.",
        (),
    ),
    _counter(
        "vllm:kv_offload_tiering_write_bytes_total",
        "Total bytes written from the primary tier to secondary tiers, labeled by tier.",
        (),
    ),
    _counter(
        "vllm:kv_offload_tiering_promotion_job_failures_total",
        "Number of failed secondary-tier promotion jobs, labeled by tier.",
        (),
    ),
    _counter(
        "vllm:kv_offload_tiering_chunk_queries_total",
        "Number of chunk lookup queries sent to a tier, labeled by tier.",
        (),
    ),
    _counter(
        "vllm:kv_offload_tiering_chunk_hits_total",
        "Number of chunk lookup hits in a tier, labeled by tier.",
        (),
    ),
    _counter("vllm:kv_offload_load_bytes_total", "Total bytes loaded from offload storage to GPU.", ()),
    _counter("vllm:kv_offload_store_bytes_total", "Total bytes stored from GPU to offload storage.", ()),
    _counter("lab:p2p_served_bytes_total", "Bytes of KV that peers pulled from this embedded engine.", ()),
)

_REQUESTS = (
    _gauge("vllm:num_requests_running", "Number of requests in model execution batches."),
    _gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed."),
    _gauge(
        "vllm:num_requests_waiting_by_reason",
        "Number of waiting requests by reason.",
        _each("reason", "capacity", "deferred"),
    ),
    _gauge(
        "vllm:num_requests_kv_fetch_by_stage",
        "Number of waiting requests by async KV load stage.",
        _each("stage", "waiting_to_start", "in_progress", "completed_waiting"),
    ),
    _gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage."),
    _counter(
        "vllm:prefix_cache_queries_total", "Prefix cache queries, in terms of number of queried tokens."
    ),
    _counter("vllm:prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens."),
    _counter(
        "vllm:external_prefix_cache_queries_total",
        "External prefix cache queries from KV connector cross-instance cache sharing, in tokens.",
    ),
    _counter(
        "vllm:external_prefix_cache_hits_total",
        "External prefix cache hits from KV connector cross-instance cache sharing, in tokens.",
    ),
    _counter("vllm:num_preemptions_total", "Cumulative number of preemption from the engine."),
)

_TOKEN_COUNTS = (
    _counter("vllm:prompt_tokens_total", "Number of prefill tokens processed."),
    _counter(
        "vllm:prompt_tokens_by_source_total",
        "Number of prompt tokens by source.",
        _each("source", "local_compute", "local_cache_hit", "external_kv_transfer"),
    ),
    _counter("vllm:prompt_tokens_cached_total", "Number of cached prompt tokens (local + external)."),
    _counter(
        "vllm:prompt_tokens_cached_by_source_total",
        "Prefix-cache hit tokens by the cache tier that supplied them.",
        _each("source", "device", "host", "p2p", "disk", "external_unspecified"),
    ),
    _counter("vllm:generation_tokens_total", "Number of generation tokens processed."),
    _counter(
        "vllm:request_success_total",
        "Count of successfully processed requests.",
        _each("finished_reason", "stop", "length", "abort", "error", "repetition"),
    ),
    _histogram("vllm:request_prompt_tokens", "Number of prefill tokens processed.", _TOKENS),
    _histogram("vllm:request_generation_tokens", "Number of generation tokens processed.", _TOKENS),
    _histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", _TTFT_S),
    _histogram(
        "vllm:inter_token_latency_seconds",
        "Histogram of inter-token latency in seconds.",
        _BETWEEN_TOKENS_S,
    ),
    _histogram(
        "vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", _REQUEST_S
    ),
    _histogram(
        "vllm:request_queue_time_seconds",
        "Histogram of time spent in WAITING phase for request.",
        _REQUEST_S,
    ),
)


def engine_metrics(config: EngineConfig) -> Metrics:
    """All series of an engine with this configuration; those of a connector it has not are left out."""
    families = [
        Family(
            "process_start_time_seconds",
            "gauge",
            "Start time of the process since unix epoch in seconds.",
            initial=_ONCE,
            common=(),
        ),
        *(_OFFLOADING if config.offloads else ()),
        *(_NIXL if config.has_nixl else ()),
        *_REQUESTS,
        *_TOKEN_COUNTS,
        _cache_config(config),
    ]
    metrics = Metrics(families, {"engine": "0", "model_name": config.model})
    metrics.put("process_start_time_seconds", datetime.now(UTC).timestamp())
    metrics.put("vllm:cache_config_info", 1, **dict(_cache_labels(config)))
    return metrics


def _cache_config(config: EngineConfig) -> Family:
    help_text = "Information of the LLMEngine CacheConfig"
    return Family(
        "vllm:cache_config_info", "gauge", help_text, initial=(_cache_labels(config),), common=("engine",)
    )


def _cache_labels(config: EngineConfig) -> Labels:
    return (
        ("block_size", str(config.block_size)),
        ("cache_dtype", "auto"),
        ("enable_prefix_caching", "True"),
        ("kv_cache_size_tokens", str(config.num_gpu_blocks * config.block_size)),
        ("kv_offloading_backend", "native"),
        ("num_cpu_blocks", "None"),
        ("num_gpu_blocks", str(config.num_gpu_blocks)),
        ("prefix_caching_hash_algo", "sha256"),
    )
