"""Sources that give nothing, and clients that say what only the sidecar may: every answer is still right."""

from __future__ import annotations

from time import sleep
from typing import Any

import pytest

from tests.vllm.asking import APIS, fresh_ids, post, pulled_tokens
from tests.vllm.counters import P2P_READ_BYTES, QUIET_S, Risen
from tests.vllm.engines import KV_BYTES_PER_TOKEN
from tests.vllm.figures import Figures
from tests.vllm.pods import Pods
from tests.vllm.scenes import PROMPT_TOKENS, SOURCE, Lines, alone, computed_on

COMPLETIONS = APIS["completions"]
# An address of loopback where nothing listens.
NOBODY = "127.0.0.9"


def pulls_from_a_live_peer(tiers: Pods, url: str) -> int:
    """Bytes that pod B pulls from pod A for a fresh prompt, asked through the sidecar at `url`."""
    a, b = tiers["a"], tiers["b"]
    body = COMPLETIONS.body(PROMPT_TOKENS)
    expected = computed_on(a, COMPLETIONS, body)
    risen = Risen(b.engine_url)
    answer = post(url, COMPLETIONS.path, body, {SOURCE: a.netloc})
    assert COMPLETIONS.text_of(answer) == COMPLETIONS.text_of(expected)
    return risen.settled(P2P_READ_BYTES, pulled_tokens(PROMPT_TOKENS) * KV_BYTES_PER_TOKEN)


def test_a_source_that_has_nothing_costs_nothing(tiers: Pods, figures: Figures) -> None:
    a, b, c = tiers["a"], tiers["b"], tiers["c"]
    body = COMPLETIONS.body(PROMPT_TOKENS)
    risen, lines = Risen(b.engine_url), Lines(b.log_name)

    answer = post(b.url, COMPLETIONS.path, body, {SOURCE: a.netloc})

    sleep(QUIET_S)
    usage = COMPLETIONS.usage_of(answer)
    figures.note(status=answer.status, usage=usage, b=risen.all())
    assert "pull" in lines.last()["legs"][0]
    assert (answer.status, usage.cached_tokens, risen.by(P2P_READ_BYTES)) == (200, 0, 0)
    assert COMPLETIONS.text_of(answer) == alone(c, COMPLETIONS, body)


def test_a_pod_does_not_pull_from_itself(tiers: Pods, figures: Figures) -> None:
    b, c = tiers["b"], tiers["c"]
    body = COMPLETIONS.body(PROMPT_TOKENS)
    risen, lines = Risen(b.engine_url), Lines(b.log_name)

    answer = post(b.url, COMPLETIONS.path, body, {SOURCE: b.netloc})

    sleep(QUIET_S)
    line = lines.last()
    figures.note(status=answer.status, reason=line["reason"], b=risen.all())
    assert line["reason"] == "source_is_self"
    assert (answer.status, risen.by(P2P_READ_BYTES)) == (200, 0)
    assert COMPLETIONS.text_of(answer) == alone(c, COMPLETIONS, body)


def test_a_source_that_does_not_listen_is_left_alone_and_live_peers_still_give(
    tiers: Pods, figures: Figures
) -> None:
    b, c = tiers["b"], tiers["c"]
    body = COMPLETIONS.body(PROMPT_TOKENS)
    lines = Lines(b.log_name)

    answer = post(b.url, COMPLETIONS.path, body, {SOURCE: f"{NOBODY}:{b.port}"})

    assert lines.last()["reason"] == "source_unreachable"
    assert answer.status == 200
    assert COMPLETIONS.text_of(answer) == alone(c, COMPLETIONS, body)
    moved = pulls_from_a_live_peer(tiers, b.url)
    figures.note(status=answer.status, then_from_a_live_peer_bytes=moved)
    assert moved == 160 * KV_BYTES_PER_TOKEN


