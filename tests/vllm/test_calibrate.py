"""`sidecar calibrate` on real engines: every byte is verified, and the verdict follows from the legs.

The tiny model has no crossover that means anything: what it comes to is not asserted, that it is honest is.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.vllm.engines import BLOCK_TOKENS, KV_BYTES_PER_TOKEN
from tests.vllm.figures import Figures
from tests.vllm.pods import Pod, Pods

LENGTHS = (512, 1024, 2048)
ROUNDS = 2
# The legs take a few seconds; engines on busy cores take their time.
_TIMEOUT_S = 150


def calibrated(source: str, consumer: str, *flags: str) -> tuple[int, dict[str, Any]]:
    """Run it as a user does; its exit code and its JSON."""
    command = (sys.executable, "-m", "sidecar", "calibrate", f"--source={source}", f"--consumer={consumer}")
    done = subprocess.run(
        (*command, "--yes", "--json=-", "--timeout=60s", *flags),
        capture_output=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert done.stdout, done.stderr.decode()
    report: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, report


def p2p(pod: Pod) -> str:
    return f"--source-p2p={pod.spec.ip}:{pod.spec.p2p_port}"


def legs(report: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [leg for leg in report["legs"] if leg["kind"] == kind]


@pytest.mark.parametrize("through", ["engine", "sidecar"])
def test_every_leg_is_verified_by_the_bytes_and_the_verdict_follows(
    through: str, tiers: Pods, figures: Figures
) -> None:
    a, b = tiers["a"], tiers["b"]
    consumer, aim = (
        (b.engine_url, p2p(a)) if through == "engine" else (b.url, f"--source-endpoint={a.netloc}")
    )
    lengths = f"--lengths={','.join(map(str, LENGTHS))}"

    code, report = calibrated(a.engine_url, consumer, aim, lengths, f"--rounds={ROUNDS}")

    pulls, controls = legs(report, "pull"), legs(report, "recompute")
    figures.note(
        exit_code=code,
        outcome=report["outcome"],
        rows=[{k: row[k] for k in ("prefix_tokens", "recompute", "pull")} for row in report["rows"]],
        figures=report["figures"],
        warm=report["warm_pulls"],
    )
    assert report["setting"]["consumer_facts"]["through_sidecar"] is (through == "sidecar")
    assert [leg["reason"] for leg in report["legs"] if leg["reason"]] == []
    assert [leg["verdict"] for leg in pulls] == ["moved"] * len(LENGTHS) * ROUNDS
    for leg in pulls:
        assert leg["pulled_bytes"] == leg["prefix_tokens"] * KV_BYTES_PER_TOKEN
        assert leg["pulled_tokens"] == leg["prefix_tokens"]
        assert leg["given_chunks"] == leg["prefix_tokens"] / BLOCK_TOKENS
    assert [leg["verdict"] for leg in controls] == ["clean"] * len(LENGTHS) * ROUNDS
    assert {leg["pulled_bytes"] for leg in controls} == {0.0}
    assert report["figures"]["kv_bytes_per_token"] == KV_BYTES_PER_TOKEN
    assert code == report["exit_code"]
    assert code in (0, 5, 6, 7)
    assert (report["recommended_min_cached_token_delta"] is not None) == (code in (0, 5))


def test_a_pair_of_two_hash_seeds_is_told_that_nothing_moves(tiers: Pods, figures: Figures) -> None:
    a, x = tiers["a"], tiers["x"]

    code, report = calibrated(a.engine_url, x.engine_url, p2p(a), "--lengths=512,1024", "--rounds=2")

    figures.note(exit_code=code, warm=report["warm_pulls"], causes=report["likely_causes"])
    assert (code, report["outcome"]) == (3, "no_pull")
    assert {leg["verdict"] for leg in report["warm_pulls"]} == {"nothing moved"}
    assert report["legs"] == []
    assert "PYTHONHASHSEED" in report["likely_causes"][0]
