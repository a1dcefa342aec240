"""The stand-in for a model's weights: KV bytes from tokens, and the next token from KV bytes.

Rule: pure; KV of a token depends on the token and on the KV before it, the next token depends on every KV
byte held. So KV that was pulled behaves as KV that was computed, and wrong KV makes wrong text, as in a real
model.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from sidecar.lab.tokens import END_OF_SEQUENCE, SPOKEN_IDS

SILENT_TOKENS = 32
"""An answer never ends by itself before so many tokens, so that short limits are reached exactly."""

END_ODDS = 64
"""After that, one token in so many is the end of the sequence."""

_DIGEST_BYTES = 64


class Weights:
    """Weights of one seed; `kv_bytes_per_token` bytes of KV per token."""

    def __init__(self, seed: str, kv_bytes_per_token: int) -> None:
        self.kv_bytes_per_token = kv_bytes_per_token
        self._keyed = blake2b(
            key=blake2b(seed.encode()).digest(), digest_size=min(_DIGEST_BYTES, kv_bytes_per_token)
        )

    def kv(self, previous: bytes, tokens: Iterable[int]) -> bytes:
        """KV bytes of tokens that follow one whose KV was `previous` (empty at the start)."""
        repeats = -(-self.kv_bytes_per_token // _DIGEST_BYTES)
        size, keyed = self.kv_bytes_per_token, self._keyed
        made = bytearray()
        for token in tokens:
            state = keyed.copy()
            state.update(previous)
            state.update(token.to_bytes(4, "big"))
            previous = (state.digest() * repeats)[:size]
            made += previous
        return bytes(made)

    def next_token(self, context_digest: bytes, choice: int, *, may_end: bool) -> int:
        """The token after a context in its choice-th answer; `may_end`: it may be the end of sequence."""
        roll = int.from_bytes(
            blake2b(context_digest + choice.to_bytes(4, "big"), digest_size=8).digest(), "big"
        )
        if may_end and roll % END_ODDS == 0:
            return END_OF_SEQUENCE
        return SPOKEN_IDS[(roll // END_ODDS) % len(SPOKEN_IDS)]
