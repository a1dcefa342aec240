"""The command against engines: healthy ones, and each thing that makes their pulls move nothing."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import pytest

from tests.doctor.bench import HOSTS, PROMPT_TOKENS, at, doctor, ended, peers, started
from tests.lab.bench import KV_BYTES, cached, complete, kv_source, prompt
from tests.test_answers import closed_port

PREFIX_BYTES = PROMPT_TOKENS * KV_BYTES
ONE_PAIR = "--max-pairs=1"


async def test_between_healthy_engines_every_pull_moves_and_nothing_is_found() -> None:
    async with peers({}, {}) as (_, flags):
        ran = await ended(await started(*flags, "--json"))
    assert (ran.code, ran.err) == (0, "")
    assert ran.verdicts() == {"A to B": "moved", "B to A": "moved"}
    assert ran.found("note") == []
    pair = ran.json["pairs"][0]
    for pull in (pair["first"], pair["again"]):
        assert (pull["prefix_tokens"], pull["cached_tokens"], pull["moved_bytes"]) == (
            PROMPT_TOKENS,
            PROMPT_TOKENS,
            PREFIX_BYTES,
        )
    assert pair["bytes_per_s"] > 0
    assert ran.one("hash seed", "A", "B")["value"] == "agrees"
    assert ran.one("KV per token", "A")["value"] == f"{KV_BYTES} bytes"
    assert ran.one("offload_prompt_only", "B")["value"] == "false"
    assert ran.one("revision", "A")["severity"] == "not told"
    assert ran.one("parallel", "A")["value"] == "TP 1"


async def test_the_report_is_text_within_80_columns_and_without_colours_where_nobody_looks() -> None:
    async with peers({}, {}, {"hash_seed": "7"}) as (_, flags):
        ran = await doctor(*flags, "--max-pairs=2")
    assert ran.code == 3
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in ran.out
    at = lines.index("Pulls: the peer of the row from the peer of the column")
    matrix = [line.split() for line in lines[at + 1 : at + 5]]
    assert matrix == [
        ["A", "B", "C"],
        ["A", "·", "-", "-"],
        ["B", "moved", "·", "-"],
        ["C", "-", "refused", "·"],
    ]
    assert lines[-1] == "Result: errors (exit code 3)"
    assert "PYTHONHASHSEED" in ran.out


DIFFERENT: dict[str, tuple[dict[str, Any], str]] = {
    "block size": ({"block_size": 64}, "--block-size"),
    "parallel": ({"tensor_parallel_size": 2}, "--tensor-parallel-size"),
    "model": ({"model": "other"}, "one model only"),
    "KV per token": ({"kv_bytes_per_token": 32}, "--kv-cache-dtype"),
}


@pytest.mark.parametrize("check", DIFFERENT)
async def test_what_differs_is_named_with_its_remedy_and_explains_the_pull(check: str) -> None:
    other, remedy = DIFFERENT[check]
    async with peers({}, other) as (_, flags):
        ran = await doctor(*flags, ONE_PAIR, "--json")
    assert ran.code == 3
    assert ran.verdicts() == {"A to B": "refused"}
    found = ran.one(check, "A", "B")
    assert (found["severity"], found["value"]) == ("error", "differs")
    assert remedy in found["change"]
    assert f"causes: {check}" in ran.one("pull")["says"]


async def test_other_hash_seeds_are_what_is_left_where_all_else_is_equal() -> None:
    async with peers({"server_dev_mode": True}, {"hash_seed": "7", "server_dev_mode": True}) as (_, flags):
        ran = await doctor(*flags, ONE_PAIR, "--json")
    assert ran.code == 3
    assert ran.found() == [("error", "A B", "pull")]
    assert "PYTHONHASHSEED" in ran.one("pull")["change"]
    assert "never asked" in ran.one("pull")["says"]


async def test_other_weights_are_seen_by_the_text_and_told_by_the_revision() -> None:
    async with peers({"server_dev_mode": True}, {"server_dev_mode": True, "model_seed": "9"}) as (_, flags):
        ran = await doctor(*flags, ONE_PAIR, "--json")
    assert ran.code == 3
    assert ran.found() == [("error", "A B", "revision"), ("warning", "A B", "text")]


async def test_a_dead_p2p_port_is_named_to_no_engine() -> None:
    async with peers({}, {}) as ([a, b], flags):
        dead = closed_port()
        ran = await doctor(*at(flags, "B", f"{HOSTS[1]}:{dead}"), "--json")

        assert ran.code == 3
        assert ran.verdicts() == {"A to B": "moved", "B to A": "unreachable"}
        assert ran.found() == [("error", "B", "P2P port")]
        assert ran.one("P2P port", "B")["says"].startswith(
            f"nothing accepts at {HOSTS[1]}:{dead} (connection refused)"
        )
        assert "was not told of it" in ran.json["pairs"][1]["why"]
        # Had it been told, this pull from a live peer would hang.
        await complete(b, prompt(10))
        assert cached(await complete(a, prompt(10), kv_source(b))) == 160


async def test_an_engine_that_cannot_be_reached_leaves_the_others_examined() -> None:
    nobody = f"http://127.0.0.1:{closed_port()}"
    async with peers({}, {}) as (engines, flags):
        urls = [*(engine.url for engine in engines), nobody]
        ran = await doctor(*flags[1:], f"--peers={','.join(urls)}", "--json")
    assert ran.code == 3
    assert ran.found() == [("error", "C", "reachable")]
    assert ran.verdicts() == {
        "A to B": "moved",
        "B to C": "unreachable",
        "C to A": "unreachable",
        "A to C": "unreachable",
        "B to A": "moved",
        "C to B": "unreachable",
    }


async def test_what_is_only_worse_is_a_warning() -> None:
    other = {
        "offload_prompt_only": True,
        "enable_prompt_tokens_details": False,
        "version": "0.30.1",
        "clock_ahead_s": 60.0,
    }
    async with peers({}, other) as (_, flags):
        ran = await doctor(*flags, ONE_PAIR, "--json")
    assert ran.code == 1
    assert ran.verdicts() == {"A to B": "moved"}  # by the consumer's counters: its answers tell nothing
    assert ran.found() == [
        ("warning", "B", "parameter names"),
        ("warning", "B", "offload_prompt_only"),
        ("warning", "B", "token details"),
        ("warning", "B", "clock"),
        ("warning", "A B", "version"),
        ("warning", "A B", "clock"),
    ]
    assert '"offload_prompt_only": false' in ran.one("offload_prompt_only", "B")["change"]
    assert "--enable-prompt-tokens-details" in ran.one("token details", "B")["change"]


async def test_the_tier_is_measured_against_the_gpu_where_its_size_is_told() -> None:
    told: dict[str, Any] = {"server_dev_mode": True, "cpu_blocks": 128}  # the GPU has 256
    async with peers(told, told) as (_, flags):
        ran = await doctor(*flags, ONE_PAIR, "--json")
    assert ran.code == 1
    assert ran.found() == [("warning", "A", "CPU tier"), ("warning", "B", "CPU tier")]
    assert f"cpu_bytes_to_use to {256 * 32 * KV_BYTES:,}" in ran.one("CPU tier", "A")["change"]


async def test_an_engine_without_a_p2p_tier_is_told_what_it_lacks() -> None:
    async with peers({}, {"kv_connector": "nixl"}) as (_, flags):
        ran = await doctor(*flags, "--json")
    assert ran.code == 3
    assert ran.found() == [
        ("error", "B", "P2P port"),
        ("error", "B", "connector"),
        ("error", "A B", "pull"),
    ]
    assert "B's P2P port, B's connector" in ran.one("pull")["says"]
    assert "TieringOffloadingSpec" in ran.one("connector", "B")["change"]


async def test_a_consumer_whose_pulls_hang_is_told_of_no_further_source() -> None:
    async with peers({}, {}, {}) as ([a, b, _], flags):
        dead = {"kv_request_id": "x", "remote_host": HOSTS[0], "remote_port": closed_port()}
        await complete(b, prompt(10), {"remote_kv_source": dead})
        ran = await doctor(*flags, "--timeout=1s", "--json")
        assert a.died is None
    assert ran.code == 3
    verdicts = ran.verdicts()
    assert (verdicts["A to B"], verdicts["C to B"]) == ("hangs", "untried")
    assert (verdicts["B to C"], verdicts["C to A"]) == ("moved", "moved")
    assert ran.found() == [("error", "A B", "pull")]
    assert ran.one("pull", "A", "B")["change"].startswith("Start B's engine again")


async def test_pairs_beyond_the_limit_are_said_to_be_left_out() -> None:
    async with peers({}, {}) as (_, flags):
        ran = await doctor(*flags, ONE_PAIR, "--json")
    assert (ran.code, ran.json["pairs_left_out"], len(ran.json["pairs"])) == (0, 1, 1)
    assert ran.one("pairs")["says"] == "1 of 2 were left out (--max-pairs)"


async def test_two_peers_at_one_p2p_address_are_not_tried() -> None:
    async with peers({}, {}) as ([a, _], flags):
        ran = await doctor(*at(flags, "B", f"{a.p2p_host}:{a.p2p_port}"), "--json")
    assert ran.code == 3
    assert ran.found() == [("error", "A B", "P2P address")]
    assert ran.verdicts() == {"A to B": "untried", "B to A": "untried"}


async def test_watch_goes_on_until_ctrl_c_and_ends_with_what_was_found_last() -> None:
    async with peers({}, {"enable_prompt_tokens_details": False}) as (_, flags):
        process = await started(*flags, ONE_PAIR, "--watch", "--interval=50ms", "--json")
        assert process.stdout is not None
        async with asyncio.timeout(60):
            rounds = [json.loads(await process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        ran = await ended(process)
    assert [one["worst"] for one in rounds] == ["warning", "warning"]
    assert ran.code == 1
    assert "Traceback" not in ran.err