HOSTILE: dict[str, tuple[Any, str]] = {
    "a source that is a text": ({"remote_kv_source": "abc"}, "remote_kv_source"),
    "a decoder that is a list": ({"remote_decoder": ["x"]}, "remote_decoder"),
    "a prefiller that is a number": ({"remote_prefiller": 7}, "remote_prefiller"),
    "an id that is a number": (
        {"remote_kv_source": {"kv_request_id": 7, "remote_host": "127.0.0.1", "remote_port": 9}},
        "remote_kv_source.kv_request_id",
    ),
    "a port that is a text": (
        {"remote_kv_source": {"kv_request_id": "x", "remote_host": "127.0.0.1", "remote_port": "9"}},
        "remote_kv_source.remote_port",
    ),
    "remote prefill without block ids": ({"do_remote_prefill": True}, "remote_block_ids"),
    "remote prefill without an engine id": (
        {
            "do_remote_prefill": True,
            "remote_block_ids": [[1, 2]],
            "remote_host": "127.0.0.1",
            "remote_port": 9,
        },
        "remote_engine_id",
    ),
    "block ids that are a text": (
        {
            "do_remote_prefill": True,
            "remote_block_ids": "12",
            "remote_engine_id": "e",
            "remote_request_id": "r",
            "remote_host": "127.0.0.1",
            "remote_port": 9,
        },
        "remote_block_ids",
    ),
    "a text instead of an object": ("notadict", "kv_transfer_params"),
    "a list instead of an object": ([], "kv_transfer_params"),
}
PLACES = ("kv_transfer_params", "vllm_xargs", "sampling_params")


def _placed(place: str, params: Any) -> tuple[str, dict[str, Any]]:
    """(API, body) with a client's params in this place."""
    match place:
        case "vllm_xargs":
            return "completions", {"vllm_xargs": {"kv_transfer_params": params}}
        case "sampling_params":
            extra = {"kv_transfer_params": params}
            return "generate", {"sampling_params": {"max_tokens": 2, "extra_args": extra}}
        case _:
            return "chat", {place: params}


@pytest.mark.parametrize("place", PLACES)
def test_hostile_params_of_a_client_are_refused_and_no_engine_dies(
    place: str, tiers: Pods, figures: Figures
) -> None:
    b = tiers["b"]
    answers: dict[str, int] = {}
    for words, (params, field) in HOSTILE.items():
        name, fields = _placed(place, params)
        answer = post(b.url, APIS[name].path, APIS[name].body(40, **fields))
        answers[words] = answer.status
        assert answer.status == 400, (words, answer.content)
        assert answer.headers["x-sidecar-error"] == "400"
        assert field in answer.json["error"]["message"]
    figures.note(**answers)
    assert post(b.engine_url, COMPLETIONS.path, COMPLETIONS.body(40)).status == 200
    assert b.engine.running


def test_a_client_cannot_direct_a_pull_where_the_header_does(tiers: Pods, figures: Figures) -> None:
    a, b = tiers["a"], tiers["b"]
    body = COMPLETIONS.body(PROMPT_TOKENS)
    expected = computed_on(a, COMPLETIONS, body)
    theirs = {"remote_kv_source": {"kv_request_id": "x", "remote_host": NOBODY, "remote_port": 9}}
    risen = Risen(b.engine_url)

    answer = post(b.url, COMPLETIONS.path, {**body, "kv_transfer_params": theirs}, {SOURCE: a.netloc})

    moved = risen.settled(P2P_READ_BYTES, 160 * KV_BYTES_PER_TOKEN)
    figures.note(status=answer.status, b=risen.all())
    assert moved == 160 * KV_BYTES_PER_TOKEN
    assert COMPLETIONS.text_of(answer) == COMPLETIONS.text_of(expected)


def test_blocks_of_a_peer_with_another_hash_seed_are_not_found(tiers: Pods, figures: Figures) -> None:
    a, x = tiers["a"], tiers["x"]
    body = COMPLETIONS.body(PROMPT_TOKENS, prompt=fresh_ids(PROMPT_TOKENS))
    expected = computed_on(a, COMPLETIONS, body)
    risen, lines = Risen(x.engine_url), Lines(x.log_name)

    answer = post(x.url, COMPLETIONS.path, body, {SOURCE: a.netloc})

    sleep(QUIET_S)
    line = lines.last()
    figures.note(status=answer.status, took_ms=line["duration_ms"], x=risen.all())
    assert "pull" in line["legs"][0]
    assert (answer.status, risen.by(P2P_READ_BYTES)) == (200, 0)
    assert COMPLETIONS.text_of(answer) == COMPLETIONS.text_of(expected)
