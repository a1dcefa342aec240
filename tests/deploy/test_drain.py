"""The engine's preStop hook ends when the engine has nothing left to do."""

from __future__ import annotations

import asyncio
import importlib.util
from types import ModuleType

import pytest

from tests.deploy.render import ROOT
from tests.engines import Answer, Got, scripted


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("drain", ROOT / "deploy" / "base" / "drain.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


drain = _loaded()


def metrics(running: float, waiting: float) -> str:
    """As vLLM 0.32 shows them."""
    return (
        "# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
        "# TYPE vllm:num_requests_running gauge\n"
        f'vllm:num_requests_running{{engine="0",model_name="tiny"}} {running}\n'
        f'vllm:num_requests_waiting{{engine="0",model_name="tiny"}} {waiting}\n'
        'vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 7.0\n'
    )


@pytest.mark.parametrize(("running", "waiting", "sum_"), [(0, 0, 0), (2, 0, 2), (0, 3, 3), (2, 3, 5)])
def test_what_runs_and_what_waits_counts(running: int, waiting: int, sum_: int) -> None:
    assert drain.requests(metrics(running, waiting)) == sum_


async def test_it_waits_until_every_rank_is_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "_LOOK_EVERY_S", 0.01)
    busy = [2, 1, 0]

    async def running_out(got: Got, answer: Answer) -> None:
        await answer.head()
        await answer.chunk(metrics(busy.pop(0), 0).encode())
        await answer.raw(b"0\r\n\r\n")

    async with scripted(running_out) as engine:
        urls = [f"http://127.0.0.1:{engine.port}/metrics"]
        assert await asyncio.to_thread(drain.drain, urls, 20.0, 0.0)
    assert busy == []


async def test_it_does_not_wait_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "_LOOK_EVERY_S", 0.01)

    async def always_busy(got: Got, answer: Answer) -> None:
        await answer.head()
        await answer.chunk(metrics(1, 0).encode())
        await answer.raw(b"0\r\n\r\n")

    async with scripted(always_busy) as engine:
        urls = [f"http://127.0.0.1:{engine.port}/metrics"]
        assert not await asyncio.to_thread(drain.drain, urls, 0.2, 0.0)


def test_an_engine_that_is_gone_has_nothing_to_do() -> None:
    assert drain.drain(["http://127.0.0.1:1/metrics"], 5.0, 0.0)
