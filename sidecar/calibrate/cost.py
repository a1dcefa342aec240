"""What a run will cost, before it starts: requests, tokens, bytes, time.

Rule: pure; what is not known is said to be assumed, with the assumption.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.calibrate.plan import QUIET_S, STORE_LAG_S, STORED_WITHIN_S, TAIL_TOKENS, Kind, Leg
from sidecar.engine_counters import Counters
from sidecar.remote.facts import QUESTION_S, Facts

ASSUMED_TOKENS_PER_S = 10_000.0
"""Prefill of a large model on one node; between what 7B and 400B models do on current GPUs."""
ASSUMED_KV_BYTES = 100_000
"""Per token. Between GQA models of 8B (131,072 bytes) and those with few KV heads (70,000)."""
# Between the two requests of a leg counters are read until they have settled.
_SETTLING_S = 0.35
# Bytes come so many times faster than tokens are computed, where pulls are worth anything.
_PULL_SPEED_UP = 4.0
# An average over less than this says little: warm-up requests of a few tokens.
_LEAST_TOKENS = 2000
# At most: three waits, the last look of each of which, and two looks more, may take all of their time.
_MOST_WAITING_S = STORE_LAG_S + STORED_WITHIN_S + 2 * QUIET_S
_LOOKS = 5
WARM_TRIES = 3
"""A first pull may miss what the source has not stored yet."""
PROBES = 3
"""Kinds of prompts that are tried: two spans of token ids, then text."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The whole run. seconds: estimated; most_s: when every request and every wait for counters
    needs all of its time.

    pace_known: whether tokens_per_s is the engine's own average. kv_bytes_known: the same of the bytes.
    """

    legs: int
    requests: int
    computed_tokens: int
    pulled_tokens: int
    kv_bytes: int
    kv_bytes_known: bool
    tokens_per_s: float
    pace_known: bool
    seconds: float
    most_s: float


def cost(legs: Sequence[Leg], ranks: int, engine: tuple[Facts, Counters], timeout_s: float) -> Cost:
    """Of these legs and a warm pull per rank. engine: the source, what it says of itself and has counted."""
    warm_tokens = ranks * min((leg.prefix_tokens for leg in legs), default=0)
    seeded = sum(leg.prefix_tokens + TAIL_TOKENS for leg in legs) + warm_tokens
    controls = sum(leg.prefix_tokens + TAIL_TOKENS for leg in legs if leg.kind is Kind.RECOMPUTE)
    pulled = sum(leg.prefix_tokens for leg in legs if leg.kind is Kind.PULL) + warm_tokens
    tokens_per_s, pace_known = pace(engine[1])
    per_token = kv_bytes_per_token(engine[0])
    # Two for each leg and each warm pull, and one that finds out which prompts are taken.
    requests = 2 * (len(legs) + ranks) + 1
    most = requests + 2 * ranks * (WARM_TRIES - 1) + PROBES - 1
    pairs = len(legs) + ranks * WARM_TRIES
    computing_s = (seeded + controls + pulled / _PULL_SPEED_UP) / tokens_per_s
    return Cost(
        legs=len(legs),
        requests=requests,
        computed_tokens=seeded + controls,
        pulled_tokens=pulled,
        kv_bytes=pulled * (per_token or ASSUMED_KV_BYTES),
        kv_bytes_known=per_token is not None,
        tokens_per_s=tokens_per_s,
        pace_known=pace_known,
        seconds=computing_s + (len(legs) + ranks) * _SETTLING_S,
        most_s=most * timeout_s + pairs * (_MOST_WAITING_S + _LOOKS * min(QUESTION_S, timeout_s)),
    )


def pace(counters: Counters) -> tuple[float, bool]:
    """Prefilled tokens per second, on the engine's own average; else what is assumed, and False."""
    if counters.computed_tokens and counters.prefill_s and counters.computed_tokens >= _LEAST_TOKENS:
        return counters.computed_tokens / counters.prefill_s, True
    return ASSUMED_TOKENS_PER_S, False


def kv_bytes_per_token(facts: Facts) -> int | None:
    """From the size of the engine's cache, where it was not set by hand; of one tensor-parallel rank."""
    size_bytes, tokens = facts.number("kv_cache_memory_bytes"), facts.number("kv_cache_size_tokens")
    if facts.cache.get("num_gpu_blocks_override", "None") != "None" or not size_bytes or not tokens:
        return None
    return size_bytes // tokens
