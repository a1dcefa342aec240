"""Prefill and decode by NIXL: what is handed over, what is read, what a failure costs."""

from __future__ import annotations

import asyncio
from typing import Any

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
    words,
)

P, D, S = "127.0.0.1", "127.0.0.2", "127.0.0.3"
ASK: Json = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
KEYS = words(
    "do_remote_prefill do_remote_decode remote_block_ids remote_engine_id"
    " remote_request_id remote_host remote_port"
    " tp_size dcp_size pp_size remote_num_tokens remote_blocks_expiry_time transfer_mode"
)
BYTES = "vllm:nixl_bytes_transferred"
BLOCK_BYTES = 32 * KV_BYTES


async def prefill(engine: Engine, ids: list[int], **more: Any) -> Json:
    params: Json = (await complete(engine, ids, ASK | more, max_tokens=1))["kv_transfer_params"]
    return params


async def test_a_prefill_answers_with_vllms_parameters() -> None:
    async with make_engine(P, kv_connector="nixl") as p:
        answer = await complete(p, prompt(10), ASK, max_tokens=1)
        params = answer["kv_transfer_params"]
        assert list(params) == [*KEYS, "remote_prefill_cached_tokens"]
        assert params == {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[1, 2, 3, 4, 5, 6]],
            "remote_engine_id": p.core.nixl and p.core.nixl.engine_id,
            "remote_request_id": params["remote_request_id"],
            "remote_host": "127.0.0.1",
            "remote_port": p.nixl_port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": 161,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": 0,
        }
        assert params["remote_request_id"].startswith(f"{answer['id']}-0-")


async def test_an_answer_that_was_not_asked_to_hand_over_has_no_parameters() -> None:
    async with make_engine(P, kv_connector="nixl") as p:
        assert (await complete(p, prompt(10)))["kv_transfer_params"] is None


async def test_an_answer_that_ended_before_its_limit_is_not_handed_over() -> None:
    async with make_engine(P, kv_connector="nixl") as p:
        word = text(await complete(p, prompt(10))).split()[0]
        answer = await complete(p, prompt(10), ASK, stop=[word])
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["kv_transfer_params"] is None


