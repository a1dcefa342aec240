"""`sidecar calibrate` as a user runs it: a process, real sockets, engines whose crossover is known."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import pty
import signal
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.calibrate.running import TIMEOUT_S, at, begun, calibrated, pair, relayed
from tests.commands import closed_ports
from tests.serving import serving
from tests.test_answers import closed_port

# A machine that is busy with other things blurs times: one more run is allowed.
_TRIES = 2
QUICK = ("--yes", "--lengths=512,1024", "--rounds=2")


async def test_the_crossover_of_glm_is_recovered_in_every_output(tmp_path: Path) -> None:
    files = {name: tmp_path / f"out.{name}" for name in ("json", "csv", "svg", "epp")}
    outputs = [f"--{name}={path}" for name, path in files.items()]
    # Twice as slow as the real one, so that what the machine does beside it counts half.
    async with pair(profile="glm", time_scale=2.0) as engines:
        for _ in range(_TRIES):
            lengths = "--lengths=4096,8192,16384"
            ended = await calibrated(*at(*engines), *outputs, lengths, "--yes", "--rounds=3")
            told = json.loads(files["json"].read_text())
            # The model's own: both lines give 222.92 ms at 8,700 tokens.
            if ended.code == 0 and told["crossover"]["tokens"] == pytest.approx(8700, rel=0.1):
                break

    assert ended.code == 0, ended
    assert told["crossover"]["tokens"] == pytest.approx(8700, rel=0.1)
    threshold = told["recommended_min_cached_token_delta"]
    assert threshold >= told["crossover"]["high"] * 1.2
    assert threshold % 16 == 0
    tokens, shown = f"{told['crossover']['tokens']:,.0f}", f"{threshold:,}"
    assert ended.out.startswith(
        f"OK: pulling beats computing from {tokens} tokens on; set minCachedTokenDelta to {shown}\n"
    )
    assert "9 pulls moved about the whole prefix, 9 controls moved 0 bytes, by both engines'" in ended.out
    assert {leg["verdict"] for leg in told["legs"]} == {"moved", "clean"}
    table = list(csv.DictReader(io.StringIO(files["csv"].read_text())))
    assert [int(row["prefix_tokens"]) for row in table] == [4096, 8192, 16384]
    assert [float(row["moved_bytes"]) for row in table] == [64 * n for n in (4096, 8192, 16384)]
    assert yaml.safe_load(files["epp"].read_text())["plugins"][0]["parameters"] == {
        "prefixMatchInfoProducerName": "precise-prefix-cache-producer",
        "minCachedTokenDelta": threshold,
    }
    assert f"crossover {tokens}" in "".join(ElementTree.parse(files["svg"]).getroot().itertext())


async def test_gpt_oss_has_no_crossover_from_2048_tokens_on() -> None:
    async with pair(profile="gpt-oss-120b") as engines:
        ended = await calibrated(*at(*engines), "--yes", "--lengths=2048,8192", "--rounds=2", "--json=-")
    told = ended.json
    assert (ended.code, told["outcome"]) == (5, "pulls_win")
    assert told["crossover"]["shape"] == "pulls win everywhere"
    assert told["recommended_min_cached_token_delta"] == 2048


@pytest.mark.parametrize(
    "differs",
    [
        pytest.param({"hash_seed": "1"}, id="another hash seed"),
        pytest.param({"tensor_parallel_size": 2}, id="another tensor parallel size"),
    ],
)
async def test_a_pair_that_moves_nothing_ends_with_3_and_the_likely_causes(differs: dict[str, Any]) -> None:
    async with pair(differs) as engines:
        ended = await calibrated(*at(*engines), *QUICK)
    assert ended.code == 3, ended
    assert ended.out.startswith("FAILED: no pull ever moved its prefix\n")
    assert "3 pulls (nothing moved): 0 bytes came over P2P" in ended.out
    assert "- PYTHONHASHSEED, --block-size, KV dtype, model revision or --tensor-parallel-size" in ended.out


async def test_what_the_engines_say_differs_comes_first_among_the_causes() -> None:
    async with pair({"block_size": 32}) as engines:
        ended = await calibrated(*at(*engines), *QUICK, "--json=-")
    assert ended.code == 3
    causes = ended.json["likely_causes"]
    assert causes[0] == "the block size differs: 32 on the source, 16 on the consumer"


async def test_controls_that_pull_end_with_4() -> None:
    async with pair() as (a, b):
        source = {"kv_request_id": "gateway", "remote_host": a.p2p_host, "remote_port": a.p2p_port}

        def directed(body: dict[str, Any]) -> dict[str, Any]:
            return {**body, "kv_transfer_params": {"remote_kv_source": source}}

        async with relayed(b, directed) as gateway:
            flags = (f"--consumer=http://{gateway.netloc}", f"--source-p2p={a.p2p_host}:{a.p2p_port}")
            ended = await calibrated(f"--source={a.url}", *flags, *QUICK)
    assert ended.code == 4, ended
    assert ended.out.startswith("FAILED: too many legs were contaminated: others use the pair\n")
    assert "(contaminated): 32,768 bytes were pulled without a directive" in ended.out
    assert "- one of the URLs is a gateway whose endpoint picker names sources itself" in ended.out


async def test_where_token_ids_are_refused_prompts_are_text() -> None:
    def only_text(body: dict[str, Any]) -> dict[str, Any] | None:
        return body if isinstance(body["prompt"], str) else None

    async with pair() as (a, b), relayed(a, only_text) as source:
        flags = (f"--consumer={b.url}", f"--source-p2p={a.p2p_host}:{a.p2p_port}")
        ended = await calibrated(f"--source=http://{source.netloc}", *flags, *QUICK, "--json=-")
    told = ended.json
    assert told["setting"]["token_ids"] is False
    assert {leg["verdict"] for leg in told["legs"]} == {"moved", "clean"}
    for leg in told["legs"]:
        assert 0.9 * leg["asked_prefix_tokens"] < leg["prefix_tokens"] <= leg["asked_prefix_tokens"]


async def test_a_sidecar_is_told_by_header() -> None:
    async with pair({"p2p_host": "127.0.0.2"}, p2p_host="127.0.0.1") as (a, b):
        flags = ("--kv-connector=offloading", f"--p2p-connector-port={a.p2p_port}")
        async with serving(b.port, *flags) as sidecar:
            ended = await calibrated(
                *(f"--source={a.url}", f"--consumer=http://127.0.0.1:{sidecar.port}"),
                *("--source-endpoint=127.0.0.2:8000", "--json=-", *QUICK),
            )
            assert b.core.offloading
            b.core.offloading.drop()  # its session with a, which it would keep for the next pull
    assert ended.json["setting"]["pulls_from"] == "127.0.0.2:8000 (header x-kv-cache-source-host-port)"
    assert {leg["verdict"] for leg in ended.json["legs"]} == {"moved", "clean"}


async def test_ranks_take_turns_on_ports_that_are_counted_up() -> None:
    http, p2p = closed_ports(2), closed_ports(2)
    other = closed_ports(2)
    async with (
        pair({"port": http, "p2p_port": p2p}, port=other) as (a, b),
        pair({"port": http + 1, "p2p_port": p2p + 1}, port=other + 1) as (_, d),
    ):
        ended = await calibrated(*at(a, b), *QUICK, "--dp-ranks=2", "--json=-")
        served = [engine.metrics.value("lab:p2p_served_bytes_total") for engine in (a, _)]
    assert [leg["rank"] for leg in ended.json["legs"]] == [0, 1] * 4
    assert {leg["verdict"] for leg in ended.json["legs"]} == {"moved", "clean"}
    assert [leg["rank"] for leg in ended.json["warm_pulls"]] == [0, 1]
    assert min(served) > 0
    assert d.metrics.value("vllm:prompt_tokens_total") > 0


async def test_background_load_runs_on_both_and_ends_with_the_measurement() -> None:
    async with pair({"profile": "glm"}, profile="glm", time_scale=0.2) as (a, b):
        ended = await calibrated(
            *at(a, b),
            "--yes",
            "--lengths=512,1024",
            "--rounds=2",
            "--load=2",
            "--load-tokens=100",
            "--json=-",
        )
        await asyncio.sleep(0.1)
        running = [engine.metrics.value("vllm:num_requests_running") for engine in (a, b)]
        generated = [engine.metrics.value("vllm:generation_tokens_total") for engine in (a, b)]
    assert {leg["verdict"] for leg in ended.json["legs"]} == {"moved", "clean"}
    assert running == [0, 0]
    # Legs generate one token each; the rest is the background's.
    assert min(generated) > 50
    assert "2 more requests of 100 tokens at a time on each engine" in ended.err
    setting = ended.json["setting"]
    assert (setting["load"], setting["load_failed"]) == (2, 0)
    assert setting["load_answered"] > 0


async def test_background_requests_that_no_engine_would_take_are_refused() -> None:
    async with pair() as (a, b):
        err = await _refused(*at(a, b), *QUICK, "--load=1", "--load-tokens=32768")
    assert err == (
        "sidecar calibrate: --load-tokens: 32,768 tokens, and an answer of 64, do not fit into the model's"
        " limit of 32,768\n"
    )


async def test_ctrl_c_leaves_what_was_measured() -> None:
    async with pair(profile="glm") as engines:
        process = await begun(*at(*engines), "--yes", "--lengths=2048,4096", "--rounds=5", "--json=-")
        assert process.stderr
        assert process.stdout
        async with asyncio.timeout(TIMEOUT_S):
            while b" legs" not in (line := await process.stderr.readline()) or b"/20" not in line:
                assert line, "it ended by itself"
            process.send_signal(signal.SIGINT)
            out, _ = await process.communicate()
    told = json.loads(out)
    assert (process.returncode, told["outcome"], told["exit_code"]) == (130, "interrupted", 130)
    assert 0 < len(told["legs"]) < 20
    assert told["rows"] != []


async def _refused(*flags: str) -> str:
    ended = await calibrated(*flags)
    assert (ended.code, ended.out) == (2, "")
    return ended.err


async def test_without_a_terminal_and_yes_it_states_the_cost_and_starts_nothing() -> None:
    async with pair() as (a, b):
        err = await _refused(*at(a, b), "--lengths=1024,2048", "--rounds=2")
        computed = [engine.metrics.value("vllm:prompt_tokens_total") for engine in (a, b)]
    lines = err.splitlines()
    assert lines[0] == "8 legs: prefixes of 1,024, 2,048 tokens, each 2 times computed and pulled"
    # Of both lengths 4 seeds and 2 controls with their tails, and a warm one of the shorter without.
    assert lines[2].startswith("  computed   19,468 prompt tokens on both engines")
    assert lines[3].startswith("  pulled     7,168 tokens of KV, about 717 MB at 100 KB per token, assumed")
    assert lines[-1] == "sidecar calibrate: nobody to ask: standard input is no terminal; say --yes"
    assert computed == [0, 0]


async def test_the_question_can_be_answered_with_no() -> None:
    terminal, inner = pty.openpty()
    async with pair() as engines:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sidecar", "calibrate", *at(*engines), *QUICK[1:]),
            stdin=inner,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        os.close(inner)
        os.write(terminal, b"n\n")
        async with asyncio.timeout(TIMEOUT_S):
            out, err = await process.communicate()
        os.close(terminal)
    assert (process.returncode, out) == (8, b"")
    assert err.endswith(b"Start? [y/N] ")


async def test_an_engine_that_is_not_there_ends_with_1() -> None:
    async with pair() as (a, _):
        gone = f"http://127.0.0.1:{closed_port()}"
        ended = await calibrated(f"--source={a.url}", f"--consumer={gone}", *QUICK)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == f"sidecar calibrate: {gone}: Connection refused\n"


async def test_no_engine_is_sent_to_a_p2p_port_where_nobody_listens() -> None:
    async with pair() as (a, b):
        dead = f"127.0.0.1:{closed_port()}"
        ended = await calibrated(f"--source={a.url}", f"--consumer={b.url}", f"--source-p2p={dead}", *QUICK)
        assert b.core.offloading
        assert not b.core.offloading.peers.wedged
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == (
        f"sidecar calibrate: {dead}: no P2P tier listens there; --source-p2p names where it does\n"
    )


async def test_a_consumer_whose_pulls_hang_is_asked_for_one_and_no_more() -> None:
    async with pair() as (a, b):
        assert b.core.offloading
        b.core.offloading.peers.wedged = True
        ended = await calibrated(*at(a, b), *QUICK, "--timeout=1s", "--json=-")
    told = ended.json
    assert (ended.code, told["outcome"], told["stopped"]) == (3, "no_pull", None)
    assert [leg["verdict"] for leg in told["warm_pulls"]] == ["failed"]
    assert told["warm_pulls"][0]["reason"] == f"{b.url}: no whole answer within 1 s"
    assert any("P2P plane is stalled" in cause for cause in told["likely_causes"])


async def test_an_engine_that_goes_away_meanwhile_ends_with_1_and_what_was_measured() -> None:
    async with pair(profile="glm") as engines:
        a = engines[0]
        process = await begun(*at(*engines), "--yes", "--lengths=512,1024", "--rounds=9", "--json=-")
        assert process.stderr
        async with asyncio.timeout(TIMEOUT_S):
            while b"legs," not in await process.stderr.readline():
                pass
            a.die("the test says so")
            out, _ = await process.communicate()
    told = json.loads(out)
    assert (process.returncode, told["outcome"]) == (1, "unreachable")
    assert a.url in told["stopped"]
    assert any(leg["verdict"] == "moved" for leg in told["legs"])


async def test_models_that_differ_are_no_pair() -> None:
    async with pair({"model": "other"}) as (a, b):
        err = await _refused(*at(a, b), *QUICK)
    assert err == "sidecar calibrate: the source serves 'other', the consumer 'tiny': no pair\n"


async def test_without_numpy_one_line_names_the_extra() -> None:
    run = (
        "import sys; sys.modules['numpy'] = None; from sidecar.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", run, "calibrate", "--source=http://a", "--consumer=http://b"),
        stderr=asyncio.subprocess.PIPE,
    )
    _, err = await process.communicate()
    assert (process.returncode, err.decode()) == (
        2,
        "sidecar calibrate: numpy, which fits the curves, is not installed:"
        " pip install 'sidecar[calibrate]'\n",
    )
