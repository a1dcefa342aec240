"""The command against sidecars: what stands in front of an engine, and the five gates."""

from __future__ import annotations

from typing import Any

import pytest

from tests.debug.serving import debugging
from tests.doctor.bench import OFFLOADING, PROMPT_TOKENS, Ran, at, doctor, peers, pods
from tests.lab.bench import KV_BYTES
from tests.test_answers import closed_port

PREFIX_BYTES = PROMPT_TOKENS * KV_BYTES
ONE_PAIR = "--max-pairs=1"


def states(ran: Ran) -> list[str]:
    """Of the gates, in order."""
    return [gate["state"] for gate in ran.json["gates"]]


def evidence(ran: Ran, number: int) -> str:
    """The figure of a gate."""
    return str(ran.json["gates"][number - 1]["evidence"])


async def test_between_healthy_pods_pulls_move_and_their_sidecars_tell_how_they_are() -> None:
    async with pods(OFFLOADING) as (_, flags):
        ran = await doctor(*flags, "--json")
    assert ran.code == 0, ran.out
    assert [peer["kind"] for peer in ran.json["peers"]] == ["sidecar", "sidecar"]
    assert ran.verdicts() == {"A to B": "moved", "B to A": "moved"}
    assert ran.one("connector", "A")["value"] == "offloading"
    assert ran.one("guard", "B")["value"] == "all well"


async def test_all_five_gates_pass_between_healthy_pods() -> None:
    async with pods(OFFLOADING) as (_, flags):
        ran = await doctor(*flags, "--verify-pull", "--json")
    assert ran.code == 0, ran.out
    assert states(ran) == ["pass"] * 5
    assert evidence(ran, 1).startswith(f"A had {PROMPT_TOKENS} of {PROMPT_TOKENS} tokens when asked again")
    assert evidence(ran, 2).startswith("x-sidecar-pull: directed; source 127.0.0.1:")
    assert evidence(ran, 3) == f"B read {PREFIX_BYTES:,} bytes from peers, 128 of 128 tokens"
    assert evidence(ran, 4) == f"A gave {PREFIX_BYTES:,} bytes"
    assert evidence(ran, 5) == "without a directive B read 0 bytes from peers"


async def test_without_debug_endpoints_a_directive_is_seen_in_the_sidecars_metrics() -> None:
    async with pods(OFFLOADING, "--pull-verification=on", debug=False) as (_, flags):
        ran = await doctor(*flags, "--verify-pull", "--json")
    assert states(ran) == ["pass"] * 5
    assert evidence(ran, 2) == "pulls_total on the metrics port of B: +1"


async def test_an_engine_has_no_log_of_directives_and_that_is_no_failure() -> None:
    async with peers({"server_dev_mode": True}, {}) as (_, flags):
        ran = await doctor(*flags, "--verify-pull", "--json")
        text = await doctor(*flags, "--verify-pull")
    lines = text.out.splitlines()
    at = lines.index("Gates")
    assert lines[at + 1] == "  1  fail      tokens reach the index"
    assert "  5  pass      the control moves nothing" in lines
    assert max(map(len, lines)) <= 80
    assert states(ran) == ["fail", "not told", "pass", "pass", "pass"]
    # An engine in dev mode tells that it publishes no KV events, which an index lives by.
    assert evidence(ran, 1).endswith("KV events are off (--kv-events-config)")
    assert (ran.code, ran.found()) == (3, [("error", "A B", "gate 1")])


async def test_gates_of_a_pair_that_moves_nothing_fail_where_the_figure_is_missing() -> None:
    async with peers({}, {"hash_seed": "7"}) as (_, flags):
        ran = await doctor(*flags, "--verify-pull", "--json")
    assert ran.code == 3
    assert states(ran) == ["pass", "not told", "fail", "fail", "pass"]
    assert [check for _, _, check in ran.found()] == ["pull", "gate 3", "gate 4"]


async def test_gates_are_not_tried_on_a_dead_port() -> None:
    async with peers({}, {}) as (_, flags):
        ran = await doctor(*at(flags, "A", f"127.0.0.1:{closed_port()}"), "--verify-pull", "--json")
    assert ran.code == 3
    assert states(ran) == ["not told"] * 5
    assert ran.verdicts() == {"A to B": "unreachable"}
    assert ran.found() == [("error", "A", "P2P port"), ("error", "A B", "gates")]


WRONG: dict[str, tuple[tuple[str, ...], dict[str, Any], str, str]] = {
    "a connector that does not pull": (("--kv-connector=nixlv2",), {}, "connector", "--enable-p2p-pull"),
    "a connector that the engine has not": (
        ("--kv-connector=nixlv2", "--enable-p2p-pull"),
        {},
        "connector",
        "--kv-connector=offloading",
    ),
    "another data-parallel size": (
        (OFFLOADING, "--data-parallel-size=2"),
        {},
        "DP ports",
        "--data-parallel-size=1",
    ),
}


@pytest.mark.parametrize("words", WRONG)
async def test_a_sidecar_that_does_not_fit_its_engine_is_told_what_would(words: str) -> None:
    sidecar_flags, kind, check, remedy = WRONG[words]
    async with pods(*sidecar_flags, **kind) as (_, flags):
        ran = await doctor(*flags, ONE_PAIR, "--json")
    assert ran.code == 3
    found = ran.one(check, "B")
    assert found["severity"] == "error"
    assert remedy in found["change"]


async def test_a_pull_that_a_sidecar_leaves_out_says_its_reason() -> None:
    async with pods("--kv-connector=nixlv2", debug=False) as (_, flags):
        ran = await doctor(*flags, ONE_PAIR, "--json")
    assert ran.verdicts() == {"A to B": "refused"}
    assert ran.one("pull")["says"].startswith(
        "the consumer's sidecar left the pull out: connector_without_p2p: the connector's engines have no P2P"
    )
    assert ran.one("connector", "A")["severity"] == "not told"


async def test_a_guard_that_is_off_is_a_warning() -> None:
    async with pods(OFFLOADING, "--source-guard=off") as (_, flags):
        ran = await doctor(*flags, ONE_PAIR, "--json")
    assert (ran.code, ran.found()) == (1, [("warning", "A", "guard"), ("warning", "B", "guard")])


async def test_a_sidecar_without_a_metrics_port_is_examined_all_the_same() -> None:
    async with pods(OFFLOADING) as (_, flags):
        bare = [flag for flag in flags if not flag.startswith("--metrics")]
        ran = await doctor(*bare, ONE_PAIR, "--json")
        dead = await doctor(*bare, f"--metrics=A={closed_port()}", ONE_PAIR, "--json")
    assert (ran.code, ran.verdicts()) == (0, {"A to B": "moved"})
    assert ran.one("guard", "A")["says"].endswith("no metrics port was named (--metrics-port, --metrics)")
    assert "connection" in dead.one("guard", "A")["says"].lower()
    assert dead.code == 0


async def test_a_sidecar_whose_engine_is_gone_is_not_ready() -> None:
    async with debugging(closed_port(), OFFLOADING) as sidecar, peers({}) as ([engine], _):
        url = f"http://127.0.0.1:{sidecar.data.port}"
        ran = await doctor(f"--peers={engine.url},{url}", f"--p2p-port={engine.p2p_port}", "--json")
    assert ran.code == 3
    assert "cannot be reached" in ran.one("ready", "B")["says"]
    assert set(ran.verdicts().values()) == {"untried"}
