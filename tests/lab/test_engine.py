"""An engine as a whole: starting, ending, dying, queueing, and clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
from typing import Any

import httpx
import pytest

from sidecar.lab import Engine
from tests.lab.bench import Json, cached, complete, kv_source, make_engine, post, prompt, text, until

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
ABORTED = {"finished_reason": "abort"}


def slow(**fields: Any) -> Engine:
    """An engine that takes long over every token."""
    return make_engine(profile="gpt-oss-120b", time_scale=10.0, **fields)


async def test_an_engine_takes_the_ports_it_is_given_or_free_ones() -> None:
    async with make_engine(kv_connector="multi") as first:
        assert len({first.port, first.p2p_port, first.nixl_port}) == 3
        ports: Json = {"port": first.port, "p2p_port": first.p2p_port, "nixl_port": first.nixl_port}
        async with make_engine("127.0.0.2", kv_connector="multi", **ports) as second:
            assert (second.port, second.p2p_port, second.nixl_port) == tuple(ports.values())
            assert second.url == f"http://127.0.0.2:{first.port}"


async def test_an_engine_whose_port_is_taken_does_not_start_and_leaves_nothing_open() -> None:
    async with make_engine() as first:
        second = make_engine("127.0.0.1", port=first.port)
        with pytest.raises(OSError, match="in use"):
            await second.start()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", second.p2p_port)


async def test_a_stopped_engine_is_gone_and_can_be_replaced_at_once() -> None:
    async with make_engine() as first:
        port = first.port
    async with make_engine(port=port) as second:
        assert (await complete(second, prompt(10)))["usage"]["prompt_tokens"] == 161


async def test_stopping_cuts_off_running_requests() -> None:
    engine = slow()
    await engine.start()
    async with asyncio.TaskGroup() as tasks:
        request = tasks.create_task(_fails(complete(engine, prompt(10))))
        await until(lambda: engine.metrics.value(RUNNING) == 1)
        await engine.stop()
        assert isinstance(await request, httpx.TransportError)
    assert engine.died is None


async def _fails(request: Any) -> BaseException:
    try:
        await request
    except httpx.HTTPError as error:
        return error
    raise AssertionError("it should have failed")


@pytest.mark.parametrize("params", [{"remote_kv_source": "abc"}, {"remote_decoder": ["x"]}])
async def test_fatal_parameters_reset_the_connection_and_end_the_engine(params: dict[str, object]) -> None:
    async with make_engine() as engine:
        with pytest.raises(httpx.ReadError):
            await complete(engine, prompt(10), params)
        assert engine.died == f"{type(next(iter(params.values()))).__name__!r} object has no attribute 'get'"
        with pytest.raises(httpx.ConnectError):
            await complete(engine, prompt(10))
        for port in (engine.p2p_port, engine.port):
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(engine.host, port)


async def test_fatal_parameters_by_way_of_vllm_xargs_are_fatal_too() -> None:
    async with make_engine() as engine:
        with pytest.raises(httpx.ReadError):
            await complete(engine, prompt(10), vllm_xargs={"kv_transfer_params": {"remote_kv_source": 1}})
        assert engine.died


async def test_a_dying_engine_takes_its_other_requests_with_it() -> None:
    async with slow() as engine, asyncio.TaskGroup() as tasks:
        other = tasks.create_task(_fails(complete(engine, prompt(10))))
        await until(lambda: engine.metrics.value(RUNNING) == 1)
        await _fails(complete(engine, prompt(11), {"remote_kv_source": "abc"}))
        assert isinstance(await other, httpx.ReadError)


async def test_a_stream_of_a_dying_engine_is_cut_and_does_not_end_cleanly() -> None:
    async with make_engine() as engine:
        with pytest.raises(httpx.TransportError):
            await complete(engine, prompt(10), {"remote_kv_source": "abc"}, stream=True)


async def test_an_engine_that_died_is_stopped_like_any_other() -> None:
    engine = make_engine()
    await engine.start()
    engine.die("killed by a test")
    await asyncio.wait_for(engine.ended.wait(), 1)
    await engine.stop()
    assert engine.died == "killed by a test"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_aborts_its_request(stream: bool) -> None:
    async with slow() as engine:
        async with asyncio.TaskGroup() as tasks:
            request = tasks.create_task(complete(engine, prompt(10), stream=stream))
            await until(lambda: engine.metrics.value(RUNNING) == 1)
            request.cancel()
        await until(lambda: engine.metrics.value(RUNNING) == 0)
        assert engine.metrics.value("vllm:request_success_total", **ABORTED) == 1
        assert engine.core.pool.usage == 0


async def test_a_client_that_leaves_in_mid_stream_aborts_its_request() -> None:
    async with (
        make_engine(profile="gpt-oss-120b", time_scale=1.0) as engine,
        httpx.AsyncClient(verify=False) as client,
    ):
        body = {"prompt": prompt(10), "stream": True, "ignore_eos": True, "max_tokens": 3000}
        async with client.stream("POST", f"{engine.url}/v1/completions", json=body) as response:
            events = response.aiter_lines()
            assert json.loads((await anext(events)).removeprefix("data: "))["object"] == "text_completion"
            assert engine.core.pool.usage > 0
        await until(lambda: engine.metrics.value(RUNNING) == 0)
        assert engine.metrics.value("vllm:generation_tokens_total") < 100
        assert engine.core.pool.usage == 0


async def test_the_head_of_a_stream_comes_before_anything_is_computed() -> None:
    async with slow() as engine, httpx.AsyncClient(verify=False) as client:
        body = {"prompt": prompt(10), "stream": True}
        async with client.stream("POST", f"{engine.url}/v1/completions", json=body) as response:
            assert response.status_code == 200
            assert engine.metrics.value("vllm:generation_tokens_total") == 0


async def test_requests_beyond_max_num_seqs_wait_and_leave_the_queue_when_their_client_does() -> None:
    async with slow(max_num_seqs=1) as engine:
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(complete(engine, prompt(10)))
            await until(lambda: engine.metrics.value(RUNNING) == 1)
            second = tasks.create_task(complete(engine, prompt(11)))
            await until(lambda: engine.metrics.value(WAITING) == 1)
            assert engine.metrics.value("vllm:num_requests_waiting_by_reason", reason="capacity") == 1
            second.cancel()
            await until(lambda: engine.metrics.value(WAITING) == 0)
            third = tasks.create_task(complete(engine, prompt(12)))
            await until(lambda: engine.metrics.value(WAITING) == 1)
            first.cancel()
            await until(lambda: engine.metrics.value(WAITING) == 0)
            assert engine.metrics.value(RUNNING) == 1
            third.cancel()
        await until(lambda: engine.metrics.value(RUNNING) == 0)


async def test_many_requests_through_a_small_cache_all_end_with_the_right_text() -> None:
    small: Json = {"num_gpu_blocks": 24, "max_model_len": 512, "cpu_blocks": 16, "max_num_seqs": 3}
    async with make_engine() as reference, make_engine("127.0.0.2", **small) as engine:
        expected = [text(await complete(reference, prompt(10 + i % 6))) for i in range(24)]
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(complete(engine, prompt(10 + i % 6))) for i in range(24)]
        assert [text(answer.result()) for answer in answers] == expected
        assert engine.core.pool.usage == 0


async def test_clients_that_leave_at_any_moment_leave_nothing_behind() -> None:
    dice = random.Random(7)
    fields: Json = {
        "kv_connector": "multi",
        "profile": "gpt-oss-120b",
        "num_gpu_blocks": 32,
        "max_model_len": 1024,
    }
    async with make_engine("127.0.0.1", **fields) as a, make_engine("127.0.0.2", **fields) as b:

        async def leave_some_time(engine: Engine, peer: Engine, seed: int) -> None:
            body = {
                "prompt": prompt(seed % 9),
                "max_tokens": 20,
                "stream": bool(seed % 2),
                "kv_transfer_params": kv_source(peer) if seed % 3 else {"do_remote_decode": True},
            }
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(dice.random() * 0.05):
                    await post(engine, "/v1/completions", body)

        def is_idle(engine: Engine) -> bool:
            busy = engine.metrics.value(RUNNING), engine.metrics.value(WAITING), engine.core.pool.usage
            return busy == (0, 0, 0)

        for round_ in range(4):
            async with asyncio.TaskGroup() as tasks:
                for i in range(12):
                    pair = (a, b) if i % 2 else (b, a)
                    tasks.create_task(leave_some_time(*pair, round_ * 12 + i))
        for engine in (a, b):
            await until(functools.partial(is_idle, engine))
            assert engine.core.pool.reserve(32), "nothing is reserved any more"


async def test_requests_without_a_limit_run_side_by_side() -> None:
    async with slow() as engine, asyncio.TaskGroup() as tasks:
        body = {"messages": [{"role": "user", "content": "hello"}]}
        chats = [tasks.create_task(_fails(post(engine, "/v1/chat/completions", body))) for _ in range(5)]
        await until(lambda: engine.metrics.value(RUNNING) == 5)
        await engine.stop()
    assert all(isinstance(chat.result(), httpx.TransportError) for chat in chats)


async def test_the_text_depends_on_the_model_and_not_on_blocks_or_caches() -> None:
    other_blocks: Json = {"block_size": 64, "num_gpu_blocks": 64, "hash_seed": "9", "kv_connector": "none"}
    async with (
        make_engine("127.0.0.1") as a,
        make_engine("127.0.0.2", **other_blocks) as b,
        make_engine("127.0.0.3", model_seed="1") as c,
    ):
        said = text(await complete(a, prompt(10)))
        assert text(await complete(b, prompt(10))) == said
        assert text(await complete(c, prompt(10))) != said


async def test_a_cache_salt_keeps_prefixes_apart() -> None:
    async with make_engine() as engine:
        await complete(engine, prompt(10), cache_salt="one")
        assert cached(await complete(engine, prompt(10), cache_salt="two")) == 0
        assert cached(await complete(engine, prompt(10), cache_salt="one")) == 160


async def test_time_to_first_token_is_counted_once_per_request() -> None:
    async with make_engine() as engine:
        for seed in (10, 11):
            await complete(engine, prompt(seed), max_tokens=3)
        assert engine.metrics.count("vllm:time_to_first_token_seconds") == 2
        assert engine.metrics.count("vllm:inter_token_latency_seconds") == 4
        assert engine.metrics.value("vllm:generation_tokens_total") == 6
        assert engine.metrics.value("vllm:request_success_total", finished_reason="length") == 2
