"""Judges pulls between two peers by what was measured of them, and chooses which pairs are tried.

Rule: pure. What moved is what the consumer counted, or what its answer says; what cannot be told apart is
said to be so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

# So much of a prefix has to come for the pull to count as whole: the last block is always computed.
WHOLE = 0.9


class Verdict(StrEnum):
    """What became of a pair. UNCLEAR: its figures show nothing. UNTRIED: left out, for a reason."""

    MOVED = "moved"
    PARTLY = "partly"
    NOTHING = "nothing"
    REFUSED = "refused"
    HANGS = "hangs"
    UNREACHABLE = "unreachable"
    UNCLEAR = "unclear"
    UNTRIED = "-"


@dataclass(frozen=True, slots=True)
class Pull:
    """One pull as measured. prefix_tokens: that could come. cached_tokens: as the answer says.

    moved_bytes, moved_tokens: what the consumer counted from peers. given_bytes: what the source counted.
    looked_up: whether the source was asked for blocks. skipped: why a sidecar left the pull out. ttft_ms: to
    the first token. busy: of one that hung, whether a prompt without a directive does so too. usage: why that
    of the answer cannot be used. faults: the same of the consumer's counters; source_faults: of the source's.
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
    busy: bool = False
    failure: str | None = None
    usage: str | None = None
    faults: tuple[str, ...] = ()
    source_faults: tuple[str, ...] = ()

    @property
    def came_tokens(self) -> float | None:
        """Tokens that came from the source: counted, else as the answer says; None where nobody tells.

        More than could come is not told: others pull there as well.
        """
        if self.moved_bytes == 0:
            return 0.0
        told = [tokens for tokens in self.tokens if tokens <= self.prefix_tokens]
        return float(max(told)) if told else None

    @property
    def doubt(self) -> str | None:
        """Why these figures do not show what came; None when they do."""
        if self.usage:
            return self.usage
        if self.faults:
            return "counters unusable"
        if self.prefix_tokens < 1:
            return "not one block of the prompt could come, by the block size that is told"
        if self.moved_bytes is None and not self.tokens:
            return "neither cached tokens nor bytes from peers are told"
        if any(contradict(self) for contradict in _CONTRADICT):
            return f"figures contradict one another: {_who_says_what(self)}"
        tokens = max(self.tokens, default=0.0)
        if tokens > self.prefix_tokens and not self.came_tokens:
            return f"{tokens:,.0f} tokens are told where {self.prefix_tokens:,} could come"
        return None

    @property
    def tokens(self) -> Sequence[float]:
        """How many came, by each of the two that tell it."""
        return [tokens for tokens in (self.moved_tokens, self.cached_tokens) if tokens is not None]

    @property
    def something(self) -> bool:
        """Whether anything came, by anybody at the consumer."""
        return bool(self.moved_bytes) or any(self.tokens)


def _bytes_and_tokens(pull: Pull) -> bool:
    """One without the other, or a token in less than a byte."""
    moved_bytes = pull.moved_bytes
    if moved_bytes is None:
        return False
    return any(bool(moved_bytes) != bool(tokens) or moved_bytes < tokens for tokens in pull.tokens)


def _answer_and_counter(pull: Pull) -> bool:
    """Other numbers of tokens. More than could come is no number of this pull's, but of others' beside it."""
    fit = [tokens for tokens in pull.tokens if tokens <= pull.prefix_tokens]
    return bool(fit) and max(fit) - min(fit) > (1 - WHOLE) * pull.prefix_tokens


def _more_than_sent(pull: Pull) -> bool:
    """An answer tells of its own prompt only."""
    return (pull.cached_tokens or 0) * WHOLE > pull.prefix_tokens


def _out_of_nowhere(pull: Pull) -> bool:
    """Something came, and the source was neither asked for a block nor gave one."""
    return pull.something and pull.looked_up is False and not pull.given_bytes


def _got_lost(pull: Pull) -> bool:
    """The source was asked and gave blocks, and nothing came.

    Of one that was not asked, bytes are what it stored before: these it counts late among the given ones.
    """
    return bool(pull.given_bytes) and pull.looked_up is not False and not pull.something


_CONTRADICT = (_bytes_and_tokens, _answer_and_counter, _more_than_sent, _out_of_nowhere, _got_lost)


def _who_says_what(pull: Pull) -> str:
    """Every figure that is told, by who tells it."""
    asked = {True: "that it was asked for blocks", False: "that it was asked for none", None: None}
    told = {
        "the answer tells of": [_count(pull.cached_tokens, "cached tokens")],
        "the consumer counts": [
            _count(pull.moved_tokens, "tokens from peers"),
            _count(pull.moved_bytes, "bytes from peers"),
        ],
        "the source counts": [asked[pull.looked_up], _count(pull.given_bytes, "bytes given")],
    }
    return "; ".join(
        f"{who} {' and '.join(known)}"
        for who, said in told.items()
        if (known := [one for one in said if one is not None])
    )


def _count(number: float | None, of: str) -> str | None:
    return None if number is None else f"{number:,.0f} {of}"


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
        """What became of it: of two pulls the worse."""
        return self.verdict or (judged(self.shown) if self.shown else Verdict.UNTRIED)

    @property
    def shown(self) -> Pull | None:
        """The pull that this is of: the first, but for one after it that did not move as well."""
        worse = self.again is not None and judged(self.again) is not Verdict.MOVED
        return self.again if worse else self.first

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
    if pull.doubt:
        return Verdict.UNCLEAR
    came = pull.came_tokens
    if came is None:
        return Verdict.MOVED  # bytes did, and no more is told
    if came >= WHOLE * pull.prefix_tokens:
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
