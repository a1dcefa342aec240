"""Takes credentials that were sent out of what came back: a peer, or what stands before it, may repeat them.

Rule: pure; bytes as they arrived, before anything is cut or escaped, since a part of a secret is one too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from sidecar.headers import SECRETS

MASK = b"***"
# What is this long is no word that stands in a sentence by chance, and may be a token.
_LEAST_CHARACTERS = 12


def credentials(headers: Mapping[str, str]) -> tuple[bytes, ...]:
    """What is to be masked of these headers, the longest first: values, and what follows a scheme in them.

    Of headers that are known to hold credentials (`headers.SECRETS`) all, of others what is long enough.
    """
    found: set[str] = set()
    for name, value in headers.items():
        parts = {value, value.partition(" ")[2].strip(), *value.replace(";", " ").replace(",", " ").split()}
        known = name.lower().encode() in SECRETS
        found |= {value, value.partition(" ")[2].strip()} - {""} if known else set()
        found |= {part for part in parts if len(part) >= _LEAST_CHARACTERS}
    found |= {json.dumps(secret)[1:-1] for secret in found}
    return tuple(sorted((secret.encode("latin-1") for secret in found), key=len, reverse=True))


def masked(content: bytes, secrets: Iterable[bytes]) -> bytes:
    """The same without any of them."""
    for secret in secrets:
        content = content.replace(secret, MASK)
    return content
