"""Makes prompts that nobody has asked before.

Rule: acts (chance). Every leg has a prompt of its own, salted with the run, so that neither an earlier run
nor another leg has left a block of it anywhere.
"""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass

from sidecar.remote import Prompt, Refused, Remote

SPANS = (range(1000, 30_000), range(100, 400))
"""Token ids, widest first: special tokens stand at the ends of vocabularies, tiny models have a few hundred.
Wide, since experts and caches of real models behave otherwise on few and repeated tokens."""

_PROBE_TOKENS = 64
# A word of text is about two tokens; how many it really is tells the probe.
_PROBE_WORDS = 400
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WORD_LETTERS = 6


@dataclass(frozen=True, slots=True)
class Prompts:
    """span: of the ids; None: text, of which a word has `word_tokens` tokens."""

    salt: str
    span: range | None
    word_tokens: float = 1.0

    def make(self, number: int, tokens: int) -> Prompt:
        """The prompt of this number: so many ids, or a text of about so many tokens and not more."""
        chance = random.Random(f"{self.salt}:{number}")
        if self.span is not None:
            return chance.choices(self.span, k=tokens)
        # Words differ in their tokens: 3 % stay unused, so that the model's limit holds.
        words = max(1, int(tokens / self.word_tokens * 0.97))
        return _text(chance, words)


async def accepted(remote: Remote, model: str) -> Prompts:
    """Prompts of a kind that this engine takes. Raises NoAnswer, or Refused when it takes none."""
    salt = secrets.token_hex(8)
    for span in SPANS:
        try:
            prompts = Prompts(salt, span)
            await remote.complete(model, prompts.make(-1, _PROBE_TOKENS))
            return prompts
        except Refused as refused:
            if refused.status not in (400, 422):
                raise
    text = _text(random.Random(salt), _PROBE_WORDS)
    answered = await remote.complete(model, text)
    # A word has at least one token, whatever an engine counts.
    return Prompts(salt, None, max(1.0, answered.prompt_tokens / _PROBE_WORDS))


def _text(chance: random.Random, words: int) -> str:
    return " ".join("".join(chance.choices(_LETTERS, k=_WORD_LETTERS)) for _ in range(words))
