"""How a run ended: the exit code, the sentence, and what is likely behind it.

Rule: pure; one table. Exit codes are promised to scripts: none is ever given another meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from sidecar.calibrate.crossover import Crossover, Shape
from sidecar.calibrate.plan import Kind
from sidecar.calibrate.verdicts import Measured, Verdict
from sidecar.remote.facts import Facts

MOST_ASIDE = 1 / 3
"""Of all controls, of all pulls, and of all legs whose counters cannot be used. A stray one is set aside;
more of them mean that the rest is not to be trusted either: others use the pair, or it pulls now and then."""


class Outcome(IntEnum):
    """The exit code."""

    CROSSES = 0
    UNREACHABLE = 1
    WRONG_USAGE = 2
    NO_PULL = 3
    CONTAMINATED = 4
    PULLS_WIN = 5
    COMPUTING_WINS = 6
    UNCLEAR = 7
    DECLINED = 8
    UNUSABLE = 9
    BROKEN = 70
    UNWRITTEN = 74
    INTERRUPTED = 130


MEANINGS = {
    Outcome.CROSSES: "a crossover was found, and a threshold is recommended",
    Outcome.UNREACHABLE: "an engine does not answer, or not as engines do, or refuses the requests",
    Outcome.WRONG_USAGE: "a flag is wrong, or something is missing here",
    Outcome.NO_PULL: "no pull moved its prefix, or more than a third of them did not",
    Outcome.CONTAMINATED: "too many legs were contaminated: others use the pair",
    Outcome.PULLS_WIN: "no crossover: pulls were faster at every length",
    Outcome.COMPUTING_WINS: "no crossover: computing was faster, the longest length included",
    Outcome.UNCLEAR: "too few legs count, or their spread is too wide, to tell",
    Outcome.DECLINED: "the question was answered with no; nothing was sent",
    Outcome.UNUSABLE: "counters of an engine cannot be used: missing, no numbers, or they fell meanwhile",
    Outcome.BROKEN: "a fault of the command's own",
    Outcome.UNWRITTEN: "the report could not be written, or not all of it",
    Outcome.INTERRUPTED: "interrupted; what was measured until then was shown",
}

_SHAPES = {
    Shape.CROSSES: Outcome.CROSSES,
    Shape.PULLS_WIN: Outcome.PULLS_WIN,
    Shape.COMPUTING_WINS: Outcome.COMPUTING_WINS,
    Shape.UNCLEAR: Outcome.UNCLEAR,
}


@dataclass(frozen=True, slots=True)
class Pair:
    """What is known of the two engines. target: whom the consumer is told to pull from, `host:port`."""

    source: Facts
    consumer: Facts
    target: str


def outcome(measured: Sequence[Measured], warm: Sequence[Measured], found: Crossover | None) -> Outcome:
    """What a run that was not cut short comes to."""
    legs = (*warm, *measured)
    unusable = sum(one.verdict is Verdict.UNUSABLE for one in legs)
    if unusable > len(legs) * MOST_ASIDE or (unusable and _moves_nothing(legs)):
        return Outcome.UNUSABLE
    if _moves_nothing(legs):
        return Outcome.NO_PULL
    if contaminated(measured):
        return Outcome.CONTAMINATED
    # Warm pulls may miss; they only stand for the others where there are no others.
    if spoiled := _spoiled(_pulls(measured) or _pulls(warm)):
        return spoiled
    return _SHAPES[found.shape] if found else Outcome.UNCLEAR


def _pulls(legs: Sequence[Measured]) -> list[Measured]:
    return [one for one in legs if one.leg.kind is Kind.PULL]


def _moves_nothing(legs: Sequence[Measured]) -> bool:
    """Whether there is a rank none of whose pulls moved, or no rank at all."""
    tried = {one.leg.rank for one in _pulls(legs)}
    moved = {one.leg.rank for one in _pulls(legs) if one.verdict in (Verdict.MOVED, Verdict.CONTAMINATED)}
    return not moved or tried != moved


def contaminated(measured: Sequence[Measured]) -> bool:
    """Whether so many controls were contaminated that the others are not to be trusted either."""
    controls = [one for one in measured if one.leg.kind is Kind.RECOMPUTE]
    bad = sum(one.verdict is Verdict.CONTAMINATED for one in controls)
    return bad > len(controls) * MOST_ASIDE


def unmoved(measured: Sequence[Measured]) -> tuple[int, int]:
    """How many pulls did not move about their prefix, failed ones too, and of how many."""
    others = (Verdict.MOVED, Verdict.CONTAMINATED, Verdict.UNUSABLE)
    pulls = _pulls(measured)
    return sum(one.verdict not in others for one in pulls), len(pulls)


def _spoiled(pulls: Sequence[Measured]) -> Outcome | None:
    """What most of the pulls that do not count have in common, where there are too many of them."""
    counts = {
        Outcome.NO_PULL: unmoved(pulls)[0],
        Outcome.CONTAMINATED: sum(one.verdict is Verdict.CONTAMINATED for one in pulls),
        Outcome.UNUSABLE: sum(one.verdict is Verdict.UNUSABLE for one in pulls),
    }
    if sum(counts.values()) <= len(pulls) * MOST_ASIDE:
        return None
    return max(counts, key=lambda ended: counts[ended])


def causes(ended: Outcome, pair: Pair, measured: Sequence[Measured]) -> list[str]:
    """What is likely behind an outcome that is not the hoped-for one, the likeliest first."""
    match ended:
        case Outcome.NO_PULL:
            return [*differences(pair), *_of_no_pull(pair, measured)]
        case Outcome.CONTAMINATED:
            return list(_OF_CONTAMINATION)
        case Outcome.PULLS_WIN:
            return ["shorter prefixes may pay too: measure them, for instance --lengths=256,512,1024,2048"]
        case Outcome.COMPUTING_WINS:
            return list(_OF_SLOW_PULLS)
        case Outcome.UNUSABLE:
            return list(_OF_UNUSABLE)
        case Outcome.UNCLEAR:
            return [*_of_stray_pulls(measured), *_OF_SPREAD]
        case _:
            return []


def differences(pair: Pair) -> list[str]:
    """In what the engines differ by their own words; peers that differ in some of it refuse each other."""
    said = [("vLLM's version", pair.source.version, pair.consumer.version)]
    labels = {
        "block_size": "the block size",
        "cache_dtype": "the KV dtype",
        "prefix_caching_hash_algo": "the hash algorithm",
    }
    said += [
        (name, pair.source.cache.get(label), pair.consumer.cache.get(label)) for label, name in labels.items()
    ]
    return [
        f"{name} differs: {a} on the source, {b} on the consumer" for name, a, b in said if a and b and a != b
    ]


def _of_no_pull(pair: Pair, measured: Sequence[Measured]) -> list[str]:
    found = [
        *_of_stray_pulls(measured),
        "PYTHONHASHSEED, --block-size, KV dtype, model revision or --tensor-parallel-size differ between the"
        " engines: a peer that differs is refused without a word (their logs say which)",
        *(_OF_SIDECARS if pair.consumer.through_sidecar else ()),
        f"the consumer cannot reach {pair.target}: the `host` of the source's P2P tier must be the"
        " pod's own address, and the port open between pods",
        "the source has no P2P tier (OffloadingConnector with a secondary tier of type p2p), or one too small"
        " to keep a prefix until it is asked for",
        "the consumer's P2P plane is stalled: it had contact with a peer that died (vLLM 0.32); restart it",
    ]
    if any(one.verdict is Verdict.HAD_IT for one in measured):
        found.insert(0, "the consumer had what only the source was sent: both URLs lead to one engine")
    if any(one.rise.given_chunks for one in measured if one.verdict is Verdict.NOTHING):
        found.insert(0, "the source found the blocks, and none arrived: the transfer itself fails")
    return found


def _of_stray_pulls(legs: Sequence[Measured]) -> Sequence[str]:
    """Of a pair some of whose pulls move, and others do not. The warm ones may miss."""
    some, of = unmoved([one for one in legs if one.leg.round >= 0])
    return _OF_STRAY_PULLS if 0 < some < of else ()


_OF_SIDECARS = (
    "the consumer's sidecar does not pull: --kv-connector (offloading, or nixlv2 with --enable-p2p-pull),"
    " --enable-ssrf-protection, the source guard; its log has the `reason`",
)
_OF_STRAY_PULLS = (
    "some pulls move and others do not: one of the URLs is of several engines, of which not all can pull"
    " (give the pods' own URLs)",
    "some pulls move and others do not: the source's P2P tier is too small to keep a prefix until it is asked"
    " for, or busy with other requests' prefixes",
)
_OF_SPREAD = ("more rounds (--rounds), a quieter pair of engines, or lengths further apart (--lengths)",)
_OF_CONTAMINATION = (
    "other clients use the pair: take both engines out of the pool while they are measured",
    "one of the URLs is a gateway whose endpoint picker names sources itself: give the pods' own URLs",
)
_OF_UNUSABLE = (
    "an engine was started again meanwhile: its log says why",
    "one of the URLs is of several engines, which take turns in answering: give the pods' own URLs",
)
_OF_SLOW_PULLS = (
    "the path between the engines is slow for this model's KV: TCP where there should be RDMA (UCX_TLS), a"
    " busy link, or pods in different zones",
    "the model computes prefixes so fast that pulling them never pays: leave p2p-source-producer out",
    "longer prefixes may pay: --lengths",
)
