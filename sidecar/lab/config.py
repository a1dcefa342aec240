"""Everything that can be chosen about an embedded engine; the command line is generated from these fields.

Rule: one field per flag, the flag's help in the field's metadata, refusals as `ValueError` that name the
flag.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CONNECTORS = ("none", "offloading", "nixl", "multi")
"""No connector, offloading with a P2P tier, NIXL, or MultiConnector[NIXL, offloading]."""

PROFILES = ("gpt-oss-120b", "glm", "instant")
"""Names of the latency profiles in `latency.py`."""

KV_BLOCK_MULTIPLE_TOKENS = 16
"""Attention kernels take blocks of a multiple of 16 tokens (vLLM 0.32, FlashAttention backend)."""

MIN_KV_BYTES_PER_TOKEN = 8
"""With fewer bytes two prompts could have the same KV by chance, and wrong KV would go unnoticed."""


_POSITIVE = (
    "max_model_len",
    "max_num_seqs",
    "block_size",
    "num_gpu_blocks",
    "cpu_blocks",
    "tensor_parallel_size",
)


def _flag(default: Any, text: str, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"help": text, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One engine. A port of 0 is any free one; raises ValueError ("--flag: reason") for bad values."""

    host: str = _flag("127.0.0.1", "address of the HTTP listener")
    port: int = _flag(0, "port of the HTTP listener; 0 takes a free one")
    model: str = _flag("tiny", "served model name")
    model_seed: str = _flag(
        "0", "stands for the weights: engines of one seed give the same text and the same KV"
    )
    dtype: str = _flag("bfloat16", "KV data type; peers must agree on it")
    tensor_parallel_size: int = _flag(
        1, "reported, and part of what peers must agree on (a rank's blocks have another length); no more"
    )
    version: str = _flag("0.32.0", "vLLM's version that it says it is; it behaves as 0.32 whatever that is")
    max_model_len: int = _flag(131072, "tokens of prompt and answer together")
    max_num_seqs: int = _flag(256, "requests that run at once; the others wait")
    block_size: int = _flag(16, "tokens per GPU block, a multiple of 16")
    num_gpu_blocks: int = _flag(8192, "blocks of the GPU cache")
    cpu_blocks: int = _flag(32768, "blocks of the CPU tier")
    offload_block_size: int = _flag(
        0, "tokens per offloaded chunk, a multiple of the block size; 0 = block size"
    )
    offload_prompt_only: bool = _flag(
        False, "offload prompts only: peers find none of this engine's answers (vLLM's own default)"
    )
    kv_bytes_per_token: int = _flag(64, "bytes of KV per token that are really kept and moved")
    hash_seed: str = _flag(
        "0", "PYTHONHASHSEED of the engine, the root of its block hashes; peers must agree on it"
    )
    kv_connector: str = _flag("offloading", "KV connector of the engine", CONNECTORS)
    kv_load_failure_policy: str = _flag(
        "fail", "NIXL read failed: answer 500 or compute here", ("fail", "recompute")
    )
    p2p_host: str = _flag("", "address of the P2P and NIXL listeners; empty = --host")
    p2p_port: int = _flag(0, "port of the P2P listener; 0 takes a free one")
    nixl_port: int = _flag(0, "port of the NIXL side channel; 0 takes a free one")
    p2p_hang_after_dead_peer: bool = _flag(
        True, "as vLLM 0.32: after one contact with an unreachable P2P peer every later pull hangs"
    )
    enable_prompt_tokens_details: bool = _flag(False, "report usage.prompt_tokens_details")
    enable_scale_out: bool = _flag(False, "serve /inference/v1/generate")
    server_dev_mode: bool = _flag(False, "serve /server_info, as with VLLM_SERVER_DEV_MODE=1")
    clock_ahead_s: float = _flag(0.0, "seconds that the clock of its Date headers is ahead")
    profile: str = _flag("gpt-oss-120b", "latency model", PROFILES)
    time_scale: float = _flag(1.0, "factor on every simulated duration; 0.01 is a hundred times faster")

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            _require(name, "must be positive", holds=getattr(self, name) > 0)
        for name in ("port", "p2p_port", "nixl_port"):
            _require(name, "must be a port number", holds=0 <= getattr(self, name) <= 65535)
        for name in ("kv_connector", "kv_load_failure_policy", "profile"):
            choices = type(self).__dataclass_fields__[name].metadata["choices"]
            _require(name, f"must be one of {', '.join(choices)}", holds=getattr(self, name) in choices)
        for name, reason, holds in (
            ("block_size", "must be a multiple of 16", self.block_size % KV_BLOCK_MULTIPLE_TOKENS == 0),
            (
                "offload_block_size",
                "must be a multiple of --block-size",
                self.chunk_tokens % self.block_size == 0,
            ),
            ("offload_block_size", "must not be negative", self.offload_block_size >= 0),
            (
                "max_model_len",
                "does not fit into --num-gpu-blocks times --block-size",
                self.num_gpu_blocks * self.block_size >= self.max_model_len,
            ),
            (
                "kv_bytes_per_token",
                f"must be at least {MIN_KV_BYTES_PER_TOKEN}",
                self.kv_bytes_per_token >= MIN_KV_BYTES_PER_TOKEN,
            ),
            ("time_scale", "must be positive", 0 < self.time_scale < float("inf")),
        ):
            _require(name, reason, holds=holds)

    @property
    def fingerprint(self) -> str:
        """`system_fingerprint` of its answers: version, parallelism, and what stands for vLLM's hash of the
        configuration (entrypoints/serve/utils/fingerprint.py, 0.32).
        """
        parallel = f"-tp{self.tensor_parallel_size}" if self.tensor_parallel_size > 1 else ""
        return f"vllm-{self.version}{parallel}-1ab00000"

    @property
    def chunk_tokens(self) -> int:
        """Tokens of one offloaded chunk: what a peer can be asked for."""
        return self.offload_block_size or self.block_size

    @property
    def block_bytes(self) -> int:
        """Bytes of KV in one full GPU block."""
        return self.block_size * self.kv_bytes_per_token

    @property
    def offloads(self) -> bool:
        """Has a CPU tier and a P2P listener."""
        return self.kv_connector in ("offloading", "multi")

    @property
    def has_nixl(self) -> bool:
        """Has a NIXL side channel."""
        return self.kv_connector in ("nixl", "multi")

    @property
    def peer_host(self) -> str:
        """Address at which other engines reach this one."""
        return self.p2p_host or self.host


def _require(name: str, reason: str, *, holds: bool) -> None:
    if not holds:
        raise ValueError(f"--{name.replace('_', '-')}: {reason}")