async def test_a_decode_reads_every_block_and_says_what_the_prefiller_would_have_said() -> None:
    async with engines(P, D, kv_connector="nixl") as (p, d):
        decoded = await complete(d, prompt(10), await prefill(p, prompt(10)), max_tokens=8)
        assert text(decoded) == text(await complete(p, prompt(10), max_tokens=8))
        assert d.metrics.value(BYTES) == 6 * BLOCK_BYTES
        assert d.metrics.count(BYTES) == 1
        assert d.metrics.value("vllm:external_prefix_cache_hits_total") == 161
        assert d.metrics.value("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == 161
        assert d.metrics.value("vllm:prompt_tokens_by_source_total", source="local_compute") == 0
        assert d.metrics.value("vllm:prompt_tokens_cached_by_source_total", source="p2p") == 161


async def test_a_decode_offers_its_blocks_back() -> None:
    async with engines(P, D, kv_connector="nixl") as (p, d):
        decoded = await complete(d, prompt(10), await prefill(p, prompt(10)), max_tokens=8)
        params = decoded["kv_transfer_params"]
        assert list(params) == KEYS
        assert (params["do_remote_prefill"], params["do_remote_decode"]) == (False, True)
        assert params["remote_num_tokens"] == 168
        assert params["remote_blocks_expiry_time"] > 0
        assert params["remote_port"] == d.nixl_port


async def test_a_decode_reports_the_cached_tokens_of_its_prefiller() -> None:
    async with engines(P, D, kv_connector="nixl") as (p, d):
        await complete(p, prompt(10)[:97])
        params = await prefill(p, prompt(10))
        assert params["remote_prefill_cached_tokens"] == 96
        assert cached(await complete(d, prompt(10), params)) == 96
        del params["remote_prefill_cached_tokens"]
        params = await prefill(p, prompt(11)) | {"remote_prefill_cached_tokens": None}
        assert cached(await complete(d, prompt(11), params)) == 160


async def test_a_decode_reads_only_what_it_has_not_itself() -> None:
    async with engines(P, D, kv_connector="nixl") as (p, d):
        await complete(d, prompt(10)[:97])
        decoded = await complete(d, prompt(10), await prefill(p, prompt(10)))
        assert d.metrics.value(BYTES) == 3 * BLOCK_BYTES
        assert text(decoded) == text(await complete(p, prompt(10)))


async def test_a_streamed_decode_works_and_no_chunk_carries_parameters() -> None:
    async with engines(P, D, kv_connector="nixl") as (p, d):
        chat = {"messages": [{"role": "user", "content": "The quick brown fox. " * 8}], "ignore_eos": True}
        ask = chat | {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        prefilled = (await post(p, "/v1/chat/completions", ask)).json()
        params = prefilled["kv_transfer_params"]
        assert params["remote_request_id"].startswith(f"{prefilled['id']}-")
        body = chat | {"max_tokens": 4, "stream": True, "kv_transfer_params": params}
        streamed = (await post(d, "/v1/chat/completions", body)).text
        assert "kv_transfer_params" not in streamed
        assert prefilled["choices"][0]["message"]["content"] in streamed
        assert d.metrics.count(BYTES) == 1


async def test_the_prefillers_blocks_are_kept_until_they_are_read() -> None:
    async with engines(P, D, kv_connector="nixl", num_gpu_blocks=16, max_model_len=512) as (p, d):
        params = await prefill(p, prompt(10))
        assert p.core.pool.usage == 6 / 16
        for seed in range(20, 24):
            await complete(p, prompt(seed))
        decoded = await complete(d, prompt(10), params)
        assert text(decoded) == text(await complete(p, prompt(10)))
        assert p.core.pool.usage == 0


async def test_a_prefiller_full_of_kept_blocks_makes_others_wait_until_the_lease_ends() -> None:
    async with make_engine(
        P, kv_connector="nixl", num_gpu_blocks=8, max_model_len=256, time_scale=0.003
    ) as p:
        await prefill(p, prompt(10))
        started_s = asyncio.get_running_loop().time()
        await complete(p, prompt(11))
        assert asyncio.get_running_loop().time() - started_s > 0.04  # 30 s are 90 ms at that scale
        assert p.metrics.value("vllm:nixl_num_kv_expired_reqs_total") == 1


async def test_parameters_used_again_for_another_prompt_are_200_with_wrong_kv() -> None:
    async with engines(P, D, kv_connector="nixl") as (p, d):
        params = await prefill(p, prompt(10))
        await complete(d, prompt(10), params)
        wrong = await complete(d, prompt(11), params)
        assert text(wrong) != text(await complete(p, prompt(11)))
        assert wrong["usage"]["prompt_tokens"] == 161


async def test_wrong_kv_stays_in_the_decoders_cache() -> None:
    async with engines(P, D, kv_connector="nixl") as (p, d):
        wrong = await complete(d, prompt(11), await prefill(p, prompt(10)))
        again = await complete(d, prompt(11))
        assert cached(again) == 160
        assert text(again) != text(await complete(p, prompt(11)))
        assert text(again) != text(wrong)  # its last token is computed now, from wrong KV


async def test_parameters_for_a_shorter_prompt_read_zeros_for_the_rest() -> None:
    async with engines(P, D, kv_connector="nixl") as (p, d):
        wrong = await complete(d, prompt(10, 300), await prefill(p, prompt(10)))
        assert text(wrong) != text(await complete(p, prompt(10, 300)))


async def test_blocks_that_were_reused_by_the_prefiller_are_wrong_kv() -> None:
    async with engines(P, D, kv_connector="nixl", num_gpu_blocks=16, max_model_len=512) as (p, d):
        params = await prefill(p, prompt(10))
        await complete(d, prompt(10), params)
        await post(d, "/reset_prefix_cache", {})
        for seed in range(20, 24):
            await complete(p, prompt(seed))
        wrong = await complete(d, prompt(10), params)
        assert text(wrong) != text(await complete(p, prompt(10)))


@pytest.mark.parametrize(
    ("change", "price_s"),
    [
        ({"remote_port": 9}, 0.4),
        ({"remote_engine_id": "another"}, 6.0),
        ({"remote_block_ids": [[9999]]}, 6.0),
    ],
)
async def test_a_read_that_fails_is_500_at_once_when_the_port_refuses_else_after_six_seconds(
    change: Json, price_s: float
) -> None:
    clock = RecordingClock()
    async with (
        make_engine(P, kv_connector="nixl") as p,
        make_engine(D, kv_connector="nixl", clock=clock) as d,
    ):
        params = await prefill(p, prompt(10)) | change
        body = {"prompt": prompt(10), "kv_transfer_params": params}
        response = await post(d, "/v1/completions", body)
        assert response.status_code == 500
        assert response.json() == {
            "error": {
                "message": "Internal server error",
                "type": "InternalServerError",
                "param": None,
                "code": 500,
            }
        }
        assert clock.slept_s == [pytest.approx(price_s, rel=0.3)]
        assert d.metrics.value("vllm:nixl_num_failed_transfers_total") == 1
        assert d.metrics.value("vllm:request_success_total", finished_reason="error") == 1
        assert d.metrics.value("vllm:request_prompt_tokens") == 161
        assert not d.died


@pytest.mark.parametrize(
    ("change", "price_s"), [({"remote_port": 9}, 0.4), ({"remote_engine_id": "another"}, 5.0)]
)
async def test_what_could_not_be_read_is_computed_under_recompute(change: Json, price_s: float) -> None:
    clock = RecordingClock()
    recomputes = make_engine(D, kv_connector="nixl", clock=clock, kv_load_failure_policy="recompute")
    async with make_engine(P, kv_connector="nixl") as p, recomputes as d:
        params = await prefill(p, prompt(10)) | {"remote_prefill_cached_tokens": None} | change
        answer = await complete(d, prompt(10), params)
        assert clock.slept_s == [pytest.approx(price_s, rel=0.3)]
        assert cached(answer) == 0
        assert text(answer) == text(await complete(p, prompt(10)))


async def test_a_dead_prefiller_in_a_stream_is_an_error_event_after_the_head() -> None:
    async with engines(P, D, kv_connector="nixl") as (p, d):
        params = await prefill(p, prompt(10)) | {"remote_port": 9}
        body = {"prompt": prompt(10), "kv_transfer_params": params, "stream": True}
        response = await post(d, "/v1/completions", body)
        assert response.status_code == 200
        assert response.text == (
            'data: {"error":{"message":"Internal server error","type":"InternalServerError","param":null,'
            '"code":500}}\n\ndata: [DONE]\n\n'
        )


async def test_a_remote_prefill_without_block_ids_ends_the_engine() -> None:
    async with make_engine(D, kv_connector="nixl") as d:
        with pytest.raises(httpx.ReadError):
            await complete(d, prompt(10), {"do_remote_prefill": True})
        assert d.died
        assert d.ended.is_set()


async def test_a_remote_prefill_without_engine_id_hangs_and_its_disconnect_ends_the_engine() -> None:
    async with make_engine(D, kv_connector="nixl") as d:
        params = {"do_remote_prefill": True, "remote_block_ids": [[1]], "remote_host": P, "remote_port": 9}
        async with asyncio.TaskGroup() as tasks:
            hanging = tasks.create_task(complete(d, prompt(10), params))
            await until(lambda: d.metrics.value("vllm:num_requests_waiting") == 1)
            await asyncio.sleep(0.05)
            assert not d.died
            hanging.cancel()
        await until(lambda: d.died is not None)


async def test_several_requests_are_handed_over_at_once() -> None:
    async with engines(P, D, kv_connector="nixl") as (p, d):

        async def one(seed: int) -> str:
            return text(await complete(d, prompt(seed), await prefill(p, prompt(seed))))

        async with asyncio.TaskGroup() as tasks:
            said = [tasks.create_task(one(seed)) for seed in range(10, 16)]
        assert [task.result() for task in said] == [
            text(await complete(p, prompt(seed))) for seed in range(10, 16)
        ]


async def test_a_prefill_pulls_over_p2p_and_hands_over_by_nixl() -> None:
    async with engines(S, P, D, kv_connector="multi") as (s, p, d):
        await complete(s, prompt(10)[:97])
        await complete(d, prompt(10)[:97])
        params = await prefill(p, prompt(10), **kv_source(s))
        assert p.metrics.value("vllm:kv_offload_tiering_read_bytes_total", tier="1:p2p") == 96 * KV_BYTES
        assert p.metrics.value("vllm:prompt_tokens_by_source_total", source="local_compute") == 65
        assert params["remote_prefill_cached_tokens"] == 96
        decoded = await complete(d, prompt(10), params)
        assert d.metrics.value("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == 65
        assert d.metrics.value(BYTES) == 3 * BLOCK_BYTES
        assert text(decoded) == text(await complete(s, prompt(10)))


async def test_a_source_on_the_decode_as_well_doubles_the_transfer() -> None:
    async with engines(P, D, kv_connector="multi") as (p, d):
        params = await prefill(p, prompt(10)) | kv_source(p)
        decoded = await complete(d, prompt(10), params)
        assert d.metrics.value(BYTES) == 6 * BLOCK_BYTES
        assert d.metrics.value("vllm:kv_offload_tiering_read_bytes_total", tier="1:p2p") == 160 * KV_BYTES
        assert d.metrics.value("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == 161
        assert text(decoded) == text(await complete(p, prompt(10)))


async def test_the_p2p_handoff_works_under_multi_too() -> None:
    async with engines(P, D, kv_connector="multi") as (p, d):
        prefilled = await complete(p, prompt(10), {"remote_decoder": {"kv_request_id": "m"}}, max_tokens=1)
        assert prefilled["kv_transfer_params"] is None
        where = {"kv_request_id": "m", **p.kv_source}
        decoded = await complete(d, prompt(10), {"remote_prefiller": where})
        assert (cached(decoded), text(decoded)) == (160, text(await complete(p, prompt(10))))


async def test_an_engine_without_a_connector_ignores_all_parameters() -> None:
    async with make_engine(P, kv_connector="none") as p:
        answer = await complete(p, prompt(10), {"do_remote_prefill": True, "remote_kv_source": "abc"})
        assert answer["kv_transfer_params"] is None
        assert (p.p2p_port, p.nixl_port) == (0, 0)
