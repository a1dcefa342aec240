"""What can be chosen about an engine."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.lab import EngineConfig


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block_size": 20}, "--block-size: must be a multiple of 16"),
        ({"block_size": 0}, "--block-size: must be positive"),
        ({"offload_block_size": 24}, "--offload-block-size: must be a multiple of --block-size"),
        ({"port": 70000}, "--port: must be a port number"),
        ({"kv_connector": "mooncake"}, "--kv-connector: must be one of none, offloading, nixl, multi"),
        ({"profile": "x"}, "--profile: must be one of gpt-oss-120b, glm, instant"),
        ({"time_scale": 0.0}, "--time-scale: must be positive"),
        ({"max_num_seqs": 0}, "--max-num-seqs: must be positive"),
        ({"num_gpu_blocks": 4}, "--max-model-len: does not fit into --num-gpu-blocks times --block-size"),
        ({"kv_bytes_per_token": 4}, "--kv-bytes-per-token: must be at least 8"),
    ],
)
def test_impossible_values_are_refused_by_the_name_of_their_flag(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        EngineConfig(**fields)


def test_the_chunk_is_the_block_unless_chosen() -> None:
    assert EngineConfig(block_size=32).chunk_tokens == 32
    assert EngineConfig(block_size=32, offload_block_size=128).chunk_tokens == 128
