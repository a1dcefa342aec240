"""A deterministic tokenizer: text to token ids, and the words that an engine can say back to text.

Rule: pure and fixed; an id depends on the piece of at most 4 bytes and on nothing else.

Text is cut into pieces (up to three letters or digits with the space before them, or up to four other bytes),
and a piece's id is its CRC-32 folded into the vocabulary: about 4 bytes per token, as real tokenizers have.
Engines speak only in syllables with a leading space; a text made of them is cut back into the same ids, so a
conversation's next turn finds the blocks of its own last answer.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable

SPECIAL_TOKENS = ("<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>")
END_OF_SEQUENCE = SPECIAL_TOKENS.index("</s>")
TURN_START = SPECIAL_TOKENS.index("<|im_start|>")
TURN_END = SPECIAL_TOKENS.index("<|im_end|>")

VOCABULARY_TOKENS = 1 << 17
"""Ids a client may send; large enough that two pieces rarely share one."""

MEDIA_IDS = 1 << 20
"""Ids after the vocabulary, one per image, audio or video content; never sent by clients."""

_PIECE = re.compile(rb" ?[A-Za-z0-9]{1,3}|[^A-Za-z0-9 ]{1,4}| ")
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


def _piece_id(piece: bytes) -> int:
    return len(SPECIAL_TOKENS) + zlib.crc32(piece) % (VOCABULARY_TOKENS - len(SPECIAL_TOKENS))


def encode(text: str) -> list[int]:
    """Token ids of a text; lone surrogates, which JSON strings may hold, are pieces like any other."""
    crc32, base = zlib.crc32, len(SPECIAL_TOKENS)
    space = VOCABULARY_TOKENS - base
    return [base + crc32(piece) % space for piece in _PIECE.findall(text.encode("utf-8", "surrogatepass"))]


def encode_media(part: object) -> int:
    """The one token id that stands for an image, audio or video content part."""
    canonical = json.dumps(part, sort_keys=True, separators=(",", ":")).encode()
    return VOCABULARY_TOKENS + zlib.crc32(canonical) % MEDIA_IDS


def _spoken_pieces() -> dict[int, str]:
    syllables = (f" {a}{b}{c}" for a in _CONSONANTS for b in _VOWELS for c in ("", *_CONSONANTS))
    pieces: dict[int, str] = {}
    for syllable in syllables:
        pieces.setdefault(_piece_id(syllable.encode()), syllable)
    return pieces


_SPOKEN = _spoken_pieces()
SPOKEN_IDS = tuple(_SPOKEN)
"""Ids that an engine may generate, besides the end of sequence."""


def decode(ids: Iterable[int]) -> str:
    """Text of generated ids; special tokens are silent, ids that no engine generates become U+FFFD."""
    return "".join(
        "" if i < len(SPECIAL_TOKENS) else _SPOKEN.get(i, "\N{REPLACEMENT CHARACTER}") for i in ids
    )
