"""How an engine is started: vLLM 0.32 on CPU, or the embedded engine with the same sizes.

Rule: one `EngineSpec` gives both command lines, so that one list of scenarios runs against both.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.vllm.places import INSIDE, MODEL, VLLM

MODEL_NAME = "tiny"
BLOCK_TOKENS = 32
"""Tokens per block, on the device and offloaded. vLLM's CPU attention takes multiples of 32."""
KV_BYTES_PER_TOKEN = 1024
"""2 layers x (K and V) x 2 heads x 64 x 2 bytes (inside/tiny_model.py)."""
CONTEXT_TOKENS = 8192
BLOCKS = 1024
"""Blocks on the device, four full contexts; the P2P tier's CPU blocks are as many times two."""
STEP_TOKENS = 256
"""Tokens that one step computes at most: small, so that a long prompt takes long enough to be left alone."""
NIXL_LEASE_S = 120
"""How long a prefiller keeps blocks that nobody has read; vLLM's 30 s is too close to what busy cores do."""
DECODER_TTL_S = 120
"""How long a decoder keeps the blocks of an answer for a next turn; vLLM's default is 480 s."""
TIER_BYTES = 2 * BLOCKS * BLOCK_TOKENS * KV_BYTES_PER_TOKEN


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine.

    connector: "offloading" (P2P tier), "nixl", "reuse" (NIXL, both ways) or "multi" (both connectors).
    ip: the pod's address, on which peers find its P2P and NIXL ports. port: of its HTTP API, on 127.0.0.1.
    hash_seed: PYTHONHASHSEED, the root of its block hashes. traces: OTLP/HTTP endpoint of a collector.
    """

    name: str
    connector: str
    ip: str
    port: int
    p2p_port: int
    nixl_port: int
    hash_seed: str = "0"
    traces: str | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """A command line and the variables that it needs."""

    command: tuple[str, ...]
    environ: Mapping[str, str]


def vllm(spec: EngineSpec) -> Start:
    """A real engine."""
    flags = {
        "--served-model-name": MODEL_NAME,
        "--host": "127.0.0.1",
        "--port": str(spec.port),
        "--dtype": "bfloat16",
        "--max-model-len": str(CONTEXT_TOKENS),
        "--max-num-seqs": "8",
        "--max-num-batched-tokens": str(STEP_TOKENS),
        "--block-size": str(BLOCK_TOKENS),
        "--num-gpu-blocks-override": str(BLOCKS),
        "--tool-call-parser": "hermes",
        # A random model would fill a forced tool call with white space until its tokens are used up.
        "--structured-outputs-config.disable_any_whitespace": "true",
        "--structured-outputs-config.backend": "xgrammar",
        "--kv-transfer-config": json.dumps(_vllm_transfer(spec)),
    }
    if spec.traces:
        flags["--otlp-traces-endpoint"] = spec.traces
    switches = (
        "--enforce-eager",
        "--enable-scale-out",
        "--enable-prompt-tokens-details",
        "--enable-auto-tool-choice",
    )
    words = (word for flag in flags.items() for word in flag)
    return Start((str(VLLM), "serve", str(MODEL), *words, *switches), _vllm_environ(spec))


def _vllm_environ(spec: EngineSpec) -> dict[str, str]:
    return {
        # Nothing is asked of a hub, nothing reported.
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # Several engines share two cores: one thread each, bound to none; 1 GiB of KV cache is enough.
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_HOST_IP": spec.ip,
        # The offloading spec that runs on CPU, and executors that rest.
        "PYTHONPATH": str(INSIDE),
        # Peers find each other's blocks only when their hashes grow from the same seed.
        "PYTHONHASHSEED": spec.hash_seed,
        # With UCX's shared memory the first transfer takes 17 s here; TCP on loopback does not.
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": "lo",
        # On busy cores an idle prefiller's NIXL misses the wake-up for one read in ten, and the read waits
        # for the connection's next sign of life: seen up to 31 s with UCX's 20 s, up to 10 s with 1 s.
        "UCX_KEEPALIVE_INTERVAL": "1s",
        # NIXL's progress thread looks once a millisecond instead of keeping a core busy (install.py).
        "NIXL_PTHR_DELAY_US": "1000",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": spec.ip,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(spec.nixl_port),
        "OTEL_SERVICE_NAME": f"engine-{spec.name}",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }


def _vllm_transfer(spec: EngineSpec) -> dict[str, Any]:
    tier = {"type": "p2p", "host": spec.ip, "port": spec.p2p_port}
    offloading: dict[str, Any] = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "HostMemoryTieringSpec",
            "spec_module_path": "host_memory_tiering",
            "cpu_bytes_to_use": TIER_BYTES,
            "block_size": BLOCK_TOKENS,
            "secondary_tiers": [tier],
        },
    }
    nixl = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_buffer_device": "cpu",
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {"kv_lease_duration": NIXL_LEASE_S},
    }
    reuse: dict[str, Any] = {
        **nixl,
        "kv_connector_extra_config": {
            "kv_lease_duration": NIXL_LEASE_S,
            "bidirectional_kv_xfer": True,
            "decoder_kv_blocks_ttl": DECODER_TTL_S,
        },
    }
    both = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "connectors": [{**nixl, "kv_load_failure_policy": "recompute"}, offloading]
        },
    }
    return {"offloading": offloading, "nixl": nixl, "reuse": reuse, "multi": both}[spec.connector]


def embedded(spec: EngineSpec) -> Start:
    """The embedded engine with the real one's sizes."""
    flags = {
        "--model": MODEL_NAME,
        "--host": "127.0.0.1",
        "--port": spec.port,
        "--max-model-len": CONTEXT_TOKENS,
        "--max-num-seqs": 8,
        "--block-size": BLOCK_TOKENS,
        "--num-gpu-blocks": BLOCKS,
        "--cpu-blocks": 2 * BLOCKS,
        "--kv-bytes-per-token": KV_BYTES_PER_TOKEN,
        "--kv-connector": spec.connector,
        "--kv-load-failure-policy": "recompute" if spec.connector == "multi" else "fail",
        "--hash-seed": spec.hash_seed,
        "--p2p-host": spec.ip,
        "--p2p-port": spec.p2p_port,
        "--nixl-port": spec.nixl_port,
    }
    switches = ("--enable-scale-out", "--enable-prompt-tokens-details")
    words = (f"{name}={value}" for name, value in flags.items())
    return Start((sys.executable, "-m", "sidecar", "lab", "engine", *words, *switches), {})
