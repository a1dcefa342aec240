"""What a run is said to cost before it starts."""

from __future__ import annotations

from sidecar.calibrate.asking import question
from sidecar.calibrate.cost import cost
from sidecar.calibrate.plan import Kind, Leg
from sidecar.engine_counters import Counters
from sidecar.remote import Facts

LEGS = [
    Leg(n, 0, kind, tokens) for n, (tokens, kind) in enumerate((t, k) for t in (1000, 3000) for k in Kind)
]
SIZED = Facts(cache={"kv_cache_memory_bytes": "1000000", "kv_cache_size_tokens": "1000"})


def test_tokens_and_bytes_are_those_of_the_legs_and_a_warm_pull() -> None:
    told = cost(LEGS, 1, (SIZED, Counters(computed_tokens=50_000, prefill_s=2)), 120)
    # Seeds of 4 legs with their tails and the warm one, and 2 controls.
    assert told.computed_tokens == 8004 + 1000 + 4002
    assert told.pulled_tokens == 4000 + 1000
    assert (told.kv_bytes, told.kv_bytes_known) == (5_000_000, True)
    assert (told.tokens_per_s, told.pace_known) == (25_000, True)
    # 2 for each leg and the warm pull, and one that looks which prompts are taken.
    assert told.requests == 11
    # Where the warm pull is tried three times, and so are prompts.
    # With each leg three waits for counters, of 15 s together, and five looks at them, of 15 s at most each.
    assert told.most_s == (11 + 4 + 2) * 120 + (4 + 3) * (15 + 5 * 15)
    assert 13_006 / 25_000 < told.seconds < 13_006 / 25_000 + 5 * 0.5 + 0.1


def test_what_the_engine_does_not_tell_is_assumed_and_said_to_be() -> None:
    set_by_hand = Facts(cache={**SIZED.cache, "num_gpu_blocks_override": "512"})
    told = cost(LEGS, 1, (set_by_hand, Counters(computed_tokens=100, prefill_s=1)), 120)
    assert (told.kv_bytes_known, told.kv_bytes) == (False, 500_000_000)
    assert (told.pace_known, told.tokens_per_s) == (False, 10_000)
    lines = "\n".join(question(told, (1000, 3000), 1, (0, 2048)))
    assert "at 10,000 tokens/s, assumed" in lines
    assert "about 500 MB at 100 KB per token, assumed until the first pull tells" in lines
    assert "load" not in lines


def test_background_requests_are_part_of_the_question() -> None:
    lines = list(question(cost(LEGS, 1, (SIZED, Counters()), 120), (1000, 3000), 1, (3, 2048)))
    assert "  load       3 more requests of 2,048 tokens at a time on each engine" in lines
