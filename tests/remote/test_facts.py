"""What engines say of themselves, in several versions' ways."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sidecar.remote import facts
from sidecar.remote.facts import Facts


def test_the_first_model_counts() -> None:
    cards = [{"id": "m", "root": "/models/m", "max_model_len": 8192}, {"id": "adapter", "root": "x"}]
    assert facts.of_models({"object": "list", "data": cards}) == ("m", "/models/m", 8192)


@pytest.mark.parametrize("content", [None, [], {}, {"data": []}, {"data": [1]}, {"data": [{"id": 1}]}])
def test_an_answer_of_another_kind_says_nothing(content: Any) -> None:
    assert facts.of_models(content) == (None, None, None)


def test_the_version_is_told_or_not() -> None:
    assert facts.of_version({"version": "0.32.0"}) == "0.32.0"
    assert facts.of_version("0.32.0") is None


def test_the_labels_of_the_cache_are_read_with_their_escapes() -> None:
    text = b'# HELP x\nvllm:cache_config_info{block_size="32",num_cpu_blocks="None",a="q\\"\\n,b=1"} 1.0\n'
    cache = facts.cache_labels(text)
    assert cache == {"block_size": "32", "num_cpu_blocks": "None", "a": 'q" ,b=1'}
    said = Facts(cache=cache)
    assert (said.block_tokens, said.number("num_cpu_blocks")) == (32, None)


LONE_SURROGATE = json.loads('"\\ud800"')


@pytest.mark.parametrize("name", [LONE_SURROGATE, "\x1b[2J", "m" * 257, "\u202em"])
def test_a_name_that_cannot_be_printed_or_has_no_end_is_none(name: str) -> None:
    assert facts.of_models({"data": [{"id": name}]}) == (None, None, None)


def test_what_is_only_shown_is_escaped_and_cut() -> None:
    assert facts.of_version({"version": f"0.32{LONE_SURROGATE}\x1b[31m"}) == r"0.32\ud800\x1b[31m"
    assert facts.of_models({"data": [{"id": "m", "root": "/" * 999}]})[1] == "/" * 117 + "..."
    assert facts.cache_labels(b'vllm:cache_config_info{a="\x1b]0;x\x07"} 1\n') == {"a": r"\x1b]0;x\x07"}


def test_numbers_without_end_are_no_limits() -> None:
    assert facts.of_models({"data": [{"id": "m", "max_model_len": 10**400}]}) == ("m", None, None)
    assert Facts(cache={"block_size": "9" * 100}).block_tokens is None
    long = facts.cache_labels(b'vllm:cache_config_info{block_size="%b"} 1\n' % (b"9" * 9999))
    assert (long["block_size"], Facts(cache=long).block_tokens) == ("9" * 117 + "...", None)


def test_an_engine_without_them_has_no_block_size() -> None:
    assert Facts(cache=facts.cache_labels(b"up 1\n")).block_tokens is None
