"""Names the word somebody probably meant.

Rule: a suggestion is appended to a refusal and never acted upon.
"""

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], *, prefix: str = "") -> str:
    """Return ``", did you mean <prefix><known word>?"``, or ``""`` when no known word is near."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f", did you mean {prefix}{close[0]}?" if close else ""
