"""Judges pulls between two peers by what was measured of them, and chooses which pairs are tried.

Rule: pure. What moved is what the consumer counted, or what its answer says; what cannot be told apart is
said to be so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sidecar.doctor.findings import Finding, Severity

# A sidecar sends a pull that hangs again after 10 s (--pull-rescue-after), in milliseconds less some; nothing
# else makes a prompt of this size take so long.
_RESCUED_MS = 8000.0
_RESTART = (
    "Start {consumer}'s engine again: after contact with a dead peer vLLM 0.32 hangs every pull; keep "
    "--source-guard on."
)
# So much of a prefix has to come for the pull to count as whole: the last block is always computed.
_WHOLE = 0.9


class Verdict(StrEnum):
    """What became of a pair. UNTRIED: left out, for the reason beside it."""

    MOVED = "moved"
    PARTLY = "partly"
    NOTHING = "nothing"
    REFUSED = "refused"
    HANGS = "hangs"
    UNREACHABLE = "unreachable"
    UNTRIED = "-"


@dataclass(frozen=True, slots=True)
class Pull:
    """One pull as measured. prefix_tokens: that could come. cached_tokens: as the answer says.

    moved_bytes, moved_tokens: what the consumer counted from peers. given_bytes: what the source counted.
    looked_up: whether the source was asked for blocks. skipped: why a sidecar left the pull out. ttft_ms: to
    the first token.
    """

    prefix_tokens: int
    cached_tokens: int | None = None
    moved_bytes: float | None = None
    moved_tokens: float | None = None
    given_bytes: float | None = None
    looked_up: bool | None = None
    directed: str | None = None
    skipped: str | None = None
    ttft_ms: float | None = None
    hung_s: float | None = None
    failure: str | None = None

    @property
    def came_tokens(self) -> float | None:
        """Tokens that came from the source: counted, else as the answer says; None where nobody tells."""
        if self.moved_bytes == 0:
            return 0.0
        told = [tokens for tokens in (self.moved_tokens, self.cached_tokens) if tokens is not None]
        return float(max(told)) if told else None


@dataclass(frozen=True, slots=True)
class Pair:
    """Two peers by name, and what their pulls showed. why: a pair was not tried, or what was in the way.

    first: the pull that opened the session. again: the one after it, whose time is the path's.
    """

    source: str
    consumer: str
    why: str = ""
    verdict: Verdict | None = None
    first: Pull | None = None
    again: Pull | None = None

    @property
    def became(self) -> Verdict:
        """What became of it."""
        return self.verdict or (judged(self.first) if self.first else Verdict.UNTRIED)

    @property
    def rate_bytes_s(self) -> float | None:
        """Bytes of the second pull over its time to the first token: the least that the path carries."""
        pull = self.again
        return (
            pull.moved_bytes / (pull.ttft_ms / 1000) if pull and pull.moved_bytes and pull.ttft_ms else None
        )


def judged(pull: Pull) -> Verdict:
    """What one pull shows."""
    if pull.hung_s is not None:
        return Verdict.HANGS
    if pull.failure or pull.skipped:
        return Verdict.REFUSED
    came = pull.came_tokens
    if came is None:
        return Verdict.MOVED if pull.moved_bytes else Verdict.NOTHING
    if came >= _WHOLE * pull.prefix_tokens:
        return Verdict.MOVED
    if came > 0:
        return Verdict.PARTLY
    return Verdict.REFUSED if pull.looked_up is False else Verdict.NOTHING


def chosen(names: Sequence[str], most: int) -> tuple[list[tuple[str, str]], int]:
    """At most so many pairs (source, consumer), and how many are left out.

    In rounds, each of which has every peer once as source and once as consumer, so that a few pairs meet all.
    """
    count = len(names)
    pairs = [(names[at], names[(at + step) % count]) for step in range(1, count) for at in range(count)]
    return pairs[:most], max(0, len(pairs) - most)


def paired(pairs: Sequence[Pair], causes: Mapping[tuple[str, str], Sequence[str]]) -> Iterator[Finding]:
    """A finding per pair that was tried. causes: of a pair, the checks that already explain it."""
    for pair in pairs:
        about = (pair.source, pair.consumer)
        verdict = pair.became
        if verdict in _FINE:
            yield _seed_agrees(pair)
        elif verdict is Verdict.UNREACHABLE and causes.get(about):
            continue  # said already
        elif make := _FOUND.get(verdict):
            says, change = make(pair, causes.get(about, ()))
            yield Finding(_SEVERITY.get(verdict, Severity.ERROR), "pull", about, str(verdict), says, change)


_FINE = frozenset((Verdict.MOVED,))
_SEVERITY = {Verdict.PARTLY: Severity.WARNING, Verdict.UNTRIED: Severity.NOTE}


def _seed_agrees(pair: Pair) -> Finding:
    pull = pair.first
    assert pull is not None
    says = f"{pull.came_tokens or 0:,.0f} of {pull.prefix_tokens:,} tokens came: hash seeds agree"
    return Finding(Severity.FINE, "hash seed", (pair.source, pair.consumer), "agrees", says)


def _partly(pair: Pair, _: Sequence[str]) -> tuple[str, str]:
    pull = pair.first
    assert pull is not None
    says = f"{pull.came_tokens:,.0f} of {pull.prefix_tokens:,} tokens came: the source kept only a part"
    return says, "Raise the source's cpu_bytes_to_use; look at its load and its evictions."


def _zero(pair: Pair, causes: Sequence[str]) -> tuple[str, str]:
    pull = pair.first
    assert pull is not None
    if pull.skipped:
        return (
            f"the consumer's sidecar left the pull out: {pull.skipped}",
            "See sidecar explain for the reason.",
        )
    if pull.failure:
        return f"the request that pulls failed: {pull.failure}", "Look at the consumer's log."
    if (pull.ttft_ms or 0) > _RESCUED_MS:
        says = f"0 bytes, and the first token after {(pull.ttft_ms or 0) / 1000:.0f} s, as when a pull hangs"
        return f"{says} and is rescued", _RESTART.format(consumer=pair.consumer)
    how = _HOW[pull.looked_up]
    if causes:
        return f"0 bytes, {how}; causes: {', '.join(causes)}", "Put these right first, then look again."
    says = f"0 bytes, {how}, and all that peers tell is equal: their hash seeds differ, most likely"
    return says, (
        "Start all peers with one PYTHONHASHSEED; then compare what is not told above, and the engines' logs "
        "(hash seed, block_len, config_fingerprint mismatch)."
    )


_HOW = {
    True: "the source looked blocks up and had none",
    False: "the source was never asked for a block, as when a handshake is refused",
    None: "whether the source was asked is not told",
}


def _hangs(pair: Pair, _: Sequence[str]) -> tuple[str, str]:
    pull = pair.first
    assert pull is not None
    says = f"no answer within {pull.hung_s:g} s, so {pair.consumer} was told of no further source"
    return says, _RESTART.format(consumer=pair.consumer)


def _unreachable(pair: Pair, _: Sequence[str]) -> tuple[str, str]:
    return pair.why, f"See the findings of {pair.source} and {pair.consumer}."


_FOUND = {
    Verdict.PARTLY: _partly,
    Verdict.NOTHING: _zero,
    Verdict.REFUSED: _zero,
    Verdict.HANGS: _hangs,
    Verdict.UNREACHABLE: _unreachable,
}
