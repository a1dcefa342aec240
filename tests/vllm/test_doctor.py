"""`sidecar doctor` on engines: a healthy pair, a peer with another hash seed, and the five gates."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.vllm.engines import KV_BYTES_PER_TOKEN
from tests.vllm.figures import Figures
from tests.vllm.pods import TIERS, Pods
from tests.vllm.processes import free_port

PROMPT_TOKENS = 512
# Two long answers and four pulls on two cores that four engines share.
_TIMEOUT_S = 180


def doctor(p2p_port: int, urls: list[str], *flags: str) -> tuple[int, Any]:
    """Status and document of the command, as a process."""
    command = (sys.executable, "-m", "sidecar", "doctor", f"--peers={','.join(urls)}")
    more = (
        f"--p2p-port={p2p_port}",
        f"--prompt-tokens={PROMPT_TOKENS}",
        "--timeout=60s",
        "--json",
    )
    ran = subprocess.run((*command, *more, *flags), capture_output=True, timeout=_TIMEOUT_S, check=False)
    assert ran.stderr == b""
    return ran.returncode, json.loads(ran.stdout)


def values(document: Any, check: str) -> dict[str, str]:
    """What was found of each peer by one check."""
    found = [one for one in document["findings"] if one["check"] == check and len(one["about"]) == 1]
    return {one["about"][0]: one["value"] for one in found}


def test_between_healthy_pods_blocks_move_both_ways(tiers: Pods, figures: Figures) -> None:
    code, document = doctor(tiers["a"].spec.p2p_port, [tiers["a"].url, tiers["b"].url])

    figures.note(code=code, pairs=document["pairs"], findings=document["findings"])
    assert {pair["verdict"] for pair in document["pairs"]} == {"moved"}
    for pair in document["pairs"]:
        assert pair["first"]["moved_bytes"] == PROMPT_TOKENS * KV_BYTES_PER_TOKEN
        assert pair["again"]["cached_tokens"] == PROMPT_TOKENS
    assert [one["check"] for one in document["findings"] if one["severity"] == "error"] == []
    assert values(document, "KV per token") == {"A": "1,024 bytes", "B": "1,024 bytes"}
    assert values(document, "parallel") == {"A": "TP 1", "B": "TP 1"}
    assert values(document, "token details") == {"A": "on", "B": "on"}


def test_the_gates_hold_between_healthy_pods(tiers: Pods, figures: Figures) -> None:
    a, b = tiers["a"], tiers["b"]
    metrics = free_port(b.spec.ip)
    flags = (*TIERS.flags, "--debug-endpoints", f"--metrics-port={metrics}")
    front = tiers.fleet.extra_sidecar(b, "doctor", flags)

    code, document = doctor(a.spec.p2p_port, [a.url, front], "--verify-pull", f"--metrics=B={metrics}")

    figures.note(code=code, gates=document["gates"])
    assert [gate["state"] for gate in document["gates"]] == ["pass"] * 5
    assert (
        document["gates"][1]["evidence"] == f"x-sidecar-pull: directed; source {a.spec.ip}:{a.spec.p2p_port}"
    )
    assert values(document, "connector")["B"] == "offloading"
    assert values(document, "guard")["B"] == "all well"


def test_a_peer_with_another_hash_seed_is_found(tiers: Pods, figures: Figures) -> None:
    code, document = doctor(tiers["a"].spec.p2p_port, [tiers["a"].url, tiers["x"].url], "--max-pairs=1")

    figures.note(code=code, pairs=document["pairs"], findings=document["findings"])
    assert code == 3
    [pair] = document["pairs"]
    assert (pair["verdict"], pair["first"]["moved_bytes"]) == ("refused", 0)
    [pull] = [one for one in document["findings"] if one["check"] == "pull"]
    assert "PYTHONHASHSEED" in pull["change"]
