"""What an engine tells operators: its configuration, its version and parallelism, the time on its clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import httpx

from sidecar.lab import Engine
from tests.lab.bench import BLOCK, KV_BYTES, cached, complete, engines, kv_source, make_engine, prompt


async def get(engine: Engine, path: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=10, verify=False) as client:
        return await client.get(f"{engine.url}{path}")


async def test_the_configuration_is_told_in_dev_mode_only() -> None:
    async with make_engine() as engine:
        assert (await get(engine, "/server_info")).status_code == 404
    async with make_engine(server_dev_mode=True, kv_connector="multi", offload_prompt_only=True) as engine:
        told = (await get(engine, "/server_info?config_format=json")).json()["vllm_config"]
        text = (await get(engine, "/server_info")).json()["vllm_config"]
    assert told["parallel_config"]["tensor_parallel_size"] == 1
    assert told["kv_transfer_config"]["kv_connector"] == "MultiConnector"
    offloading = told["kv_transfer_config"]["kv_connector_extra_config"]["connectors"][1]
    assert offloading["kv_connector_extra_config"] == {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": 1024 * BLOCK * KV_BYTES,
        "block_size": BLOCK,
        "offload_prompt_only": True,
        "secondary_tiers": [{"type": "p2p", "host": "127.0.0.1", "port": 0}],
    }
    assert isinstance(text, str)


async def test_version_and_parallelism_are_those_it_is_told_to_report() -> None:
    async with make_engine(version="0.30.1", tensor_parallel_size=2) as engine:
        assert (await get(engine, "/version")).json() == {"version": "0.30.1"}
        answer = await complete(engine, prompt(10))
    assert answer["system_fingerprint"] == "vllm-0.30.1-tp2-1ab00000"


async def test_answers_carry_the_time_of_its_clock() -> None:
    async with make_engine(clock_ahead_s=600) as engine:
        date = parsedate_to_datetime((await get(engine, "/health")).headers["date"])
    assert timedelta(seconds=590) < date - datetime.now(UTC) < timedelta(seconds=610)


async def test_peers_of_another_parallel_size_are_refused() -> None:
    async with make_engine() as source, make_engine("127.0.0.2", tensor_parallel_size=2) as consumer:
        await complete(source, prompt(10))
        assert cached(await complete(consumer, prompt(10), kv_source(source))) == 0


async def test_an_engine_that_offloads_prompts_only_gives_nothing_of_its_answers() -> None:
    for prompt_only, expected in ((True, 160), (False, 192)):
        async with engines("127.0.0.1", "127.0.0.2", offload_prompt_only=prompt_only) as (source, consumer):
            answer = await complete(source, prompt(10), max_tokens=40, return_token_ids=True)
            turn = [*prompt(10), *answer["choices"][0]["token_ids"]]
            assert cached(await complete(consumer, turn, kv_source(source))) == expected
