"""Legs and reports that were never measured: a model's own times with a little spread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sidecar.calibrate.outcomes import Outcome, Pair
from sidecar.calibrate.plan import Kind, Leg
from sidecar.calibrate.report import Report, Setting, reported
from sidecar.calibrate.verdicts import Measured, Rise, Verdict
from sidecar.lab.latency import PROFILES
from sidecar.remote import Facts

LENGTHS = (2048, 4096, 8192, 16384)
KV_BYTES = 64
FACTS = Facts(model="tiny", max_model_tokens=131072, version="0.32.0", cache={"block_size": "16"})
# Times of a round, as shares of the model's own; their median is 1.
SPREAD = (1.0, 0.98, 1.02, 0.99, 1.01)

Ms = Callable[[int], float]


def measured(number: int, kind: Kind, tokens: int, ttft_ms: float) -> Measured:
    """A leg that counts."""
    leg = Leg(number, number // 8, kind, tokens)
    if kind is Kind.RECOMPUTE:
        return Measured(leg, Verdict.CLEAN, "", tokens, ttft_ms, 10.0, Rise(0.0, 0.0, 0.0, 0.0))
    rise = Rise(float(tokens * KV_BYTES), float(tokens), 0.0, tokens / 16)
    return Measured(leg, Verdict.MOVED, "", tokens, ttft_ms, 10.0, rise)


def bad(kind: Kind, verdict: Verdict, reason: str, tokens: int = 2048) -> Measured:
    """A leg that does not count."""
    return Measured(Leg(0, 0, kind, tokens), verdict, reason, tokens, 99.0, 10.0, Rise(0.0, 0.0, 0.0, 0.0))


def legs_of(recompute: Ms, pull: Ms, lengths: Sequence[int] = LENGTHS, rounds: int = 5) -> list[Measured]:
    """All legs of a run, spread around two curves."""
    made: list[Measured] = []
    for number in range(rounds):
        for kind, ms in ((Kind.RECOMPUTE, recompute), (Kind.PULL, pull)):
            made += [measured(len(made), kind, n, ms(n) * SPREAD[number % len(SPREAD)]) for n in lengths]
    return made


def legs_of_profile(name: str, lengths: Sequence[int] = LENGTHS) -> list[Measured]:
    """Of an embedded engine's model."""
    profile = PROFILES[name]
    return legs_of(profile.recompute_ms, profile.pull_ms, lengths)


def setting(**changes: object) -> Setting:
    fields: dict[str, object] = {
        "source": "http://a:8000",
        "consumer": "http://b:8000",
        "pair": Pair(FACTS, FACTS, "a:7777"),
        "model": "tiny",
        "block_tokens": 16,
        "legs": 40,
        "rounds": 5,
        "seed": 1,
        "headroom": 1.2,
        "load": 0,
        "load_answered": 0,
        "load_failed": 0,
        "ranks": 1,
        "token_ids": True,
    }
    return Setting(**{**fields, **changes})  # type: ignore[arg-type]


def report(measured: Sequence[Measured], cut: Outcome | None = None, gone: str | None = None) -> Report:
    """Of these legs, with one warm pull of 2,048 tokens in 200 ms."""
    warm = [one for one in measured if one.verdict is Verdict.MOVED][:1]
    first = (
        [Measured(Leg(-2, -1, Kind.PULL, 2048), Verdict.MOVED, "", 2048, 200.0, 10.0, warm[0].rise)]
        if warm
        else []
    )
    return reported(setting(), first, measured, cut, gone)
