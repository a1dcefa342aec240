"""The counters that prove a pull, found in texts as engines of several versions write them."""

from __future__ import annotations

import pytest

from sidecar.engine_counters import Counters, read, spoiled

CONSUMER = b"""# HELP vllm:kv_offload_tiering_read_bytes_total Total bytes read from secondary tiers.
# TYPE vllm:kv_offload_tiering_read_bytes_total counter
vllm:kv_offload_tiering_read_bytes_total{engine="0",model_name="tiny",tier="1:p2p"} 163840.0
vllm:kv_offload_tiering_read_bytes_total{engine="0",model_name="tiny",tier="2:disk"} 999.0
vllm:kv_offload_tiering_read_bytes_created{engine="0",model_name="tiny",tier="1:p2p"} 1.7e+09
vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="tiny",source="p2p"} 160.0
vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="tiny",source="device"} 7.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_compute"} 162.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_cache_hit"} 7.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="external_kv_transfer"} 160.0
vllm:request_prefill_time_seconds_bucket{engine="0",le="0.3",model_name="tiny"} 3.0
vllm:request_prefill_time_seconds_sum{engine="0",model_name="tiny"} 0.25
vllm:kv_offload_tiering_promotion_job_failures_total{engine="0",model_name="tiny",tier="1:p2p"} 1.0
vllm:num_requests_kv_fetch_by_stage{engine="0",model_name="tiny",stage="in_progress"} 2.0
vllm:num_requests_kv_fetch_by_stage{engine="0",model_name="tiny",stage="waiting_to_start"} 1.0"""


def test_the_counters_of_a_consumer() -> None:
    assert read(CONSUMER) == Counters(
        pulled_bytes=163840.0,
        pulled_tokens=160.0,
        failures=1.0,
        local_tokens=7.0,
        computed_tokens=162.0,
        prefill_s=0.25,
        fetching=3.0,
    )


def test_the_series_of_several_ranks_are_summed() -> None:
    line = 'vllm:kv_offload_tiering_read_bytes_total{engine="%d",tier="1:p2p"} 1e3\n'
    assert read((line % 0 + line % 1).encode()).pulled_bytes == 2000.0


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"not metrics at all \xff\x00",
        b'vllm:kv_offload_tiering_read_bytes_total{tier="1:p2p"}',
        b'vllm:kv_offload_tiering_read_bytes_total{tier="1:p2p"} many\n',
        b'vllm:kv_offload_tiering_read_bytes_total{tier="1:p2p"} NaN\n',
        b'vllm:kv_offload_tiering_read_bytes_total{tier="1:p2p"} -1\n',
        b'vllm:kv_offload_tiering_read_bytes_total{tier="1:p2p"} +Inf\n',
        b'vllm:kv_offload_tiering_read_bytes_total{tier="1:p2p"} 1e300\n',
        b'vllm:kv_offload_tiering_read_bytes_totals{tier="1:p2p"} 5\n',
        b'x_vllm:kv_offload_tiering_read_bytes_total{tier="1:p2p"} 5\n',
        b"# vllm:kv_offload_tiering_read_bytes_total 5\n",
    ],
)
def test_what_is_not_there_or_not_a_number_is_none(text: bytes) -> None:
    assert read(text) == Counters()


def test_a_timestamp_behind_a_value_and_a_missing_last_line_end_are_fine() -> None:
    text = b'up 1\nvllm:kv_offload_tiering_read_bytes_total{tier="1:p2p"} 5 1700000000000'
    assert read(text).pulled_bytes == 5.0


@pytest.mark.parametrize("name", [b"chunk_queries", b"block_queries"])
def test_lookups_at_peers_are_known_by_both_names(name: bytes) -> None:
    text = b"vllm:kv_offload_tiering_" + name + b'_total{tier="1:p2p"} 5\n'
    assert read(text) == Counters(queries=5.0)


def test_what_an_engine_gave_to_peers_and_what_it_stored_itself() -> None:
    assert read(b"lab:p2p_served_bytes_total 64\n") == Counters(served_bytes=64.0)
    text = b"""vllm:kv_offload_tiering_write_bytes_total{engine="0",tier="1:p2p"} 96
vllm:kv_offload_tiering_write_bytes_total{engine="0",tier="2:fs"} 7
vllm:kv_offload_total_bytes_total{engine="0",transfer_type="GPU_to_CPU"} 32
vllm:kv_offload_store_bytes_total{engine="0",model_name="tiny"} 32
"""
    assert read(text) == Counters(written_bytes=96.0, stored_bytes=32.0)


def test_a_series_that_is_announced_and_has_no_number_yet_is_zero() -> None:
    assert read(b"# TYPE vllm:kv_offload_tiering_read_bytes_total counter\n") == Counters(pulled_bytes=0.0)
    announced = b"# TYPE vllm:kv_offload_tiering_write_bytes_total counter\n"
    assert read(announced) == Counters(written_bytes=0.0)
    assert read(announced + b'vllm:kv_offload_tiering_write_bytes_total{tier="2:fs"} 7\n') == Counters(
        written_bytes=0.0
    )
    assert read(b"# TYPE vllm:kv_offload_tiering_write_bytes_totals counter\n") == Counters()


@pytest.mark.parametrize("name", [b"chunk_hits", b"block_hits"])
def test_what_a_source_has_ready_for_peers_and_what_they_found_of_it(name: bytes) -> None:
    text = b'vllm:kv_offload_store_bytes_total{engine="0"} 96\n'
    text += b"vllm:kv_offload_tiering_" + name + b'_total{engine="0",tier="0:primary"} 5\n'
    assert read(text) == Counters(stored_bytes=96.0, found_chunks=5.0)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "many", "1e300"])
def test_a_value_that_no_counter_has_is_named(value: str) -> None:
    name, label = "vllm:kv_offload_tiering_read_bytes_total", 'tier="1:p2p"'
    assert (
        spoiled(f"{name}{{{label}}} {value} 17\n".encode())
        == f"vllm:kv_offload_tiering_read_bytes_total {value} 17"
    )


@pytest.mark.parametrize("text", [CONSUMER, b"", b'other{tier="1:p2p"} NaN\n', b"vllm:num_requests_x NaN\n"])
def test_what_is_counted_or_nobody_reads_spoils_nothing(text: bytes) -> None:
    assert spoiled(text) is None
