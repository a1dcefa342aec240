"""The report for programs."""

from __future__ import annotations

import json
from dataclasses import replace

import yaml

from sidecar.calibrate.machine import as_csv, as_epp, as_json
from sidecar.calibrate.plan import Kind
from sidecar.calibrate.verdicts import Verdict
from tests.calibrate.made import bad, legs_of_profile, report


def test_json_has_everything_and_each_leg() -> None:
    told = json.loads(as_json(report(legs_of_profile("glm"))))
    assert list(told) == [
        *("outcome", "exit_code", "recommended_min_cached_token_delta", "crossover", "figures", "curves"),
        *("rows", "setting", "warm_pulls", "legs", "likely_causes", "stopped"),
    ]
    assert (told["outcome"], told["exit_code"]) == ("crosses", 0)
    assert len(told["legs"]) == 40
    assert told["legs"][4] == {
        "round": 0,
        "kind": "pull",
        "rank": 0,
        "asked_prefix_tokens": 2048,
        "prefix_tokens": 2048,
        "ttft_ms": 163.0545,
        "seed_ttft_ms": 10.0,
        "verdict": "moved",
        "reason": None,
        "pulled_bytes": 131072.0,
        "pulled_tokens": 2048.0,
        "local_tokens": 0.0,
        "given_chunks": 128.0,
    }


def test_csv_is_the_table() -> None:
    lines = as_csv(report(legs_of_profile("glm", (2048, 8192)))).splitlines()
    assert lines == [
        "prefix_tokens,recompute_ms,recompute_least_ms,recompute_most_ms,recompute_legs,pull_ms,pull_least_ms,"
        "pull_most_ms,pull_legs,delta_ms,moved_bytes,legs_set_aside",
        "2048,72.009,70.568,73.449,5,163.054,159.793,166.316,5,-91.046,131072,0",
        "8192,210.617,206.405,214.830,5,218.351,213.983,222.718,5,-7.733,524288,0",
    ]


def test_a_length_without_legs_has_empty_cells() -> None:
    lines = as_csv(report([bad(Kind.PULL, Verdict.NOTHING, "x")])).splitlines()
    assert lines[1] == "2048,,,,,,,,,,,1"


def test_the_snippet_is_the_pickers_yaml_with_the_reason_above_it() -> None:
    told = report(legs_of_profile("glm"))
    snippet = as_epp(told)
    assert snippet.splitlines()[:2] == [
        "# sidecar calibrate, tiny: http://b:8000 pulls from http://a:8000",
        "# crossover 8698 tokens, certain from 8890 on, x headroom 1.2",
    ]
    assert yaml.safe_load(snippet) == {
        "plugins": [
            {
                "type": "p2p-source-producer",
                "parameters": {
                    "prefixMatchInfoProducerName": "precise-prefix-cache-producer",
                    "minCachedTokenDelta": told.recommended,
                },
            }
        ]
    }


def test_without_a_threshold_the_snippet_is_a_comment() -> None:
    snippet = as_epp(report([bad(Kind.PULL, Verdict.NOTHING, "x")]))
    assert snippet.splitlines()[1] == (
        "# no threshold: no pull moved its prefix, or more than a third of them did not"
    )
    assert yaml.safe_load(snippet) is None


def test_a_models_name_is_no_format() -> None:
    made = report(legs_of_profile("glm"))
    named = replace(made, setting=replace(made.setting, model="{0} {nope}"))
    assert as_epp(named).splitlines()[0].startswith("# sidecar calibrate, {0} {nope}: ")
    assert yaml.safe_load(as_epp(named)) == yaml.safe_load(as_epp(made))
