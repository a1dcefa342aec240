"""What `kv_transfer_params` make an engine do."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.lab import EngineConfig
from sidecar.lab.kvparams import NOTHING, Directive, Peer, RemoteBlocks, read_directive

P2P = EngineConfig(kv_connector="offloading")
NIXL = EngineConfig(kv_connector="nixl")
MULTI = EngineConfig(kv_connector="multi")
NONE = EngineConfig(kv_connector="none")

WHERE = {"remote_host": "127.0.0.2", "remote_port": 7777}
SOURCE = {"kv_request_id": "s", **WHERE}
BLOCKS = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[3, 4]],
    "remote_engine_id": "e",
    "remote_request_id": "cmpl-p-0-1",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
}
READ = RemoteBlocks((3, 4), "e", "cmpl-p-0-1", "127.0.0.1", 5600, None)


def test_a_source_is_pulled_from() -> None:
    assert read_directive({"remote_kv_source": SOURCE}, P2P) == Directive(source=Peer("s", "127.0.0.2", 7777))


def test_a_port_may_be_a_numeric_string() -> None:
    params = {"remote_kv_source": SOURCE | {"remote_port": "7777"}}
    assert read_directive(params, P2P).source == Peer("s", "127.0.0.2", 7777)


@pytest.mark.parametrize("field", ["kv_request_id", "remote_host", "remote_port"])
@pytest.mark.parametrize("falsy", [None, "", 0])
def test_a_source_with_a_falsy_field_is_ignored(field: str, falsy: object) -> None:
    assert read_directive({"remote_kv_source": SOURCE | {field: falsy}}, P2P) == NOTHING


@pytest.mark.parametrize("params", [None, {}, {"foo": {"bar": 1}}, {"remote_kv_source": None}])
def test_nothing_is_made_of_what_is_not_there(params: dict[str, Any] | None) -> None:
    assert read_directive(params, MULTI) == NOTHING


@pytest.mark.parametrize("falsy", ["", [], 0, {}])
def test_a_falsy_source_is_ignored(falsy: object) -> None:
    assert read_directive({"remote_kv_source": falsy}, P2P) == NOTHING


@pytest.mark.parametrize("name", ["remote_kv_source", "remote_prefiller", "remote_decoder"])
@pytest.mark.parametrize("value", ["abc", ["x"], 7, True])
def test_what_is_no_object_ends_the_engine(name: str, value: object) -> None:
    assert (
        read_directive({name: value}, P2P).fatal == f"{type(value).__name__!r} object has no attribute 'get'"
    )


def test_a_falsy_decoder_that_is_no_object_ends_the_engine_too() -> None:
    assert read_directive({"remote_decoder": ""}, P2P).fatal


def test_a_decoder_and_a_source_are_a_legal_pair() -> None:
    params = {"remote_decoder": {"kv_request_id": "d"}, "remote_kv_source": SOURCE}
    assert read_directive(params, P2P) == Directive(source=Peer("s", "127.0.0.2", 7777), decoder_id="d")


def test_a_prefiller_beats_a_source() -> None:
    params = {"remote_prefiller": {"kv_request_id": "d", **WHERE}, "remote_kv_source": SOURCE}
    assert read_directive(params, P2P) == Directive(prefiller=Peer("d", "127.0.0.2", 7777))


def test_even_an_incomplete_prefiller_hides_the_source() -> None:
    assert read_directive({"remote_prefiller": {}, "remote_kv_source": SOURCE}, P2P) == NOTHING


@pytest.mark.parametrize("config", [NIXL, NONE])
def test_an_engine_without_p2p_ignores_its_parameters_whatever_they_are(config: EngineConfig) -> None:
    assert read_directive({"remote_kv_source": "abc", "remote_decoder": [1]}, config) == NOTHING


@pytest.mark.parametrize("config", [P2P, NONE])
def test_an_engine_without_nixl_ignores_its_parameters_whatever_they_are(config: EngineConfig) -> None:
    assert read_directive({"do_remote_prefill": True, "do_remote_decode": True}, config) == NOTHING


def test_a_remote_decode_is_handed_over() -> None:
    assert read_directive({"do_remote_decode": True}, NIXL) == Directive(hands_over=True)


def test_a_remote_prefill_is_read() -> None:
    assert read_directive(BLOCKS, NIXL) == Directive(remote=READ)


def test_the_prefillers_cached_tokens_come_along() -> None:
    remote = read_directive(BLOCKS | {"remote_prefill_cached_tokens": 96}, NIXL).remote
    assert remote is not None
    assert remote.prefill_cached_tokens == 96


@pytest.mark.parametrize("ids", [None, [], "missing"])
def test_a_remote_prefill_without_block_ids_ends_the_engine(ids: object) -> None:
    params = {k: v for k, v in BLOCKS.items() if k != "remote_block_ids"}
    assert read_directive(params if ids == "missing" else params | {"remote_block_ids": ids}, NIXL).fatal


@pytest.mark.parametrize("field", ["remote_engine_id", "remote_request_id", "remote_host", "remote_port"])
def test_a_remote_prefill_without_the_rest_hangs(field: str) -> None:
    params = {k: v for k, v in BLOCKS.items() if k != field}
    assert read_directive(params, NIXL) == Directive(hangs=True)


def test_both_connectors_listen_to_a_prefill_that_pulls() -> None:
    params = {"do_remote_decode": True, "remote_kv_source": SOURCE}
    assert read_directive(params, MULTI) == Directive(source=Peer("s", "127.0.0.2", 7777), hands_over=True)
