"""What engines say of themselves, in several versions' ways."""

from __future__ import annotations

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
    assert cache == {"block_size": "32", "num_cpu_blocks": "None", "a": 'q"\n,b=1'}
    said = Facts(cache=cache)
    assert (said.block_tokens, said.number("num_cpu_blocks")) == (32, None)


def test_an_engine_without_them_has_no_block_size() -> None:
    assert Facts(cache=facts.cache_labels(b"up 1\n")).block_tokens is None
