"""Judges what an engine keeps for its peers: how much, whether answers too, and how large each token is.

Rule: pure; judged by its configuration where it tells that, else by what was counted.
"""

from __future__ import annotations

from sidecar.doctor.findings import Finding, Severity, fine, untold
from sidecar.doctor.paint import size
from sidecar.doctor.told import Told

DEV_MODE = "engines tell it with VLLM_SERVER_DEV_MODE=1 only (GET /server_info)"
"""What would make an engine tell its configuration."""


def kv_bytes(told: Told) -> Finding:
    """Bytes of KV per token, as measured."""
    if told.kv_token_bytes is None:
        return untold("KV per token", told.name, "no counter of bytes offloaded has risen for the prompt")
    return fine("KV per token", told.name, f"{told.kv_token_bytes:,.0f} bytes")


def prompt_only(told: Told) -> Finding:
    """Whether what it answers can be pulled from it; vLLM keeps prompts only by default."""
    check = "offload_prompt_only"
    configured = told.configuration.prompt_only if told.configuration else None
    only = configured if configured is not None else _as_seen(told)
    if only is None:
        return untold(check, told.name, f"no counter of bytes offloaded to see it by; {DEV_MODE}")
    if not only:
        return fine(check, told.name, "false")
    says = "offloads prompts only: a chat's next turn finds its last answer at no peer"
    change = 'Set "offload_prompt_only": false in kv_connector_extra_config (vLLM\'s default is true).'
    return Finding(Severity.WARNING, check, (told.name,), "true", says, change)


def _as_seen(told: Told) -> bool | None:
    return None if told.answers_kept is None else not told.answers_kept


def tier(told: Told) -> Finding:
    """Whether its CPU tier holds as much as its GPU."""
    check = "CPU tier"
    gpu_tokens, tier_bytes = gpu_tokens_of(told), told.configuration and told.configuration.tier_bytes
    if not tier_bytes:
        return untold(check, told.name, f"its size: {DEV_MODE}")
    whole = size(tier_bytes)
    if gpu_tokens is None or told.kv_token_bytes is None:
        return fine(check, told.name, whole)
    tier_tokens = tier_bytes / told.kv_token_bytes
    if tier_tokens >= gpu_tokens:
        return fine(check, told.name, f"{whole}, {tier_tokens / gpu_tokens:.1f}x")
    says = (
        f"its CPU tier holds {tier_tokens:,.0f} tokens, its GPU cache {gpu_tokens:,}: peers only pull what "
        "is still in the tier"
    )
    change = f"Raise cpu_bytes_to_use to {gpu_tokens * told.kv_token_bytes:,.0f} at least, better twice that."
    return Finding(
        Severity.WARNING, check, (told.name,), f"{tier_tokens / gpu_tokens:.1f} of GPU", says, change
    )


def gpu_tokens_of(told: Told) -> int | None:
    """Tokens of the GPU's KV cache."""
    facts = told.facts
    blocks = facts.number("num_gpu_blocks")
    whole = blocks * facts.block_tokens if blocks and facts.block_tokens else None
    return facts.number("kv_cache_size_tokens") or whole
