"""Names of engines that cannot be looked up, are looked up slowly, or lead somewhere else from now on."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from tests.engines import COMPLETION, prefilled, scripted
from tests.serving import PREFILLER, serving

NAME = "prefiller.test"


def answered_by(monkeypatch: pytest.MonkeyPatch, answer: Callable[[], str]) -> None:
    """Have the system's look-up of NAME give this address; everything else is looked up as ever."""
    system = socket.getaddrinfo

    def lookup(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        return system(answer() if host == NAME else host, port, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)


async def test_a_name_that_is_unknown_is_a_502_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    answered_by(monkeypatch, unknown)
    async with scripted() as decoder, serving(decoder.port) as sidecar:
        said = await sidecar.post(headers=[(PREFILLER, f"{NAME}:8000")])
        assert (said.status, decoder.requests) == (502, [])
        assert said.json["message"] == f"the prefill engine at {NAME}:8000 cannot be reached"


async def test_a_name_that_hangs_is_a_502_in_time_and_holds_nobody_else_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = threading.Event()

    def slow() -> str:
        over.wait(10)
        return "127.0.0.1"

    answered_by(monkeypatch, slow)
    try:
        async with scripted() as decoder, serving(decoder.port, "--connect-timeout=300ms") as sidecar:
            began_s = monotonic()
            async with asyncio.TaskGroup() as group:
                slow_ones = [
                    group.create_task(sidecar.post(headers=[(PREFILLER, f"{NAME}:8000")])) for _ in range(5)
                ]
                others = [await sidecar.post() for _ in range(3)]
            assert [said.json for said in others] == [COMPLETION] * 3
            assert {task.result().status for task in slow_ones} == {502}
            assert monotonic() - began_s < 5
            over.set()
    finally:
        over.set()


async def test_a_name_that_changes_leads_to_the_new_engine_once_the_old_one_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leads_to = "127.0.0.1"
    answered_by(monkeypatch, lambda: leads_to)
    async with scripted() as decoder, serving(decoder.port) as sidecar:
        async with scripted(prefilled) as old:
            named = [(PREFILLER, f"{NAME}:{old.port}")]
            assert (await sidecar.post(headers=named)).status == 200
            assert len(old.requests) == 1
        leads_to = "127.0.0.2"
        async with scripted(prefilled, "127.0.0.2", old.port) as new:
            assert (await sidecar.post(headers=named)).status == 200
            assert (len(old.requests), len(new.requests)) == (1, 1)
