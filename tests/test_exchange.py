"""Steps that no connector takes yet: several legs asked together."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.call import Call
from sidecar.connectors import CONNECTORS, Connector
from sidecar.endpoint import Endpoint
from sidecar.plan import Ask, Deliver, Peer, Plan
from sidecar.routing import Route
from tests.engines import Answer, Got, prefilled, scripted
from tests.serving import PREFILLER, serving


def asking(*ports: int) -> Connector:
    """A connector that asks these prefillers at once and then decodes with what the first answered."""

    def plan(call: Call, route: Route) -> Plan:
        peers = [Peer(Endpoint("127.0.0.1", port), 7777) for port in ports]
        replies = yield Ask(tuple(call.prefill(peer, {"n": n}, None) for n, peer in enumerate(peers)))
        return Deliver(call.decode_after_prefill(route.decoder, replies[0].body["kv_transfer_params"]))

    return Connector(plan, pulls=False)


async def test_legs_of_one_step_run_together_and_answer_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    both = asyncio.Event()

    async def first(got: Got, answer: Answer) -> None:
        await both.wait()
        await prefilled(got, answer)

    async def second(got: Got, answer: Answer) -> None:
        both.set()
        await answer.json({"kv_transfer_params": {"second": 1}})

    async with scripted() as decoder, scripted(first) as one, scripted(second) as two:
        monkeypatch.setitem(CONNECTORS, "nixlv2", asking(one.port, two.port))
        async with serving(decoder.port) as sidecar:
            answer = await sidecar.post(headers=[(PREFILLER, one.netloc)])

        assert (answer.status, one.last.json["kv_transfer_params"]) == (200, {"n": 0})
        assert two.last.json["kv_transfer_params"] == {"n": 1}
        assert decoder.last.json["kv_transfer_params"]["remote_engine_id"] == "engine-p"


async def test_the_first_leg_that_fails_ends_the_others_and_is_relayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(got: Got, answer: Answer) -> None:
        await asyncio.sleep(30)

    async def refusing(got: Got, answer: Answer) -> None:
        await one.came()
        await answer.json({"busy": 1}, 429)

    async with scripted() as decoder, scripted(never) as one, scripted(refusing) as two:
        monkeypatch.setitem(CONNECTORS, "nixlv2", asking(one.port, two.port))
        async with serving(decoder.port) as sidecar:
            answer = await sidecar.post(headers=[(PREFILLER, one.netloc)])

            assert (answer.status, answer.json, decoder.requests) == (429, {"busy": 1}, [])
            async with asyncio.timeout(1):
                await one.last.closed.wait()
