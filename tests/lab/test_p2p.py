"""KV pulls between engines over their P2P listeners: what moves, what is counted, what a failure costs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from sidecar.lab import Engine
from tests.lab.bench import (
    KV_BYTES,
    Json,
    RecordingClock,
    cached,
    complete,
    engines,
    kv_source,
    make_engine,
    post,
    prompt,
    text,
    until,
)

A, B, C = "127.0.0.1", "127.0.0.2", "127.0.0.3"
P2P = {"tier": "1:p2p"}
PRIMARY = {"tier": "0:primary"}
QUERIES = "vllm:kv_offload_tiering_chunk_queries_total"
HITS = "vllm:kv_offload_tiering_chunk_hits_total"
READ = "vllm:kv_offload_tiering_read_bytes_total"
STAGE = "vllm:num_requests_kv_fetch_by_stage"
PINNED = 'vllm:kv_offload_cpu_cache_usage_perc{engine="0",model_name="tiny"} 0.625'  # five of eight chunks
FAILED = "vllm:kv_offload_tiering_promotion_job_failures_total"


def dead(host: str = B, port: int = 9) -> dict[str, object]:
    return {"remote_kv_source": {"kv_request_id": "dead", "remote_host": host, "remote_port": port}}


@asynccontextmanager
async def silent_listener() -> AsyncIterator[int]:
    """A port that takes connections and never says anything, as a host that drops packets later."""
    with socket.socket() as listener:
        listener.bind((C, 0))
        listener.listen(16)
        yield listener.getsockname()[1]


async def test_160_of_161_tokens_are_pulled_and_the_text_is_that_of_the_engine_that_computed() -> None:
    async with engines(A, B) as (a, b):
        computed = await complete(a, prompt(10))
        pulled = await complete(b, prompt(10), kv_source(a))
        assert text(pulled) == text(computed)
        assert cached(computed) == 0
        assert cached(pulled) == 160
        assert pulled["kv_transfer_params"] is None


async def test_a_pull_is_counted_on_both_sides() -> None:
    async with engines(A, B) as (a, b):
        await complete(a, prompt(10))
        await complete(b, prompt(10), kv_source(a))
        assert b.metrics.value(READ, **P2P) == 160 * KV_BYTES
        assert b.metrics.value("vllm:kv_offload_load_bytes_total") == 160 * KV_BYTES
        assert b.metrics.value("vllm:external_prefix_cache_queries_total") == 161
        assert b.metrics.value("vllm:external_prefix_cache_hits_total") == 160
        by_source = "vllm:prompt_tokens_by_source_total"
        assert b.metrics.value(by_source, source="external_kv_transfer") == 160
        assert b.metrics.value(by_source, source="local_compute") == 1
        assert b.metrics.value("vllm:prompt_tokens_cached_by_source_total", source="p2p") == 160
        assert (b.metrics.value(QUERIES, **P2P), b.metrics.value(HITS, **P2P)) == (5, 5)
        assert (b.metrics.value(QUERIES, **PRIMARY), b.metrics.value(HITS, **PRIMARY)) == (5, 0)
        assert a.metrics.value(HITS, **PRIMARY) == 5
        assert a.metrics.value("lab:p2p_served_bytes_total") == 160 * KV_BYTES
        assert a.metrics.value("vllm:kv_offload_store_bytes_total") == 160 * KV_BYTES
        assert a.metrics.value("vllm:kv_offload_tiering_write_bytes_total", **P2P) == 2 * 160 * KV_BYTES
        assert a.metrics.value(READ, **P2P) == 0


async def test_a_pull_over_http_metrics_is_seen_by_deltas() -> None:
    async with engines(A, B) as (a, b), httpx.AsyncClient(verify=False) as client:
        await complete(a, prompt(10))
        await complete(b, prompt(10), kv_source(a))
        line = 'vllm:kv_offload_tiering_read_bytes_total{engine="0",model_name="tiny",tier="1:p2p"} 2560.0'
        assert line in (await client.get(f"{b.url}/metrics")).text.splitlines()


async def test_a_second_pull_uses_the_same_session() -> None:
    async with engines(A, B) as (a, b):
        for seed in (10, 11, 12):
            await complete(a, prompt(seed))
            assert cached(await complete(b, prompt(seed), kv_source(a))) == 160
        assert b.core.offloading is not None
        assert len(b.core.offloading.peers._idle[(A, a.p2p_port)]) == 1


async def test_what_was_pulled_is_pulled_again_from_the_puller() -> None:
    async with engines(A, B, C) as (a, b, c):
        computed = await complete(a, prompt(10))
        await complete(b, prompt(10), kv_source(a))
        pulled = await complete(c, prompt(10), kv_source(b))
        assert (cached(pulled), text(pulled)) == (160, text(computed))


async def test_generated_blocks_can_be_pulled_too() -> None:
    async with engines(A, B) as (a, b):
        said = await complete(a, prompt(10), max_tokens=100, return_token_ids=True)
        longer = [*prompt(10), *said["choices"][0]["token_ids"], 7]
        assert cached(await complete(b, longer, kv_source(a))) == 256  # 161 + 99 held, in whole blocks


async def test_only_what_is_missing_is_pulled() -> None:
    async with engines(A, B) as (a, b):
        await complete(b, prompt(10)[:97])
        computed = await complete(a, prompt(10))
        pulled = await complete(b, prompt(10), kv_source(a))
        assert text(pulled) == text(computed)
        assert cached(pulled) == 160
        assert b.metrics.value(READ, **P2P) == 64 * KV_BYTES
        assert b.metrics.value("vllm:prompt_tokens_by_source_total", source="local_cache_hit") == 96


async def test_a_peer_that_has_the_beginning_gives_the_beginning() -> None:
    async with engines(A, B) as (a, b):
        await complete(a, prompt(10)[:97])
        pulled = await complete(b, prompt(10), kv_source(a))
        assert cached(pulled) == 96
        assert (b.metrics.value(QUERIES, **P2P), b.metrics.value(HITS, **P2P)) == (4, 3)
        assert text(pulled) == text(await complete(a, prompt(10)))


async def test_the_granularity_is_the_offload_block() -> None:
    async with engines(A, B, offload_block_size=64) as (a, b):
        computed = await complete(a, prompt(10))
        pulled = await complete(b, prompt(10), kv_source(a))
        assert (cached(pulled), text(pulled)) == (128, text(computed))
        assert b.metrics.value(READ, **P2P) == 128 * KV_BYTES


async def test_a_chunk_of_which_the_gpu_has_a_part_is_pulled_whole_and_used_for_the_rest() -> None:
    async with engines(A, B, offload_block_size=64) as (a, b):
        await complete(b, prompt(10)[:97])
        computed = await complete(a, prompt(10))
        pulled = await complete(b, prompt(10), kv_source(a))
        assert (cached(pulled), text(pulled)) == (128, text(computed))
        assert b.metrics.value(READ, **P2P) == 64 * KV_BYTES
        assert b.metrics.value("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == 32


async def test_at_least_one_token_is_always_computed() -> None:
    async with engines(A, B) as (a, b):
        await complete(a, prompt(10, 160))
        assert cached(await complete(b, prompt(10, 160), kv_source(a))) == 128


async def test_host_memory_gives_back_what_the_gpu_forgot() -> None:
    async with make_engine(A) as a:
        first = await complete(a, prompt(10))
        assert (await post(a, "/reset_prefix_cache", {})).status_code == 200
        again = await complete(a, prompt(10))
        assert (cached(again), text(again)) == (160, text(first))
        assert a.metrics.value("vllm:prompt_tokens_cached_by_source_total", source="host") == 160
        assert a.metrics.value("vllm:external_prefix_cache_hits_total") == 160
        await post(a, "/reset_prefix_cache?reset_external=true", {})
        assert cached(await complete(a, prompt(10))) == 0


async def test_a_small_gpu_cache_falls_back_to_host_memory() -> None:
    async with make_engine(A, num_gpu_blocks=8, max_model_len=256) as a:
        first = await complete(a, prompt(10))
        for seed in range(20, 23):
            await complete(a, prompt(seed))
        again = await complete(a, prompt(10))
        assert (cached(again), text(again)) == (160, text(first))
        assert a.metrics.value("vllm:prompt_tokens_cached_by_source_total", source="host") == 160


async def test_a_peer_that_has_nothing_costs_a_tenth_of_a_second() -> None:
    clock = RecordingClock()
    async with make_engine(A) as a, make_engine(B, clock=clock) as b:
        answer = await complete(b, prompt(10), kv_source(a))
        assert (cached(answer), text(answer)) == (0, text(await complete(a, prompt(10))))
        assert clock.slept_s == [0.1]
        assert b.metrics.value(QUERIES, **P2P) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"hash_seed": "1"},
        {"block_size": 16},
        {"offload_block_size": 64},
        {"dtype": "float16"},
        {"model": "other"},
        {"kv_bytes_per_token": 32},
    ],
)
async def test_a_peer_that_differs_is_refused_and_the_pull_silently_yields_nothing(
    other: Json,
) -> None:
    async with make_engine(A) as a, make_engine(B, **other) as b:
        await complete(a, prompt(10))
        answer = await complete(b, prompt(10), kv_source(a), model=b.config.model)
        assert cached(answer) == 0
        assert b.metrics.value(READ, **P2P) == 0
        assert not b.died
        again = await complete(b, prompt(11), kv_source(a), model=b.config.model)
        assert cached(again) == 0


async def test_a_source_with_a_falsy_field_is_ignored_at_no_cost() -> None:
    clock = RecordingClock()
    async with make_engine(A) as a, make_engine(B, clock=clock) as b:
        await complete(a, prompt(10))
        answer = await complete(b, prompt(10), kv_source(a, kv_request_id=""))
        assert (cached(answer), clock.slept_s) == (0, [])


async def test_a_dead_port_costs_60_ms_and_wedges_all_later_pulls_but_nothing_else() -> None:
    clock = RecordingClock()
    async with make_engine(A) as a, make_engine(B, clock=clock) as b:
        await complete(a, prompt(10))
        assert cached(await complete(b, prompt(11), dead())) == 0
        assert clock.slept_s == [0.06]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await complete(b, prompt(10), kv_source(a))
        await until(lambda: b.metrics.value("vllm:num_requests_waiting") == 0)
        assert cached(await complete(b, prompt(12))) == 0
        assert cached(await complete(a, prompt(12), kv_source(b))) == 160


async def test_a_hanging_pull_is_seen_in_the_gauges() -> None:
    async with make_engine(A) as a, make_engine(B) as b:
        await complete(b, prompt(11), dead())
        async with asyncio.TaskGroup() as tasks:
            hanging = tasks.create_task(complete(b, prompt(10), kv_source(a)))
            await until(lambda: b.metrics.value(STAGE, stage="waiting_to_start") == 1)
            assert b.metrics.value("vllm:num_requests_waiting") == 1
            assert b.metrics.value("vllm:num_requests_waiting_by_reason", reason="deferred") == 1
            assert b.metrics.value("vllm:num_requests_running") == 0
            hanging.cancel()
        await until(lambda: b.metrics.value(STAGE, stage="waiting_to_start") == 0)
        assert b.metrics.value("vllm:request_success_total", finished_reason="abort") == 1


async def test_a_wedged_engine_answers_a_pull_for_what_it_has_itself() -> None:
    async with make_engine(A) as a, make_engine(B) as b:
        await complete(b, prompt(10))
        await complete(b, prompt(11), dead())
        assert cached(await complete(b, prompt(10), kv_source(a))) == 160


async def test_without_the_fault_later_pulls_work() -> None:
    async with make_engine(A) as a, make_engine(B, p2p_hang_after_dead_peer=False) as b:
        await complete(a, prompt(10))
        await complete(b, prompt(11), dead())
        assert cached(await complete(b, prompt(10), kv_source(a))) == 160


async def test_a_peer_that_never_answers_costs_the_handshake_timeout_and_wedges() -> None:
    async with make_engine(A, time_scale=0.005) as a, silent_listener() as port:
        started_s = asyncio.get_running_loop().time()
        assert cached(await complete(a, prompt(10), dead(C, port))) == 0
        assert 0.15 <= asyncio.get_running_loop().time() - started_s < 5  # 30 s at that scale
        assert a.core.offloading is not None
        assert a.core.offloading.peers.wedged


async def test_a_peer_that_died_between_two_pulls_is_a_dead_peer() -> None:
    async with make_engine(A) as a, make_engine(B) as b:
        await complete(a, prompt(10))
        await complete(b, prompt(10), kv_source(a))
        a.die("killed")
        assert cached(await complete(b, prompt(11), kv_source(a))) == 0
        assert b.core.offloading is not None
        assert b.core.offloading.peers.wedged


async def test_a_peer_that_was_restarted_is_connected_anew() -> None:
    async with make_engine(B) as b:
        async with make_engine(A) as a:
            await complete(a, prompt(10))
            await complete(b, prompt(10), kv_source(a))
            port = a.p2p_port
        async with make_engine(A, p2p_port=port) as a:
            await complete(a, prompt(11))
            assert cached(await complete(b, prompt(11), kv_source(a))) == 160


async def test_connecting_to_the_p2p_port_and_closing_at_once_is_harmless() -> None:
    async with engines(A, B) as (a, b):
        for _ in range(100):
            _, writer = await asyncio.open_connection(A, a.p2p_port)
            writer.close()
            await writer.wait_closed()
        await complete(a, prompt(10))
        assert cached(await complete(b, prompt(10), kv_source(a))) == 160


async def test_several_pulls_run_at_once() -> None:
    async with engines(A, B) as (a, b):
        for seed in range(10, 16):
            await complete(a, prompt(seed))
        async with asyncio.TaskGroup() as tasks:
            pulls = [tasks.create_task(complete(b, prompt(seed), kv_source(a))) for seed in range(10, 16)]
        assert [cached(pull.result()) for pull in pulls] == [160] * 6


def prefiller(engine: Engine, kv_request_id: str) -> dict[str, object]:
    return {"remote_prefiller": {"kv_request_id": kv_request_id, **engine.kv_source}}


def decoder(kv_request_id: str) -> dict[str, object]:
    return {"remote_decoder": {"kv_request_id": kv_request_id}}


async def test_a_prompt_prefilled_for_a_decoder_is_fetched_by_its_id() -> None:
    async with engines(A, B) as (p, d):
        answer = await complete(p, prompt(10), decoder("k"), max_tokens=1)
        assert answer["kv_transfer_params"] is None
        decoded = await complete(d, prompt(10), prefiller(p, "k"))
        assert cached(decoded) == 160
        assert decoded["kv_transfer_params"] is None
        assert d.metrics.value(READ, **P2P) == 160 * KV_BYTES
        assert text(decoded) == text(await complete(p, prompt(10)))


async def test_a_decoder_that_comes_first_waits_for_its_prefiller() -> None:
    async with engines(A, B) as (p, d), asyncio.TaskGroup() as tasks:
        decoding = tasks.create_task(complete(d, prompt(10), prefiller(p, "k")))
        await until(lambda: d.metrics.value(STAGE, stage="in_progress") == 1)
        await complete(p, prompt(10), decoder("k"), max_tokens=1)
        assert cached(await decoding) == 160


async def test_an_id_that_is_never_prefilled_costs_30_s_and_is_computed() -> None:
    async with make_engine(A) as p, make_engine(B, time_scale=0.005) as d:
        started_s = asyncio.get_running_loop().time()
        decoded = await complete(d, prompt(10), prefiller(p, "never"))
        assert 0.15 <= asyncio.get_running_loop().time() - started_s < 5  # 30 s at that scale
        assert cached(decoded) == 0
        assert d.metrics.value(FAILED, **P2P) == 1
        assert text(decoded) == text(await complete(p, prompt(10)))


async def test_a_prefiller_whose_port_refuses_costs_300_ms_and_wedges_all_later_pulls() -> None:
    clock = RecordingClock()
    async with make_engine(A, clock=clock) as d:
        where = {"kv_request_id": "k", "remote_host": B, "remote_port": 9}
        assert cached(await complete(d, prompt(10), {"remote_prefiller": where})) == 0
        assert clock.slept_s == [0.3]
        assert d.core.offloading is not None
        assert d.core.offloading.peers.wedged


async def test_a_prefiller_that_swallows_connections_costs_30_s() -> None:
    async with make_engine(A, time_scale=0.005) as d, silent_listener() as port:
        where = {"kv_request_id": "k", "remote_host": C, "remote_port": port}
        started_s = asyncio.get_running_loop().time()
        assert cached(await complete(d, prompt(10), {"remote_prefiller": where})) == 0
        assert 0.15 <= asyncio.get_running_loop().time() - started_s < 5  # 30 s at that scale
        assert d.core.offloading is not None
        assert d.core.offloading.peers.wedged


async def test_unfetched_chunks_stay_whatever_else_is_stored() -> None:
    async with make_engine(A, cpu_blocks=8) as p, make_engine(B) as d:
        await complete(p, prompt(10), decoder("k"), max_tokens=1)
        for seed in range(20, 24):
            await complete(p, prompt(seed))
        assert PINNED in p.core.metrics_text()
        assert cached(await complete(d, prompt(10), prefiller(p, "k"))) == 160
        assert PINNED not in p.core.metrics_text()


async def test_unfetched_chunks_are_given_up_after_a_minute_and_a_late_fetch_is_refused() -> None:
    async with make_engine(A, time_scale=0.0005, cpu_blocks=8) as p, make_engine(B) as d:
        await complete(p, prompt(10), decoder("k"), max_tokens=1)
        await until(lambda: PINNED not in p.core.metrics_text())
        assert cached(await complete(d, prompt(10), prefiller(p, "k"))) == 0
        assert d.metrics.value(FAILED, **P2P) == 1


async def test_a_prefill_pulls_and_serves_its_decoder_in_one_request() -> None:
    async with engines(A, B, C) as (source, p, d):
        await complete(source, prompt(10)[:97])
        params = decoder("k") | kv_source(source, "s")
        prefilled = await complete(p, prompt(10), params, max_tokens=1)
        assert cached(prefilled) == 96
        decoded = await complete(d, prompt(10), prefiller(p, "k"))
        assert cached(decoded) == 160
        assert text(decoded) == text(await complete(source, prompt(10)))


async def test_a_prefiller_beats_a_source() -> None:
    async with engines(A, B, C) as (source, p, d):
        await complete(source, prompt(10))
        await complete(p, prompt(10), decoder("k"), max_tokens=1)
        assert cached(await complete(d, prompt(10), prefiller(p, "k") | kv_source(source))) == 160
        assert source.metrics.value("lab:p2p_served_bytes_total") == 0


async def test_a_pull_takes_the_measured_time_and_no_recompute_on_top() -> None:
    clock = RecordingClock()
    async with (
        make_engine(A, profile="gpt-oss-120b", time_scale=0.001) as a,
        make_engine(B, profile="gpt-oss-120b", clock=clock) as b,
    ):
        await complete(a, prompt(10, 2049), max_tokens=1)
        await complete(b, prompt(10, 2049), kv_source(a), max_tokens=1)
        last_token_ms = 24.6 * 0.001 + 0.312 * (2.049**2 - 2.048**2)
        assert clock.slept_s == pytest.approx([(25.5 + 4.07 * 2.048) / 1000, last_token_ms / 1000])


async def test_a_prompt_computed_alone_takes_the_measured_time_and_then_one_step_per_token() -> None:
    clock = RecordingClock()
    async with make_engine(A, profile="gpt-oss-120b", clock=clock) as a:
        await complete(a, prompt(10, 1000), max_tokens=3)
        assert clock.slept_s == pytest.approx([0.051212, 0.005, 0.005])
