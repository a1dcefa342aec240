"""One request's tokens with the KV held for them and the chained hashes of their blocks.

Rule: grows only at the end, by KV that was loaded or by KV computed from the weights.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as TokenIds
from hashlib import blake2b

from sidecar.lab.weights import Weights

HASH_BYTES = 16


def root_hash(hash_seed: str, salt: str = "") -> bytes:
    """Parent of every first block: vLLM's NONE_HASH from PYTHONHASHSEED, and the request's `cache_salt`."""
    return blake2b(f"{hash_seed}\0{salt}".encode(), digest_size=HASH_BYTES).digest()


def block_hashes(parent: bytes, tokens: TokenIds[int], block_tokens: int) -> list[bytes]:
    """Chained hashes of the full blocks of `tokens`, each over its parent's hash and its own tokens."""
    hashes: list[bytes] = []
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        block = array("I", tokens[start : start + block_tokens])
        parent = blake2b(parent + block.tobytes(), digest_size=HASH_BYTES).digest()
        hashes.append(parent)
    return hashes


class Sequence:
    """Tokens and their KV bytes, `weights.kv_bytes_per_token` for each."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._digest = blake2b()
        self.tokens: list[int] = []
        self.kv = bytearray()

    def load(self, tokens: TokenIds[int], kv: bytes) -> None:
        """Appends tokens whose KV came from a cache or a peer, right or wrong."""
        self.tokens += tokens
        self.kv += kv
        self._digest.update(kv)

    def compute(self, tokens: TokenIds[int]) -> None:
        """Appends tokens, computing their KV from what is held."""
        previous = bytes(self.kv[-self._weights.kv_bytes_per_token :])
        self.load(tokens, self._weights.kv(previous, tokens))

    def next_token(self, choice: int, *, may_end: bool) -> int:
        """The token that the model says next."""
        return self._weights.next_token(self._digest.digest(), choice, may_end=may_end)

    def kv_of(self, start: int, end: int) -> bytes:
        """KV bytes of the tokens from `start` up to `end`."""
        size = self._weights.kv_bytes_per_token
        return bytes(self.kv[start * size : end * size])
