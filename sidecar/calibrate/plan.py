"""Which legs are run: lengths that the engines can take, and the order of all legs.

Rule: pure; chance comes in as a function, so that a seed gives the same order again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

DEFAULT_LENGTHS = (2048, 4096, 8192, 16384, 32768, 49152)
"""Tokens; the lengths of the published tables of P2P pulls."""

TAIL_TOKENS = 1
"""Behind each prefix: an engine always computes the last token of a prompt itself."""

ANSWER_TOKENS = 1
"""Each answer ends with its first token: nothing but the time to it is measured."""


STORED_WITHIN_S = 10.0
"""A store follows the answer: seen within a second on vLLM 0.32, 10 s on busy cores."""

STORE_LAG_S = 1.0
"""Under load bytes that are stored may be another request's: so long after the answer the leg's are too."""

QUIET_S = 2.0
"""Of a pull that moved nothing there is nothing to wait for: so long after its answer it is sure."""


class Kind(StrEnum):
    """What the consumer does with a prompt that the source has computed."""

    RECOMPUTE = "recompute"
    PULL = "pull"


@dataclass(frozen=True, slots=True)
class Leg:
    """One pair of requests: the source computes a prompt, then the consumer is asked for the same.

    number: names its prompt, which no other leg has. round: 0 for the first. rank: of both engines.
    """

    number: int
    round: int
    kind: Kind
    prefix_tokens: int
    rank: int = 0


class NoLength(ValueError):
    """What was asked for cannot be run, or not to a verdict; the message says why and names the flag."""


FEWEST_LENGTHS = 2
"""Of a line."""
FEWEST_POINTS = 3
"""Of a line with its spread: one more than it has coefficients."""


def check_enough(lengths: Collection[int], rounds: int) -> None:
    """Raises NoLength for a run that could never end in a verdict, however it goes."""
    if len(lengths) < FEWEST_LENGTHS:
        raise NoLength(f"--lengths: {_only(lengths)}; no curve goes through less than {FEWEST_LENGTHS}")
    if len(lengths) * rounds < FEWEST_POINTS:
        raise NoLength(
            f"--rounds: {rounds} of {len(lengths)} lengths gives {len(lengths) * rounds} points, and a curve"
            f" with its spread needs {FEWEST_POINTS}: say --rounds=2, or more lengths"
        )


def _only(lengths: Collection[int]) -> str:
    return f"only {', '.join(f'{length:,}' for length in lengths)} tokens"


def usable(lengths: Iterable[int], block_tokens: int, limit_tokens: int | None) -> tuple[int, ...]:
    """The lengths as multiples of the block size, what is over the model's limit cut to it, each once.

    Raises NoLength where none is left, or only one.
    """
    most = max(lengths := tuple(lengths))
    if limit_tokens is not None:
        most = min(most, max(0, limit_tokens - TAIL_TOKENS - ANSWER_TOKENS))
    rounded = {min(length, most) // block_tokens * block_tokens for length in lengths} - {0}
    if not rounded:
        raise NoLength(
            f"--lengths: none has a whole block of {block_tokens} tokens and fits into the model's limit"
        )
    if len(rounded) < FEWEST_LENGTHS:
        limit = f", cut to the model's limit of {limit_tokens:,}" if limit_tokens else ""
        raise NoLength(
            f"--lengths: {_only(rounded)} are left in whole blocks of {block_tokens}{limit}; no curve goes"
            f" through less than {FEWEST_LENGTHS}"
        )
    return tuple(sorted(rounded))


def ordered(lengths: Sequence[int], rounds: int, ranks: int, pick: Callable[[int], int]) -> list[Leg]:
    """All legs: in each round both kinds at every length, once, in random order; ranks take turns.

    `pick(n)` gives a number from 0 to n - 1. A run that is ended early has whole rounds behind it.
    """
    legs: list[Leg] = []
    for number_of_round in range(rounds):
        kinds = [(length, kind) for length in lengths for kind in Kind]
        for length, kind in _shuffled(kinds, pick):
            legs.append(Leg(len(legs), number_of_round, kind, length, len(legs) % ranks))
    return legs


def _shuffled(items: Sequence[tuple[int, Kind]], pick: Callable[[int], int]) -> list[tuple[int, Kind]]:
    """Fisher and Yates'."""
    left, order = list(items), []
    while left:
        order.append(left.pop(pick(len(left))))
    return order
