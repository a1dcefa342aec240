"""Says what pulls between pairs showed, with what explains it, and what to change.

Rule: pure; no two findings contradict each other: what one pair disproves is the cause of no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sidecar.doctor.findings import Finding, Severity
from sidecar.doctor.paint import size
from sidecar.doctor.pulls import Pair, Pull, Verdict, judged

# A sidecar sends a pull that hangs again after 10 s (--pull-rescue-after), in milliseconds less some; nothing
# else makes a prompt of this size take so long.
_RESCUED_MS = 8000.0
_RESTART = (
    "Start {consumer}'s engine again: after contact with a dead peer vLLM 0.32 hangs every pull; keep "
    "--source-guard on."
)


@dataclass(frozen=True, slots=True)
class Causes:
    """What explains that nothing moves between two peers.

    certain: checks each of which is enough. possible: what else differs. same_seed: blocks moved between the
    two, the other way or by way of others, so that their hash seeds agree. apart: who has another seed
    than whom, most likely, where one of the two has more on its side.
    """

    certain: Sequence[str] = ()
    possible: Sequence[str] = ()
    same_seed: bool = False
    apart: tuple[str, str] | None = None


def paired(pairs: Sequence[Pair], causes: Mapping[tuple[str, str], Causes]) -> Iterator[Finding]:
    """A finding per pair that was tried. causes: of each pair."""
    for pair in pairs:
        about = (pair.source, pair.consumer)
        known, verdict = causes.get(about, Causes()), pair.became
        if verdict is Verdict.MOVED:
            yield _seed_agrees(pair)
        elif verdict is Verdict.UNREACHABLE and known.certain:
            continue  # said already
        elif make := _FOUND.get(verdict):
            says, change = make(pair, known)
            yield Finding(_SEVERITY.get(verdict, Severity.ERROR), "pull", about, str(verdict), says, change)


def alike(pairs: Sequence[Pair]) -> Mapping[str, int]:
    """Peers by name, those with one number have one hash seed: blocks of one were of use to the other."""
    group: dict[str, int] = {}
    for pair in pairs:
        for name in (pair.source, pair.consumer):
            group.setdefault(name, len(group))
        if any(pull and judged(pull) in _FOUND_BLOCKS for pull in (pair.first, pair.again)):
            ours, theirs = group[pair.source], group[pair.consumer]
            group.update({name: ours for name, number in group.items() if number == theirs})
    return group


def apart(group: Mapping[str, int], pair: Pair) -> tuple[str, str] | None:
    """The few and the many, by name, if these two are of different groups; None where neither is larger."""
    ours, theirs = (
        [name for name, number in group.items() if number == group[one]]
        for one in (pair.source, pair.consumer)
    )
    few, many = sorted((ours, theirs), key=len)
    return None if len(few) == len(many) else (" and ".join(few), " and ".join(many))


_FOUND_BLOCKS = frozenset((Verdict.MOVED, Verdict.PARTLY))
_SEVERITY = {Verdict.PARTLY: Severity.WARNING, Verdict.UNCLEAR: Severity.WARNING}


def _pull(pair: Pair) -> Pull:
    """The pull that the verdict is of."""
    assert pair.shown is not None
    return pair.shown


def _seed_agrees(pair: Pair) -> Finding:
    pull = _pull(pair)
    if pull.came_tokens is None:
        came = f"{size(pull.moved_bytes or 0)} came, of how many tokens is not told"
    else:
        came = f"{pull.came_tokens:,.0f} of {pull.prefix_tokens:,} tokens came"
    says = f"{came}: hash seeds agree"
    return Finding(Severity.FINE, "hash seed", (pair.source, pair.consumer), "agrees", says)


def _partly(pair: Pair, _: Causes) -> tuple[str, str]:
    pull = _pull(pair)
    says = f"{pull.came_tokens:,.0f} of {pull.prefix_tokens:,} tokens came: the source kept only a part"
    return says, "Raise the source's cpu_bytes_to_use; look at its load and its evictions."


def _unclear(pair: Pair, _: Causes) -> tuple[str, str]:
    says = f"could not tell what {pair.consumer} got: {_pull(pair).doubt}"
    return says, (
        f"Look at the usage of {pair.consumer}'s answers and at the /metrics of both: each URL has to be of "
        "one engine, not of several; try again without traffic."
    )


def _zero(pair: Pair, causes: Causes) -> tuple[str, str]:
    pull = _pull(pair)
    if pull.skipped:
        return (
            f"the consumer's sidecar left the pull out: {pull.skipped}",
            "See sidecar explain for the reason.",
        )
    if pull.failure:
        return f"the request that pulls failed: {pull.failure}", "Look at the consumer's log."
    nothing = "0 tokens" if pull.moved_bytes is None else "0 bytes"
    if (pull.ttft_ms or 0) > _RESCUED_MS:
        says = (
            f"{nothing}, and the first token after {(pull.ttft_ms or 0) / 1000:.0f} s, as when a pull hangs"
        )
        return f"{says} and is rescued", _RESTART.format(consumer=pair.consumer)
    return _unexplained(f"{nothing}, {_HOW[pull.looked_up]}", causes)


def _unexplained(nothing: str, causes: Causes) -> tuple[str, str]:
    """What is left to be the cause."""
    if causes.certain:
        return f"{nothing}; causes: {', '.join(causes.certain)}", "Put these right first, then look again."
    differ = f"peers differ in {', '.join(causes.possible)}" if causes.possible else ""
    if causes.same_seed:
        says = (
            f"{nothing}{'; ' * bool(differ)}{differ}; their hash seeds agree, since blocks moved between them"
        )
        return f"{says} otherwise", f"{_LOGS} (lookup, handshake, connection to the source)."
    if differ:
        return f"{nothing}; {differ}, or their hash seeds do", f"Make these equal first; then {_SEEDS}"
    says = f"{nothing}, and all that peers tell is equal: their hash seeds differ, most likely"
    if causes.apart:
        few, many = causes.apart
        return f"{says}: that of {few} from that of {many}", _ODD_SEED.format(few=few, many=many)
    return says, _SEEDS[0].upper() + _SEEDS[1:]


_LOGS = "Look at both engines' logs of this time"
_THEN = (
    "then compare what is not told above, and the engines' logs (hash seed, block_len, config_fingerprint "
    "mismatch)."
)
_SEEDS = f"start all peers with one PYTHONHASHSEED; {_THEN}"
_ODD_SEED = f"Start {{few}} with the PYTHONHASHSEED of {{many}}; {_THEN}"

_HOW = {
    True: "the source looked blocks up and had none",
    False: "the source was never asked for a block, as when a handshake is refused",
    None: "whether the source was asked is not told",
}


def _hangs(pair: Pair, _: Causes) -> tuple[str, str]:
    says = f"no answer within {_pull(pair).hung_s:g} s"
    if _pull(pair).busy:
        says = f"{says}, nor to a prompt without a directive: {pair.consumer} is busy, or hangs altogether"
        return says, "Look at its load and its log; give it longer: --timeout."
    says = f"{says}, so {pair.consumer} was told of no further source"
    return says, _RESTART.format(consumer=pair.consumer)


def _unreachable(pair: Pair, _: Causes) -> tuple[str, str]:
    return pair.why, f"See the findings of {pair.source} and {pair.consumer}, and whether both live."


_FOUND = {
    Verdict.PARTLY: _partly,
    Verdict.NOTHING: _zero,
    Verdict.REFUSED: _zero,
    Verdict.HANGS: _hangs,
    Verdict.UNREACHABLE: _unreachable,
    Verdict.UNCLEAR: _unclear,
}
