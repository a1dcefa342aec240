"""What a diagnosis is asked to do, and the prompts that it asks with.

Rule: plain values; prompts are fresh, so that no cache knows them from before.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.doctor.told import Peer
from sidecar.remote.client import Trust
from sidecar.remote.prompts import Prompt

# Ids that every vocabulary has, past the special tokens that stand first in most.
_IDS = range(10, 400)
_LEAST_BLOCKS = 4
# Blocks of models that also keep states are some thousand tokens long; more than this is no engine's.
_MOST_BLOCK_TOKENS = 65536
# A block of the kind that most engines use, for those that do not tell theirs.
_USUAL_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Order:
    """wanted_tokens: of each prompt, made to fit blocks. timeout_s: for one answer."""

    peers: tuple[Peer, ...]
    trust: Trust
    wanted_tokens: int
    most_pairs: int
    timeout_s: float
    verify: bool


@dataclass(frozen=True, slots=True)
class Fresh:
    """One prompt, in both forms."""

    ids: tuple[int, ...]

    @classmethod
    def of(cls, tokens: int) -> Fresh:
        """One that nobody has seen."""
        return cls(tuple(random.choices(_IDS, k=tokens)))

    def shuffled(self) -> Fresh:
        """One that nobody has seen either, and that is as long in words and in tokens of them."""
        return Fresh(tuple(random.sample(self.ids, len(self.ids))))

    def form(self, *, as_text: bool) -> Prompt:
        """Token ids, or words for an engine that takes no ids."""
        return " ".join(f"w{one}" for one in self.ids) if as_text else self.ids


def fitting(wanted_tokens: int, blocks: Sequence[int | None], limits: Sequence[int | None]) -> int:
    """Tokens of a prompt that fills whole blocks of every peer and one token more, with room to answer."""
    block = max((size for size in blocks if size and size <= _MOST_BLOCK_TOKENS), default=_USUAL_BLOCK_TOKENS)
    room = min((limit for limit in limits if limit), default=wanted_tokens * 4)
    whole = max(_LEAST_BLOCKS, min(wanted_tokens, room // 2) // block)
    return whole * block + 1
